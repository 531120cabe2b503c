"""A verdict for every claim of the paper, from summaries alone, by rules written down before the runs.

One small function a claim; its docstring is its rule. A claim whose data are absent, or that speaks of a data set that was
not run, is "not tested at this scale", with the reason and what was measured instead. Differences are paired seed by seed.
The general rule for "larger than": with three or more pairs the 95 % interval of the mean difference (Student's t) must lie
above zero; with one or two only the sign of the mean is judged, and the note says so. Published sizes are never thresholds
for reproduction: they stand beside the measured ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedinit.errors import unknown
from fedinit.results.metrics import HISTORY, Paired, moving_average, paired, select
from fedinit.results.names import canonical, display_name, split_label
from fedinit.results.published import CLAIMS, EM_DASH, claim

REPRODUCED, NOT_REPRODUCED, NOT_TESTED = "reproduced", "not reproduced", "not tested at this scale"
PAPER_METHODS = ("fedavg", "fedadam", "fedsam", "scaffold", "feddyn", "fedcm", "fedinit")
ABOUT = 0.05  # "about the same time": within 5 % of FedAvg's


@dataclass(frozen=True)
class Verdict:
    """One line of the ledger. `measured` and `spread` are text with their unit, `seeds` the number of seeds behind them."""

    claim_id: str
    verdict: str
    measured: str
    seeds: int
    spread: str
    note: str


@dataclass(frozen=True)
class Evidence:
    """What the ledger may look at; every part may be empty (None).

    summary: `summarise` of the runs of Tables 4 to 8, one β per method and setup (with a target for C2).
    epochs, beta: summaries of the two sweeps of Figure 1 (varying local_epochs; varying beta).
    curves: the tidy frame of Figure 2's runs (FedAvg and SCAFFOLD, several β), also used for M1.
    costs: one row a method: label, communication (vectors sent a client and round, both ways), gradients (a local step),
        stored (vectors kept on a client).
    theory: `fedinit.theory.findings()`: claim, quantity, measured, spread, seeds, bound, holds.
    """

    summary: pd.DataFrame | None = None
    epochs: pd.DataFrame | None = None
    beta: pd.DataFrame | None = None
    curves: pd.DataFrame | None = None
    costs: pd.DataFrame | None = None
    theory: pd.DataFrame | None = None

    def need(self, name: str) -> pd.DataFrame:
        frame = getattr(self, name)
        if frame is None or frame.empty:
            raise NotTested(f"no runs for it ({name})")
        return frame


@dataclass
class NotTested(Exception):
    """Raised inside a judge: the claim cannot be judged from this evidence; `measured` is what was seen all the same."""

    reason: str
    measured: str = EM_DASH
    seeds: int = 0
    spread: str = EM_DASH


JUDGES: dict[str, Callable[[Evidence], Verdict]] = {}


def judges(claim_id: str):
    """Register a judge: evidence → (holds, measured, seeds, spread, note)."""
    def register(judge):
        def verdict(evidence: Evidence) -> Verdict:
            try:
                holds, measured, seeds, spread, note = judge(evidence)
            except NotTested as no:
                return Verdict(claim_id, NOT_TESTED, no.measured, no.seeds, no.spread, no.reason)
            return Verdict(claim_id, REPRODUCED if holds else NOT_REPRODUCED, measured, seeds, spread, note)
        verdict.__doc__ = judge.__doc__
        JUDGES[claim_id] = verdict
        return verdict
    return register


def ledger(evidence: Evidence, claims: Iterable[str] | None = None) -> list[Verdict]:
    """The verdicts in the order of `CLAIMS` (or those of `claims`, ids)."""
    wanted = [one.id for one in CLAIMS] if claims is None else list(claims)
    for one in wanted:
        if one not in JUDGES:
            raise unknown("claim", one, JUDGES)
    return [JUDGES[one](evidence) for one in wanted]


def ledger_table(verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """One row a verdict, indexed by claim id: claim, published, verdict, measured, spread, seeds, note (all text but seeds)."""
    rows = [{"id": v.claim_id, "claim": claim(v.claim_id).text, "published": claim(v.claim_id).published, "verdict": v.verdict,
             "measured": v.measured, "spread": v.spread, "seeds": v.seeds, "note": v.note} for v in verdicts]
    return pd.DataFrame(rows, columns=["id", "claim", "published", "verdict", "measured", "spread", "seeds", "note"]).set_index("id")


# --- mechanics --------------------------------------------------------------------------------------------------------------

@judges("M1")
def m1(evidence):
    """Every run with RI at β = 0 has, round by round, exactly the losses, accuracies and Δ^t of its twin without RI."""
    frame = evidence.need("curves")
    parts = [split_label(label) for label in frame.label]
    frame = frame.assign(_base=[b for b, _ in parts], _ri=[r for _, r in parts])
    compared = [c for c in HISTORY if c in frame and c not in ("train_seconds", "eval_seconds")]
    twins, equal = [], 0
    for (base, seed), runs in frame.groupby(["_base", "seed"], sort=False):
        zero, plain = runs[runs._ri & (runs.beta == 0)], runs[~runs._ri]
        if not zero.empty and not plain.empty:
            a, b = (r.sort_values("round")[compared].reset_index(drop=True) for r in (zero, plain))
            both = min(len(a), len(b))
            twins.append(seed)
            equal += a[:both].equals(b[:both])
    if not twins:
        raise NotTested("no run with β = 0 beside one without RI")
    return equal == len(twins), f"{equal} of {len(twins)} pairs identical", len(set(twins)), EM_DASH, "compared: losses, accuracy, Δ^t, cohorts"


@judges("M2")
def m2(evidence):
    """Communication of every method with RI equals its base's, counted from the running code."""
    costs = _costs(evidence)
    ratios = {ri: costs.communication[ri] / costs.communication[base] for base, ri in _twins(costs.index)}
    if not ratios:
        raise NotTested("no method with and without RI in the costs")
    more = [f"{display_name(ri)} {r:g}×" for ri, r in ratios.items() if r != 1]
    return not more, "; ".join(more) or f"1.0× for {len(ratios)} methods", 0, "exact", (
        "these server steps also need the movement from the relaxed start" if more else "counted, not timed")


