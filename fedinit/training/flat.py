"""A module's parameters and gradients as one flat vector each."""

from __future__ import annotations

import contextlib
import ctypes
from collections import Counter
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from fedinit.training.models import Conv


class FlatModel:
    """A module that computes at any flat vector of its d parameters, without copying it.

    The module's parameters are views into the vector it was last asked about; their order is that of `module.parameters()`, and within a
    parameter that of its memory (a weight in channels-last format stays in it).

    compiled    forward and backward through torch.compile (equal to rounding; the first batches of each size are slow)
    small_maps  compute the convolutions of small maps as matrix products (`models.Conv`) where that is faster: on the CPU, without autocast
    """

    def __init__(self, module: nn.Module, autocast: torch.dtype | None = None, *, compiled: bool = False, small_maps: bool = True):
        self.module, self.autocast = module, autocast
        self._forward = torch.compile(module) if compiled else module
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.sizes = [p.numel() for p in self.parameters]
        self.strides = [p.stride() if _dense(p) else torch.empty(p.shape).stride() for p in self.parameters]
        self.initial = self.parameters[0].detach().new_empty(sum(self.sizes))
        for view, parameter in zip(self._views(self.initial), self.parameters, strict=True):
            view.copy_(parameter.detach())
        self._gradient = torch.zeros_like(self.initial)
        self._written = self._gradient._version
        slots = dict(zip(self.parameters, self._views(self._gradient), strict=True))
        small_maps = small_maps and not compiled and autocast is None and self.initial.device.type == "cpu"
        self._convs = [m for m in module.modules() if isinstance(m, Conv)]
        owners = Counter(conv.weight for conv in self._convs)
        for conv in self._convs:  # these write their gradients into the flat one themselves, unless two share a weight
            conv.slot = slots.get(conv.weight) if small_maps and conv.small and owners[conv.weight] == 1 else None
        self._slots = list(slots.values())
        self._unmet = [tap for conv in self._convs if conv.slot is not None for tap in conv.unmet()]
        self._bound: torch.Tensor | None = None

    def __len__(self) -> int:
        return self.initial.numel()

    def _views(self, vector: torch.Tensor) -> list[torch.Tensor]:
        pieces = zip(vector.split(self.sizes), self.parameters, self.strides, strict=True)
        return [piece.as_strided(parameter.shape, stride) for piece, parameter, stride in pieces]

    def bind(self, vector: torch.Tensor) -> nn.Module:
        """The module with `vector` (d,) as its parameters; a later change of the vector changes the module."""
        if vector is not self._bound:
            for parameter, view in zip(self.parameters, self._views(vector), strict=True):
                parameter.data = view
            self._bound = vector
        return self.module

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for conv in self._convs:
            conv.taken = False
        if self.autocast is None:
            return F.cross_entropy(self._forward(x), y)
        with torch.autocast(x.device.type, self.autocast):
            logits = self._forward(x)
        return F.cross_entropy(logits.float(), y)

    def gradient_on(self, x: torch.Tensor, y: torch.Tensor, losses: list) -> Callable[[torch.Tensor], torch.Tensor]:
        """The function v → gradient at v of the mean cross-entropy on one mini-batch, in one buffer that the next call overwrites.

        The loss of the first call is appended to `losses` (a 0-d tensor): SAM's second one is at another point.
        """
        first = True

        def gradient(vector: torch.Tensor) -> torch.Tensor:
            nonlocal first
            self.bind(vector)
            loss = self.loss(x, y)
            if self._gradient._version != self._written:  # a method has written into it: where no gradient goes there must be zeros again
                for tap in self._unmet:
                    tap.zero_()
            grads = torch.autograd.grad(loss, self.parameters, allow_unused=True)
            if first:
                losses.append(loss.detach())
                first = False
            for slot, grad in zip(self._slots, grads, strict=True):
                if grad is None:
                    slot.zero_()
            used = [(s, g) for s, g in zip(self._slots, grads, strict=True) if g is not None and g.data_ptr() != s.data_ptr()]
            torch._foreach_copy_([s for s, _ in used], [g for _, g in used])
            self._written = self._gradient._version
            return self._gradient

        return gradient


def _dense(parameter: torch.Tensor) -> bool:
    """Whether the parameter fills its memory without gaps or overlaps, in some order of its axes."""
    order = sorted(range(parameter.dim()), key=parameter.stride, reverse=True)
    return parameter.detach().permute(order).is_contiguous()


def keep_memory() -> None:
    """Have glibc keep freed memory: by default it hands large buffers back to the kernel at once, and each new one costs page faults."""
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-3, 2**31 - 1)  # M_MMAP_THRESHOLD
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
