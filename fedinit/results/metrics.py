"""Numbers from histories: pure functions of arrays and tidy frames, apart from any plot or table.

Accuracies are fractions in [0, 1]; the callers that print multiply by 100. Times are seconds of local training and server
step, never of evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedinit.errors import InputError, unknown
from fedinit.experiment import COLUMNS
from fedinit.results.names import canonical

#: Columns of a tidy frame that change from round to round; every other column describes the run.
HISTORY = COLUMNS
#: What has to agree, besides the method, for two runs to be a pair (those of them that a summary has).
SETUP = (
    "seed",
    "data",
    "model",
    "width",
    "clients",
    "cohort_size",
    "partition",
    "dirichlet",
    "client_noise",
    "category_noise",
    "local_epochs",
    "rounds",
)


# --- one curve ----------------------------------------------------------------------------------------------------------


def moving_average(values: np.ndarray, width: int) -> np.ndarray:
    """Means of `width` consecutive values, complete windows only: shape (n,) → (n − width + 1,)."""
    return np.convolve(values, np.full(width, 1 / width), mode="valid")


def smoothed_maximum(accuracy: Sequence[float], window: int = 50, filter_width: int = 5) -> float:
    """The paper's rule (section 5.1): smooth the test-accuracy curve by a convolution filter, then take the maximum of the
    last `window` rounds.

    accuracy: shape (T,), one entry a round, NaN where the round was not evaluated. The filter is a box over `filter_width`
    (odd) consecutive *evaluations*; the paper does not give its width. At the edges only complete boxes count: padding
    would invent evaluations. A smoothed value belongs to the round in its box's middle, and competes when that round is one
    of the last `window`. Shorter histories use what there is: fewer evaluations than `filter_width` narrow the box to the
    largest odd number of them; if no box has its middle in the window, the last complete box is taken. NaN without any
    evaluation.
    """
    accuracy = _curve(accuracy)
    _at_least("window", window, 1)
    if filter_width < 1 or filter_width % 2 == 0:
        raise InputError(f"filter_width = {filter_width!r} must be a positive odd number, so that a box has a middle round; use 5.")
    at = np.flatnonzero(~np.isnan(accuracy))
    if not at.size:
        return float("nan")
    width = min(filter_width, at.size - (at.size % 2 == 0))
    smooth = moving_average(accuracy[at], width)
    middles = at[width // 2 : width // 2 + smooth.size]
    inside = middles >= accuracy.size - window
    return float(smooth[inside].max() if inside.any() else smooth[-1])


def last_k_mean(accuracy: Sequence[float], k: int) -> float:
    """Mean of the evaluations among the last `k` rounds; accuracy as in `smoothed_maximum`. NaN when none of them was evaluated."""
    _at_least("k", k, 1)
    tail = _curve(accuracy)[-k:]
    tail = tail[~np.isnan(tail)]
    return float(tail.mean()) if tail.size else float("nan")


def maximum(accuracy: Sequence[float]) -> float:
    """The released code's rule: the maximum over all rounds, unsmoothed; accuracy as in `smoothed_maximum`."""
    accuracy = _curve(accuracy)
    return float(np.nanmax(accuracy)) if (~np.isnan(accuracy)).any() else float("nan")


RULES = {
    "smoothed_max": smoothed_maximum,
    "last_mean": lambda accuracy, window, filter_width: last_k_mean(accuracy, window),
    "max": lambda accuracy, window, filter_width: maximum(accuracy),
}


def rule_text(rule: str, window: int = 50, filter_width: int = 5, every: int = 1) -> str:
    """The sentence that a caption owes its reader; `every` is the evaluation cadence in rounds."""
    if rule not in RULES:
        raise unknown("rule", rule, RULES)
    smoothing = (
        f"a moving average of {filter_width} tests"
        if every == 1
        else f"a moving average of {filter_width} tests (one every {every} rounds)"
    )
    return {
        "smoothed_max": f"maximum of the last {window} rounds after {smoothing}",
        "last_mean": f"mean of the evaluations in the last {window} rounds",
        "max": "maximum over all rounds, unsmoothed",
    }[rule]


