import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedinit.errors import InputError
from fedinit.results import ledger as L
from fedinit.results import metrics
from fedinit.results.published import CLAIMS

SEVEN = {"fedavg": 0.48, "fedadam": 0.49, "fedsam": 0.485, "scaffold": 0.52, "feddyn": 0.515, "fedcm": 0.50, "fedinit": 0.56}
TWINS = {"scaffold+ri": 0.55, "fedadam+ri": 0.52, "fedsam+ri": 0.50, "feddyn+ri": 0.53, "fedcm+ri": 0.52}
SECONDS = {"fedavg": 2.0, "fedadam": 2.02, "fedsam": 4.0, "scaffold": 2.5, "feddyn": 2.6, "fedcm": 2.4, "fedinit": 2.01}


def runs(seeds=3, data="cifar10", **change):
    """All seven methods and the others' RI twins; FedAvg loses 2 points at 5 % and gains 5 at Dir-0.6, FedInit 0 and 3."""
    out = []
    for label, final in {**SEVEN, **TWINS, **change}.items():
        for clients in (100, 200):
            for d in (0.1, 0.6):
                lower = {"fedinit": 0.0, "scaffold": 0.03}.get(label, 0.02) * (clients == 200)
                easier = (0.03 if "init" in label else 0.05) * (d == 0.6)
                out += [
                    {
                        "label": label,
                        "seed": s,
                        "data": data,
                        "clients": clients,
                        "dirichlet": d,
                        "final": final - lower + easier + 0.01 * s + 0.001 * ((7 * s + len(label)) % 3),
                        "beta": 0.1 if "ri" in label or "init" in label else np.nan,
                        "seconds": SECONDS.get(label, 2.6),
                        "rounds": 30,
                    }
                    for s in range(seeds)
                ]
    return out


def judge(claim, **evidence):
    return L.ledger(L.Evidence(**evidence), [claim])[0]


def test_without_evidence_nothing_is_judged():
    verdicts = L.ledger(L.Evidence())
    assert [v.claim_id for v in verdicts] == [c.id for c in CLAIMS]
    assert {v.verdict for v in verdicts} == {L.NOT_TESTED} and all(v.note for v in verdicts)


@pytest.fixture(scope="module")
def summary(frame):
    return metrics.summarise(frame(*runs()), target=0.4)


@pytest.mark.parametrize("claim", ["A1", "A2", "A4", "A5", "M4"])
def test_claims_hold_where_the_data_were_made_to_agree(summary, claim):
    verdict = judge(claim, summary=summary)
    assert verdict.verdict == L.REPRODUCED, verdict
    assert verdict.seeds == 3


def test_a1_says_how_much_and_how_sure(summary):
    """FedInit − FedAvg at 10%-100, Dir-0.1 was made 8 points apart, give or take 0.1 a seed."""
    verdict = judge("A1", summary=summary)
    assert verdict.measured.startswith("+7.") or verdict.measured.startswith("+8.")
    assert "95 % interval" in verdict.spread and "width 16" in verdict.note


@given(st.sets(st.integers(0, 31), max_size=12), st.sampled_from(["cifar10", "cifar100", "synthetic"]))
@settings(max_examples=25, deadline=None)
def test_any_part_of_the_runs_gives_a_verdict_for_every_claim(summary, chosen, data):
    part = summary[[int(i) % 32 in chosen for i in range(len(summary))]].assign(data=data)
    assert len(L.ledger(L.Evidence(summary=part, epochs=part, beta=part))) == len(CLAIMS)


def test_one_seed_gives_the_sign_only(frame):
    verdict = judge("A1", summary=metrics.summarise(frame(*runs(1))))
    assert verdict.verdict == L.REPRODUCED and verdict.seeds == 1 and "one seed" in verdict.note


