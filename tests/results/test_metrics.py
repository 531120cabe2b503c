import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedinit.errors import InputError
from fedinit.results import metrics as m

nan = float("nan")
fractions = st.lists(st.floats(0, 1), min_size=1, max_size=80)


def test_smoothed_maximum_by_hand():
    """Curve .1 .2 .6 .2 .1 .3 .3, box of 3: middles of rounds 2..6: .3, 1/3, .3, .2, .7/3.
    Over all rounds the maximum is 1/3 (round 3); of the last 3 rounds (5, 6, 7) only middles 5 and 6 compete: max(.2, .7/3)."""
    curve = [0.1, 0.2, 0.6, 0.2, 0.1, 0.3, 0.3]
    assert m.smoothed_maximum(curve, 50, 3) == pytest.approx(1 / 3)
    assert m.smoothed_maximum(curve, 3, 3) == pytest.approx(0.7 / 3)


def test_smoothed_maximum_with_gaps_counts_rounds_for_the_window_and_evaluations_for_the_box():
    """Evaluated in rounds 2, 4, 6, 8: .1 .2 .6 .1; boxes of 3 have middles in rounds 4 (.3) and 6 (.3); round 4 is outside the last 4."""
    curve = [nan, 0.1, nan, 0.2, nan, 0.6, nan, 0.1]
    assert m.smoothed_maximum(curve, 4, 3) == pytest.approx(0.3)
    assert m.smoothed_maximum(curve, 4, 1) == pytest.approx(0.6)


def test_short_histories_use_what_there_is():
    """Two evaluations and a box of 5: the box narrows to the odd width 1, so the maximum is .4. No evaluation: NaN.
    Evaluations in rounds 1, 2, 3 of 10 with window 2: no middle in rounds 9, 10, so the last complete box, .2."""
    assert m.smoothed_maximum([0.4, 0.2], 50, 5) == pytest.approx(0.4)
    assert np.isnan(m.smoothed_maximum([nan, nan]))
    assert m.smoothed_maximum([0.1, 0.2, 0.3] + [nan] * 7, 2, 3) == pytest.approx(0.2)


@given(fractions, st.integers(1, 60), st.sampled_from([1, 3, 5, 7]))
def test_smoothing_stays_within_the_curve_and_below_the_unsmoothed_maximum(curve, window, width):
    value = m.smoothed_maximum(curve, window, width)
    assert min(curve) - 1e-9 <= value <= m.maximum(curve) + 1e-9


@given(st.floats(0, 1), st.integers(1, 60), st.sampled_from([1, 3, 5]))
def test_all_rules_agree_on_a_constant_curve(level, rounds, width):
    curve = [level] * rounds
    assert m.smoothed_maximum(curve, 50, width) == pytest.approx(level)
    assert m.last_k_mean(curve, 50) == pytest.approx(level) and m.maximum(curve) == level


def test_last_k_mean_takes_the_evaluations_of_the_last_k_rounds():
    """Last 3 rounds of .9 .1 – .3: evaluations .1 and .3, mean .2."""
    assert m.last_k_mean([0.9, 0.1, nan, 0.3], 3) == pytest.approx(0.2)


@pytest.mark.parametrize(
    "call, word",
    [
        (lambda: m.smoothed_maximum([0.5], filter_width=4), "filter_width"),
        (lambda: m.smoothed_maximum([0.5], window=0), "window"),
        (lambda: m.smoothed_maximum([55.0]), "fractions"),
        (lambda: m.smoothed_maximum([[0.5]]), "shape"),
        (lambda: m.rounds_to_target([0.5], 70), "target"),
        (lambda: m.rule_text("best"), "rule"),
    ],
)
def test_bad_input_is_one_line(call, word):
    with pytest.raises(InputError, match=word) as error:
        call()
    assert "\n" not in str(error.value)


def test_rounds_and_seconds_to_target():
    """Accuracies .1 .5 .3 .6 .7: .5 is first reached in round 2; by means of 2 (.3 .4 .45 .65) in round 5. Seconds 9 2 3 4 5: the first
    round counts as the median of 2 3 4 5 = 3.5, so round 2 comes at 5.5 s and round 5 at 17.5 s."""
    accuracy, seconds = [0.1, 0.5, 0.3, 0.6, 0.7], [9, 2, 3, 4, 5]
    assert m.rounds_to_target(accuracy, 0.5) == 2 and m.rounds_to_target(accuracy, 0.5, 2) == 5
    assert m.seconds_to_target(accuracy, seconds, 0.5) == 5.5 and m.seconds_to_target(accuracy, seconds, 0.5, 2) == 17.5
    assert np.isnan(m.rounds_to_target(accuracy, 0.8)) and np.isnan(m.seconds_to_target(accuracy, seconds, 0.8))


@given(fractions, st.floats(0.01, 1), st.floats(0.01, 1))
def test_a_higher_target_is_never_reached_earlier(curve, a, b):
    low, high = (m.rounds_to_target(curve, t) for t in sorted((a, b)))
    assert np.isnan(high) or low <= high


def test_summarise_one_row_a_run_without_evaluation_seconds(frame):
    """Training seconds are 2 a round and 10 in the first (warm-up): 2 a round. Evaluation seconds are 100 and appear nowhere."""
    out = m.summarise(frame({"seed": 0}, {"seed": 1, "label": "fedinit", "beta": 0.1}), target=0.4)
    assert len(out) == 2 and list(out.seconds_per_round) == [2.0, 2.0]
    assert out.accuracy.iloc[0] == pytest.approx(0.5, abs=0.01)
    assert (out.seconds_to_target == 2 * out.rounds_to_target).all()
    assert {"beta", "dirichlet", "batch_size"} <= set(out) and "train_loss" not in out


