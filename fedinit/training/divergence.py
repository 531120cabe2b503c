"""Δ^t, the mean squared distance of the clients' latest local models from the global model, without a pass over all of them."""

from __future__ import annotations

import torch


class Divergence:
    """Follows Σ_C ‖last_i − w‖² and Σ_C (last_i − w) while clients and server move; clients never active count with w^0.

    When client i moves from `old` to w + `moved`, its term is replaced; when the server moves w by u, the sum changes by C ‖u‖² − 2
    u·Σ(last_i − w). So a round costs passes over N vectors, not over C. All terms are differences of nearby models: float32 is enough."""

    def __init__(self, clients: int, initial: torch.Tensor):
        self.clients = clients
        self.total = 0.0  # Σ_C ‖last_i − w‖²
        self.offset = torch.zeros_like(initial)  # Σ_C (last_i − w), shape (d,)
        self._active, self._count = 0.0, 0

    def client_moved(self, w: torch.Tensor, old: torch.Tensor, moved: torch.Tensor) -> float:
        """Client i's latest local model was `old`, is now w + `moved`; w is the global model before the server step; returns ‖moved‖²."""
        square = float(torch.dot(moved, moved))
        self._active += square
        self._count += 1
        before = old - w
        self.total += square - float(torch.dot(before, before))
        self.offset -= before
        return square

    def server_moved(self, w: torch.Tensor, new: torch.Tensor, moved: torch.Tensor) -> tuple[float, float]:
        """The server stepped from w to `new`, after the active clients' `moved` summed to this one; returns (delta_all, delta_active), both
        after the step, in squared parameter units."""
        step = new - w
        square = float(torch.dot(step, step))
        self.offset += moved
        self.total += self.clients * square - 2 * float(torch.dot(step, self.offset))
        self.offset.sub_(step, alpha=self.clients)
        active = self._active + self._count * square - 2 * float(torch.dot(step, moved))
        result = max(self.total, 0.0) / self.clients, max(active, 0.0) / self._count
        self._active, self._count = 0.0, 0
        return result
