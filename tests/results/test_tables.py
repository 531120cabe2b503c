import io
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fedinit.errors import InputError
from fedinit.results import metrics, tables
from fedinit.results.names import METHODS, canonical, display_name, rank, split_label
from fedinit.results.published import CLAIMS, EM_DASH, claim, readme_figures


@pytest.fixture
def summary(frame):
    """FedAvg 50, 51, 52 % and FedInit 54, 55, 56 % at 10%-100; at 5%-200 FedAvg once (40 %), FedInit diverged in rounds 9 and 12."""
    runs = [{"label": "fedavg", "seed": s, "rounds": 2} for s in range(3)] + [
        {"label": "fedinit", "beta": 0.1, "seed": s, "rounds": 2} for s in range(3)
    ]
    runs += [{"label": "fedavg", "clients": 200, "rounds": 2}] + [
        {"label": "fedinit", "beta": 0.1, "seed": s, "clients": 200, "diverged_at": r} for s, r in ((0, 9), (1, 12))
    ]
    return metrics.summarise(frame(*runs)).assign(accuracy=[0.50, 0.51, 0.52, 0.54, 0.55, 0.56, 0.40, np.nan, np.nan])


def test_accuracy_table_cells(summary):
    """Means 51 and 55, sample std 1.0 each; a single seed has no ±; a diverged cell names its rounds and is never bold."""
    table = tables.accuracy_table(summary)
    assert list(table.text.index) == ["FedAvg", "FedInit"]
    assert list(table.text.columns) == [("10%-100", "Dir-0.1"), ("5%-200", "Dir-0.1")]
    assert table.text.values.tolist() == [["51.0 ± 1.0", "40.0"], ["55.0 ± 1.0", "diverged (9–12)"]]
    assert table.best.values.tolist() == [[False, True], [True, False]]


def test_what_was_not_run_is_a_dash_and_partial_divergence_is_told(summary):
    part = summary.copy()
    part.loc[part.index[5], ["accuracy", "diverged", "diverged_round"]] = [np.nan, True, 2]
    table = tables.accuracy_table(part[~((part.label == "fedavg") & (part.clients == 200))])
    assert table.text.iloc[0, 1] == EM_DASH
    assert table.text.iloc[1, 0] == "54.5 ± 0.7 (1 of 3 diverged)" and not table.best.iloc[1, 0]


def test_what_was_planned_and_not_run_is_said(summary):
    """FedAvg alone at 10%-100 is there; FedInit was planned there too, SCAFFOLD at both participations, another model not in this table."""
    common = {"cohort_size": 10, "dirichlet": 0.1, "partition": "dirichlet", "model": "resnet18-gn", "beta": 0.1, "seed": 0}
    rows = [
        {"label": "fedavg", "clients": 100},
        {"label": "fedavg+ri", "clients": 100},
        {"label": "scaffold", "clients": 200},
        {"label": "fedcm", "clients": 100, "model": "vgg11"},
    ]
    planned = [SimpleNamespace(columns=lambda row=row: common | row) for row in rows]
    table = tables.accuracy_table(summary[:3], planned=planned)
    assert list(table.text.index) == ["FedAvg", "SCAFFOLD", "FedInit"]
    assert table.text.values.tolist() == [["51.0 ± 1.0", EM_DASH], [EM_DASH, "not run"], ["not run", EM_DASH]]
    assert table.best.values.tolist() == [[True, False], [False, False], [False, False]]
    assert table.numbers[table.numbers.n == 0]["mean"].isna().all() and ",,,0,0,0" in tables.to_csv(table)
    gains = tables.plugin_table(summary[:3], planned=planned).text
    assert gains.loc["FedAvg", ("10%-100", "Dir-0.1")].tolist() == ["51.0 ± 1.0", "not run", EM_DASH]
    rows = tables.divergence_table(summary[:3], planned=planned[:3]).text
    assert list(rows.index) == ["FedAvg, β = 0", "FedAvg, β = 0.1", "SCAFFOLD, β = 0"] and set(rows.iloc[1]) == {"not run"}
    times = tables.target_table(summary[:3].assign(rounds_to_target=2.0, seconds_to_target=4.0), planned=planned[:3]).text
    assert times.loc["SCAFFOLD"].tolist() == ["not run"] * 4


def test_never_reached_is_said(frame):
    runs = metrics.summarise(frame({}, {"seed": 1}), target=0.99)
    assert tables.value_table(runs, "rounds_to_target").text.iloc[0, 0] == "not reached"