@judges("M3")
def m3(evidence):
    """FedInit's seconds a round are at most 5 % above FedAvg's, mean of the ratios seed by seed."""
    ratio = _ratios(evidence.need("summary"), ["fedinit"])["fedinit"]
    return ratio.mean() <= 1 + ABOUT, f"{ratio.mean():.2f}×", len(ratio), _range(ratio, "×"), "ratio to FedAvg, training seconds only"


@judges("M4")
def m4(evidence):
    """At least two base methods were run with RI, and none of these runs diverged where its base did not."""
    summary = evidence.need("summary")
    pairs = _twins(summary.label.map(canonical))
    if len(pairs) < 2:
        raise NotTested("fewer than two methods with and without RI")
    broken = [display_name(ri) for base, ri in pairs if select(summary, ri).diverged.any() and not select(summary, base).diverged.any()]
    return not broken, f"{len(pairs) - len(broken)} of {len(pairs)} methods run with RI", summary.seed.nunique(), EM_DASH, (
        f"diverged only with RI: {', '.join(broken)}" if broken else "")


# --- accuracy -----------------------------------------------------------------------------------------------------------------

@judges("A1")
def a1(evidence):
    """FedInit − FedAvg at 10 % participation and D_r = 0.1 on CIFAR-10 is larger than zero (general rule)."""
    runs = _where(evidence.need("summary"), share=0.1, dirichlet=0.1)
    return _on(runs, "cifar10", _larger(_gain(runs, "fedinit", "fedavg"), runs))


@judges("A2")
def a2(evidence):
    """The drop from 10 % to 5 % participation at D_r = 0.1 on CIFAR-10 is larger for FedAvg than for FedInit (general rule)."""
    runs = _where(evidence.need("summary"), dirichlet=0.1)
    drops = {m: _drop(runs, m) for m in ("fedavg", "fedinit")}
    difference = _difference(drops["fedavg"], drops["fedinit"])
    holds, _, seeds, spread, note = _larger(difference, runs)
    measured = f"FedInit {_points(-drops['fedinit'].mean)}, FedAvg {_points(-drops['fedavg'].mean)}"
    return _on(runs, "cifar10", (holds, measured, seeds, spread, note))


