from __future__ import annotations

from dataclasses import dataclass

from fedinit.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", Algorithm 1, option II.

    local step along d = g(y) + c − c_i;  c_i ← c_i − c − moved_i / lr_sum_i;  server: w ← w + η_g · mean(moved),
    c ← c + (N / C) · mean(c_i⁺ − c_i)

    vector | holder | shape | unit
    c      | server | (d,)  | gradient; sent down, its change sent up
    c_i    | client | (d,)  | gradient

    The mean of all c_i stays c. lr_sum_i counts the steps that client i really took (a short last batch included).
    """

    def init_server(self, initial):
        return {"c": initial * 0}

    def broadcast(self, server):
        return server

    def step(self, w, server, cohort):
        w, _ = super().step(w, {}, cohort)
        return w, {"c": server["c"] + cohort.share * cohort.change["c_i"]}

    def init_client(self, initial, w):
        return {"c_i": initial * 0}

    def constants(self, start, received, mine):
        return {"correction": received["c"] - mine["c_i"]}

    def direction(self, gradient, y, constants):
        return gradient(y).add_(constants["correction"])

    def keep(self, received, mine, start, end, lr_sum):
        return {"c_i": mine["c_i"] - received["c"] - (end - start) / lr_sum}