def test_plugin_table_pairs_by_seed(summary):
    """SCAFFOLD 50, 52 and with RI 53, 54: differences 3, 2, so Δ = +2.5 ± 0.7 (std of 2, 3), while the means differ by 2.5 too."""
    runs = summary[:4].assign(
        label=["scaffold", "scaffold", "scaffold+ri", "scaffold+ri"], seed=[0, 1, 0, 1], accuracy=[0.50, 0.52, 0.53, 0.54]
    )
    table = tables.plugin_table(runs)
    assert table.text.loc["SCAFFOLD"].tolist() == ["51.0 ± 1.4", "53.5 ± 0.7", "+2.5 ± 0.7"]
    assert [c[-1] for c in table.text.columns] == ["-", "+RI", "Δ"]
    assert table.best.loc["SCAFFOLD"].tolist() == [False, True, False]


def test_renderings_hold_the_same_cells(summary):
    table = tables.accuracy_table(summary, caption="Accuracy, 100 % of it")
    html = tables.to_html(table)
    assert table._repr_html_() == tables.own_ids(html) and html.count("font-weight: bold") == 1 and "55.0 ± 1.0" in html
    latex = tables.to_latex(table, "tab:x")
    assert r"\toprule" in latex and r"\textbf{55.0 $\pm$ 1.0}" in latex and r"10\%-100" in latex and r"\label{tab:x}" in latex
    numbers = pd.read_csv(io.StringIO(tables.to_csv(table)))
    assert {"mean", "std", "n", "diverged"} <= set(numbers) and numbers["mean"].max() == pytest.approx(55)
    assert numbers.diverged.sum() == 2


def test_html_escapes_what_a_user_named():
    runs = pd.DataFrame({"label": ["<b>x"], "accuracy": [0.5], "diverged": [False], "diverged_round": [np.nan], "g": ["a&b"]})
    assert "<b>x" not in tables.to_html(tables.accuracy_table(runs, columns=["g"]))


def test_unknown_column_and_empty_summary(summary):
    with pytest.raises(InputError, match="column"):
        tables.value_table(summary, "acuracy")
    with pytest.raises(InputError, match="no rows"):
        tables.accuracy_table(summary[:0])


def test_partitions_without_a_dirichlet_coefficient_are_named(summary):
    assert tables.accuracy_table(summary[:1].assign(partition="iid")).text.columns[0] == ("10%-100", "iid")


@pytest.mark.parametrize(
    "label, name",
    [
        ("fedinit", "FedInit"),
        ("fedavg+ri", "FedInit"),
        ("scaffold+ri", "SCAFFOLD + RI"),
        ("fedavg+sam", "FedSAM"),
        ("fedsam+ri", "FedSAM + RI"),
        ("fedcm+sam+ri", "MoFedSAM + RI"),
        ("mine", "mine"),
        ("Mine+ri", "Mine + RI"),
        ("FedAvgM+SAM+ri", "FedAvgM + SAM + RI"),
        ("fedprox+sam", "FedProx + SAM"),
    ],
)
def test_display_names(label, name):
    assert display_name(label) == name


def test_names_are_one_to_one():
    assert len({canonical(label) for label in METHODS}) == len(METHODS) == len({display_name(label) for label in METHODS})
    assert split_label("fedinit") == ("fedavg", True)
    assert split_label("Mine+RI") == ("Mine", True) and canonical("SCAFFOLD+RI") == "scaffold+ri"
    assert sorted(["scaffold+ri", "mine", "fedavg", "scaffold"], key=rank) == ["fedavg", "scaffold", "scaffold+ri", "mine"]


def test_published_numbers_are_only_the_known_ones():
    assert len(CLAIMS) == 27 and len({one.id for one in CLAIMS}) == 27
    assert claim("A1").published == "+3.42 points" and claim("A4").published == EM_DASH
    figures = readme_figures()
    assert len(figures) == 10 and figures.source.str.contains("not the paper's").all()
    with pytest.raises(InputError, match="A1"):
        claim("A11")


def test_two_tables_of_one_page_do_not_share_their_styles(summary):
    """Each is styled by id: with one id for all, the bold cells of one would be bold in the next."""
    shown = [tables.accuracy_table(summary, caption=caption)._repr_html_() for caption in ("one", "two", "one")]
    names = [re.search(r'<table id="(\w+)"', text)[1] for text in shown]
    assert names[0] == names[2] != names[1]
    assert f"#{names[0]}_row1_col0 " in shown[0] and "T_t" not in shown[0] + shown[1]


def test_seconds_have_the_digits_of_their_mean():
    """2.5 and 3.5: mean 3, std √0.5 = 0.707. 0.20 and 0.22: mean 0.21, std 0.0141; the ratios are given beside them."""
    times = pd.DataFrame({"label": ["fedavg"] * 2 + ["fedinit"] * 2, "repeat": [0, 1] * 2})
    text = tables.time_table(times.assign(seconds=[2.5, 3.5, 0.20, 0.22], ratio=[1, 1, 0.08, 0.06])).text["here"]
    assert text.loc["FedAvg"].tolist() == ["3.00 ± 0.71", "1.00 (1.00 to 1.00)"]
    assert text.loc["FedInit"].tolist() == ["0.210 ± 0.014", "0.07 (0.06 to 0.08)"]
