"""One small function a claim; its docstring is its rule, written down before the runs.

The general rule for "larger than": runs that share seed and setup are paired, differences are averaged within a seed, and with three
or more seeds the 95 % interval of the mean difference (Student's t) must lie above zero; with one or two only the sign of the mean is
judged, and the note says so. Published sizes are never thresholds for reproduction: they stand beside the measured ones. A judge
returns (holds, measured, seeds, spread, note) or raises NotTested.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from fedinit.results.evidence import (
    TAIL,
    UNEVEN,
    NotTested,
    against_zero,
    below,
    costs_by_method,
    difference_of,
    drop,
    early,
    ends_by_beta,
    few,
    gain,
    larger,
    matched,
    notes,
    on_data,
    points,
    scale,
    span,
    sure_of,
    time_ratios,
    twins,
    uneven,
    where,
)
from fedinit.results.metrics import HISTORY, select
from fedinit.results.names import canonical, display_name, split_label, with_beta
from fedinit.results.published import CLAIMS, EM_DASH

PAPER_METHODS = ("fedavg", "fedadam", "fedsam", "scaffold", "feddyn", "fedcm", "fedinit")
ABOUT = 0.05  # "about the same time": within 5 % of FedAvg's

JUDGES: dict[str, Callable] = {}


def judges(claim_id: str):
    """Register a judge: evidence → (holds, measured, seeds, spread, note)."""

    def register(judge):
        JUDGES[claim_id] = judge
        return judge

    return register


# --- mechanics --------------------------------------------------------------------------------------------------------------


@judges("M1")
def m1(evidence):
    """Every run with RI at β = 0 has, round by round, exactly the losses, accuracies and Δ^t of its twin without RI."""
    frame = evidence.need("curves")
    parts = [split_label(label) for label in frame.label]
    frame = frame.assign(_base=[b for b, _ in parts], _ri=[r for _, r in parts])
    compared = [c for c in HISTORY if c in frame and c not in ("train_seconds", "eval_seconds")]
    twins, equal = [], 0
    for (_, seed), runs in frame.groupby(["_base", "seed"], sort=False):
        zero, plain = runs[runs._ri & (runs.beta == 0)], runs[~runs._ri]
        if not zero.empty and not plain.empty:
            a, b = (r.sort_values("round")[compared].reset_index(drop=True) for r in (zero, plain))
            both = min(len(a), len(b))
            twins.append(seed)
            equal += a[:both].equals(b[:both])
    if not twins:
        raise NotTested("no run with β = 0 beside one without RI")
    return (
        equal == len(twins),
        f"{equal} of {len(twins)} pairs identical",
        len(set(twins)),
        EM_DASH,
        "compared: losses, accuracy, Δ^t, cohorts",
    )


@judges("M2")
def m2(evidence):
    """Communication of every method with RI equals its base's, counted from the running code with Algorithm 1's server."""
    costs = costs_by_method(evidence)
    ratios = {ri: costs.communication[ri] / costs.communication[base] for base, ri in twins(costs.index)}
    if not ratios:
        raise NotTested("no method with and without RI in the costs")
    more = [f"{display_name(ri)} {r:.3g}×" for ri, r in ratios.items() if r != 1]
    own = ", FedInit among them" if ratios.get("fedinit") == 1 else ""
    return (
        not more,
        "; ".join([f"1.0× for {len(ratios) - len(more)} of {len(ratios)}{own}", *more]),
        0,
        "exact",
        ("these server steps also need the movement from the relaxed start" if more else "counted, not timed"),
    )


@judges("M3")
def m3(evidence):
    """FedInit's seconds a round are at most 5 % above FedAvg's, mean of the ratios repeat by repeat. Not
    tested when the standard error of that mean is more than 5 % of it."""
    ratios, seeds, how = time_ratios(evidence, ["fedinit"])
    ratio = ratios["fedinit"]
    return sure_of(ratios, ABOUT, (ratio.mean() <= 1 + ABOUT, f"{ratio.mean():.2f}×", seeds, span(ratio, "×"), how))


@judges("M4")
def m4(evidence):
    """All six base methods were run with RI, and none of these runs fails where its base does not: diverges, or has less than half of its
    accuracy in the same setup and seed (as in S2)."""
    summary = evidence.need("summary")
    pairs = twins(summary.label)
    all_bases(pairs)
    broken, seeds = [], []
    for base, ri in pairs:
        both = select(summary, ri).merge(select(summary, base), on=["seed", "data", "clients", "dirichlet"], suffixes=("", "_base"))
        seeds.append(both.seed.nunique())
        if (both.accuracy.fillna(0) < both.accuracy_base / 2).any():
            broken.append(display_name(ri))
    return (
        not broken,
        f"{len(pairs) - len(broken)} of {len(pairs)} methods keep half of their accuracy or more with RI",
        min(seeds),
        EM_DASH,
        (f"fails: {', '.join(broken)}" if broken else ""),
    )


# --- accuracy -----------------------------------------------------------------------------------------------------------------


@judges("A1")
def a1(evidence):
    """FedInit − FedAvg at 10 % participation and D_r = 0.1 on CIFAR-10 is larger than zero (general rule)."""
    runs = where(evidence.need("summary"), share=0.1, dirichlet=0.1)
    return on_data(runs, "cifar10", larger(gain(runs, "fedinit", "fedavg"), runs))


@judges("A2")
def a2(evidence):
    """The drop from 10 % to 5 % participation at D_r = 0.1 on CIFAR-10 is larger for FedAvg than for FedInit (general rule)."""
    runs = where(evidence.need("summary"), dirichlet=0.1)
    drops = {m: drop(runs, m) for m in ("fedavg", "fedinit")}
    difference = difference_of(drops["fedavg"], drops["fedinit"])
    holds, _, seeds, spread, note = larger(difference, runs)
    measured = f"FedInit {points(-drops['fedinit'].mean)}, FedAvg {points(-drops['fedavg'].mean)}"
    return on_data(runs, "cifar10", (holds, measured, seeds, spread, note))


@judges("A3")
def a3(evidence):
    """On CIFAR-100 at 5 % participation and the smallest D_r run, FedInit has the highest mean of all methods, and SCAFFOLD's
    drop from 10 % is larger than FedInit's (general rule)."""
    runs = evidence.need("summary" if evidence.summary100 is None else "summary100")
    runs = where(runs, dirichlet=runs.dirichlet.min())
    low = where(runs, share=0.05)
    means = low.groupby(low.label.map(canonical)).accuracy.mean()
    if not {"fedinit", "scaffold"} <= set(means.index):
        raise NotTested("FedInit and SCAFFOLD at 5 % participation are not both there")
    holds, _, seeds, spread, note = larger(difference_of(drop(runs, "scaffold"), drop(runs, "fedinit")), runs)
    first = means[[m for m in means.index if m in PAPER_METHODS]].idxmax()
    measured = f"FedInit {100 * means['fedinit']:.2f}%; SCAFFOLD drops {100 * drop(runs, 'scaffold').mean:.2f}"
    return on_data(
        runs, "cifar100", (holds and first == "fedinit", measured, seeds, spread, f"highest at 5 %: {display_name(first)}. {note}")
    )


@judges("A4")
def a4(evidence):
    """FedInit's accuracy minus that of the best other method (by its mean) is larger than zero (general rule), over all setups and seeds
    in which all seven methods were run, on CIFAR."""
    runs = evidence.need("summary")
    missing = [display_name(m) for m in PAPER_METHODS if select(runs, m).empty]
    if missing:
        raise NotTested(f"not run: {', '.join(missing)}")
    papers = runs[runs.label.map(canonical).isin(PAPER_METHODS)].assign(label=lambda r: r.label.map(canonical))
    whole = papers.groupby(["seed", "clients", "dirichlet"]).label.transform("nunique") == len(PAPER_METHODS)
    if not whole.any():
        raise NotTested("no setup and seed has all seven methods")
    means = papers[whole].groupby("label").accuracy.mean()
    second = means.drop("fedinit").idxmax()
    holds, measured, seeds, spread, note = larger(gain(papers[whole], "fedinit", second), papers[whole])
    return on_data(runs, "cifar", (holds, f"{measured} over {display_name(second)}", seeds, spread, note))


@judges("A5")
def a5(evidence):
    """For every one of the six base methods RI's gain is larger than zero over all setups (general rule), on CIFAR-10."""
    return improves_each(evidence.need("summary"))


def improves_each(runs: pd.DataFrame):
    """RI's gain over each base method, all of them larger than zero or not (A5's rule)."""
    gains = {base: gain(runs, ri, base) for base, ri in twins(runs.label)}
    judged = {base: larger(paired, runs) for base, paired in gains.items() if paired.n}
    measured = "; ".join(f"{display_name(base)} {result[1]}" for base, result in judged.items())
    spread = "; ".join(f"{display_name(base)} {result[3]}" for base, result in judged.items())
    seeds = min((result[2] for result in judged.values()), default=0)
    all_bases(gains.items(), measured or EM_DASH, seeds, spread or EM_DASH)
    some = ", ".join(display_name(base) for base in judged if uneven(gains[base]))
    note = notes(few(seeds) and f"{few(seeds)} of some: the sign only", some and f"{some}: {UNEVEN}", scale(runs))
    return on_data(runs, "cifar10", (len(judged) == len(gains) and all(r[0] for r in judged.values()), measured, seeds, spread, note))


@judges("A6")
def a6(evidence):
    """FedInit − FedAvg is larger at the smallest D_r run than at the largest, paired by seed and participation (general rule), and larger
    with both noises than without (Q6)."""
    runs = evidence.need("summary")
    levels = sorted(runs.dirichlet.dropna().unique())
    if len(levels) < 2:
        raise NotTested("only one D_r was run")
    low, high = (gain(where(runs, dirichlet=d), "fedinit", "fedavg", across=("dirichlet",)) for d in (levels[0], levels[-1]))
    holds, _, seeds, spread, note = larger(difference_of(low, high), runs)
    means = matched(low, high)
    measured = f"{points(means[0])} at D_r {levels[0]:g}, {points(means[1])} at D_r {levels[-1]:g}"
    split = on_data(runs, "cifar", (holds, measured, seeds, spread, note))
    try:
        noise = noises(evidence)
    except NotTested as untested:
        if holds:
            raise NotTested(f"holds by D_r; by noise: {untested.reason}", measured, seeds, spread) from None
        return split
    both = [f"{one} (D_r); {other} (noise)" for one, other in zip(split[1:], noise[1:], strict=True)]
    return holds and noise[0], f"{measured}; {noise[1]}", min(seeds, noise[2]), both[2], both[3]


def noises(evidence):
    """FedInit − FedAvg with both noises minus FedInit − FedAvg without, of the same seed, is larger than zero."""
    runs = evidence.need("noise")
    off, on = runs[runs.client_noise == 0], runs[runs.client_noise > 0]
    if on.empty or off.empty:
        raise NotTested("the runs with and without noise are not both there")
    with_noise, without = gain(on, "fedinit", "fedavg"), gain(off, "fedinit", "fedavg")
    holds, _, seeds, spread, note = larger(difference_of(with_noise, without), runs)
    means = matched(with_noise, without)
    measured = f"{points(means[0])} with both noises, {points(means[1])} without"
    return on_data(runs, "cifar10", (holds, measured, seeds, spread, note))


def all_bases(pairs, *measured) -> None:
    """NotTested unless every base method of the paper was run with and without RI."""
    missing = [display_name(base) for base in PAPER_METHODS if base != "fedinit" and base not in {base for base, _ in pairs}]
    if missing:
        raise NotTested(f"not run with and without RI: {', '.join(missing)}", *measured)


def whole_seeds(runs):
    """Which rows belong to a seed that every method of these runs has."""
    methods = runs.label.map(canonical)
    return methods.groupby(runs.seed).transform("nunique") == methods.nunique()


# --- sensitivity and divergence ----------------------------------------------------------------------------------------------


@judges("S1")
def s1(evidence):
    """Of at least three K, the mean accuracy is highest at neither the smallest nor the largest; a diverged K counts as zero. If it is
    highest at the largest, the fall was not reached: not tested."""
    runs = select(evidence.need("epochs"), "fedinit")
    means = runs.assign(accuracy=runs.accuracy.fillna(0)).groupby("local_epochs").accuracy.mean()
    if len(means) < 3:
        raise NotTested("fewer than three K were run with FedInit")
    best, seeds = means.idxmax(), runs.seed.nunique()
    measured = f"best K = {best:g} of {', '.join(f'{k:g}' for k in means.index)}"
    if best == means.index[-1]:
        raise NotTested("accuracy still rises at the largest K that was run", measured, seeds)
    return on_data(runs, "cifar", (means.index[0] < best, measured, seeds, EM_DASH, few(seeds)))


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
    return on_data(
        runs,
        "cifar",
        (
            ordered and (fine >= means[0]).sum() >= 2,
            f"fails from β = {failed.index.min():g}; {(fine >= means[0]).sum()} of {len(fine)} smaller β reach β = 0",
            runs.seed.nunique(),
            EM_DASH,
            few(runs.seed.nunique()),
        ),
    )