@judges("A3")
def a3(evidence):
    """On CIFAR-100 at 5 % participation and the smallest D_r run, FedInit has the highest mean of all methods, and SCAFFOLD's
    drop from 10 % is larger than FedInit's (general rule)."""
    runs = evidence.need("summary")
    runs = _where(runs, dirichlet=runs.dirichlet.min())
    low = _where(runs, share=0.05)
    means = low.groupby(low.label.map(canonical)).accuracy.mean()
    if not {"fedinit", "scaffold"} <= set(means.index):
        raise NotTested("FedInit and SCAFFOLD at 5 % participation are not both there")
    holds, _, seeds, spread, note = _larger(_difference(_drop(runs, "scaffold"), _drop(runs, "fedinit")), runs)
    first = means[[m for m in means.index if m in PAPER_METHODS]].idxmax()
    measured = f"FedInit {100 * means['fedinit']:.2f}%; SCAFFOLD drops {100 * _drop(runs, 'scaffold').mean:.2f}"
    return _on(runs, "cifar100", (holds and first == "fedinit", measured, seeds, spread, f"highest at 5 %: {display_name(first)}. {note}"))


@judges("A4")
def a4(evidence):
    """All seven methods were run; FedInit's accuracy minus that of the best other method (by its mean over all setups) is larger
    than zero over all setups and seeds (general rule), on CIFAR."""
    runs = evidence.need("summary")
    missing = [display_name(m) for m in PAPER_METHODS if select(runs, m).empty]
    if missing:
        raise NotTested(f"not run: {', '.join(missing)}")
    means = runs.groupby(runs.label.map(canonical)).accuracy.mean()
    second = means[[m for m in PAPER_METHODS if m != "fedinit"]].idxmax()
    holds, measured, seeds, spread, note = _larger(_gain(runs, "fedinit", second), runs)
    return _on(runs, "cifar", (holds, f"{measured} over {display_name(second)}", seeds, spread, note))


@judges("A5")
def a5(evidence):
    """For every base method with an RI twin (FedAvg and SCAFFOLD among them), RI's gain is larger than zero over all setups and
    seeds (general rule), on CIFAR-10."""
    runs = evidence.need("summary")
    gains = {base: _gain(runs, ri, base) for base, ri in _twins(runs.label.map(canonical))}
    if not {"fedavg", "scaffold"} <= set(gains):
        raise NotTested("FedAvg and SCAFFOLD with and without RI are not all there")
    judged = {base: _larger(gain, runs) for base, gain in gains.items()}
    measured = "; ".join(f"{display_name(base)} {_points(gain.mean)}" for base, gain in gains.items())
    spread = "; ".join(f"{display_name(base)} {result[3]}" for base, result in judged.items())
    return _on(runs, "cifar10", (all(r[0] for r in judged.values()), measured, runs.seed.nunique(), spread, judged["fedavg"][4]))


@judges("A6")
def a6(evidence):
    """FedInit − FedAvg is larger at the smallest D_r run than at the largest, paired by seed and participation (general rule)."""
    runs = evidence.need("summary")
    levels = sorted(runs.dirichlet.dropna().unique())
    if len(levels) < 2:
        raise NotTested("only one D_r was run")
    low, high = (_gain(_where(runs, dirichlet=d), "fedinit", "fedavg", drop=("dirichlet",)) for d in (levels[0], levels[-1]))
    holds, _, seeds, spread, note = _larger(_difference(low, high), runs)
    measured = f"{_points(low.mean)} at D_r {levels[0]:g}, {_points(high.mean)} at D_r {levels[-1]:g}"
    return _on(runs, "cifar", (holds, measured, seeds, spread, note))


# --- sensitivity and divergence ----------------------------------------------------------------------------------------------

@judges("S1")
def s1(evidence):
    """Of at least three K, the mean accuracy is highest at neither the smallest nor the largest; a diverged K counts as zero."""
    runs = select(evidence.need("epochs"), "fedinit")
    means = runs.assign(accuracy=runs.accuracy.fillna(0)).groupby("local_epochs").accuracy.mean()
    if len(means) < 3:
        raise NotTested("fewer than three K were run with FedInit")
    best = means.idxmax()
    return _on(runs, "cifar", (means.index[0] < best < means.index[-1], f"best K = {best:g} of {', '.join(f'{k:g}' for k in means.index)}",
                               runs.seed.nunique(), EM_DASH, ""))


