import json

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedinit.errors import InputError
from fedinit.results import metrics, plots
from fedinit.results.names import METHODS
from fedinit.results.style import beta_color

SEVEN = ("fedavg", "fedadam", "fedsam", "scaffold", "feddyn", "fedcm", "fedinit")


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


@pytest.fixture
def seven(frame):
    return frame(
        *[
            {"label": m, "seed": s, "final": 0.5 + 0.004 * i + 0.01 * s, "seconds": 2 + 0.1 * i}
            for i, m in enumerate(SEVEN)
            for s in range(3)
        ]
    )


@pytest.fixture
def sweep(frame):
    return metrics.summarise(
        frame(
            *[
                {
                    "label": "fedinit",
                    "beta": b,
                    "seed": s,
                    "final": 0.5 + b + 0.01 * s,
                    "rounds": 20,
                    "diverged_at": 9 if b > 0.25 else None,
                }
                for b in (-0.1, 0.0, 0.1, 0.2, 0.3)
                for s in range(2)
            ]
        )
    )


def texts(ax):
    return [t for t in ax.texts if t.get_text()]


def boxes(ax):
    """Window boxes of the text alone (an annotation's own box has its leader in it)."""
    ax.figure.draw_without_rendering()
    return [matplotlib.text.Text.get_window_extent(t) for t in texts(ax)]


def assert_readable(ax):
    """No two labels overlap, none reaches out of the figure, none covers the data area of curves."""
    found = boxes(ax)
    assert not any(a.overlaps(b) for i, a in enumerate(found) for b in found[i + 1 :])
    figure = ax.figure.bbox
    assert all(figure.x0 - 1 <= b.x0 and b.x1 <= figure.x1 + 1 and figure.y0 - 1 <= b.y0 and b.y1 <= figure.y1 + 1 for b in found)


def test_accuracy_curves_draw_means_in_percent_and_bands(seven):
    ax = plots.accuracy_curves(seven)
    assert len(ax.lines) == 7 and len(ax.collections) == 7
    fedavg = seven[seven.label == "fedavg"].groupby("round").test_accuracy.mean()
    assert np.allclose(ax.lines[0].get_ydata(), 100 * fedavg) and ax.lines[0].get_label() == "FedAvg"
    assert "%" in ax.get_ylabel() and ax.get_xlabel() == "round"
    assert [t.get_text() for t in texts(ax)] == [METHODS[m] for m in SEVEN]
    assert_readable(ax)
    area = ax.get_window_extent()
    assert all(box.x0 >= area.x1 for box in boxes(ax))  # beside the curves, not on them


def test_smoothed_curves_say_so(seven):
    ax = plots.accuracy_curves(seven, filter_width=5)
    assert "mean of 5 evaluations" in ax.get_ylabel() and len(ax.lines[0].get_xdata()) == 56


def test_a_single_seed_is_a_thin_line_without_band(frame):
    ax = plots.accuracy_curves(frame({}))
    assert not ax.collections and ax.lines[0].get_linewidth() < 1 and not texts(ax)


def test_a_diverged_line_ends_in_a_cross(frame):
    ax = plots.accuracy_curves(frame({}, {"label": "fedinit", "beta": 0.2, "diverged_at": 20}))
    assert ax.lines[-1].get_marker() == "X" and ax.lines[-1].get_xdata() == [20]
    assert "FedInit ✕" in [t.get_text() for t in texts(ax)]


def test_sparse_evaluations_are_joined(frame):
    ax = plots.accuracy_curves(frame({"every": 5}))
    assert list(ax.lines[0].get_xdata()) == list(range(5, 61, 5))


def test_divergence_curves_by_beta(frame):
    """FedAvg is β = 0; FedInit at β = 0 is the same curve and is not drawn a second time."""
    tidy = frame({}, {"label": "fedinit", "beta": 0.0}, {"label": "fedinit", "beta": 0.1}, {"label": "fedinit", "beta": -0.1})
    for which in ("all", "active"):
        ax = plots.divergence_curves(tidy, which)
        assert [line.get_label() for line in ax.lines] == [r"$\beta$ = −0.1", r"$\beta$ = 0", r"$\beta$ = 0.1"]
        assert ax.get_yscale() == "log" and which in ax.get_ylabel()
        assert_readable(ax)
    with pytest.raises(InputError, match="which"):
        plots.divergence_curves(tidy, "some")


def test_one_look_per_method():
    looks = [plots.look(m) for m in METHODS]
    assert len({look["color"] for look in looks}) == len({look["marker"] for look in looks}) == len(METHODS)
    assert plots.look("scaffold+ri")["color"] == plots.look("scaffold")["color"]
    assert plots.look("scaffold+ri")["linestyle"] != plots.look("scaffold")["linestyle"]
    assert plots.look("fedavg+ri") == plots.look("fedinit") and plots.look("mine") == plots.look("mine")
    assert beta_color(0) == plots.look("fedavg")["color"] and beta_color(0.1) != beta_color(-0.1)


