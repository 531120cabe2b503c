"""What the ledger looks at, and the questions its rules ask of it: which runs, which pairs, how much larger, how sure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedinit.results.metrics import Paired, by_seed, moving_average, paired, relative, select
from fedinit.results.names import canonical, data_name, display_name, with_beta
from fedinit.results.published import EM_DASH

PAIR = ("seed", "data", "model", "clients", "cohort_size", "dirichlet")  # what two runs that are compared share
TAIL = "means of the last tenth of the rounds"
# whose runs a claim asks for, where the name does not say it
WANTED = {"summary": "Tables 4 to 8", "summary100": "Table 5", "noise": "open_questions"}


@dataclass(frozen=True)
class Evidence:
    """What the ledger may look at; every part may be empty (None).

    summary: `summarise` of the runs of Tables 4 to 8, one β per method and setup (with a target for C2).
    summary100: the same of Table 5's runs where `summary` is of another data set (A3).
    times: `runs.timing.time_rounds` (M3, C1).
    epochs, beta: summaries of the two sweeps of Figure 1 (varying local_epochs; varying beta).
    curves: the tidy frame of Figure 2's runs in one setup (FedAvg and SCAFFOLD, several β), also used for M1.
    momentum, plugin, threshold, noise, newcomers: summaries of the runs of `artefacts.momentum` and so on
        (threshold: by the rule "last_mean").
    costs: one row a method: label, communication (vectors sent a client and round, both ways), gradients (a local step),
        stored (vectors kept on a client).
    theory: `fedinit.theory.findings()`: claim, quantity, measured, spread, seeds, bound, holds, decides.
    """

    summary: pd.DataFrame | None = None
    summary100: pd.DataFrame | None = None
    times: pd.DataFrame | None = None
    epochs: pd.DataFrame | None = None
    beta: pd.DataFrame | None = None
    curves: pd.DataFrame | None = None
    costs: pd.DataFrame | None = None
    theory: pd.DataFrame | None = None
    momentum: pd.DataFrame | None = None
    plugin: pd.DataFrame | None = None
    threshold: pd.DataFrame | None = None
    noise: pd.DataFrame | None = None
    newcomers: pd.DataFrame | None = None

    def need(self, name: str) -> pd.DataFrame:
        frame = getattr(self, name)
        if frame is None or frame.empty:
            raise NotTested(f"no runs for it ({WANTED.get(name, name)})")
        return frame


@dataclass
class NotTested(Exception):
    """Raised inside a judge: the claim cannot be judged from this evidence; `measured` is what was seen all the same."""

    reason: str
    measured: str = EM_DASH
    seeds: int = 0
    spread: str = EM_DASH


def larger(difference: Paired, runs: pd.DataFrame):
    """The general rule for an accuracy difference in fractions; reported in points. Pairs of one seed (other setups) are averaged first:
    what counts as independent is the seed."""
    if difference.n == 0:
        raise (
            NotTested("no pair of runs that both ran to the end", seeds=0)
            if difference.lost == 0
            else NotTested(f"{difference.lost} pairs without a difference: one of the two diverged")
        )
    pairs, unbalanced, difference = difference.n, uneven(difference), by_seed(difference)
    seeds = difference.n
    holds = (difference.low if difference.n >= 3 else difference.mean) > 0
    spread = (
        "one seed"
        if seeds == 1
        else f"± {100 * difference.std:.2f}; 95 % interval {points(difference.low, '')} to {points(difference.high)} (n = {seeds} seeds)"
    )
    note = [f"{pairs} pairs, averaged within a seed"] * (pairs > seeds) + [UNEVEN] * unbalanced
    note += [f"{difference.lost} pairs lost to divergence"] * (difference.lost > 0) + [scale(runs)]
    note = [f"{few(seeds)}: the sign only"] * (seeds < 3) + note
    return holds, points(difference.mean), seeds, spread, notes(*note)


UNEVEN = "not every seed has every setup"


def uneven(difference: Paired) -> bool:
    """Whether some seeds have more setups than others, so that their averages are over different setups."""
    names = difference.differences.index.names
    return "seed" in names and difference.differences.groupby(level="seed").size().nunique() > 1


def matched(first: Paired, second: Paired) -> tuple[float, float]:
    """The means of two paired differences over what both have: what `difference_of` compares."""
    a, b = (p.differences.rename("accuracy").reset_index() for p in (first, second))
    both = a.merge(b, on=[c for c in a if c != "accuracy" and c in b], suffixes=("", "_second"))
    return both.accuracy.mean(), both.accuracy_second.mean()


def gain(runs: pd.DataFrame, treatment: str, baseline: str, across=()) -> Paired:
    """treatment − baseline, paired by seed and setup; `across` names columns that are not part of the pairing."""
    return paired(select(runs, treatment), select(runs, baseline), [c for c in PAIR if c not in across])


def drop(runs: pd.DataFrame, label: str) -> Paired:
    """Accuracy at 10 % minus accuracy at 5 % participation, per seed and D_r."""
    high, low = (where(select(runs, label), share=s) for s in (0.1, 0.05))
    return paired(high, low, ["seed", "data", "model", "dirichlet"])


def difference_of(first: Paired, second: Paired) -> Paired:
    """The difference of two paired differences, matched by what indexes both."""
    a, b = (p.differences.rename("accuracy").reset_index() for p in (first, second))
    out = paired(a.assign(label="first"), b.assign(label="second"), [c for c in a if c != "accuracy"])
    return Paired(out.differences, out.mean, out.std, out.n, out.low, out.high, first.lost + second.lost)


def where(runs: pd.DataFrame, share: float | None = None, dirichlet: float | None = None) -> pd.DataFrame:
    """The runs with participation `share` (0.1: 10 %) and Dirichlet coefficient `dirichlet`; NotTested when there are none."""
    wanted = []
    if share is not None:
        runs, wanted = runs[np.isclose(runs.cohort_size / runs.clients, share)], [*wanted, f"{share:.0%} participation"]
    if dirichlet is not None:
        runs, wanted = runs[np.isclose(runs.dirichlet.astype(float), dirichlet)], [*wanted, f"D_r = {dirichlet:g}"]
    if runs.empty:
        raise NotTested(f"{' and '.join(wanted)} was not run")
    return runs


def on_data(runs: pd.DataFrame, data: str, result):
    """`result` if the runs used the claim's data, "cifar10", "cifar100" or "cifar" (either); otherwise the claim is not tested, and what
    was measured is told all the same. Images in a file of one's own count once recognised (`Artefact.sweep`), whatever its name."""
    used = set(map(str, runs.data))
    if used <= ({"cifar10", "cifar100"} if data == "cifar" else {data}):
        return result
    names, wanted = ", ".join(map(data_name, sorted(used))), data_name(data).replace("cifar", "CIFAR")
    raise NotTested(f"on {names}, not on {wanted}; the rule would {'hold' if result[0] else 'fail'} there", *result[1:4])