@judges("S2")
def s2(evidence):
    """Some β > 0 fail (diverged, or less than half of β = 0's accuracy), every failing β > 0 is larger than every other, and at least
    two of the others reach β = 0's mean accuracy. Without a failing β the threshold was not reached: not tested."""
    runs = select(evidence.need("beta"), "fedinit")
    runs = runs[runs.beta >= 0]
    means = runs.assign(accuracy=runs.accuracy.fillna(0)).groupby("beta").accuracy.mean()
    if 0 not in means.index:
        raise NotTested("β = 0 was not run")
    positive = means[means.index > 0]
    failed, fine = positive[positive < means[0] / 2], positive[positive >= means[0] / 2]
    if failed.empty:
        raise NotTested("no β was large enough to fail", f"best β = {means.idxmax():g}", runs.seed.nunique())
    ordered = fine.empty or failed.index.min() > fine.index.max()
    return _on(runs, "cifar", (ordered and (fine >= means[0]).sum() >= 2,
                               f"fails from β = {failed.index.min():g}; {(fine >= means[0]).sum()} of {len(fine)} smaller β reach β = 0",
                               runs.seed.nunique(), EM_DASH, ""))


@judges("D1")
def d1(evidence):
    """For FedAvg and SCAFFOLD, the best β > 0 has a higher mean accuracy than β = 0, and at that β Δ^t over all clients (the paper's
    definition) is lower, in the mean over the last tenth of the rounds. Δ^t over the active clients is reported beside it."""
    table = _by_beta(evidence)
    parts, holds = [], True
    for base in ("fedavg", "scaffold"):
        means = table[table.base == base].groupby("beta")[["accuracy", "divergence_all", "divergence_active"]].mean()
        if 0 not in means.index or not (means.index > 0).any():
            raise NotTested(f"{display_name(base)} was not run with β = 0 and some β > 0")
        best = means[means.index > 0].accuracy.idxmax()
        change = means.loc[best] - means.loc[0]
        factor = means.loc[best] / means.loc[0]
        holds &= bool(change.accuracy > 0 and factor.divergence_all < 1)
        parts.append(f"{display_name(base)} (β = {best:g}): {_points(change.accuracy)}, Δ^t × {factor.divergence_all:.2f} over all, "
                     f"× {factor.divergence_active:.2f} over active")
    return _on(table, "cifar", (holds, "; ".join(parts), table.seed.nunique(), EM_DASH, _few(table.seed.nunique())))


@judges("D2")
def d2(evidence):
    """Of all (method, β < 0, seed), more than half have a higher Δ^t over all clients and a lower accuracy than β = 0 of their seed."""
    table = _by_beta(evidence)
    zero = table[table.beta == 0].set_index(["base", "seed"])
    cases = [(row, zero.loc[(row.base, row.seed)]) for row in table[table.beta < 0].itertuples() if (row.base, row.seed) in zero.index]
    if not cases:
        raise NotTested("no β < 0 beside a β = 0")
    worse = sum(row.accuracy < ref.accuracy and row.divergence_all > ref.divergence_all for row, ref in cases)
    lower = sum(row.accuracy < ref.accuracy for row, ref in cases)
    raised = sum(row.divergence_all > ref.divergence_all for row, ref in cases)
    return _on(table, "cifar", (worse > len(cases) / 2, f"both in {worse} of {len(cases)} cases (accuracy lower in {lower}, Δ^t higher in {raised})",
                                table.seed.nunique(), EM_DASH, _few(table.seed.nunique())))