def test_sensitivity_shades_and_marks_divergence(sweep):
    """β = 0.3 diverged; the region starts half way from 0.2: 0.25. The line has the other four, in %."""
    ax = plots.sensitivity(sweep)
    assert list(ax.lines[0].get_xdata()) == pytest.approx([-0.1, 0, 0.1, 0.2])
    crosses = [line for line in ax.lines if line.get_marker() == "X"]
    assert [list(line.get_xdata()) for line in crosses] == [[0.3]] and crosses[0].get_ydata() == [0.05]
    assert ax.patches[0].get_x() == pytest.approx(0.25)
    assert [t.get_text() for t in texts(ax)] == ["diverged"]
    assert_readable(ax)


def test_sensitivity_in_k_has_its_values_as_ticks(frame):
    table = metrics.summarise(frame(*[{"label": m, "local_epochs": k, "rounds": 20} for m in ("fedavg", "fedinit") for k in (1, 2, 5, 10)]))
    ax = plots.sensitivity(table, "local_epochs")
    ax.figure.draw_without_rendering()
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1", "2", "5", "10"]
    assert not ax.get_legend().get_window_extent().overlaps(ax.get_window_extent())
    with pytest.raises(InputError, match="width"):
        plots.sensitivity(table, "width")


def test_bars_are_ratios_to_fedavg(seven):
    ax = plots.bar_seconds(metrics.summarise(seven))
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([1 + 0.05 * i for i in range(7)])
    assert [t.get_text() for t in texts(ax)][:2] == ["1.00×", "1.05×"] and "2 s" in ax.get_xlabel()
    assert_readable(ax)


def test_bubbles_are_areas_on_one_scale():
    counts = np.array([[100, 0], [25, 50]])
    fig = plots.partition_bubbles({"a": counts, "b": counts // 5})
    a, b = (axis.collections[0].get_sizes() for axis in fig.axes)
    assert a[1] / a[0] == pytest.approx(0.25) and b[0] / a[0] == pytest.approx(0.2) and len(a) == 3  # empty cells have no bubble
    with pytest.raises(InputError, match="empty"):
        plots.partition_bubbles({})


def test_noise_panels_hold_the_pixels():
    clean = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    fig = plots.noise_panels(clean, {"brighter": clean.astype(float) + 300})
    assert len(fig.axes) == 4 and (fig.axes[0].images[0].get_array() == clean[0]).all() and (fig.axes[2].images[0].get_array() == 255).all()
    assert_readable(fig.axes[0])
    with pytest.raises(InputError, match="shape"):
        plots.noise_panels(clean, clean[:1])


def test_schematic_is_computed():
    """The diamond is the mean of the end models, and by the linearity of gradient descent on quadratics RI brings the ends closer."""
    apart = []
    for beta in (0.5, 0.8):
        fig = plots.schematic(beta)
        for axis in fig.axes:
            ends = next(line for line in axis.lines if line.get_linestyle() == ":").get_xydata()
            diamond = next(line for line in axis.lines if line.get_marker() == "D").get_xydata()[0]
            assert np.allclose(ends.mean(0), diamond)
            apart.append(np.linalg.norm(ends[0] - ends[1]))
            assert_readable(axis)
    assert apart[0] == apart[2] > apart[1] > apart[3]


def test_descend_by_hand():
    """½ y² from 4 at η = ½: 4, 2, 1."""
    path = plots.descend([4.0, 0.0], np.zeros(2), np.eye(2), 0.5, 2)
    assert path[:, 0].tolist() == [4, 2, 1]


def test_theory_figures():
    import pandas as pd

    ax = plots.stability_lines((0.1, 0.5))
    assert (np.diff(ax.lines[0].get_ydata()) > 0).all() and ax.get_ylim()[1] >= 1
    assert_readable(ax)
    T = np.array([10, 100, 1000])
    ax = plots.rate_lines(pd.DataFrame({"quantity": "q", "T": T, "value": 5.0 / T, "bound": -1}))
    assert np.allclose(ax.lines[0].get_ydata(), ax.lines[1].get_ydata())  # a quantity that follows its theorem lies on the dashed line


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.01, 0.2))
def test_spread_keeps_order_and_gaps(y, gap):
    out = plots.spread(np.array(y), gap)
    assert (np.diff(out[np.argsort(y, kind="stable")]) >= gap - 1e-9).all()
    assert out.mean() == pytest.approx(np.mean(y), abs=1e-9)  # least squares moves nothing on the whole


def test_spread_leaves_what_fits_and_stays_inside():
    assert plots.spread(np.array([0.1, 0.9]), 0.2).tolist() == pytest.approx([0.1, 0.9])
    assert plots.spread(np.array([0.99, 0.98, 0.1]), 0.1, 0.0, 1.0).tolist() == pytest.approx([1.0, 0.9, 0.1])


