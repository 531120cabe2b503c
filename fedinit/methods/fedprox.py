from __future__ import annotations

from dataclasses import dataclass

from fedinit.methods.base import number
from fedinit.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Li et al. 2020, "Federated Optimization in Heterogeneous Networks", Algorithm 2.

    local step along d = g(y) + μ (y − s_i);  server: w ← w + η_g · mean(moved)

    No vectors kept. The anchor is the actual start s_i, also under relaxed initialization. mu (μ) ≥ 0; 0 is FedAvg.
    Departs from common code: the whole prox term is clipped with the gradient; hiding +μ y in the weight decay would
    let the clip see −μ s_i alone, which at ‖w‖ ≈ 100 fires it by itself.
    """

    mu: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        number(self, "mu", 0)

    def constants(self, start, received, mine):
        return {"anchor": start}

    def direction(self, gradient, y, constants):
        return gradient(y).add_(y - constants["anchor"], alpha=self.mu)
