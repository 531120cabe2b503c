"""The rules for `published.QUESTIONS`, what the paper's claims leave open: one small function each, as in `judges`."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedinit.results.evidence import (
    PAIR,
    TAIL,
    NotTested,
    against_zero,
    below,
    difference_of,
    ends_by_beta,
    few,
    larger,
    matched,
    notes,
    on_data,
    points,
)
from fedinit.results.judges import improves_each, judges, noises
from fedinit.results.metrics import Paired, by_seed, paired, select
from fedinit.results.names import display_name, variants, with_setup


def _momentum(evidence, full: bool = False) -> pd.DataFrame:
    runs = evidence.need("momentum")
    everybody = runs.cohort_size == runs.clients
    return runs[everybody if full else ~everybody]


def _end(runs: pd.DataFrame, aggregate: str = "end") -> pd.DataFrame:
    mine = select(runs, "fedinit")
    return mine[mine["aggregate"] == aggregate] if len(mine) else mine  # without any RI there is no such column


def _above(treated: pd.DataFrame, baseline: pd.DataFrame, of: str, also: str = ""):
    """The general rule for treated − baseline, paired by seed and participation, on CIFAR-10."""
    if treated.empty or baseline.empty:
        raise NotTested(f"{of} was not run")
    runs = pd.concat([treated, baseline])
    holds, measured, seeds, spread, note = larger(paired(treated, baseline, PAIR), runs)
    return on_data(runs, "cifar10", (holds, measured, seeds, spread, notes(also, note)))


@judges("Q1")
def q1(evidence):
    """FedInit (aggregate = end) minus FedAvg with RI's server term alone is larger than zero, over both partial participations."""
    runs = _momentum(evidence)
    return _above(_end(runs), select(runs, "lagged"), "FedInit beside RI's server term alone")


@judges("Q2")
def q2(evidence):
    """FedInit minus FedAvgM is larger than zero over both partial participations, FedAvgM with the coefficient of the best mean: a choice
    in FedAvgM's favour."""
    runs = _momentum(evidence)
    momenta = select(runs, "fedavgm")
    if momenta.empty:
        raise NotTested("FedAvgM was not run")
    if momenta.momentum.nunique() < 3:
        raise NotTested(f"of FedAvgM only {', '.join(f'momentum {m:g}' for m in momenta.momentum.unique())} was run", *_seen(runs, momenta))
    on = [column for column in PAIR if column in momenta]
    common = momenta.groupby(on).momentum.transform("nunique") == momenta.momentum.nunique()  # pairs that have every coefficient
    best = momenta[common if common.any() else momenta.index].groupby("momentum").accuracy.mean().idxmax()
    others = ", ".join(f"{m:g}" for m in sorted(momenta.momentum.unique()))
    return _above(_end(runs), momenta[momenta.momentum == best], "FedInit beside FedAvgM", f"best momentum {best:g} of {others}")


def _seen(runs: pd.DataFrame, baseline: pd.DataFrame) -> tuple:
    """(measured, seeds, spread) of FedInit beside the last of several baselines, for a question that is not answered yet."""
    difference = paired(_end(runs), baseline[baseline.momentum == baseline.momentum.max()], PAIR)
    return larger(difference, runs)[1:4] if difference.n else ()


@judges("Q3")
def q3(evidence):
    """FedInit with aggregate = start minus FedAvg is larger than zero, over both partial participations."""
    runs = _momentum(evidence)
    return _above(_end(runs, "start"), select(runs, "fedavg"), "FedInit with aggregate = start")


@judges("Q4")
def q4(evidence):
    """FedInit minus FedAvg is larger than zero at full participation."""
    runs = _momentum(evidence, full=True)
    return _above(_end(runs), select(runs, "fedavg"), "FedInit at full participation")