def scale(runs: pd.DataFrame) -> str:
    parts = [
        f"{name} {', '.join(f'{v}' for v in sorted(runs[column].dropna().unique()))}"
        for name, column in (("model", "model"), ("width", "width"), ("rounds", "rounds"))
        if column in runs and runs[column].notna().any()
    ]
    return ", ".join(parts)


def twins(labels) -> list[tuple[str, str]]:
    """(base, base with RI) for every method that is there both ways."""
    here = list(dict.fromkeys(map(canonical, labels)))
    return [(base, ri) for base in here for ri in [canonical(f"{base}+ri")] if ri in here and ri != base]


def costs_by_method(evidence: Evidence) -> pd.DataFrame:
    costs = evidence.need("costs")
    return costs.set_index(costs.label.map(canonical))


def time_ratios(evidence: Evidence, methods) -> tuple[dict[str, pd.Series], int, str]:
    """(seconds a round over FedAvg's per method, number of seeds, how they were taken), of interleaved repeats."""
    times, out = evidence.need("times"), {}  # the seconds of runs tell what else the machine did
    for method in methods:
        mine = select(times, method)
        if mine.empty:
            raise NotTested(f"{display_name(method)} was not timed")
        out[method] = mine.ratio
    repeats, error = min(map(len, out.values())), max(ratio.sem() for ratio in out.values())
    unsure = f", standard error up to {error:.2f}" if repeats > 1 else ""
    return out, 1, f"mean ratio to FedAvg of {repeats} interleaved repeats{unsure}; training seconds only"


