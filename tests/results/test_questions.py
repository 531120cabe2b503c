"""The rules for what the claims leave open, on summaries whose accuracies a person chose."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedinit.results import ledger as L
from fedinit.results import questions
from fedinit.results.published import QUESTIONS


def row(label, accuracy, seed=0, clients=100, **fields) -> dict:
    """One run of width 16 on CIFAR-10; accuracy in points; NaN: it diverged."""
    about = {"data": "cifar10", "model": "resnet18-gn", "width": 16, "cohort_size": 10, "dirichlet": 0.1, "rounds": 60, "last_round": 60}
    hyper = {"momentum": np.nan, "aggregate": np.nan, "first": np.nan, "beta": np.nan, "client_noise": 0.0}
    if label == "fedinit":
        hyper |= {"aggregate": "end", "first": "initial", "beta": 0.1}
    accuracy = accuracy / 100
    own = {"label": label, "seed": seed, "clients": clients, "accuracy": accuracy, "diverged": bool(np.isnan(accuracy))}
    own |= {"divergence_all": 8.0, "divergence_active": 2.0}
    return own | about | hyper | fields


def judge(question, **evidence):
    return L.ledger(L.Evidence(**{name: pd.DataFrame(rows) for name, rows in evidence.items()}), [question])[0]


@pytest.fixture
def momentum():
    """FedAvg 48, FedAvgM 50, 52 and 49, server term 53, FedInit 55 (end) and 47 (start), at both participations; a point higher each seed.
    At full participation FedAvg 40 and FedInit 42."""
    rows = []
    for seed in range(3):
        for clients in (100, 200):
            rows += [row("fedavg", 48 + seed, seed, clients), row("lagged", 53 + seed, seed, clients)]
            rows += [row("fedavgm", at + seed, seed, clients, momentum=m) for m, at in ((0.3, 50), (0.5, 52), (0.7, 49))]
            rows += [row("fedinit", at + seed, seed, clients, aggregate=server) for server, at in (("end", 55), ("start", 47))]
        rows += [row("fedavg", 40 + seed, seed, 10), row("fedinit", 42 + seed, seed, 10)]
    return rows


@pytest.mark.parametrize(
    "question, verdict, measured",
    [("Q1", "holds", "+2.00"), ("Q2", "holds", "+3.00"), ("Q3", "does not hold", "−1.00"), ("Q4", "holds", "+2.00")],
)
def test_ri_beside_momentum(momentum, question, verdict, measured):
    """55 − 53, 55 − 52 (the best FedAvgM), 47 − 48, 42 − 40."""
    answer = judge(question, momentum=momentum)
    assert (answer.verdict, answer.measured, answer.seeds) == (verdict, f"{measured} points", 3)
    assert ("best momentum 0.5 of 0.3, 0.5, 0.7" in answer.note) == (question == "Q2")


def test_relaxed_start_and_divergence(momentum):
    """Δ^t is 8 but with FedInit: 4 with server end (× 0.5), 6 with start (× 0.75). With 9 for start it does not hold."""
    runs = pd.DataFrame(momentum)
    runs.loc[runs["aggregate"] == "end", "divergence_all"], runs.loc[runs["aggregate"] == "start", "divergence_all"] = 4.0, 6.0
    answer = L.ledger(L.Evidence(momentum=runs), ["Q10"])[0]
    assert (
        answer.verdict == "holds"
        and answer.measured.startswith("server end: × 0.50 over all")
        and "server start: × 0.75" in answer.measured
    )
    runs.loc[runs["aggregate"] == "start", "divergence_all"] = 9.0
    assert L.ledger(L.Evidence(momentum=runs), ["Q10"])[0].verdict == "does not hold"


def test_fewer_coefficients_than_three_do_not_decide_which_is_best(momentum):
    answer = judge("Q2", momentum=[r for r in momentum if r["momentum"] not in (0.3, 0.7)])
    assert answer.verdict == L.NOT_TESTED and answer.measured == "+3.00 points"


def test_the_best_momentum_is_that_of_pairs_which_have_all_of_them(momentum):
    """FedAvgM 0.7 was run with a lucky seed 3 alone (90 points): it is compared on seeds 0 to 2, where 0.5 is best."""
    answer = judge("Q2", momentum=[*momentum, row("fedavgm", 90, 3, momentum=0.7), row("fedinit", 58, 3)])
    assert answer.measured == "+3.00 points" and "best momentum 0.5" in answer.note


def stable(cells: dict[tuple[int, float], float]) -> list[dict]:
    """FedAvg at 50 and FedInit at 50 + gain for each (clients, β / participation)."""
    rows = [row("fedavg", 50, clients=clients) for clients in {c for c, _ in cells}]
    return rows + [row("fedinit", 50 + gain, clients=c, beta=ratio * 10 / c) for (c, ratio), gain in cells.items()]


def test_a_threshold_in_multiples_of_the_participation():
    """At 5 % and at 10 % RI harms from 2 N/C on, that is from β = 0.1 and from 0.2; at 10 % β = 0.1 is harmless: no β separates them."""
    cells = {(200, 1.0): 1, (200, 2.0): -9, (100, 1.0): 2, (100, 2.0): -4, (100, 3.0): np.nan}
    answer = judge("Q5", threshold=stable(cells))
    assert answer.verdict == "holds"
    assert answer.measured == "5%: harms from β = 0.1 (2 N/C); 10%: harms from β = 0.2 (2 N/C)"


def test_a_threshold_in_beta_itself():
    """At 5 % RI harms from 4 N/C (β = 0.2), at 10 % from 2 N/C (β = 0.2): β decides, not β / participation."""
    answer = judge("Q5", threshold=stable({(200, 2.0): 1, (200, 4.0): -1, (100, 1.0): 1, (100, 2.0): -1, (100, 4.0): -1}))
    assert answer.verdict == "does not hold" and "one β would separate them" in answer.note


def test_a_participation_that_is_never_harmed_has_no_threshold():
    cells = {(200, 1.0): 1, (200, 2.0): 2, (100, 1.0): 1, (100, 2.0): -1}
    answer = judge("Q5", threshold=stable(cells))
    assert answer.verdict == "does not hold" and answer.measured.startswith("5%: never harms; 10%: harms from")
    assert judge("Q5", threshold=stable({(100, 1.0): 1})).verdict == L.NOT_TESTED
    short = judge("Q5", threshold=stable({(200, 1.0): 1, (100, 1.0): 1, (100, 2.0): -1}))  # 2 N/C was not run at 5 %
    assert short.verdict == L.NOT_TESTED and short.note.endswith("was not run at 5%")


def test_harm_below_the_threshold_does_not_move_it():
    """A loss at 0.5 N/C below a gain at 1: only what harms from some value on counts."""
    harmless, harmful = questions.harm_by_share(pd.DataFrame(stable({(100, 0.5): -1, (100, 1.0): 1, (100, 2.0): -1})))
    assert harmless == {0.1: 1.0} and harmful == {0.1: 2.0}


def test_noise():
    """Gains 4 and 5 without noise, 7 and 6 with: differences 3 and 1, two pairs, so the sign of 2 decides."""
    rows = [row(m, at + seed * g, seed) for seed in (0, 1) for m, at, g in (("fedavg", 50, 0), ("fedinit", 54, 1))]
    rows += [row(m, at - seed * g, seed, client_noise=0.3) for seed in (0, 1) for m, at, g in (("fedavg", 40, 0), ("fedinit", 47, 1))]
    answer = judge("Q6", noise=rows)
    assert answer.verdict == "holds" and "two seeds" in answer.note
    assert answer.measured == "+6.50 points with both noises, +4.50 points without"


@pytest.mark.parametrize(
    "by_split, by_noise, verdict",
    [(5, 6, L.REPRODUCED), (5, 3, L.NOT_REPRODUCED), (3, 6, L.NOT_REPRODUCED), (5, None, L.NOT_TESTED), (3, None, L.NOT_REPRODUCED)],
)
def test_heterogeneity_is_both_the_split_and_the_noise(by_split, by_noise, verdict):
    """A6. RI gains 4 at D_r 0.6 and `by_split` at 0.1; 4 without noise and `by_noise` with (None: not run). One half that fails decides."""
    two = ((0.1, by_split), (0.6, 4))
    runs = [row(m, 50 + g * (m == "fedinit"), seed, dirichlet=d) for d, g in two for seed in range(3) for m in ("fedavg", "fedinit")]
    two = ((0.0, 4), (0.3, by_noise)) if by_noise else ()
    noise = [row(m, 40 + g * (m == "fedinit"), s, client_noise=std) for std, g in two for s in (0, 1) for m in ("fedavg", "fedinit")]
    answer = judge("A6", summary=runs, noise=noise)
    assert answer.verdict == verdict and answer.seeds == (2 if by_noise else 3)
    assert answer.measured.startswith(f"+{by_split}.00 points at D_r 0.1, +4.00 points at D_r 0.6")
    assert not by_noise or answer.measured.endswith(f"; +{by_noise}.00 points with both noises, +4.00 points without")


def test_newcomers(momentum):
    """FedAvg 48: FedInit 55 with w^0 and 49 without an offset; then 47."""
    for none, verdict in ((49, "holds"), (47, "does not hold")):
        rows = [row("fedinit", at + seed, seed, first=first) for seed in range(3) for first, at in (("initial", 55), ("none", none))]
        answer = judge("Q7", momentum=momentum, newcomers=rows)
        assert answer.verdict == verdict and answer.measured == f"initial +7.00 points; none {none - 48:+.2f} points".replace("-", "−")
    rows = [row("fedinit", 55 + 3 * seed, seed, first="initial") for seed in range(3)] + [row("fedinit", 56, 0, first="none")]
    answer = judge("Q7", momentum=momentum, newcomers=rows)  # gains of initial: 7, 9, 11; only seed 0 has both
    assert answer.measured == "initial +7.00 points; none +8.00 points" and answer.seeds == 1
    assert judge("Q7", momentum=momentum, newcomers=rows[1:]).verdict == L.NOT_TESTED  # seeds 1 and 2 beside seed 0: nothing in common


def test_relative_divergence(frame):
    """Δ^t doubles with β = 0.1. Its movement doubles too, its ‖w‖² is four times as large: Δ^t / movement stays, Δ^t / ‖w‖² halves."""
    runs = [
        {"label": f"{base}+ri" if beta else base, "beta": beta or np.nan, "seed": seed, "divergence": 10.0 if beta else 5.0, "rounds": 20}
        for base in ("fedavg", "scaffold")
        for beta in (0, 0.1)
        for seed in range(3)
    ]
    curves = frame(*runs)
    larger = curves.beta == 0.1
    curves = curves.assign(norm=np.where(larger, 400.0, 100.0))
    per_norm, per_movement = (L.ledger(L.Evidence(curves=curves), [q])[0] for q in ("Q8", "Q9"))
    assert per_norm.verdict == "holds" and per_norm.measured == "FedAvg (β = 0.1) × 0.50; SCAFFOLD (β = 0.1) × 0.50"
    assert per_movement.verdict == "does not hold" and "× 1.00" in per_movement.measured
    assert L.ledger(L.Evidence(curves=curves), ["D1"])[0].verdict == L.NOT_REPRODUCED


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_part_of_the_runs_gives_an_answer(data):
    """Every subset of runs, as an interrupted computation leaves it."""
    momentum = [row(m, 50, 0, c) for m in ("fedavg", "lagged", "fedinit") for c in (10, 100, 200)]
    momentum += [row("fedavgm", 50, 0, c, momentum=m) for m in (0.3, 0.5) for c in (10, 100)]
    noise = [row(m, 50, client_noise=s) for m in ("fedavg", "fedinit") for s in (0.0, 0.3)]
    newcomers = [row("fedinit", 50, first=first) for first in ("initial", "none")]
    threshold = stable({(200, 1.0): 1, (200, 2.0): -9, (100, 1.0): 2, (100, 2.0): -4})
    parts = {"momentum": momentum, "noise": noise, "newcomers": newcomers, "threshold": threshold}
    kept = {
        name: pd.DataFrame(data.draw(st.lists(st.sampled_from(rows), unique_by=id)), columns=list(momentum[0]))
        for name, rows in parts.items()
    }
    answers = L.ledger(L.Evidence(**kept), [question.id for question in QUESTIONS])
    assert len(answers) == len(QUESTIONS) and all(answer.verdict for answer in answers)


def test_without_evidence_nothing_is_answered():
    answers = L.ledger(L.Evidence(), [question.id for question in QUESTIONS])
    assert {answer.verdict for answer in answers} == {L.NOT_TESTED} and all(answer.note for answer in answers)


def test_other_images_answer_nothing(momentum):
    for question in ("Q1", "Q2", "Q3", "Q4"):
        answer = judge(question, momentum=[r | {"data": "synthetic"} for r in momentum])
        assert answer.verdict == L.NOT_TESTED and "not on CIFAR-10" in answer.note


def test_a_participation_without_fedavg_is_left_out():
    """FedInit at 5 % has nothing beside it: neither harmed nor harmless, it is not there."""
    rows = [r for r in stable({(200, 2.0): -9, (100, 1.0): 2, (100, 2.0): -4}) if (r["label"], r["clients"]) != ("fedavg", 200)]
    assert questions.gains_by_ratio(pd.DataFrame(rows)).share.tolist() == [0.1, 0.1]


def test_divergence_as_multiples_of_fedavg(frame):
    """Δ^t is d over all and d/4 over active clients, ‖w‖² 100, the movement d/5. FedInit's d is 3 and 12 times FedAvg's for two seeds:
    6 times by the geometric mean, as is Δ^t / ‖w‖²; by movement nothing changes. A run that diverged is left out, and so are setups
    without FedAvg."""
    about = {"rounds": 20, "momentum": np.nan, "aggregate": np.nan}
    mine = {**about, "label": "fedinit", "aggregate": "start", "beta": 0.1}
    runs = [{**about, "seed": 0}, {**about, "seed": 1}, {**mine, "seed": 0, "divergence": 15.0}, {**mine, "seed": 1, "divergence": 60.0}]
    runs += [{**mine, "seed": 2, "clients": 200}, {**about, "label": "fedavgm", "momentum": 0.5, "diverged_at": 19}]
    table = questions.divergence_factors(frame(*runs), window=5)
    assert list(table.index) == [("10%-100", "FedInit, start", 2)]
    assert table.to_numpy().ravel() == pytest.approx([6, 6, 1, 6, 6, 1])


def test_ri_over_every_method_under_the_released_server():
    """Two points more with RI and aggregate = start for each of the six, whatever it is with end; then FedAdam loses a point."""
    bases = ("fedavg", "fedadam", "fedsam", "scaffold", "feddyn", "fedcm")
    rows = [row(base, 40) for base in bases]
    rows += [
        row("fedinit" if base == "fedavg" else f"{base}+ri", 42 if server == "start" else 10, aggregate=server, beta=0.1)
        for base in bases
        for server in ("start", "end")
    ]
    answer = judge("Q11", plugin=rows)
    assert answer.verdict == "holds" and answer.measured.count("+2.00 points") == 6
    lost = [r | {"accuracy": 0.39} if r["label"] == "fedadam+ri" and r["aggregate"] == "start" else r for r in rows]
    assert judge("Q11", plugin=lost).verdict == "does not hold"
    assert judge("Q11", plugin=[r for r in rows if "fedsam" not in r["label"]]).verdict == L.NOT_TESTED


def test_without_any_run_of_ri_nothing_is_judged(frame):
    """FedAvg alone has no hyperparameters of RI, so its frames lack their columns; FedInit alone has nothing to be compared with."""
    alone = pd.DataFrame([row("fedavg", 40)]).drop(columns=["aggregate", "first", "beta", "momentum"])
    for question in ("Q1", "Q2", "Q3", "Q10", "Q11"):
        evidence = L.Evidence(momentum=alone, plugin=alone)
        assert L.ledger(evidence, [question])[0].verdict == L.NOT_TESTED, question
    for only in ({}, {"label": "fedinit", "aggregate": "end", "beta": 0.1}):
        assert questions.divergence_factors(frame({**only, "rounds": 20}), window=5).empty
