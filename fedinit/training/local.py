"""The only local-training loop."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from fedinit.methods.base import Method, Vectors
from fedinit.training.flat import FlatModel


@dataclass(frozen=True)
class Local:
    """What came out of one client's round: vectors (d,), the sum of the rates of its steps, the mean loss of its batches (nats)."""

    start: torch.Tensor
    end: torch.Tensor
    new: Vectors
    lr_sum: float
    loss: float


def train(
    model: FlatModel,
    method: Method,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    w: torch.Tensor,
    received: Vectors,
    mine: Vectors,
    *,
    lr: float,
    weight_decay: float,
    clip: float | None,
) -> Local:
    """Local SGD without momentum: y ← y − η (clip(d) + κ y), clip(d) = d · min(1, M / (‖d‖ + 1e-6)), ‖·‖ over the whole vector.

    Biases and normalisation parameters are decayed too (released code). The number of steps is counted, not guessed.
    """
    start = method.start(w, mine)
    y = start.clone()
    constants = method.constants(start, received, mine)
    losses: list[torch.Tensor] = []
    lr_sum = 0.0
    for x, target in batches:
        d = method.direction(model.gradient_on(x, target, losses), y, constants)
        update(y, d, lr, weight_decay, clip)
        lr_sum += lr
    new = method.keep(received, mine, start, y, lr_sum)
    return Local(start, y, new, lr_sum, float(torch.stack(losses).mean()))


def update(y: torch.Tensor, d: torch.Tensor, lr: float, weight_decay: float, clip: float | None) -> None:
    """One step in place: y ← y − η (clip(d) + κ y), where clip(d) = f · d."""
    norm = None if clip is None else torch.linalg.vector_norm(d)
    if y.device.type != "cpu":  # without waiting for the norm
        y.mul_(1 - lr * weight_decay)
        factor = y.new_ones(()) if clip is None else (clip / (norm + 1e-6)).clamp(max=1.0)
        y.addcmul_(d, factor, value=-lr)
        return
    factor = 1.0 if clip is None else min(1.0, clip / (float(norm) + 1e-6))
    if not factor > 0:  # an infinite or undefined norm: the run has diverged, and says so at the end of the round
        y.fill_(math.nan)
        return
    # one pass over both vectors: torch's fused SGD at rate η f with decay κ / f is y − η f d − η κ y
    torch._fused_sgd_(
        [y],
        [d],
        [],
        weight_decay=weight_decay / factor,
        momentum=0.0,
        lr=lr * factor,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )
