import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedinit.errors import InputError
from fedinit.theory import rates
from fedinit.theory.measured import findings, slope, stability_curves
from fedinit.theory.quadratic import Problem, make_problem, replace_sample, simulate, stability

positive = st.floats(0.01, 10)


# --- formulas -----------------------------------------------------------------------------------------------------------------


def test_stability_factor_by_hand():
    """β = ½, cKL = 1: (1/2)^{1/2}."""
    assert rates.stability_factor(0.5, 0.5, 2, 1.0) == pytest.approx(2**-0.5)
    assert rates.stability_factor(0.0, 1, 1, 1) == 1


@given(st.floats(0.001, 5), positive, st.integers(1, 1000), positive)
def test_stability_factor_is_below_one_and_rises_with_k(beta, c, K, L):
    assert 0 < rates.stability_factor(beta, c, K, L) < rates.stability_factor(beta, c, 10 * K, L) <= 1


def test_stability_factor_tends_to_one_and_refuses_beta_below_minus_half():
    assert rates.stability_factor(1.0, 1, 1e9, 1) == pytest.approx(1)
    with pytest.raises(InputError, match="beta"):
        rates.stability_factor(-0.5, 1, 1, 1)


@given(st.integers(1, 10**6), st.integers(1, 1000), positive, positive)
def test_fedavg_with_one_client_and_one_step_is_sgd(T, S, c, L):
    """The paper's remark on Table 3: K = N = 1 degrades to SGD."""
    assert rates.stability_theorem_12(1, 1, T, 1, S, c, L) == pytest.approx(rates.stability_sgd(T, 1, S, c, L))


@given(st.integers(2, 1000), positive, st.integers(1, 50))
def test_full_participation_by_the_formula_and_as_printed(C, c, K):
    """N = C in Theorem 12: C^{x/(1+x)} / (CS) = C^{−1/(1+x)} / S, x = cKL; the printed C^{−x/(1+x)} agrees only at x = 1."""
    derived, printed = rates.stability_full_participation(K, C, 7, c, 1.0)
    ratio = rates.stability_theorem_12(C, K, 1, C, 7, c, 1.0) / rates.stability_theorem_12(1, K, 1, 1, 7, c, 1.0)
    assert derived * 7 == pytest.approx(ratio)
    at_one = rates.stability_full_participation(1, C, 7, 1.0, 1.0)
    assert at_one[0] == pytest.approx(at_one[1])
    assert (derived < printed) == (c * K < 1) or derived == pytest.approx(printed)


def test_rates_scale_as_stated():
    assert rates.convergence_theorem_1(4, 5, 400) / rates.convergence_theorem_1(4, 5, 100) == pytest.approx(0.5)
    assert rates.convergence_theorem_4(2, 1, 1) == rates.convergence_theorem_6(2, 1, 1) == 0.5
    assert rates.convergence_theorem_9(10) == pytest.approx(0.01)
    assert rates.stability_theorem_15(5, 10, 2) == 0.25 and rates.divergence_theorem_19(4) == 0.25
    assert [float(rates.divergence_theorem_17(10, eta)) for eta in ("theorem 1", "theorem 4", "constant")] == pytest.approx([0.1, 0.01, 1])
    assert rates.eta_theorem_1(4, 1, 100) == pytest.approx(0.2) and rates.eta_theorem_6(4) == 0.25
    assert len(rates.table_2()) == 4 and set(rates.table_2().order.str[0]) <= {"O", "Õ"} and len(rates.table_3()) == 6


# --- simulator ------------------------------------------------------------------------------------------------------------------


def one_dimensional(a):
    """Clients with one sample each: f_i = ½ (w − a_i)²."""
    return Problem(np.ones((len(a), 1, 1)), np.array(a, float).reshape(-1, 1, 1))


def test_two_rounds_by_hand():
    """Clients a = (0, 2), all active, K = 1, η = ½, β = ½, w^0 = 4.
    Round 1: starts 4 + ½(4 − 4) = 4; ends 4 − ½·4 = 2 and 4 − ½·2 = 3; w^1 = 2.5; Δ = (¼ + ¼)/2 = ¼.
    Round 2: starts 2.5 + ½(2.5 − 2) = 2.75 and 2.5 + ½(2.5 − 3) = 2.25; ends 1.375 and 2.25 − ½·0.25 = 2.125; w^2 = 1.75;
    Δ = (0.375² + 0.375²)/2 = 0.140625."""
    trace = simulate(one_dimensional([0, 2]), 2, 1, 2, 0.5, 0.5, runs=1, start=4.0)
    assert trace.w[:, 0, 0] == pytest.approx([4, 2.5, 1.75])
    assert trace.divergence[:, 0] == pytest.approx([0.25, 0.140625])