def sure_of(ratios: dict[str, pd.Series], within: float, result):
    """`result` if the standard error of every mean ratio is at most `within` of that mean; otherwise the machine's noise decides, the claim
    is not tested, and what was measured is told all the same."""
    errors = {method: ratio.sem() / ratio.mean() for method, ratio in ratios.items()}
    for method, error in errors.items():
        if np.isnan(error):
            raise NotTested(f"{display_name(method)} was timed once: how sure its ratio is, is unknown", *result[1:4])
    worst = max(errors, key=errors.get)
    if errors[worst] > within:
        reason = f"the machine was too busy: standard error of {display_name(worst)}'s ratio {errors[worst]:.1%}, more than {within:.0%}"
        raise NotTested(f"{reason}; time again when it is idle", *result[1:4])
    return result


def ends_by_beta(evidence: Evidence) -> pd.DataFrame:
    """One row a run of Figure 2: base, beta, seed, data and means over the last tenth of the rounds; diverged: accuracy 0, Δ^t ∞.

    Δ^t over all clients also relative to the size of the model (`per_norm`) and to the local movement (`per_movement`)."""
    frame = relative(with_beta(evidence.need("curves")))
    tail = frame[frame["round"] > 0.9 * frame.groupby("key")["round"].transform("max")]
    out = tail.groupby(["base", "beta", "seed", "data", "key"], as_index=False)[
        ["test_accuracy", "divergence_all", "divergence_active", "per_norm", "per_movement"]
    ].mean()
    out = out.rename(columns={"test_accuracy": "accuracy"})
    diverged = out.key.map(frame.groupby("key").diverged.max()).astype(bool)
    out.loc[diverged, "accuracy"] = 0.0
    out.loc[diverged, ["divergence_all", "divergence_active", "per_norm", "per_movement"]] = np.inf
    return out


def against_zero(table: pd.DataFrame, base: str, *values: str) -> tuple[float, dict[str, Paired]]:
    """(best β > 0 of a base method, by the mean accuracy over the seeds that have every β; per value of `ends_by_beta` the differences
    to β = 0, seed by seed: of the accuracy, and of the logarithm of all others)."""
    runs = table[table.base == base]
    positive = sorted({beta for beta in runs.beta if beta > 0})
    if not positive or not (runs.beta == 0).any():
        raise NotTested(f"{display_name(base)} was not run with β = 0 and some β > 0")
    has = runs.groupby("seed").beta.agg(set)
    whole = [seed for seed, betas in has.items() if betas >= {0, *positive}] or list(has.index)
    best = runs[runs.seed.isin(whole) & (runs.beta > 0)].groupby("beta").accuracy.mean().idxmax()
    logs = runs.assign(**{value: np.log(runs[value]) for value in values if value != "accuracy"})
    mine, zero = logs[logs.beta == best], logs[logs.beta == 0]
    return best, {value: paired(mine, zero, ["seed"], value) for value in values}


def below(difference: Paired) -> bool:
    """The general rule for "lower": with three pairs or more the 95 % interval below zero, else the sign of the mean."""
    return bool((difference.high if difference.n >= 3 else difference.mean) < 0)


def early(run: pd.DataFrame) -> tuple[float, float, float]:
    """(std of the changes of log Δ^t, largest fall of the smoothed accuracy, its rise) in the first fifth of the rounds."""
    run = run.sort_values("round")
    run = run[run["round"] <= max(5, run["round"].max() / 5)]
    accuracy = run.test_accuracy.dropna().to_numpy()
    smooth = moving_average(accuracy, min(5, max(1, len(accuracy) // 2)))
    return (
        float(np.diff(np.log(run.divergence_all)).std()),
        float((np.maximum.accumulate(smooth) - smooth).max()),
        float(smooth[-1] - smooth[0]),
    )


def points(fraction: float, unit: str = " points") -> str:
    return f"{100 * fraction:+.2f}{unit}".replace("-", "−")


def span(values, unit: str = "") -> str:
    values = np.asarray(values, dtype=float)
    return f"{values.min():.2f} to {values.max():.2f}{unit}" if values.size > 1 else "one value"


def notes(*parts: str) -> str:
    """The parts that say something, as one note."""
    return "; ".join(filter(None, parts))


def few(seeds: int) -> str:
    return {1: "one seed", 2: "two seeds"}.get(seeds, "")
