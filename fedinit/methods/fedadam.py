from __future__ import annotations

from dataclasses import dataclass

from fedinit.methods.base import number
from fedinit.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """Reddi et al. 2021, "Adaptive Federated Optimization", Algorithm 2.

    server: m ← β1 m + (1 − β1) D;  v ← β2 v + (1 − β2) D²;  w ← w + η_g m / (√v + ε),  D = mean(moved)

    vector | holder | shape | unit
    m      | server | (d,)  | parameters
    v      | server | (d,)  | parameters²

    No bias correction. v starts at 0 as in released code (the paper asks v ≥ ε²). 0 ≤ β1, β2 < 1, ε > 0.
    """

    global_lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 0.01

    def __post_init__(self):
        super().__post_init__()
        number(self, "beta1", 0, 1, open_high=True)
        number(self, "beta2", 0, 1, open_high=True)
        number(self, "epsilon", 0, open_low=True)

    def init_server(self, initial):
        return {"m": initial * 0, "v": initial * 0}

    def step(self, w, server, cohort):
        moved = cohort.moved
        m = self.beta1 * server["m"] + (1 - self.beta1) * moved
        v = self.beta2 * server["v"] + (1 - self.beta2) * moved**2
        return w + self.global_lr * m / (v.sqrt() + self.epsilon), {"m": m, "v": v}
