"""What the theorems bound, measured on federated quadratics: exponents of T, floors, and stability with and without RI.

Rules (the column `holds`):
- A rate O(T^−p) holds when the log-log slope over T is at most −p + 0.15: falling faster than a bound says does not contradict
  it. Õ(·) hides powers of log T, so such a quantity is first divided by the power of log(NKT) that the theorem's η brings in.
- A floor holds when the slope lies within ±0.15 of 0.
- A ratio that should be below (above) 1 holds when its mean over the seeds is by more than two standard errors. When the mean is
  within two standard errors of 1 the ratio decides nothing: the column `decides` is False.

Not all of this was fixed before measuring. After a first look the range of T was moved from 64–1024 to 128–2048, Theorem 6's η was
scaled, and the rule for ratios was tightened to two standard errors. That an undecided ratio refutes nothing came last.

A seed is a group of independent runs: rates use one problem, stability a problem of its own per seed, since there the replaced
sample is what counts. `spread` is the standard deviation over the seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedinit.theory import rates
from fedinit.theory.quadratic import Problem, Trace, make_problem, simulate, stability

TOLERANCE = 0.15
ROUNDS = (128, 256, 512, 1024, 2048)
N, K, C, S, BETA = 4, 5, 20, 20, 0.1


# --- convergence and divergence against T -----------------------------------------------------------------------------------


def _mean_gradient(problem: Problem, trace: Trace) -> np.ndarray:
    return problem.gradient_norm2(trace.w[:-1]).mean(0)


def _suboptimality(problem: Problem, trace: Trace) -> np.ndarray:
    return problem.suboptimality(trace.w[-1])


def _divergence(problem: Problem, trace: Trace) -> np.ndarray:
    return trace.divergence[-max(1, len(trace.divergence) // 10) :].mean(0)  # the last tenth: one round alone is noise


@dataclass(frozen=True)
class Rate:
    """One measured rate: the claim, its name in print, the problem, what is measured, η(T), the exponent of T, and of log(NKT) in Õ."""

    claim: str
    quantity: str
    interpolation: bool
    measure: Callable
    eta: Callable
    bound: float
    logs: int = 0


RATES = (
    Rate("T1", "mean ‖∇f‖², Thm 1's η", False, _mean_gradient, lambda T: rates.eta_theorem_1(N, K, T, 0.5), -0.5),
    Rate("T4", "f − f*, Thm 4's η", False, _suboptimality, lambda T: rates.eta_theorem_4(N, K, T, 1.0), -1, 1),
    Rate("T6", "mean ‖∇f‖², Thm 6's η", True, _mean_gradient, lambda T: rates.eta_theorem_6(N, 0.02), -1),
    Rate("T9", "f − f*, Thm 9's η", True, _suboptimality, lambda T: rates.eta_theorem_9(K, T, 1.0), -2, 2),
    Rate("T17", "Δ, Thm 1's η", False, _divergence, lambda T: rates.eta_theorem_1(N, K, T, 0.5), -1),
    Rate("T17", "Δ, Thm 4's η", False, _divergence, lambda T: rates.eta_theorem_4(N, K, T, 1.0), -2, 2),
    Rate("T17", "Δ, constant η", False, _divergence, lambda T: 0.05, 0),
    Rate("T19", "Δ, Thm 6's η", True, _divergence, lambda T: rates.eta_theorem_6(N, 0.02), -1),
)


def rate_curves(seeds: int = 5, beta: float = BETA, rounds=ROUNDS, runs: int = 8) -> pd.DataFrame:
    """Each quantity of `RATES` at each T, every T run from w^0 with its own η: columns claim, quantity, seed, T, value (mean over `runs`
    independent runs), bound (the theorem's exponent of T), logs (its exponent of log(NKT)), order (the two together, at each T)."""
    rows, played = [], {}
    for rate in RATES:
        problem = make_problem(0, C, S, interpolation=rate.interpolation)
        for T in rounds:
            eta = rate.eta(T)
            if (rate.interpolation, T, eta) not in played:  # error and divergence are read from the same runs
                played[rate.interpolation, T, eta] = simulate(problem, T, K, N, eta, beta, 0, runs * seeds)
            trace = played[rate.interpolation, T, eta]
            for seed, value in enumerate(rate.measure(problem, trace).reshape(seeds, runs).mean(1)):
                order = T**rate.bound * np.log(N * K * T) ** rate.logs
                rows.append((rate.claim, rate.quantity, seed, T, value, rate.bound, rate.logs, order))
    return pd.DataFrame(rows, columns=["claim", "quantity", "seed", "T", "value", "bound", "logs", "order"])


def slope(x, y) -> float:
    """The exponent p of a power law y ∝ x^p: the least-squares slope of log y against log x. Values below 1e-24 (of distances
    of 1e-12, where rounding begins to be what is left) are dropped; NaN with fewer than two points."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    keep = y > 1e-24
    return float(np.polyfit(np.log(x[keep]), np.log(y[keep]), 1)[0]) if keep.sum() > 1 else float("nan")


# --- uniform stability ------------------------------------------------------------------------------------------------------


def decaying_eta(rounds: int, steps: int, c: float = 0.5) -> np.ndarray:
    """The stability analysis' η ≤ c/t over the local steps, here c/(1 + t/5) so that the first steps stay stable: (rounds, steps)."""
    return c / (1 + np.arange(rounds * steps).reshape(rounds, steps) / 5)


def stability_curves(
    betas=(-0.1, 0.0, 0.05, 0.1, 0.2), steps=(1, 5, 20), rounds: int = 100, seeds: int = 5, runs: int = 32, aggregate: str = "end"
) -> pd.DataFrame:
    """Measured E‖w^t − w̃^t‖ (mean over runs and the last half of the rounds) for each β and K beside Theorem 12's factor:
    columns beta, K, seed, distance, ratio (to β = 0 of the same seed; NaN if no run met the replaced sample), factor
    (with c = 0.5, L = 1)."""
    rows = []
    for k in steps:
        eta = decaying_eta(rounds, k)
        for seed in range(seeds):
            distance = {b: _late(make_problem(seed, C, S), rounds, k, N, eta, b, seed, runs, aggregate=aggregate) for b in {*betas, 0.0}}
            rows += [
                (
                    b,
                    k,
                    seed,
                    distance[b],
                    distance[b] / distance[0.0] if distance[0.0] else np.nan,
                    float(rates.stability_factor(b, 0.5, k, 1.0)),
                )
                for b in betas
            ]
    return pd.DataFrame(rows, columns=["beta", "K", "seed", "distance", "ratio", "factor"])


def _late(*arguments, **options) -> float:
    """E‖w^t − w̃^t‖ averaged over the last half of the rounds; arguments as of `stability`."""
    distance = stability(*arguments, **options)
    return float(distance[len(distance) // 2 :].mean())


def _largest(*arguments, **options) -> float:
    """max_t E‖w^t − w̃^t‖: under interpolation the last one tends to 0 with w itself, and would make every bound true."""
    return float(stability(*arguments, **options).mean(1).max())


def _pooled(problem: Problem) -> Problem:
    """All data on one client: what vanilla SGD sees."""
    return Problem(*(a.reshape(1, -1, a.shape[-1]) for a in (problem.h, problem.z)))


# --- the ledger's theory rows -----------------------------------------------------------------------------------------------


def findings(seeds: int = 5, runs: int = 8, rounds=ROUNDS, curves: pd.DataFrame | None = None) -> pd.DataFrame:
    """One row a measured quantity: claim, quantity, measured and spread (exponents or ratios), seeds, bound (text), holds, decides (bool).

    curves: those of `rate_curves` with the same seeds, runs and rounds, where they are there already.
    """
    rows = []

    def add(claim, quantity, groups, bound, holds, ratio=False):
        groups = np.asarray(groups, float)
        mean, spread = float(groups.mean()), float(groups.std(ddof=1)) if seeds > 1 else 0.0
        decides = not ratio or abs(mean - 1) > 2 * spread / np.sqrt(seeds)
        rows.append((claim, quantity, mean, spread, seeds, bound, bool(decides and holds(mean)), bool(decides)))

    def below(mean):
        return mean < 1

    def above(mean):
        return mean > 1

    with_ri = rate_curves(seeds, BETA, rounds, runs) if curves is None else curves
    for (claim, quantity, bound, logs), points in with_ri.groupby(["claim", "quantity", "bound", "logs"], sort=False):
        groups = [slope(g["T"], g["value"] / np.log(N * K * g["T"]) ** logs) for _, g in points.groupby("seed")]
        if bound == 0:
            add(claim, f"exponent of {quantity}", groups, "floor: 0", lambda m: abs(m) <= TOLERANCE)
        else:
            add(claim, f"exponent of {quantity}", groups, f"at most {bound:g}".replace("-", "−"), lambda m, b=bound: m <= b + TOLERANCE)

    problem, T = make_problem(0, C, S), rounds[-1]
    means = [
        _mean_gradient(problem, simulate(problem, T, K, N, rates.eta_theorem_1(N, K, T, 0.5), b, 0, runs * seeds))
        .reshape(seeds, runs)
        .mean(1)
        for b in (BETA, 0.0)
    ]
    add("T1", f"mean ‖∇f‖², β = {BETA:g} / β = 0", means[0] / means[1], "below 1", below, ratio=True)

    for aggregate in ("end", "start"):
        table = stability_curves((BETA,), (1, 20), 100, seeds, 8 * runs, aggregate)
        for k, g in table.groupby("K"):
            add(
                "T12",
                f"‖w − w̃‖ with / without RI, K = {k}, {aggregate}",
                g.ratio,
                f"below 1; bound {g.factor.iloc[0]:.2f}",
                below,
                ratio=True,
            )

    T, runs = 60, 8 * runs
    full, some, one = (
        np.array([_late(make_problem(s, C, S), T, K, n, decaying_eta(T, K), 0.0, s, runs) for s in range(seeds)]) for n in (C, N, 1)
    )
    pooled = [_late(_pooled(make_problem(s, C, S)), N * K * T, 1, 1, decaying_eta(N * K * T, 1), 0.0, s, runs) for s in range(seeds)]
    add("T3", "‖w − w̃‖, FedAvg / SGD on as many samples", some / pooled, "above 1", above, ratio=True)
    add("T3", f"‖w − w̃‖, N = C / N = 1 (C = {C})", full / one, "above 1", above, ratio=True)

    sizes, decayed = (5, 10, 20, 40), BETA / (1.0 + np.arange(T)) ** 2  # Σ β^t < 0.17
    for name, bound, fixed in (("K", 1, (None, C, S)), ("S", -1, (K, C, None)), ("C", -1, (K, None, S))):
        exponents = []
        for s in range(seeds):
            at = [[v if f is None else f for f in fixed] for v in sizes]
            exponents.append(
                slope(sizes, [_largest(make_problem(s, c, n, interpolation=True), T, k, N, 0.01, decayed, s, runs) for k, c, n in at])
            )
        add(
            "T15",
            f"exponent of {name} in ‖w − w̃‖",
            exponents,
            f"at most {bound}".replace("-", "−"),
            lambda m, b=bound: m <= b + TOLERANCE,
        )
    return pd.DataFrame(rows, columns=["claim", "quantity", "measured", "spread", "seeds", "bound", "holds", "decides"])