def test_an_interval_that_holds_zero_is_not_reproduced(frame):
    """Differences +5, −1, +2 points: mean +2, but the interval is 2 ± 7.5."""
    table = metrics.summarise(frame(*[{"label": m, "seed": s, "rounds": 2, "beta": 0.1} for m in ("fedavg", "fedinit") for s in range(3)]))
    verdict = judge("A1", summary=table.assign(accuracy=[0.5, 0.5, 0.5, 0.55, 0.49, 0.52]))
    assert verdict.verdict == L.NOT_REPRODUCED and verdict.measured == "+2.00 points"


def test_other_data_do_not_test_the_claim_but_are_told(frame):
    for data, name in (("synthetic:40/10", "synthetic:40/10"), ("cifar100", "CIFAR-100"), ("/me/cifar10.npz", "images cifar10.npz")):
        verdict = judge("A1", summary=metrics.summarise(frame(*runs(1, data))))
        assert verdict.verdict == L.NOT_TESTED and "points" in verdict.measured
        assert verdict.note == f"on {name}, not on CIFAR-10; the rule would hold there"  # a file is not what its name says


def test_a3_needs_cifar100(frame, summary):
    assert judge("A3", summary=summary).verdict == L.NOT_TESTED
    assert judge("A3", summary=metrics.summarise(frame(*runs(3, "cifar100")))).verdict == L.REPRODUCED


def test_failing_methods_are_named(frame):
    verdict = judge("A5", summary=metrics.summarise(frame(*runs(**{"scaffold+ri": 0.50}))))
    assert verdict.verdict == L.NOT_REPRODUCED and "SCAFFOLD −" in verdict.measured
    assert judge("A4", summary=metrics.summarise(frame(*[r for r in runs(1) if r["label"] != "fedcm"]))).note == "not run: FedCM"


def test_diverged_runs_are_counted_not_averaged(frame):
    broken = [dict(r, diverged_at=9) if r["label"] == "fedinit" and r["seed"] else r for r in runs()]
    verdict = judge("A1", summary=metrics.summarise(frame(*broken)))
    assert verdict.seeds == 1 and "2 pairs lost to divergence" in verdict.note
    assert judge("M4", summary=metrics.summarise(frame(*broken))).verdict == L.NOT_REPRODUCED


def test_c2_compares_rounds_and_time(summary):
    """FedInit's curve reaches 0.4 in the fewest rounds at FedAvg's speed; SCAFFOLD and FedDyn need fewer rounds than FedAvg."""
    assert judge("C2", summary=summary).verdict == L.REPRODUCED
    assert judge("C2", summary=summary.drop(columns="rounds_to_target")).verdict == L.NOT_TESTED


def times(fedinit, **change):
    """Two interleaved repeats; FedInit's ratios to FedAvg as given, the others' those of `SECONDS`, without noise."""
    ratios = {label: [seconds / 2.0] * len(fedinit) for label, seconds in SECONDS.items()} | {"fedinit": fedinit, **change}
    rows = [(label, i, 2 * ratio, ratio) for label, both in ratios.items() for i, ratio in enumerate(both)]
    return pd.DataFrame(rows, columns=["label", "repeat", "seconds", "ratio"])


def test_times_that_noise_decides_are_not_judged():
    """0.9 and 1.1: standard deviation 0.2 / √2, so the standard error of the mean 1.0 is 0.1. 0.98 and 1.02: 0.02. One repeat: unknown."""
    noisy, quiet, once = times([0.9, 1.1]), times([0.98, 1.02]), times([1.0])
    for claim in ("M3", "C1"):
        assert judge(claim, times=quiet).verdict == L.REPRODUCED
        verdict = judge(claim, times=noisy)
        assert verdict.verdict == L.NOT_TESTED and "FedInit's ratio 10.0%, more than 5%" in verdict.note and "1.00×" in verdict.measured
        assert judge(claim, times=once).verdict == L.NOT_TESTED
    assert judge("M3", times=times([1.06, 1.08])).verdict == L.NOT_REPRODUCED  # 1.07, sure to 0.01
    loud = times([1.0, 1.0], fedsam=[1.5, 2.5])  # mean 2, standard error 0.5
    assert judge("C1", times=loud).verdict == L.NOT_TESTED and judge("M3", times=loud).verdict == L.REPRODUCED