def test_the_two_servers_differ_only_under_partial_participation():
    """Σ over all clients of w − last_i is 0 when w is their mean, so mean(start) = w."""
    problem = make_problem(0, 6, 3)
    full = [simulate(problem, 9, 3, 6, 0.1, 0.3, aggregate=a).w for a in ("end", "start")]
    assert np.allclose(*full)
    part = [simulate(problem, 9, 3, 2, 0.1, 0.3, aggregate=a).w for a in ("end", "start")]
    assert not np.allclose(*part)


def test_divergence_counts_clients_never_active_with_w0():
    """One of two clients active, start 0: the other's last_i stays 0, so Δ^1 = (0 + w²)/2 with w the active one's end, ½·a = 1."""
    trace = simulate(one_dimensional([2, 2]), 1, 1, 1, 0.5, 0.0, runs=1, start=0.0)
    assert trace.w[-1, 0, 0] == 1.0 and trace.divergence[0, 0] == 0.5


def test_optimum_and_suboptimality():
    problem = make_problem(3)
    w = problem.optimum
    assert problem.suboptimality(w) == pytest.approx(0) and problem.gradient_norm2(w) == pytest.approx(0)
    assert problem.suboptimality(w + 1) == pytest.approx(0.5 * 5)  # h = 1 in 5 dimensions


def test_neighbouring_data_differ_in_one_sample():
    for interpolation in (False, True):
        problem = make_problem(0, interpolation=interpolation)
        other = replace_sample(problem)
        changed = (problem.h != other.h).any(-1) | (problem.z != other.z).any(-1)
        assert changed.sum() == 1 and changed[0, 0]


def test_stability_starts_at_zero_and_is_zero_without_the_changed_client():
    distance = stability(make_problem(0), 5, 2, 4, 0.1, 0.1, runs=4)
    assert (distance[0] == 0).all() and distance.shape == (6, 4) and distance.max() > 0
    # full batch by hand: two clients of one sample, 1 replaced; K = 1, η = ½: ‖w − w̃‖ after one round = ½ · |z − z̃| / 2
    problem = one_dimensional([0, 2])
    gap = abs((replace_sample(problem).z - problem.z)[0, 0, 0])
    assert stability(problem, 1, 1, 2, 0.5, 0.0, seed=0, runs=1)[-1, 0] == pytest.approx(gap / 4)


def test_same_seed_same_bits_other_beta_same_draws():
    problem = make_problem(0)
    a, b = (simulate(problem, 6, 3, 4, 0.05, 0.1, seed=2) for _ in range(2))
    assert np.array_equal(a.w, b.w)
    assert np.array_equal(
        simulate(problem, 1, 3, 4, 0.05, 0.1, seed=2).w, simulate(problem, 1, 3, 4, 0.05, 0.0, seed=2).w
    )  # round 1 has no offset
    with pytest.raises(InputError, match="cohort"):
        simulate(problem, 1, 1, 21, 0.1)


@given(st.floats(-3, 3), st.floats(0.1, 10))
def test_slope_recovers_a_power_law(p, scale):
    T = np.array([64, 128, 256, 512])
    assert slope(T, scale * T**p) == pytest.approx(p, abs=1e-9)


def test_findings_are_complete_and_numeric():
    table = findings(seeds=2, runs=2, rounds=(32, 64, 128))
    assert set(table.claim) == {"T1", "T4", "T6", "T9", "T12", "T3", "T15", "T17", "T19"}
    assert np.isfinite(table.measured).all() and table.holds.dtype == bool and (table.seeds == 2).all()
    ratios = table[~table.quantity.str.contains("exponent")]
    near = (ratios.measured - 1).abs() <= 2 * ratios.spread / 2**0.5  # two standard errors of two seeds
    assert (ratios.decides == ~near).all() and not (ratios.holds & near).any() and table.drop(ratios.index).decides.all()
    floor = table[table.quantity.str.contains("constant η")].iloc[0]
    assert abs(floor.measured) < 0.4  # a constant η leaves a floor: no power of T


def test_stability_curves_ratio_is_one_without_ri():
    table = stability_curves((0.0, 0.1), (1,), 20, 2, 64)
    assert (table[table.beta == 0].ratio == 1).all() and (table[table.beta == 0.1].factor < 1).all()
