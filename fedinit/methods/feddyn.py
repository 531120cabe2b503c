from __future__ import annotations

from dataclasses import dataclass

from fedinit.methods.base import Method, number


@dataclass(frozen=True)
class FedDyn(Method):
    """Acar et al. 2021, "Federated Learning Based on Dynamic Regularization", Algorithm 1.

    local step along d = g(y) + λ (h_i + y − s_i);  h_i ← h_i + moved_i;  server: h ← mean over all C clients of h_i,
    w ← mean(end) + h

    vector | holder | shape | unit
    h_i    | client | (d,)  | parameters (displacement; −∇F_i / λ at a stationary local problem)
    h      | server | (d,)  | parameters

    lamb (λ) ≥ 0. No global rate. The server follows h from the movements alone, so nothing but the movement is sent up; under
    relaxed initialization the final models do not tell it, and a second vector is sent.
    """

    lamb: float = 0.1

    def __post_init__(self):
        number(self, "lamb", 0)

    def init_server(self, initial):
        return {"h": initial * 0}

    def step(self, w, server, cohort):
        h = server["h"] + cohort.share * cohort.walked
        return cohort.end + h, {"h": h}

    def init_client(self, initial, w):
        return {"h_i": initial * 0}

    def constants(self, start, received, mine):
        return {"pull": self.lamb * (mine["h_i"] - start)}

    def direction(self, gradient, y, constants):
        return gradient(y).add_(y, alpha=self.lamb).add_(constants["pull"])

    def keep(self, received, mine, start, end, lr_sum):
        return {"h_i": mine["h_i"] + (end - start)}