@judges("D3")
def d3(evidence):
    """In the first fifth of the rounds log Δ^t of the largest β > 0 that did not diverge changes more from round to round (standard
    deviation) than at β = 0, while its accuracy, averaged over 5 evaluations, ends that fifth higher than it began and falls from its
    running maximum by at most 2 points more than β = 0's does."""
    frame = _with_beta(evidence.need("curves"))
    fine = frame.groupby("key").filter(lambda run: not run.diverged.any())
    wild, steady, seeds = [], [], set()
    for (_, seed), runs in fine.groupby(["base", "seed"]):
        if 0 in set(runs.beta) and runs.beta.max() > 0:
            (moves, fall, rise), (moves0, fall0, _) = (_early(runs[runs.beta == b]) for b in (runs.beta.max(), 0))
            wild.append(moves / moves0)
            steady.append(rise > 0 and fall <= fall0 + 0.02)
            seeds.add(seed)
    if not wild:
        raise NotTested("no β > 0 beside a β = 0 that both ran to the end")
    return _on(frame, "cifar", (min(wild) > 1 and all(steady), f"early changes of log Δ^t × {np.mean(wild):.2f}; accuracy steady in {sum(steady)} of {len(steady)}",
                                len(seeds), _range(wild, "×"), _few(len(seeds))))


# --- costs --------------------------------------------------------------------------------------------------------------------

@judges("C1")
def c1(evidence):
    """Mean ratios of seconds a round to FedAvg's: FedSAM's is the largest; FedInit's and FedAdam's are within 5 % of 1; SCAFFOLD's, FedDyn's
    and FedCM's lie between FedAvg's and FedSAM's."""
    ratios = _ratios(evidence.need("summary"), PAPER_METHODS[1:])
    r = {m: values.mean() for m, values in ratios.items()}
    holds = (max(r, key=r.get) == "fedsam" and all(abs(r[m] - 1) <= ABOUT for m in ("fedinit", "fedadam"))
             and all(1 < r[m] < r["fedsam"] for m in ("scaffold", "feddyn", "fedcm")))
    return holds, ", ".join(f"{display_name(m)} {x:.2f}×" for m, x in sorted(r.items(), key=lambda item: item[1])), \
        min(map(len, ratios.values())), ", ".join(_range(ratios[m], "×") for m in ("fedsam", "fedinit")) + " (FedSAM, FedInit)", "ratio to FedAvg"


@judges("C2")
def c2(evidence):
    """SCAFFOLD and FedDyn reach the target in fewer rounds than FedAvg, and FedInit in the least training time of the seven methods, by
    the means over the seeds (a seed that never reached it counts as infinite)."""
    runs = _where(evidence.need("summary"), share=0.1, dirichlet=0.1)
    if "rounds_to_target" not in runs:
        raise NotTested("the summary was made without a target accuracy")
    present = runs[runs.label.map(canonical).isin(PAPER_METHODS)]
    means = present.fillna({"rounds_to_target": np.inf, "seconds_to_target": np.inf}).groupby(present.label.map(canonical))[
        ["rounds_to_target", "seconds_to_target"]].mean()
    if not {"fedavg", "scaffold", "feddyn", "fedinit"} <= set(means.index) or not np.isfinite(means.loc["fedavg"]).all():
        raise NotTested("FedAvg, SCAFFOLD, FedDyn and FedInit are not all there, or FedAvg never reached the target")
    speed = means.loc["fedavg"] / means
    fewer = (means.rounds_to_target[["scaffold", "feddyn"]] < means.rounds_to_target["fedavg"]).all()
    measured = ", ".join(f"{display_name(m)} {speed.rounds_to_target[m]:.2f}× rounds {speed.seconds_to_target[m]:.2f}× time"
                         for m in ("scaffold", "feddyn", "fedinit"))
    return _on(runs, "cifar10", (fewer and means.seconds_to_target.idxmin() == "fedinit", measured, runs.seed.nunique(), EM_DASH,
                                 f"acceleration over FedAvg; least time: {display_name(means.seconds_to_target.idxmin())}"))


@judges("C3")
def c3(evidence):
    """Counted from the running code: SCAFFOLD and FedCM communicate 2× FedAvg's, FedSAM computes 2× gradients, SCAFFOLD and FedDyn keep more
    vectors on a client than FedAvg."""
    costs = _costs(evidence)
    missing = {"fedavg", "scaffold", "fedcm", "fedsam", "feddyn"} - set(costs.index)
    if missing:
        raise NotTested(f"no costs of {', '.join(sorted(map(display_name, missing)))}")
    sent, computed, stored = (costs[c] / (costs[c]["fedavg"] if c != "stored" else 1) for c in ("communication", "gradients", "stored"))
    holds = sent["scaffold"] == sent["fedcm"] == 2 and computed["fedsam"] == 2 and min(stored["scaffold"], stored["feddyn"]) > stored["fedavg"]
    return holds, (f"sent: SCAFFOLD {sent['scaffold']:g}×, FedCM {sent['fedcm']:g}×; gradients: FedSAM {computed['fedsam']:g}×; "
                   f"client vectors: SCAFFOLD {stored['scaffold']:g}, FedDyn {stored['feddyn']:g}, FedAvg {stored['fedavg']:g}"), 0, "exact", "counted, not timed"