@judges("Q5")
def q5(evidence):
    """In each participation, β / (N/C) harms from some value of the grid on: it is the smallest at which, and above which, FedInit is
    below FedAvg (diverged: below). The claim holds if one interval between neighbours of the grid, and no single β, separates the harmless
    from the harmful in every participation. Not tested where a participation was not taken as far as what harms elsewhere."""
    harmless, harmful = harm_by_share(evidence.need("threshold"))
    runs = evidence.threshold
    if not harmful:
        raise NotTested("no β was large enough to harm in any participation")
    parts = [
        f"{share:.0%}: " + (f"harms from β = {harmful[share] * share:g} ({harmful[share]:g} N/C)" if share in harmful else "never harms")
        for share in sorted(harmless)
    ]
    reached = {share: cells.ratio.max() for share, cells in gains_by_ratio(runs).groupby("share")}
    short = [f"{share:.0%}" for share in sorted(set(harmless) - set(harmful)) if reached[share] < min(harmful.values())]
    if short or len(harmless) < 2:
        where = f"at {', '.join(short)}" if short else "in a second participation"
        raise NotTested(
            f"β as large in multiples of N/C as what harms elsewhere was not run {where}", "; ".join(parts), runs.seed.nunique()
        )
    one_ratio = max(harmless.values()) < min(harmful.values()) and set(harmful) == set(harmless)
    betas = max(ratio * share for share, ratio in harmless.items()), min(ratio * share for share, ratio in harmful.items())
    note = "one β would separate them, too" if betas[0] < betas[1] else ""
    note = notes(note, few(runs.seed.nunique()), f"rounds {int(runs.last_round.max())}")
    return on_data(runs, "cifar10", (one_ratio and betas[0] >= betas[1], "; ".join(parts), runs.seed.nunique(), "—", note))


def harm_by_share(runs: pd.DataFrame) -> tuple[dict[float, float], dict[float, float]]:
    """Per participation N/C: the largest β / (N/C) below all that harm (0 if none), and the smallest from which on all harm (absent if
    the largest does not)."""
    table = gains_by_ratio(runs)
    harmless, harmful = {}, {}
    for share, cells in table.groupby("share"):
        harms = [(row.ratio, not row.gain > 0) for row in cells.sort_values("ratio").itertuples()]  # NaN, diverged, harms
        while harms and harms[-1][1]:
            harmful[share] = harms.pop()[0]
        harmless[share] = harms[-1][0] if harms else 0.0
    return harmless, harmful


