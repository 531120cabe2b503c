from __future__ import annotations

from dataclasses import dataclass, field

from fedinit.methods.base import Method, Wrapper, number, once
from fedinit.methods.fedavg import FedAvg


@dataclass(frozen=True)
class SAM(Wrapper):
    """Sharpness-aware local steps over any method: Qu et al. 2022, "Generalized Federated Learning via Sharpness Aware
    Minimization", Algorithm 1 (over FedAvg it is FedSAM).

    wherever the base asks for g(y) it gets g(y + ρ g(y) / (‖g(y)‖ + 1e-7)), the same mini-batch twice

    No vectors of its own; two gradient computations a local step. rho (ρ) ≥ 0; 0 is the base method, at twice the cost.
    Over FedCM it is MoFedSAM, over SCAFFOLD FedGamma, over FedDyn FedSpeed (here with FedDyn's server).
    """

    base: Method = field(default_factory=FedAvg)
    rho: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        once(self, SAM)
        number(self, "rho", 0)

    def direction(self, gradient, y, constants):
        def sharp(v):
            g = gradient(v)
            return gradient(v.addcmul(g, self.rho / (g.norm() + 1e-7)))

        return self.base.direction(sharp, y, constants)