# --- theory -------------------------------------------------------------------------------------------------------------------

def _theory(claim_id: str):
    def judge(evidence):
        """Every measured quantity of the claim respects the rule of `fedinit.theory.findings` (its `holds`)."""
        rows = evidence.need("theory")
        rows = rows[rows.claim == claim_id]
        if rows.empty:
            raise NotTested("not measured")
        return (bool(rows.holds.all()), "; ".join(f"{r.quantity}: {r.measured:.2f} ({r.bound})" for r in rows.itertuples()),
                int(rows.seeds.min()), "; ".join(f"± {s:.2f}" for s in rows.spread), "measured on federated quadratics")
    judges(claim_id)(judge)


for _claim in CLAIMS:
    if _claim.id.startswith("T"):
        _theory(_claim.id)


# --- shared -------------------------------------------------------------------------------------------------------------------

def _larger(difference: Paired, runs: pd.DataFrame):
    """The general rule for an accuracy difference in fractions; reported in points."""
    if difference.n == 0:
        raise NotTested("no pair of runs that both ran to the end", seeds=0) if difference.lost == 0 else NotTested(
            f"{difference.lost} pairs without a difference: one of the two diverged")
    seeds = difference.differences.reset_index().seed.nunique() if "seed" in difference.differences.index.names else difference.n
    holds = (difference.low if difference.n >= 3 else difference.mean) > 0
    spread = "one pair" if difference.n == 1 else (
        f"± {100 * difference.std:.2f}; 95 % interval {_points(difference.low)[:-7]} to {_points(difference.high)} (n = {difference.n})")
    note = [f"{difference.lost} pairs lost to divergence"] * (difference.lost > 0) + [_scale(runs)]
    note = ["one seed: the sign only" if difference.n == 1 else "two pairs: the sign only"] * (difference.n < 3) + note
    return holds, _points(difference.mean), seeds, spread, "; ".join(filter(None, note))


def _gain(runs: pd.DataFrame, treatment: str, baseline: str, drop=()) -> Paired:
    return paired(select(runs, treatment), select(runs, baseline), [c for c in _PAIR if c not in drop])


_PAIR = ("seed", "data", "model", "clients", "cohort_size", "dirichlet")


def _drop(runs: pd.DataFrame, label: str) -> Paired:
    """Accuracy at 10 % minus accuracy at 5 % participation, per seed and D_r."""
    high, low = (_where(select(runs, label), share=s) for s in (0.1, 0.05))
    return paired(high, low, ["seed", "data", "model", "dirichlet"])


def _difference(first: Paired, second: Paired) -> Paired:
    """The difference of two paired differences, matched by what indexes both."""
    a, b = (p.differences.rename("accuracy").reset_index() for p in (first, second))
    out = paired(a.assign(label="first"), b.assign(label="second"), [c for c in a if c != "accuracy"])
    return Paired(out.differences, out.mean, out.std, out.n, out.low, out.high, first.lost + second.lost)


def _where(runs: pd.DataFrame, share: float | None = None, dirichlet: float | None = None) -> pd.DataFrame:
    keep = pd.Series(True, runs.index)
    if share is not None:
        keep &= np.isclose(runs.cohort_size / runs.clients, share)
    if dirichlet is not None:
        keep &= np.isclose(runs.dirichlet.astype(float), dirichlet)
    if not keep.any():
        raise NotTested(" and ".join([f"{share:.0%} participation"] * (share is not None) + [f"D_r = {dirichlet:g}"] * (dirichlet is not None))
                        + " was not run")
    return runs[keep]


