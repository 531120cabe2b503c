from __future__ import annotations

from dataclasses import dataclass

from fedinit.methods.base import number
from fedinit.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", section 4 (FedAvgM).

    server: v ← μ v + D;  w ← w + η_g v,  D = mean(moved)

    vector | holder | shape | unit
    v      | server | (d,)  | parameters

    momentum (μ) in [0, 1); 0 is FedAvg. In the long run it multiplies a steady movement by 1 / (1 − μ).
    """

    momentum: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        number(self, "momentum", 0, 1, open_high=True)

    def init_server(self, initial):
        return {"v": initial * 0}

    def step(self, w, server, cohort):
        v = self.momentum * server["v"] + cohort.moved
        return w + self.global_lr * v, {"v": v}


@dataclass(frozen=True)
class Lagged(FedAvg):
    """Relaxed initialization's server term alone, without the relaxed start: a control for the question whether RI is momentum in disguise.

    start: s_i = w;  server: w ← w + η_g (D + β · mean(w − last_i)),  D = mean(end) − w;  last_i ← end_i

    vector | holder | shape | unit
    last   | client | (d,)  | parameters: the client's latest local model; w^0 before the first

    It differs from FedInit (aggregate="end") in nothing but where local training begins. beta: any finite number, 0 is FedAvg.
    """

    beta: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        number(self, "beta")

    def step(self, w, server, cohort):
        lag = cohort.change["last"] - cohort.moved  # (end − last) − (end − w) = w − last
        return w + self.global_lr * (cohort.moved + self.beta * lag), server

    def init_client(self, initial, w):
        return {"last": initial}

    def keep(self, received, mine, start, end, lr_sum):
        return {"last": end}
