"""A module's parameters and gradients as one flat vector each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class FlatModel:
    """A module that computes at any flat vector of its d parameters, without copying it.

    The module's parameters are views into the vector it was last asked about; their order is that of `module.parameters()`.
    """

    def __init__(self, module: nn.Module, autocast: torch.dtype | None = None):
        self.module, self.autocast = module, autocast
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.sizes = [p.numel() for p in self.parameters]
        self.initial = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self._gradient = torch.zeros_like(self.initial)
        self._slots = self._views(self._gradient)
        self._bound: torch.Tensor | None = None

    def __len__(self) -> int:
        return self.initial.numel()

    def _views(self, vector: torch.Tensor) -> list[torch.Tensor]:
        pieces = vector.split(self.sizes)
        return [piece.view(p.shape) for piece, p in zip(pieces, self.parameters, strict=True)]

    def bind(self, vector: torch.Tensor) -> nn.Module:
        """The module with `vector` (d,) as its parameters; a later change of the vector changes the module."""
        if vector is not self._bound:
            for parameter, view in zip(self.parameters, self._views(vector), strict=True):
                parameter.data = view
            self._bound = vector
        return self.module

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.autocast is None:
            return F.cross_entropy(self.module(x), y)
        with torch.autocast(x.device.type, self.autocast):
            logits = self.module(x)
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
            grads = torch.autograd.grad(loss, self.parameters, allow_unused=True)
            if first:
                losses.append(loss.detach())
                first = False
            for slot, grad in zip(self._slots, grads, strict=True):
                if grad is None:
                    slot.zero_()
            used = [(s, g) for s, g in zip(self._slots, grads, strict=True) if g is not None]
            torch._foreach_copy_([s for s, _ in used], [g for _, g in used])
            return self._gradient

        return gradient