def gains_by_ratio(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a participation `share` = N/C and `ratio` = β / share: `gain`, FedInit's accuracy minus FedAvg's, the mean over seeds
    (fraction; NaN if a run diverged), `beta`, and `pairs`."""
    rows = []
    for (clients, cohort, beta), mine in select(runs, "fedinit").groupby(["clients", "cohort_size", "beta"]):
        other = select(runs, "fedavg")
        difference = paired(mine, other[other.clients == clients], PAIR)
        gained = np.nan if difference.lost else difference.mean
        if not difference.n and not difference.lost:
            continue  # FedAvg was not run beside it
        share = cohort / clients
        rows.append({"share": share, "ratio": round(beta / share, 6), "beta": beta, "gain": gained, "pairs": len(mine)})
    if not rows:
        raise NotTested("FedInit was not run at several participations")
    return pd.DataFrame(rows)


judges("Q6")(noises)


@judges("Q7")
def q7(evidence):
    """FedInit minus FedAvg of the same seed and participation is larger than zero with first = initial and with first = none."""
    runs = evidence.need("newcomers")
    plain = select(_momentum(evidence), "fedavg")
    pairs, results = [], []
    for first in ("initial", "none"):
        mine = select(runs, "fedinit")
        mine = mine[mine["first"] == first]
        if mine.empty or plain.empty:
            raise NotTested(f"FedInit with first = {first}, or FedAvg beside it, was not run")
        pairs.append(paired(mine, plain, PAIR))
        results.append(larger(pairs[-1], mine))
    spread = "; ".join(f"{name} {result[3]}" for name, result in zip(("initial", "none"), results, strict=True))
    if not difference_of(*pairs).n:
        raise NotTested("no seed and participation ran to the end with both readings")
    initial, none = matched(*pairs)
    measured = f"initial {points(initial)}; none {points(none)}"
    return on_data(runs, "cifar10", (all(r[0] for r in results), measured, results[1][2], spread, results[1][4]))


@judges("Q8")
def q8(evidence):
    """As D1's second half, for Δ^t over all clients divided by ‖w‖²: lower at the best β > 0 than at β = 0, for FedAvg and SCAFFOLD."""
    return _relative(evidence, "per_norm")


@judges("Q9")
def q9(evidence):
    """As D1's second half, for Δ^t over all clients divided by the mean of ‖end − start‖² over the active clients."""
    return _relative(evidence, "per_movement")


@judges("Q10")
def q10(evidence):
    """Δ^t over all clients, the mean over the reported window, is lower (general rule, of its logarithm) with the relaxed start than
    without, the server being the same: FedInit (end) beside RI's server term alone, and FedInit (start) beside FedAvg, over both partial
    participations. Δ^t over the active clients is reported beside it."""
    runs = _momentum(evidence)
    runs = runs.assign(log_all=np.log(runs.divergence_all), log_active=np.log(runs.divergence_active))
    pairs = {"end": (_end(runs), select(runs, "lagged")), "start": (_end(runs, "start"), select(runs, "fedavg"))}
    parts, spreads, holds, seeds = [], [], True, []
    for server, (mine, other) in pairs.items():
        change = {name: by_seed(paired(mine, other, PAIR, name)) for name in ("log_all", "log_active")}
        if not change["log_all"].n:
            raise NotTested(f"FedInit with the server's reading {server} was not run beside the same server without a relaxed start")
        factors = [np.exp(change[name].mean) for name in ("log_all", "log_active")]
        holds &= below(change["log_all"])
        seeds.append(change["log_all"].n)
        parts.append(f"server {server}: × {factors[0]:.2f} over all, × {factors[1]:.2f} over active")
        spreads.append(f"{server} {_factors(change['log_all'])}")
    return on_data(runs, "cifar10", (holds, "; ".join(parts), min(seeds), "; ".join(spreads), few(min(seeds))))


@judges("Q11")
def q11(evidence):
    """As A5, at 10 % participation and D_r = 0.1, with RI over each method under aggregate = start."""
    runs = evidence.need("plugin")
    if "aggregate" not in runs:
        raise NotTested("no method was run with RI")
    return improves_each(runs[runs["aggregate"] != "end"])


def divergence_factors(frame: pd.DataFrame, window: int) -> pd.DataFrame:
    """Δ^t as a multiple of FedAvg's of the same seed and participation: over all and over the active clients, as it is, divided by ‖w‖²,
    and divided by the mean of ‖end − start‖². Means over the last `window` rounds; geometric means over the seeds; runs that diverged are
    left out. `frame`: the tidy frame of `artefacts.momentum`; index (setup, variant, seeds, their number), columns (clients, quantity)."""
    frame = frame[~frame.key.isin(frame[frame.diverged == 1].key) & (frame["round"] > frame.rounds - window)]
    over = {"all clients": "divergence_all", "active clients": "divergence_active"}
    divided = {"Δ^t": 1.0, "Δ^t / ‖w‖²": frame.norm, "Δ^t / ‖end − start‖²": frame.movement}
    values = {(who, what): frame[column] / by for who, column in over.items() for what, by in divided.items()}
    mean = np.log(pd.DataFrame(values).groupby(frame.key).mean())
    about = with_setup(frame.drop_duplicates("key").set_index("key"))
    about["variant"] = variants(about)
    base = about[about.variant == "FedAvg"].reset_index().set_index(["clients", "seed"]).key
    rows = {}
    for (clients, setup, variant), mine in about[about.variant != "FedAvg"].groupby(["clients", "setup", "variant"], sort=False):
        pairs = [(key, base[clients, seed]) for key, seed in mine.seed.items() if (clients, seed) in base.index]
        if pairs:
            rows[setup, variant, len(pairs)] = np.exp(np.mean([mean.loc[key] - mean.loc[other] for key, other in pairs], axis=0))
    names = pd.MultiIndex.from_arrays(list(zip(*rows, strict=True)) or [[], [], []], names=["setup", "variant", "seeds"])
    return pd.DataFrame(list(rows.values()), names, mean.columns)


def _relative(evidence, value: str):
    table = ends_by_beta(evidence)
    parts, spreads, holds, seeds = [], [], True, []
    for base in ("fedavg", "scaffold"):
        best, change = against_zero(table, base, "accuracy", value)
        difference = change[value]
        if not difference.n:
            raise NotTested(f"no pair of {display_name(base)}'s runs ran to the end")
        holds &= below(difference)
        seeds.append(difference.n)
        parts.append(f"{display_name(base)} (β = {best:g}) × {np.exp(difference.mean):.2f}")
        spreads.append(f"{display_name(base)} {_factors(difference)}")
    return on_data(table, "cifar", (holds, "; ".join(parts), min(seeds), "; ".join(spreads), notes(few(min(seeds)), TAIL)))


def _factors(difference: Paired) -> str:
    if difference.n == 1:
        return "one seed"
    low, high = np.exp([difference.low, difference.high])
    return f"95 % interval × {low:.2f} to × {high:.2f} (n = {difference.n})"