def test_files_have_the_same_bytes_twice_and_a_sidecar(seven, tmp_path, monkeypatch):
    written = []
    for name, epoch in (("a", "0"), ("b", "86400")):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
        paths = plots.save(plots.accuracy_curves(seven).figure, tmp_path / name / "figure", "A caption", {"preset": "quick", "keys": ["k"]})
        written.append([path.read_bytes() for path in paths])
    assert [path.suffix for path in paths] == [".png", ".svg", ".pdf", ".json"] and written[0] == written[1]
    assert json.loads(written[0][3]) == {"caption": "A caption", "preset": "quick", "keys": ["k"]}
    image = plt.imread(tmp_path / "a" / "figure.png")
    assert image.shape[1] == pytest.approx(plots.COLUMN * 300, abs=1)


def test_every_plot_takes_an_axes(seven, sweep):
    with plots.use_style():
        _, axes = plt.subplots(1, 4)
    summary = metrics.summarise(seven)
    assert plots.accuracy_curves(seven, ax=axes[0]) is axes[0] and plots.divergence_curves(seven, by="label", ax=axes[1]) is axes[1]
    assert plots.sensitivity(sweep, ax=axes[2]) is axes[2] and plots.bar_seconds(summary, ax=axes[3]) is axes[3]


def test_empty_input_is_refused(seven, sweep):
    for call in (
        lambda: plots.accuracy_curves(seven[:0]),
        lambda: plots.sensitivity(sweep[:0]),
        lambda: plots.bar_seconds(metrics.summarise(seven), "mine"),
    ):
        with pytest.raises(InputError):
            call()


def test_the_bar_of_a_gain_is_the_mean_over_seeds_as_in_the_ledger():
    """Seed 0 gained 2 and 4 points (mean 3), seed 1 gained 6: (3 + 6) / 2 = 4.5, where the mean of the three pairs would be 4.0."""
    base = [(0, 0.1, 0.50, 0.52), (0, 0.6, 0.50, 0.54), (1, 0.1, 0.50, 0.56)]
    rows = [(label, seed, d, value) for seed, d, *both in base for label, value in zip(("scaffold", "scaffold+ri"), both, strict=True)]
    ax = plots.gains(pd.DataFrame(rows, columns=["label", "seed", "dirichlet", "accuracy"]))
    assert sorted(ax.lines[0].get_xdata()) == pytest.approx([2, 4, 6])
    assert list(ax.lines[1].get_xdata()) == pytest.approx([4.5, 4.5])
    assert [t.get_text() for t in ax.texts] == ["+4.5"]


def test_variants_are_told_apart(frame):
    """Six variants and FedAvg at two participations; the gain of each is written beside it, a dash where it was not run."""
    variants = [("fedavgm", {"momentum": 0.5}), ("lagged", {}), ("fedinit", {"aggregate": "end"}), ("fedinit", {"aggregate": "start"})]
    nothing = {"momentum": np.nan, "aggregate": np.nan}
    runs = [{"label": "fedavg", "clients": c, "seed": s, **nothing} for c in (100, 10) for s in (0, 1)]
    runs += [{"label": m, "clients": 100, "seed": s, "final": 0.6, **{**nothing, **h}} for m, h in variants for s in (0, 1)]
    runs += [{"label": "fedinit", "clients": 10, "seed": 0, "final": 0.55, **nothing, "aggregate": "end"}]
    left, right = plots.variant_gains(metrics.summarise(frame(*runs))).axes
    assert [t.get_text() for t in left.get_yticklabels()] == ["FedInit, end", "FedInit, start", "FedAvgM 0.5", "RI's server term"]
    assert [t.get_text() for t in left.texts] == ["+9.9 (2)"] * 4 and [t.get_text() for t in right.texts] == ["+5.0 (1)", "—", "—", "—"]
    assert left.get_title("left") == "10% of 100 clients" and right.get_title("left") == "100% of 10 clients"


def test_the_threshold_map_writes_gain_and_beta():
    rows = [(0.05, 1.0, 0.05, 0.02), (0.05, 2.0, 0.1, np.nan), (0.1, 1.0, 0.1, -0.031)]
    gains = pd.DataFrame([(*r, 1) for r in rows], columns=["share", "ratio", "beta", "gain", "pairs"])
    whole = gains[gains.share == 0.05]  # no cell is missing
    assert [t.get_text() for t in plots.threshold_map(whole).texts if t.get_text()] == ["+2.0\nβ 0.05", "✕\nβ 0.1"]
    ax = plots.threshold_map(gains)
    assert [t.get_text() for t in ax.texts if t.get_text()] == ["+2.0\nβ 0.05", "✕\nβ 0.1", "−3.1\nβ 0.1"]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["5%", "10%"]


def test_relative_divergence_divides(frame):
    """Δ^t / ‖w‖² of one run at its last round: Δ^t / 100."""
    history = frame({"label": "fedavg", "rounds": 20}, {"label": "fedinit", "beta": 0.1, "rounds": 20})
    axes = plots.relative_divergence(history).axes
    drawn = axes[0].lines[0].get_ydata()[-1]
    assert len(axes) == 2 and drawn == pytest.approx(history.divergence_all[19] / 100)