def rounds_to_target(accuracy: Sequence[float], target: float, filter_width: int = 1) -> float:
    """The first round (from 1) whose accuracy is at least `target` (a fraction); NaN when none is.

    With filter_width > 1 the accuracy of a round is the mean of that many evaluations up to and including it, so that one
    lucky evaluation does not count as arrival.
    """
    if not 0 < target <= 1:
        raise InputError(f"target = {target!r} must be a fraction in (0, 1]; write 0.7 for 70 %.")
    _at_least("filter_width", filter_width, 1)
    accuracy = _curve(accuracy)
    at = np.flatnonzero(~np.isnan(accuracy))
    if at.size < filter_width:
        return float("nan")
    reached = at[filter_width - 1 :][moving_average(accuracy[at], filter_width) >= target - 1e-12]
    return float(reached[0] + 1) if reached.size else float("nan")


def steady_seconds(train_seconds: Sequence[float]) -> np.ndarray:
    """Training seconds a round with the first round's replaced by the median of the others, shape (T,).

    Round 1 pays for what is not the method's: compilation, caches, memory allocated at first use. A single round stays as it is.
    """
    seconds = np.array(train_seconds, dtype=float)
    if seconds.size > 1:
        seconds[0] = np.nanmedian(seconds[1:])
    return seconds


def seconds_to_target(accuracy: Sequence[float], train_seconds: Sequence[float], target: float, filter_width: int = 1) -> float:
    """Cumulative `steady_seconds` up to and including the round that reaches `target`; evaluation is never counted. NaN when none does."""
    rounds = rounds_to_target(accuracy, target, filter_width)
    return float("nan") if np.isnan(rounds) else float(steady_seconds(train_seconds)[: int(rounds)].sum())


# --- one row a run --------------------------------------------------------------------------------------------------------


def summarise(
    frame: pd.DataFrame,
    rule: str = "smoothed_max",
    window: int = 50,
    filter_width: int = 5,
    target: float | None = None,
    by: Sequence[str] | None = None,
) -> pd.DataFrame:
    """One row a run: the columns that describe it (`by`: only these of them) and what came out.

    Added columns: accuracy (fraction, by `rule`), diverged (bool), diverged_round, last_round, divergence_all and
    divergence_active (means over the last `window` rounds), seconds_per_round (mean of `steady_seconds`) and, with a
    `target`, rounds_to_target and seconds_to_target. A diverged run has accuracy NaN: it is reported as diverged, never
    averaged. Raises InputError for a missing column, an unknown rule, or a run with a round twice.
    """
    if rule not in RULES:
        raise unknown("rule", rule, RULES)
    missing = [c for c in ("key", "label", *(h for h in HISTORY if h not in ("lr", "active"))) if c not in frame]
    if missing:
        raise InputError(f"the frame lacks the columns {missing}; pass the tidy frame that the run store loads.")
    describing = [c for c in frame if c not in HISTORY]
    rows = []
    for key, run in frame.groupby("key", sort=False):
        run = run.sort_values("round")
        if run["round"].duplicated().any():
            raise InputError(f"run {key!r} has the same round twice; stack every history once.")
        accuracy = run.set_index("round").test_accuracy.reindex(range(1, int(run["round"].max()) + 1)).to_numpy()
        tail = run[run["round"] > run["round"].max() - window]
        diverged = bool(run.diverged.max())
        row = {c: run[c].iloc[0] for c in (describing if by is None else dict.fromkeys(["key", "label", *by]))}
        row |= {
            "accuracy": float("nan") if diverged else RULES[rule](accuracy, window, filter_width),
            "diverged": diverged,
            "diverged_round": float(run["round"].iloc[-1]) if diverged else float("nan"),
            "last_round": int(run["round"].max()),
            "divergence_all": tail.divergence_all.mean(),
            "divergence_active": tail.divergence_active.mean(),
            "seconds_per_round": float(np.mean(steady_seconds(run.train_seconds))),
        }
        if target is not None:
            row |= {
                "rounds_to_target": rounds_to_target(accuracy, target),
                "seconds_to_target": seconds_to_target(accuracy, _by_round(run), target),
            }
        rows.append(row)
    return pd.DataFrame(rows)