def _on(runs: pd.DataFrame, data: str, result):
    """`result` if the runs used the claim's data; otherwise the claim is not tested, and what was measured is told all the same."""
    used = sorted(map(str, runs.data.unique()))
    pattern = {"cifar10": r"cifar-?10(?!0)", "cifar100": r"cifar-?100", "cifar": r"cifar"}[data]
    if all(re.search(pattern, name.lower()) for name in used):
        return result
    raise NotTested(f"on {', '.join(used)}, not on {data}; {'the rule would hold' if result[0] else 'the rule would fail'} there", *result[1:4])


def _scale(runs: pd.DataFrame) -> str:
    parts = [f"{name} {', '.join(f'{v}' for v in sorted(runs[column].dropna().unique()))}"
             for name, column in (("model", "model"), ("width", "width"), ("rounds", "rounds")) if column in runs and runs[column].notna().any()]
    return ", ".join(parts)


def _twins(labels) -> list[tuple[str, str]]:
    """(base, base with RI) for every method that is there both ways."""
    here = list(dict.fromkeys(labels))
    return [(base, ri) for base in here for ri in [canonical(f"{base}+ri")] if ri in here and ri != base]


def _costs(evidence: Evidence) -> pd.DataFrame:
    costs = evidence.need("costs")
    return costs.set_index(costs.label.map(canonical))


def _ratios(summary: pd.DataFrame, methods) -> dict[str, pd.Series]:
    """Seconds a round over FedAvg's of the same seed and setup, per method."""
    out = {}
    for method in methods:
        both = select(summary, method).merge(select(summary, "fedavg"), on=[c for c in _PAIR if c in summary], suffixes=("", "_fedavg"))
        if both.empty:
            raise NotTested(f"{display_name(method)} and FedAvg were not run in one setup")
        out[method] = both.seconds_per_round / both.seconds_per_round_fedavg
    return out


def _with_beta(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns `base` and `beta`, where a method without RI is its own β = 0 (claim M1); of two β = 0 runs the one without RI stays."""
    parts = [split_label(label) for label in frame.label]
    frame = frame.assign(base=[b for b, _ in parts], beta=[b if ri else 0.0 for b, (_, ri) in zip(frame.beta, parts)], _ri=[ri for _, ri in parts])
    first = frame.sort_values("_ri", kind="stable").groupby(["base", "beta", "seed"]).key.transform("first")
    return frame[frame.key == first].drop(columns="_ri")


def _by_beta(evidence: Evidence) -> pd.DataFrame:
    """One row a run of Figure 2: base, beta, seed, data and means over the last tenth of the rounds; a diverged run has accuracy 0, Δ^t ∞."""
    frame = _with_beta(evidence.need("curves"))
    tail = frame[frame["round"] > 0.9 * frame.groupby("key")["round"].transform("max")]
    out = tail.groupby(["base", "beta", "seed", "data", "key"], as_index=False)[["test_accuracy", "divergence_all", "divergence_active"]].mean()
    out = out.rename(columns={"test_accuracy": "accuracy"})
    diverged = out.key.map(frame.groupby("key").diverged.max()).astype(bool)
    out.loc[diverged, ["accuracy", "divergence_all", "divergence_active"]] = 0.0, np.inf, np.inf
    return out


def _early(run: pd.DataFrame) -> tuple[float, float, float]:
    """(std of the changes of log Δ^t, largest fall of the smoothed accuracy, its rise) in the first fifth of the rounds."""
    run = run.sort_values("round")
    run = run[run["round"] <= max(5, run["round"].max() / 5)]
    accuracy = run.test_accuracy.dropna().to_numpy()
    smooth = moving_average(accuracy, min(5, len(accuracy)))
    return (float(np.diff(np.log(run.divergence_all)).std()), float((np.maximum.accumulate(smooth) - smooth).max()), float(smooth[-1] - smooth[0]))


def _points(fraction: float) -> str:
    return f"{100 * fraction:+.2f} points".replace("-", "−")


def _range(values, unit: str = "") -> str:
    values = np.asarray(values, dtype=float)
    return f"{values.min():.2f} to {values.max():.2f}{unit}" if values.size > 1 else "one value"


def _few(seeds: int) -> str:
    return {1: "one seed", 2: "two seeds"}.get(seeds, "")
