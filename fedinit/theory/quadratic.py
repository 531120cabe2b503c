"""FedInit on federated quadratics whose constants are known: a simulator small enough to check by eye.

Client i has S samples; sample j's loss is ½ Σ_k h_ijk (w_k − z_ijk)². With equal h and scattered z the gradients have bounded
variance (and σ_g from the clients' centres); with scattered h and one common z they interpolate: every sample's gradient
vanishes at the optimum. f is strongly convex with μ = min, L = max of the mean curvatures, so these problems satisfy PŁ: they
can contradict a bound stated for non-convex functions, or be consistent with it, but cannot prove it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedinit.errors import InputError
from fedinit.streams import stream


@dataclass(frozen=True)
class Problem:
    """h, z: shape (C, S, d), curvatures (> 0) and optima of the samples' losses."""

    h: np.ndarray
    z: np.ndarray

    @property
    def optimum(self) -> np.ndarray:
        """The minimiser of f, shape (d,): the curvature-weighted mean of all z."""
        return (self.h * self.z).sum((0, 1)) / self.h.sum((0, 1))

    def suboptimality(self, w: np.ndarray) -> np.ndarray:
        """f(w) − f*, shape (…, d) → (…): f is the mean over clients and samples."""
        return 0.5 * (self.h.mean((0, 1)) * (w - self.optimum) ** 2).sum(-1)

    def gradient_norm2(self, w: np.ndarray) -> np.ndarray:
        """‖∇f(w)‖², shape (…, d) → (…)."""
        return ((self.h.mean((0, 1)) * (w - self.optimum)) ** 2).sum(-1)


def make_problem(
    seed: int = 0, clients: int = 20, samples: int = 20, dim: int = 5, spread: float = 1.0, noise: float = 1.0, interpolation: bool = False
) -> Problem:
    """A random problem. Bounded variance: h = 1, z = client centre (standard deviation `spread`) + sample noise (`noise`).
    Interpolation: z = 0 for all, h uniform in [0.5, 1.5] (so a, b of assumptions 4 and 6 are at most 3)."""
    rng = stream(seed, "synthetic")
    shape = (clients, samples, dim)
    if interpolation:
        return Problem(rng.uniform(0.5, 1.5, shape), np.zeros(shape))
    return Problem(np.ones(shape), spread * rng.normal(size=(clients, 1, dim)) + noise * rng.normal(size=shape))


def replace_sample(problem: Problem, seed: int = 1, scale: float = 1.0) -> Problem:
    """The problem with sample 0 of client 0 drawn anew: the neighbouring data set of uniform stability. The curvature is redrawn
    under interpolation (where all z agree), the optimum otherwise."""
    rng, h, z = stream(seed, "synthetic"), problem.h.copy(), problem.z.copy()
    if np.ptp(problem.z) == 0:
        h[0, 0] = rng.uniform(0.5, 1.5, h.shape[-1])
    else:
        z[0, 0] = z[0].mean(0) + scale * rng.normal(size=z.shape[-1])
    return Problem(h, z)


@dataclass(frozen=True)
class Trace:
    """w: (T + 1, R, d), the global models of R independent runs; divergence: (T, R), Δ^t = mean over all C clients of ‖last_i − w‖²
    after the round."""

    w: np.ndarray
    divergence: np.ndarray


def simulate(
    problem: Problem,
    rounds: int,
    steps: int,
    cohort: int,
    eta,
    beta=0.0,
    seed: int = 0,
    runs: int = 8,
    start: float = 3.0,
    aggregate: str = "end",
) -> Trace:
    """`runs` independent runs of FedAvg (β = 0) or FedInit, vectorised over runs and clients; single-sample stochastic gradients.

    eta, beta: a number, or one per round, shape (rounds,); eta may also be (rounds, steps), one per local step. w^0 = `start` in every
    coordinate; a newcomer's last_i is w^0. aggregate: "end" (Algorithm 1) or "start" (released code). Cohorts and samples depend on
    `seed` alone, so two problems, or two β, meet the same draws.
    """
    C, S, d = problem.h.shape
    if not 1 <= cohort <= C:
        raise InputError(f"cohort = {cohort!r} must be between 1 and the {C} clients of the problem.")
    eta = np.broadcast_to(np.reshape(eta, (-1, 1)) if np.ndim(eta) < 2 else eta, (rounds, steps))
    beta = np.broadcast_to(beta, rounds)
    # all draws at once: the same numbers as round by round, in a fraction of the time
    active = stream(seed, "cohort").random((rounds, runs, C)).argsort(-1)[..., :cohort]  # without replacement, per run
    sample = stream(seed, "batches").integers(S, size=(rounds, steps, runs, cohort)) + S * active[:, None]
    h, z = problem.h.reshape(-1, d), problem.z.reshape(-1, d)
    w = np.full((runs, d), float(start))
    last = np.full((runs, C, d), float(start))
    trace, divergence, r = [w], [], np.arange(runs)[:, None]
    for t in range(rounds):
        begin = w[:, None] + beta[t] * (w[:, None] - last[r, active[t]])
        y = begin
        for k in range(steps):
            j = sample[t, k]
            y = y - eta[t, k] * h.take(j, 0) * (y - z.take(j, 0))
        last[r, active[t]] = y
        w = y.mean(1) if aggregate == "end" else w + (y - begin).mean(1)
        trace.append(w)
        divergence.append(((last - w[:, None]) ** 2).sum(-1).mean(1))
    return Trace(np.array(trace), np.array(divergence))


def stability(
    problem: Problem, rounds: int, steps: int, cohort: int, eta, beta=0.0, seed: int = 0, runs: int = 32, **options
) -> np.ndarray:
    """Measured uniform stability: ‖w^t − w̃^t‖ of runs on two data sets that differ in one sample, all draws shared;
    shape (rounds + 1, runs)."""
    a, b = (simulate(p, rounds, steps, cohort, eta, beta, seed, runs, **options).w for p in (problem, replace_sample(problem, seed + 1)))
    return np.linalg.norm(a - b, axis=-1)
