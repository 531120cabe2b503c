"""Client noise and category noise: small arrays, applied to a batch of training images, never stored as images.

The paper (section 5.1) scales each client's red, green and blue by random Gaussian factors and shifts the brightness
of each category by a random Gaussian. It leaves open how strongly, and whether a category's shift is the same on all
clients; both are parameters here. The test images are never touched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError, unknown
from ..streams import stream

if TYPE_CHECKING:
    import torch

SCOPES = ("global", "client")


@dataclass(frozen=True, eq=False)
class Noise:
    """The noise of all clients; None where there is none.

    gains   float32 (C, 3), factors of R, G, B
    shifts  float32 (K,) or (C, K), of brightness, where black is 0 and white is 1
    """

    gains: np.ndarray | None
    shifts: np.ndarray | None

    def apply(self, x: torch.Tensor, y: torch.Tensor, client: int) -> torch.Tensor:
        """Client's view of a batch: clamp(x · gain + shift[y], 0, 1); x itself when there is no noise.

        x: float32 (B, H, W, 3) in [0, 1], left as it is; y: int64 (B,) on the same device. Raises nothing of its own.
        """
        if self.gains is None and self.shifts is None:
            return x
        if self.gains is not None:
            x = x * x.new_tensor(self.gains[client])
        if self.shifts is not None:
            shifts = self.shifts if self.shifts.ndim == 1 else self.shifts[client]
            x = x + x.new_tensor(shifts)[y][:, None, None, None]
        return x.clamp(0, 1)


def make_noise(*, clients: int, classes: int, client_std: float, category_std: float, category_scope: str = "global", seed: int) -> Noise:
    """Draw gains 1 + client_std · N(0, 1), clipped at 0, and shifts category_std · N(0, 1); a std of 0 gives None.

    category_scope "global": one shift a category for everybody, (K,); "client": one a client and category, (C, K).
    The draws before scaling depend on the seed alone, so a larger std is the same noise, stronger.
    Raises InputError for clients or classes < 1, a negative or non-finite std, an unknown scope.
    """
    if category_scope not in SCOPES:
        raise unknown("category_scope", category_scope, SCOPES)
    for argument, value in (("clients", clients), ("classes", classes)):
        if value < 1:
            raise InputError(f"{argument} = {value} is out of range: at least 1 is needed.")
    for argument, value in (("client_std", client_std), ("category_std", category_std)):
        if not (value >= 0 and math.isfinite(value)):
            raise InputError(f"{argument} = {value} is out of range: a finite number ≥ 0 is needed; 0 switches this noise off.")
    shape = (classes,) if category_scope == "global" else (clients, classes)
    gains = 1 + client_std * stream(seed, "noise", 0).standard_normal((clients, 3))
    shifts = category_std * stream(seed, "noise", 1).standard_normal(shape)
    return Noise(
        gains=np.maximum(gains, 0).astype(np.float32) if client_std else None,
        shifts=shifts.astype(np.float32) if category_std else None,
    )