@judges("D1")
def d1(evidence):
    """For FedAvg and SCAFFOLD, the best β > 0 has a higher accuracy than β = 0 of the same seed, and a lower Δ^t over all clients (the
    paper's definition), both in the mean over the last tenth of the rounds and by the general rule (Δ^t: of its logarithm). Δ^t over the
    active clients is reported beside it."""
    table = ends_by_beta(evidence)
    parts, spreads, holds, pairs = [], [], True, []
    for base in ("fedavg", "scaffold"):
        best, change = against_zero(table, base, "accuracy", "divergence_all", "divergence_active")
        higher, gained, seeds, spread, _ = larger(change["accuracy"], table)
        factors = {name: np.exp(change[name].mean) for name in ("divergence_all", "divergence_active")}
        holds &= bool(higher and below(change["divergence_all"]))
        pairs.append(seeds)
        parts.append(
            f"{display_name(base)} (β = {best:g}): {gained}, Δ^t × {factors['divergence_all']:.2f} over all, "
            f"× {factors['divergence_active']:.2f} over active"
        )
        spreads.append(f"{display_name(base)} {spread}")
    return on_data(table, "cifar", (holds, "; ".join(parts), min(pairs), "; ".join(spreads), notes(few(min(pairs)), TAIL)))


@judges("D2")
def d2(evidence):
    """Of all (method, β < 0, seed), more than half have a higher Δ^t over all clients and a lower accuracy than β = 0 of their seed."""
    table = ends_by_beta(evidence)
    zero = table[table.beta == 0].set_index(["base", "seed"])
    below_zero = table[table.beta < 0]
    cases = [(row, zero.loc[(row.base, row.seed)]) for row in table[table.beta < 0].itertuples() if (row.base, row.seed) in zero.index]
    if not cases:
        raise NotTested("no β < 0 beside a β = 0")
    worse = sum(row.accuracy < ref.accuracy and row.divergence_all > ref.divergence_all for row, ref in cases)
    lower = sum(row.accuracy < ref.accuracy for row, ref in cases)
    raised = sum(row.divergence_all > ref.divergence_all for row, ref in cases)
    return on_data(
        table,
        "cifar",
        (
            worse > len(cases) / 2,
            f"both in {worse} of {len(cases)} cases (accuracy lower in {lower}, Δ^t higher in {raised})",
            below_zero.seed.nunique(),
            EM_DASH,
            notes(few(below_zero.seed.nunique()), TAIL),
        ),
    )


@judges("D3")
def d3(evidence):
    """In the first fifth of the rounds log Δ^t of the largest β > 0 that did not diverge changes more from round to round (standard
    deviation) than at β = 0, while its accuracy, averaged over 5 evaluations (half of them where there are fewer than ten), ends that
    fifth higher than it began and falls from its running maximum by at most 2 points more than β = 0's does."""
    frame = with_beta(evidence.need("curves"))
    fine = frame.groupby("key").filter(lambda run: not run.diverged.any())
    wild, steady, seeds = [], [], set()
    for (_, seed), runs in fine.groupby(["base", "seed"]):
        if 0 in set(runs.beta) and runs.beta.max() > 0:
            (moves, fall, rise), (moves0, fall0, _) = (early(runs[runs.beta == b]) for b in (runs.beta.max(), 0))
            wild.append(moves / moves0)
            steady.append(rise > 0 and fall <= fall0 + 0.02)
            seeds.add(seed)
    if not wild:
        raise NotTested("no β > 0 beside a β = 0 that both ran to the end")
    return on_data(
        frame,
        "cifar",
        (
            min(wild) > 1 and all(steady),
            f"early changes of log Δ^t × {np.mean(wild):.2f}; accuracy steady in {sum(steady)} of {len(steady)}",
            len(seeds),
            span(wild, "×"),
            few(len(seeds)),
        ),
    )


# --- costs --------------------------------------------------------------------------------------------------------------------


@judges("C1")
def c1(evidence):
    """Mean ratios of seconds a round to FedAvg's: FedSAM's is the largest; FedInit's and FedAdam's are within 5 % of 1;
    SCAFFOLD's, FedDyn's and FedCM's lie between FedAvg's and FedSAM's. Not tested when the standard error of one of these means is
    more than 5 % of it."""
    ratios, seeds, how = time_ratios(evidence, PAPER_METHODS[1:])
    r = {m: values.mean() for m, values in ratios.items()}
    holds = (
        max(r, key=r.get) == "fedsam"
        and all(abs(r[m] - 1) <= ABOUT for m in ("fedinit", "fedadam"))
        and all(1 < r[m] < r["fedsam"] for m in ("scaffold", "feddyn", "fedcm"))
    )
    measured = ", ".join(f"{display_name(m)} {x:.2f}×" for m, x in sorted(r.items(), key=lambda item: item[1]))
    spread = ", ".join(span(ratios[m], "×") for m in ("fedsam", "fedinit")) + " (FedSAM, FedInit)"
    return sure_of(ratios, ABOUT, (holds, measured, seeds, spread, how))