def test_costs():
    rows = {
        "fedavg": (2, 1, 0),
        "scaffold": (4, 1, 1),
        "fedcm": (4, 1, 0),
        "fedsam": (2, 2, 0),
        "feddyn": (2, 1, 1),
        "fedinit": (2, 1, 1),
        "fedcm+ri": (5, 1, 1),
    }
    costs = pd.DataFrame([(k, *v) for k, v in rows.items()], columns=["label", "communication", "gradients", "stored"])
    assert judge("C3", costs=costs).verdict == L.REPRODUCED
    verdict = judge("M2", costs=costs)
    assert verdict.verdict == L.NOT_REPRODUCED and verdict.measured == "1.0× for 1 of 2, FedInit among them; FedCM + RI 1.25×"
    assert judge("M2", costs=costs[costs.label != "fedcm+ri"]).verdict == L.REPRODUCED


def test_the_seconds_of_runs_are_not_a_measurement(summary):
    """They tell what else the machine did: without interleaved repeats M3 and C1 are not tested."""
    assert judge("M3", summary=summary).verdict == judge("C1", summary=summary).verdict == L.NOT_TESTED


def test_claims_about_every_method_need_every_method(frame):
    for claim in ("A5", "M4"):
        verdict = judge(claim, summary=metrics.summarise(frame(*[r for r in runs() if r["label"] != "fedsam+ri"])))
        assert verdict.verdict == L.NOT_TESTED and verdict.note == "not run with and without RI: FedSAM"


def test_setups_of_one_seed_are_not_independent(frame):
    """A4 with one seed in four setups, FedInit far above in each: one mean, so the sign only. With three seeds: an interval of three."""
    one, three = (judge("A4", summary=metrics.summarise(frame(*runs(seeds)))) for seeds in (1, 3))
    assert (
        one.verdict == L.REPRODUCED and one.seeds == 1 and one.note.startswith("one seed: the sign only; 4 pairs, averaged within a seed")
    )
    assert three.seeds == 3 and "(n = 3 seeds)" in three.spread


def test_averages_over_different_setups_are_said(frame):
    """With D_r = 0.6 for seed 0 alone, seed 0 is averaged over four setups and seeds 1 and 2 over two."""
    whole, part = (metrics.summarise(frame(*[r for r in runs() if every or r["seed"] == 0 or r["dirichlet"] == 0.1])) for every in (1, 0))
    uneven = "not every seed has every setup"
    assert uneven not in judge("A5", summary=whole).note
    assert "FedCM: " + uneven in judge("A5", summary=part).note
    cut = part[(part.seed == 0) | (part.clients == 100)]  # A6 asks for both D_r, so seed 0 alone is left there
    assert uneven not in judge("A6", summary=cut).note


def test_c2_compares_seeds_that_all_methods_have(frame):
    """FedInit alone has seeds 1 and 2, and is slow there: seed 0 decides."""
    few = [
        r | ({"final": 0.41} if r["label"] == "fedinit" and r["seed"] else {}) for r in runs() if r["label"] == "fedinit" or not r["seed"]
    ]
    verdict = judge("C2", summary=metrics.summarise(frame(*few), target=0.4))
    assert verdict.verdict == L.REPRODUCED and verdict.seeds == 1 and verdict.note.startswith("one seed; ")


def test_m1_is_exact(frame, run):
    plain, twin = run("scaffold", noise=0.01), run("scaffold", noise=0.01).assign(label="scaffold+ri", key="twin", beta=0.0)
    assert judge("M1", curves=pd.concat([plain, twin])).verdict == L.REPRODUCED
    twin.loc[3, "train_loss"] += 1e-12
    assert judge("M1", curves=pd.concat([plain, twin])).verdict == L.NOT_REPRODUCED