def test_a_diverged_run_has_no_number(frame):
    row = m.summarise(frame({"diverged_at": 17})).iloc[0]
    assert row.diverged and row.diverged_round == 17 and np.isnan(row.accuracy)


def test_summarise_refuses_what_it_cannot_read(frame, run):
    with pytest.raises(InputError, match="lacks"):
        m.summarise(frame({}).drop(columns="train_seconds"))
    with pytest.raises(InputError, match="twice"):
        m.summarise(frame({}, {}))
    with pytest.raises(InputError, match="rule"):
        m.summarise(run(), rule="median")


def test_summarise_does_not_depend_on_the_order_of_rows(frame):
    tidy = frame({"seed": 0, "noise": 0.02}, {"seed": 1, "noise": 0.02})
    a = m.summarise(tidy).set_index("key")
    b = m.summarise(tidy.sample(frac=1, random_state=0)).set_index("key").loc[a.index]
    assert np.allclose(a.accuracy, b.accuracy) and np.allclose(a.seconds_per_round, b.seconds_per_round)


def summary(frame, values, **fields):
    """One row a (label, seed) with a given accuracy."""
    out = m.summarise(frame(*[dict(label=label, seed=s, rounds=2, **fields) for label, accs in values.items() for s in range(len(accs))]))
    return out.assign(accuracy=[a for accs in values.values() for a in accs])


def test_paired_difference_by_hand(frame):
    """Differences .03 .04 .05: mean .04, std .01, t(2) = 4.3027, half width 4.3027 · .01 / √3 = .024842."""
    pair = m.paired_difference(summary(frame, {"fedinit": [0.53, 0.56, 0.52], "fedavg": [0.50, 0.52, 0.47]}), "fedavg+ri", "fedavg")
    assert pair.mean == pytest.approx(0.04) and pair.std == pytest.approx(0.01) and (pair.n, pair.lost) == (3, 0)
    assert (pair.low, pair.high) == (pytest.approx(0.015158, abs=1e-6), pytest.approx(0.064842, abs=1e-6))


def test_pairs_are_matched_by_seed_and_lost_ones_counted(frame):
    runs = summary(frame, {"fedinit": [0.6, nan, 0.7], "fedavg": [0.5, 0.5]})
    pair = m.paired_difference(runs, "fedinit", "fedavg")
    assert pair.n == 1 and pair.lost == 1 and np.isnan(pair.std) and np.isnan(pair.low)


def test_ambiguous_pairs_are_refused_with_the_column_that_differs(frame):
    runs = m.summarise(frame({"label": "fedinit", "beta": 0.1}, {"label": "fedinit", "beta": 0.2}, {}))
    with pytest.raises(InputError, match="beta"):
        m.paired_difference(runs, "fedinit", "fedavg")


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12), st.floats(-0.2, 0.2))
def test_pairing_removes_what_the_seeds_share(base, gain):
    """A constant gain over any baselines has mean = gain and no spread."""
    import pandas as pd

    a = pd.DataFrame({"label": "a", "seed": range(len(base)), "accuracy": np.add(base, gain)})
    b = pd.DataFrame({"label": "b", "seed": range(len(base)), "accuracy": base})
    pair = m.paired(a, b)
    assert pair.mean == pytest.approx(gain, abs=1e-9) and pair.std == pytest.approx(0, abs=1e-9)


def test_a_table_row_compares_the_seeds_that_its_cells_share():
    """Base a: seed 0 has both cells, seed 1 one, so seed 0 is left. Base b: no seed has two cells, so all are left."""
    import pandas as pd

    rows = [("a", 0, "plain"), ("a", 0, "RI"), ("a", 1, "plain"), ("b", 0, "plain"), ("b", 1, "RI")]
    runs = pd.DataFrame(rows, columns=["base", "seed", "reading"])
    assert m.comparable(runs, "base", "reading").index.tolist() == [0, 1, 3, 4]


def test_acceleration_is_baseline_over_own_per_seed(frame):
    runs = summary(frame, {"fedavg": [0.5, 0.5], "fedcm": [0.5, 0.5]}).assign(rounds_to_target=[40.0, 30.0, 20.0, nan])
    out = m.acceleration(runs)
    assert list(out.acceleration[:3]) == [1, 1, 2] and np.isnan(out.acceleration[3])


def test_t_quantiles_against_published_tables():
    """t(0.975): 1: 12.706, 2: 4.303, 11: 2.2010, 15: 2.1314, 30: 2.0423, 120: 1.9799 (any table of Student's t)."""
    for df, value in {1: 12.7062, 2: 4.3027, 11: 2.2010, 15: 2.1314, 30: 2.0423, 120: 1.9799}.items():
        assert m.t_quantile(df) == pytest.approx(value, abs=2e-4)


def test_mean_std_is_the_sample_deviation():
    assert m.mean_std([1, 2, 3, nan]) == (2.0, 1.0, 3)
    assert m.mean_std([1])[2] == 1 and np.isnan(m.mean_std([1])[1])


def test_rule_text():
    assert m.rule_text("smoothed_max") == "maximum of the last 50 rounds after a moving average of 5 tests"
    assert "5 tests (one every 2 rounds)" in m.rule_text("smoothed_max", every=2)
    assert set(m.RULES) == {"smoothed_max", "last_mean", "max"} and all(m.rule_text(rule) for rule in m.RULES)
