from __future__ import annotations

from dataclasses import dataclass

from fedinit.methods.base import Method, number


@dataclass(frozen=True)
class FedAvg(Method):
    """McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data", Algorithm 1.

    start: s_i = w;  local step: y ← y − η (clip(g(y)) + κ y);  server: w ← w + η_g · mean(moved)

    No vectors beside w. global_lr (η_g) > 0: 1 is plain averaging.
    """

    global_lr: float = 1.0

    def __post_init__(self):
        number(self, "global_lr", 0, open_low=True)

    def step(self, w, server, cohort):
        return w + self.global_lr * cohort.moved, server