def test_sensitivity(frame):
    """Best at K = 5 of 1, 5, 20: S1 holds; falling: it fails; rising: not tested. β = 0.3 diverges and 0.1, 0.2 beat 0: S2 holds;
    none diverges: not tested."""

    def sweep(finals):
        return metrics.summarise(frame(*[{"label": "fedinit", "beta": 0.1, "local_epochs": k, "final": f} for k, f in finals.items()]))

    def beta(finals):  # a negative number: diverged
        return metrics.summarise(
            frame(*[{"label": "fedinit", "beta": b, "final": abs(f), "diverged_at": 9 if f < 0 else None} for b, f in finals.items()])
        )

    assert judge("S1", epochs=sweep({1: 0.4, 5: 0.5, 20: 0.45})).verdict == L.REPRODUCED
    assert judge("S1", epochs=sweep({1: 0.6, 5: 0.5, 20: 0.45})).verdict == L.NOT_REPRODUCED
    rising = judge("S1", epochs=sweep({1: 0.4, 5: 0.5, 20: 0.55}))
    assert rising.verdict == L.NOT_TESTED and rising.measured == "best K = 20 of 1, 5, 20"
    assert judge("S2", beta=beta({0: 0.5, 0.1: 0.55, 0.2: 0.52, 0.3: -0.1})).verdict == L.REPRODUCED
    assert judge("S2", beta=beta({0: 0.5, 0.1: 0.55, 0.2: 0.05, 0.3: 0.6})).verdict == L.NOT_REPRODUCED
    assert judge("S2", beta=beta({0: 0.5, 0.1: 0.55})).verdict == L.NOT_TESTED


def curves(frame, effect, noise=0.0):
    """Figure 2's runs; Δ^t is scaled by 10^(effect · β), accuracy grows with β."""
    return frame(
        *[
            {
                "label": base + "+ri" * (b != 0),
                "beta": b if b else np.nan,
                "seed": s,
                "final": 0.5 + b,
                "divergence": 5 * 10 ** (effect * b),
                "noise": noise * (b > 0),
            }
            for base in ("fedavg", "scaffold")
            for b in (-0.1, 0.0, 0.1)
            for s in range(2)
        ]
    )


def test_divergence_claims(frame):
    agree, contrary = curves(frame, -2), curves(frame, +2)
    assert judge("D1", curves=agree).verdict == judge("D2", curves=agree).verdict == L.REPRODUCED
    verdict = judge("D1", curves=contrary)
    assert verdict.verdict == judge("D2", curves=contrary).verdict == L.NOT_REPRODUCED
    assert "+9.92 points, Δ^t × 1.58 over all" in verdict.measured  # 10 (1 − mean exp(−t/12), t = 55…60); 10^(2 · 0.1) = 1.585
    assert judge("D3", curves=curves(frame, -2, noise=0.01)).verdict in (L.REPRODUCED, L.NOT_REPRODUCED)


def test_theory_rows_are_all_needed():
    rows = pd.DataFrame(
        {
            "claim": ["T17", "T17"],
            "quantity": ["a", "b"],
            "measured": [-1.0, 0.5],
            "spread": [0.1, 0.1],
            "seeds": 3,
            "bound": ["at most −1", "floor: 0"],
            "holds": [True, False],
            "decides": True,
        }
    )
    assert judge("T17", theory=rows).verdict == L.NOT_REPRODUCED
    assert judge("T17", theory=rows[:1]).verdict == L.REPRODUCED and judge("T1", theory=rows).verdict == L.NOT_TESTED
    undecided = rows.assign(decides=[True, False])
    assert judge("T17", theory=undecided).verdict == L.NOT_TESTED and "spread" in judge("T17", theory=undecided).note


def test_the_table_and_the_rules(summary):
    table = L.ledger_table(L.ledger(L.Evidence(summary=summary)))
    assert list(table.columns) == ["claim", "published", "verdict", "measured", "spread", "seeds", "note"] and len(table) == len(CLAIMS)
    assert set(table.verdict) <= {L.REPRODUCED, L.NOT_REPRODUCED, L.NOT_TESTED}
    assert all(len(rule.__doc__) > 40 for rule in L.JUDGES.values())
    with pytest.raises(InputError, match="claim"):
        L.ledger(L.Evidence(), ["Z9"])
