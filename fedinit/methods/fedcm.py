from __future__ import annotations

from dataclasses import dataclass

import torch

from fedinit.methods.base import number
from fedinit.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedCM(FedAvg):
    """Xu et al. 2021, "FedCM: Federated Learning with Client-level Momentum", Algorithm 1.

    local step along d = α g(y) + (1 − α) m;  server: m ← −mean(moved_i / lr_sum_i),  w ← w + η_g · mean(moved)

    vector | holder | shape | unit
    m      | server | (d,)  | gradient; sent down

    m is 0 at first and is measured with the rate of the round that made it. 0 < alpha (α) ≤ 1; 1 is FedAvg.
    """

    alpha: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        number(self, "alpha", 0, 1, open_low=True)

    def init_server(self, initial):
        return {"m": initial * 0}

    def broadcast(self, server):
        return server

    def step(self, w, server, cohort):
        w, _ = super().step(w, {}, cohort)
        return w, {"m": cohort.slope}

    def constants(self, start, received, mine):
        return {"momentum": (1 - self.alpha) * received["m"]}

    def direction(self, gradient, y, constants):
        g = gradient(y)
        return torch.add(constants["momentum"], g, alpha=self.alpha, out=g)