def reached(summary: pd.DataFrame, label: str) -> float:
    """The accuracy that every run of a method reaches, rounded down to a whole percent: Table 8's default target."""
    return max(float(np.floor(100 * select(summary, label).accuracy.min()) / 100), 0.01)


def with_times(summary: pd.DataFrame, times: pd.DataFrame) -> pd.DataFrame:
    """`summary` with seconds_per_round from interleaved `times` (`runs.timing.time_rounds`) and, if it has a target, seconds_to_target =
    rounds_to_target × that: a run's own seconds depend on what else the machine did. Methods that were not timed keep their own."""
    if times.empty or summary.empty:
        return summary
    label = summary.label.map(canonical)
    base = select(times, "fedavg").seconds.mean()
    ratio = times.groupby(times.label.map(canonical)).ratio.mean()
    seconds = (base * label.map(ratio)).fillna(summary.seconds_per_round)
    summary = summary.assign(seconds_per_round=seconds)
    if "rounds_to_target" in summary:
        known = label.isin(ratio.index)
        summary["seconds_to_target"] = (summary.rounds_to_target * seconds).where(known, summary.seconds_to_target)
    return summary


def relative(frame: pd.DataFrame) -> pd.DataFrame:
    """A tidy frame with Δ^t over all clients relative to the size of the model, `per_norm`, and to the local movement, `per_movement`."""
    return frame.assign(per_norm=frame.divergence_all / frame.norm, per_movement=frame.divergence_all / frame.movement)


# --- several runs -----------------------------------------------------------------------------------------------------------


def mean_std(values: Sequence[float]) -> tuple[float, float, int]:
    """(mean, sample standard deviation, n) of the finite values; the deviation has n − 1 in it and is NaN for n < 2."""
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    return (
        float(values.mean()) if values.size else float("nan"),
        float(values.std(ddof=1)) if values.size > 1 else float("nan"),
        int(values.size),
    )


@dataclass(frozen=True)
class Paired:
    """Differences treatment − baseline of runs that share their setup and seed, in the unit of the compared column.

    differences: one entry a pair, indexed by the setup. low, high: 95 % interval of the mean (Student's t), NaN for n < 2.
    lost: pairs that have no difference because one of the two diverged.
    """

    differences: pd.Series
    mean: float
    std: float
    n: int
    low: float
    high: float
    lost: int


def select(summary: pd.DataFrame, label: str) -> pd.DataFrame:
    """The rows of one method, whatever the spelling: "fedavg+ri" finds "fedinit"."""
    return summary[np.array([canonical(name) == canonical(label) for name in summary.label], dtype=bool)]


def comparable(summary: pd.DataFrame, row: str, column: str) -> pd.DataFrame:
    """The runs of those seeds that fill most cells of a table's row, so that what stands side by side comes from the same seeds. `row` and
    `column` name the columns of `summary` that a table is made by."""
    cells = summary.groupby([row, "seed"])[column].transform("nunique")
    return summary[cells == cells.groupby(summary[row]).transform("max")]


def paired_difference(
    summary: pd.DataFrame, treatment: str, baseline: str, on: Sequence[str] | None = None, value: str = "accuracy"
) -> Paired:
    """`paired` for two method labels of one summary."""
    return paired(select(summary, treatment), select(summary, baseline), on, value)