@judges("C2")
def c2(evidence):
    """SCAFFOLD and FedDyn reach the target in fewer rounds than FedAvg, and FedInit in the least training time of the seven methods, by
    the means over the seeds that all methods have (a seed that never reached it counts as infinite). Times come from Table 7's seconds."""
    runs = where(evidence.need("summary"), share=0.1, dirichlet=0.1)
    if "rounds_to_target" not in runs:
        raise NotTested("the summary was made without a target accuracy")
    present = runs[runs.label.map(canonical).isin(PAPER_METHODS)]
    present = present[whole_seeds(present)]
    means = (
        present.fillna({"rounds_to_target": np.inf, "seconds_to_target": np.inf})
        .groupby(present.label.map(canonical))[["rounds_to_target", "seconds_to_target"]]
        .mean()
    )
    if not {"fedavg", "scaffold", "feddyn", "fedinit"} <= set(means.index) or not np.isfinite(means.loc["fedavg"]).all():
        raise NotTested("FedAvg, SCAFFOLD, FedDyn and FedInit are not all there, or FedAvg never reached the target")
    speed = means.loc["fedavg"] / means
    fastest = display_name(means.seconds_to_target.idxmin())
    fewer = (means.rounds_to_target[["scaffold", "feddyn"]] < means.rounds_to_target["fedavg"]).all()
    measured = ", ".join(
        f"{display_name(m)} {speed.rounds_to_target[m]:.2f}× rounds {speed.seconds_to_target[m]:.2f}× time"
        for m in ("scaffold", "feddyn", "fedinit")
    )
    return on_data(
        runs,
        "cifar10",
        (
            fewer and means.seconds_to_target.idxmin() == "fedinit",
            measured,
            present.seed.nunique(),
            EM_DASH,
            notes(few(present.seed.nunique()), f"acceleration over FedAvg; least time: {fastest}"),
        ),
    )


@judges("C3")
def c3(evidence):
    """Counted from the running code: SCAFFOLD and FedCM communicate 2× FedAvg's, FedSAM computes 2× gradients, SCAFFOLD and FedDyn
    keep more vectors on a client than FedAvg."""
    costs = costs_by_method(evidence)
    missing = {"fedavg", "scaffold", "fedcm", "fedsam", "feddyn"} - set(costs.index)
    if missing:
        raise NotTested(f"no costs of {', '.join(sorted(map(display_name, missing)))}")
    sent, computed, stored = (costs[c] / (costs[c]["fedavg"] if c != "stored" else 1) for c in ("communication", "gradients", "stored"))
    holds = (
        sent["scaffold"] == sent["fedcm"] == 2 and computed["fedsam"] == 2 and min(stored["scaffold"], stored["feddyn"]) > stored["fedavg"]
    )
    return (
        holds,
        (
            f"sent: SCAFFOLD {sent['scaffold']:g}×, FedCM {sent['fedcm']:g}×; gradients: FedSAM {computed['fedsam']:g}×; "
            f"client vectors: SCAFFOLD {stored['scaffold']:g}, FedDyn {stored['feddyn']:g}, FedAvg {stored['fedavg']:g}"
        ),
        0,
        "exact",
        "counted, not timed",
    )


# --- theory -------------------------------------------------------------------------------------------------------------------


def _theory(claim_id: str):
    def judge(evidence):
        """Every measured quantity of the claim respects the rule of `fedinit.theory.findings` (its `holds`). Not tested when none
        contradicts it, but some are too close to 1 for their spread."""
        rows = evidence.need("theory")
        rows = rows[rows.claim == claim_id]
        if rows.empty:
            raise NotTested("not measured")
        measured = "; ".join(f"{r.quantity}: {r.measured:.2f} ({r.bound})" for r in rows.itertuples()).replace(": -", ": −")
        seeds, spread = int(rows.seeds.min()), "; ".join(f"± {s:.2f}" for s in rows.spread)
        if not (~rows.holds & rows.decides).any() and not rows.holds.all():
            raise NotTested("within two standard errors of 1: the spread is too large to tell", measured, seeds, spread)
        return (
            bool(rows.holds.all()),
            measured,
            seeds,
            spread,
            "measured on federated quadratics" + ("; exponents: tolerance 0.15" if rows.quantity.str.contains("exponent").any() else ""),
        )

    judges(claim_id)(judge)


for _claim in CLAIMS:
    if _claim.id.startswith("T"):
        _theory(_claim.id)