def paired(treated: pd.DataFrame, baseline: pd.DataFrame, on: Sequence[str] | None = None, value: str = "accuracy") -> Paired:
    """Per-pair differences of `value` between two sets of runs that agree in the columns `on` (default: `SETUP`).

    Pairing removes what both runs share (partition, cohorts, batches, first weights). Raises InputError when a set has two
    runs for one pair, since which of them to compare is not ours to guess.
    """
    on = [c for c in (SETUP if on is None else on) if c in treated and c in baseline]
    for runs in (treated, baseline):
        if runs.duplicated(on).any():
            twice = runs[runs.duplicated(on, keep=False)]
            differ = [c for c in twice if c not in on and c not in ("key", "accuracy") and twice[c].astype(str).nunique() > 1]
            raise InputError(f"several runs of {twice.label.iloc[0]!r} share {on} and differ in {differ}; keep one of them before pairing.")
    both = treated.merge(baseline, on=on, suffixes=("", "_baseline"))
    both = both.set_index(on) if on else both
    difference = both[value].astype(float) - both[f"{value}_baseline"].astype(float)
    kept = difference[np.isfinite(difference)]
    return Paired(kept, *interval(kept), len(difference) - len(kept))


def by_seed(difference: Paired) -> Paired:
    """The differences averaged within each seed; as it is without seeds in its index."""
    if "seed" not in difference.differences.index.names:
        return difference
    means = difference.differences.groupby(level="seed").mean()
    return Paired(means, *interval(means), difference.lost)


def interval(values: Sequence[float]) -> tuple[float, float, int, float, float]:
    """(mean, std, n, low, high) of the finite values: `mean_std` and the 95 % interval of the mean (Student's t)."""
    mean, std, n = mean_std(values)
    half = t_quantile(n - 1) * std / np.sqrt(n) if n > 1 else float("nan")
    return mean, std, n, mean - half, mean + half


def acceleration(
    summary: pd.DataFrame, value: str = "rounds_to_target", baseline: str = "fedavg", on: Sequence[str] | None = None
) -> pd.DataFrame:
    """`summary` with a column `acceleration` = the baseline's `value` / the run's own, seed by seed (Table 8; unit: ×).

    NaN where either never reached the target.
    """
    on = [c for c in (SETUP if on is None else on) if c in summary]
    if value not in summary:
        raise InputError(f"value = {value!r} is not a column of the summary; call summarise with a target.")
    base = select(summary, baseline)[[*on, value]].rename(columns={value: "_baseline"})
    if base.empty:
        raise InputError(f"baseline = {baseline!r} has no run in the summary; add its runs.")
    out = summary.merge(base, on=on, how="left")
    return out.assign(acceleration=out["_baseline"] / out[value]).drop(columns="_baseline")


_T975 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


def t_quantile(df: int) -> float:
    """97.5 % quantile of Student's t: tabulated to 10 degrees of freedom, Cornish–Fisher beyond (error < 2e-4)."""
    _at_least("df", df, 1)
    if df <= len(_T975):
        return _T975[df - 1]
    z = 1.959964
    return (
        z
        + (z**3 + z) / (4 * df)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * df**3)
    )


def _curve(accuracy: Sequence[float]) -> np.ndarray:
    values = np.asarray(accuracy, dtype=float)
    if values.ndim != 1:
        raise InputError(f"accuracy has shape {values.shape}; give one run's curve, shape (T,), one entry a round.")
    finite = values[~np.isnan(values)]
    if finite.size and (finite.min() < 0 or finite.max() > 1):
        raise InputError(f"accuracy reaches {finite.max():g}; give fractions in [0, 1], NaN where a round was not evaluated.")
    return values


def _by_round(run: pd.DataFrame) -> np.ndarray:
    return run.set_index("round").train_seconds.reindex(range(1, int(run["round"].max()) + 1)).to_numpy()


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"{name} = {value!r} must be at least {least}.")
