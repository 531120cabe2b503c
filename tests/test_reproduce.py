"""The plan's counts, parameters, papermill runs that end well and badly, and the report."""

import json
import os
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pandas as pd
import pytest
from matplotlib.figure import Figure

from fedinit import artefacts
from fedinit.errors import InputError
from fedinit.experiment import Experiment
from fedinit.report import READING, write_report
from fedinit.reproduce import check_parameters, declared, plan, reproduce
from fedinit.results import tables
from fedinit.runs import Store, run

PARAMETERS = """preset: str = "quick"
data: str | None = None
device: str = "auto"
jobs: int | None = None
seeds: list[int] | None = None
out: str | None = None
beta_grid: list[float] = [-0.1, 0.0, 0.1]
ratio = 0.5
"""


def tiny(method="fedavg", **changes) -> Experiment:
    small = {"data": "synthetic:200/100", "clients": 4, "cohort_size": 2, "rounds": 2, "local_epochs": 1, "model": "cnn", "width": 4}
    return Experiment(method=method, **{**small, "batch_size": 20, **changes})


def notebook(path: Path, *cells: str, parameters: str | None = PARAMETERS, title: str = "A title") -> Path:
    """Writes a notebook: a title (cell 1), the parameters (cell 2, unless None), then code cells."""
    first = [nbformat.v4.new_markdown_cell(f"# {title}")]
    if parameters is not None:
        first.append(nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=[*first, *map(nbformat.v4.new_code_cell, cells)]), path)
    return path


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A checkout of its own with three artefacts, a, b and c; returns its folder of notebooks."""
    monkeypatch.setattr(artefacts, "checkout", lambda: tmp_path / "checkout")

    def two(name, seeds, data=None):
        seeds = artefacts.seeds_of(name, "fedavg", seeds)
        return [tiny(seed=seed, **({"data": data} if data else {})) for seed in seeds]

    def three(name, seeds, data=None):
        seeds = artefacts.seeds_of(name, "fedavg", seeds)
        return two(name, seeds, data) + [tiny("fedsam", seed=seed) for seed in seeds] + [tiny("scaffold+ri", seed=seed) for seed in seeds]

    monkeypatch.setattr(artefacts, "RUNS", {"a_first": (two,), "b_second": (three,), "c_third": ()})
    return tmp_path / "checkout" / "notebooks"


# ---- plan ------------------------------------------------------------------------------------------------------------------


def test_plan_counts(place):
    """200 images over 4 clients: 50 each, 3 batches of 20 an epoch. 2 rounds × 2 clients × 1 epoch × 3 = 12 steps a run.

    a: 2 seeds, 24 steps. b: of its 6 runs 2 are a's; 4 × 12 = 48 steps; FedSAM's two runs take two gradients a step: 72 gradients.
    Disk: 4 clients take part (2 rounds × 2); SCAFFOLD + RI keeps c_i and last, its server c.
    d of a CNN of width 4: convolutions 3·9·4 + 4·9·8 + 8·9·16 = 1548, norms 2·(4 + 8 + 16) = 56, 256·10 + 10: 4174 float32.
    """
    report = plan(jobs=1, device="cpu")
    a, b, c = report.rows
    assert (a.runs, a.new, a.stored, a.to_run, a.local_steps, a.gradients) == (2, 2, 0, 2, 24, 24)
    assert (b.runs, b.new, b.stored, b.to_run, b.local_steps, b.gradients) == (6, 4, 0, 4, 48, 72)
    assert (c.runs, c.to_run, c.hours, c.disk_bytes) == (0, 0, 0.0, 0)
    assert (report.total.runs, report.total.to_run, report.total.local_steps, report.total.gradients) == (6, 6, 72, 96)
    vector = 4 * 4174
    assert a.disk_bytes == 2 * ((4 * 1 + 2) * vector + 400)
    assert b.disk_bytes == 2 * ((4 * 1 + 2) * vector + 400) + 2 * ((4 * 2 + 3) * vector + 400)
    assert b.memory_bytes == 4 * 2 * vector + 13 * vector + 2 * 300 * 3072 + 350_000_000
    assert [t.parameters for t in report.timings] == [4174] and a.hours > 0
    assert abs(a.hours * 3600 - 24 * report.timings[0].seconds_per_step - 400 * report.timings[0].seconds_per_test_image) < 1e-9


def test_plan_of_stored_runs(place, tmp_path):
    store = Store()
    run(tiny(seed=0), store=store)
    run(tiny(seed=1, rounds=1), store=store)  # one round of two: resumed
    a, b, _ = plan(jobs=1, device="cpu", store=store).rows
    assert (a.new, a.stored, a.to_run, a.local_steps) == (2, 1, 1, 6)
    assert (b.new, b.stored, b.to_run) == (4, 1, 4)
    report = plan(seeds=[0], only=["a"], device="cpu", store=store)
    assert report.total.to_run == 0 and report.timings == [] and "nothing to compute" in str(report)


def test_plan_as_text_and_data(place):
    report = plan(only=["b"], device="cpu", jobs=1)
    lines = str(report).splitlines()
    assert lines[0].split()[:3] == ["notebook", "runs", "new"] and lines[2].startswith("b_second") and lines[4].startswith("total")
    assert len({len(line) for line in lines[:5]}) == 1
    assert json.loads(json.dumps(report.data()))["total"]["to_run"] == 6


def test_plan_refuses(place):
    for bad in (
        {"only": ["table9"]},
        {"only": [""]},
        {"preset": "quik"},
        {"preset": []},
        {"data": "nowhere.npz"},
        {"seeds": "x"},
        {"jobs": 0},
        {"jobs": 10**6},
    ):
        with pytest.raises(InputError) as error:
            plan(**bad)
        assert "\n" not in str(error.value)


def test_every_artefact_has_a_plan():
    """The package's own list, counted without timing: everything of the quick preset has a positive number of runs or none at all."""
    from fedinit.reproduce import _longest, _wanted

    wanted = _wanted("quick", None, None, None)
    assert list(wanted) == list(artefacts.RUNS)
    assert len(_longest(wanted["table4_cifar10"])) == 7 * 2 * 2 * 2 + 2 * 2  # methods, participations, splits, seeds; noise: methods, seeds
    assert set(_longest(wanted["table7_8_time"])) <= set(_longest(wanted["table4_cifar10"]))


# ---- parameters ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def parametrized(tmp_path):
    return notebook(tmp_path / "figure.ipynb")


def test_unknown_parameter_names_the_known(parametrized):
    with pytest.raises(InputError, match=r"'presett'.*Did you mean 'preset'\?.*Allowed: beta_grid, data, device, jobs"):
        check_parameters(parametrized, {"presett": "quick"})
    with pytest.raises(InputError, match="no cell tagged 'parameters'"):
        check_parameters(notebook(parametrized.with_name("bare.ipynb"), parameters=None), {"preset": "quick"})


@pytest.mark.parametrize(
    "name, value",
    [
        ("preset", 3), ("preset", None), ("preset", ["quick"]), ("jobs", "two"), ("jobs", 2.5), ("jobs", True), ("ratio", "a half"),
        ("ratio", True), ("ratio", None), ("ratio", [1]), ("seeds", "0, x"), ("seeds", [0.5]), ("seeds", {}),
        ("beta_grid", None), ("beta_grid", "[]"),
    ],
)  # fmt: skip
def test_wrong_type_refused(parametrized, name, value):
    with pytest.raises(InputError, match=rf"{name} = .* is not allowed; allowed: ") as error:
        check_parameters(parametrized, {name: value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name, value, taken",
    [
        ("ratio", "1e-3", 1e-3), ("ratio", 2, 2), ("jobs", "2", 2), ("jobs", None, None), ("seeds", "[0, 1]", [0, 1]), ("seeds", 1, [1]),
        ("seeds", (0, 2), [0, 2]), ("seeds", None, None), ("beta_grid", "[-0.1, 0, 1e-1]", [-0.1, 0.0, 0.1]), 
        ("preset", "paper", "paper"), ("data", "x", "x"),
    ],
)  # fmt: skip
def test_what_yaml_and_the_shell_hand_over(parametrized, name, value, taken):
    assert check_parameters(parametrized, {name: value}) == {name: taken}


def test_declared_reads_comments_expressions_and_optionals(tmp_path):
    source = """from typing import Optional
# a comment
a: Optional[int] = None  # note
b = None
c = 10 ** -3
d: 'str' = 'x'
e = [1, 2]
f: tuple[float, ...] = (1,)
g = None  # type: list[int]"""
    found = declared(notebook(tmp_path / "n.ipynb", parameters=source))
    kinds = {name: set(parameter.kinds) for name, parameter in found.items()}
    assert kinds == {"a": {"int", "None"}, "b": set(), "c": set(), "d": {"str"}, "e": {"list"}, "f": {"list"}, "g": {"list", "None"}}
    assert [found[name].element for name in "efg"] == ["int", "float", "int"]


# ---- running ---------------------------------------------------------------------------------------------------------------


def test_reproduce_runs_in_order_shares_runs_and_reports(place, tmp_path, capsys):
    sweep = """from fedinit import Experiment, sweep
small = dict(data="synthetic:200/100", clients=4, cohort_size=2, rounds=2, local_epochs=1, model="cnn", width=4, batch_size=20)
frame = sweep([Experiment(method="fedavg", seed=seed, **small) for seed in seeds], jobs=1)
assert preset == "quick" and seeds == [0, 1]"""
    notebook(
        place / "a_first.ipynb", sweep, "import sys, os; print(sys.executable); print(os.environ['FEDINIT_RUNS'])", title="The *first*"
    )
    notebook(place / "b_second.ipynb", "assert len(seeds) == 2")
    out, store = tmp_path / "out{1}", Store(tmp_path / "elsewhere")
    # a foreign "python3" kernel that would end at once
    spec = tmp_path / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(json.dumps({"argv": ["false"], "display_name": "x", "language": "python"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
        assert reproduce(seeds=[0, 1], jobs=1, device="cpu", store=store, out=out, json_output=True) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert [r["notebook"] for r in result["notebooks"]] == ["a_first", "b_second"]  # c_third has no notebook: left out
    assert result["notebooks"][0]["runs"] == {"committed": 0, "stored": 0, "computed": 2, "missing": 0}
    assert result["notebooks"][1]["runs"] == {"committed": 0, "stored": 2, "computed": 4, "missing": 0}
    assert "a_first   done in" in printed.err and "runs: 2 computed" in printed.err and "index.html" in printed.err
    executed = nbformat.read(out / "notebooks" / "a_first.ipynb", 4)
    assert executed.metadata.papermill.input_path == "a_first.ipynb", "no path of this machine"
    assert executed.cells[-1].outputs[0].text.split() == [sys.executable, str(store.folder)]
    page = (out / "index.html").read_text()
    assert "The first" in page and 'href="notebooks/a_first.ipynb"' in page


def test_failing_cell_and_killed_kernel(place, tmp_path, capfd):
    notebook(place / "a_first.ipynb", "x = 1", "raise ValueError('first line\\nno such thing')")
    notebook(place / "b_second.ipynb", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", parameters=None)
    notebook(place / "c_third.ipynb", "print('ran')")
    began = time.monotonic()
    assert reproduce(device="cpu", out=tmp_path / "out") == 1
    assert time.monotonic() - began < 60
    printed = capfd.readouterr()
    first, second = printed.err.splitlines()
    assert "notebook a_first failed: cell 4: ValueError: … no such thing" in first
    assert "notebook b_second failed: cell 2: the kernel died" in second
    assert "1 of 3 notebooks" in printed.out
    assert "ran" in str(nbformat.read(tmp_path / "out" / "notebooks" / "c_third.ipynb", 4).cells[-1].outputs)
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count('class="failed"') == 2 and "no such thing" in page and "the kernel died" in page


def test_what_a_kernel_writes_past_jupyter_is_not_shown(place, tmp_path, capfd):
    notebook(place / "a_first.ipynb", "import os; os.write(2, b'a complaint')", "import sys; os.write(sys.__stderr__.fileno(), b'another')")
    assert reproduce(only=["a"], device="cpu", out=tmp_path / "out") == 0
    assert capfd.readouterr().err == ""


def test_kernel_that_does_not_start_is_tried_again(place, tmp_path, monkeypatch, capsys):
    import papermill

    notebook(place / "c_third.ipynb", "1")
    calls, real = [], papermill.execute_notebook

    def flaky(*args, **kwargs):
        calls.append(args)
        if len(calls) in (1, 3, 4):
            raise RuntimeError("Kernel died before replying to kernel_info")
        return real(*args, **kwargs)

    monkeypatch.setattr(papermill, "execute_notebook", flaky)
    assert reproduce(only=["c"], device="cpu", out=tmp_path / "out") == 0 and len(calls) == 2
    assert reproduce(only=["c"], device="cpu", out=tmp_path / "out") == 1 and len(calls) == 4
    assert "its kernel did not start: Kernel died before replying" in capsys.readouterr().err


def test_reproduce_refuses_before_anything_runs(place, tmp_path):
    notebook(place / "a_first.ipynb", "raise SystemExit('must not run')")
    notebook(place / "c_third.ipynb", "raise SystemExit('must not run')", parameters="preset: str = 'quick'")
    out = tmp_path / "out"
    for bad, text in (
        ({"parameters": {"beta_gird": [0]}}, "Did you mean 'beta_grid'"),
        ({"parameters": {"beta_grid": [0]}}, "notebook c_third"),  # a_first knows it, c_third does not
        ({"only": ["a"], "parameters": {"ratio": "x"}}, "allowed: a number"),
        ({"only": ["b"]}, "b_second.ipynb is not in"),
        ({"data": str(tmp_path / "none.npz")}, "no such file"),
        ({"device": "abacus"}, "device"),
        ({"preset": "huge"}, "preset"),
    ):
        with pytest.raises(InputError, match=text):
            reproduce(out=out, **bad)
    assert not out.exists()


def test_ctrl_c_ends_the_kernel(place, tmp_path):
    mark = tmp_path / "pid"
    notebook(
        place / "c_third.ipynb", f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(600)", parameters=None
    )
    code = (
        "import sys; from pathlib import Path; from fedinit import artefacts, cli\n"
        f"artefacts.checkout = lambda: Path({str(place.parent)!r}); artefacts.RUNS = {{'c_third': ()}}\n"
        f"sys.exit(cli.main(['reproduce', '--only', 'c', '--device', 'cpu', '--out', {str(tmp_path / 'out')!r}]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    for _ in range(600):
        if mark.exists() and mark.read_text():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err.strip().splitlines()[-1].startswith("fedinit: interrupted")
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


# ---- report ----------------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.links, self.images, self.ids, self.labels, self.tags = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append((tag, attrs))
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.labels += [attrs["aria-labelledby"]] if "aria-labelledby" in attrs else []
        self.links += [attrs["href"]] if tag == "a" else []
        self.images += [attrs] if tag == "img" else []


@pytest.fixture
def figures(tmp_path):
    """A folder as notebooks leave it: a figure, two paper-style tables, the ledger, with names and captions that try to break out."""
    experiment = tiny()
    store = Store(tmp_path / "figures" / "runs")
    run(experiment, store=store)
    one = artefacts.Artefact("table4_cifar10", out=str(tmp_path / "figures"), store=store)
    one.frames.append(run(experiment, store=store).tidy())
    figure = Figure()
    figure.subplots().plot([0, 1], [1, 0])
    one.save(figure, "curves", 'Curves & <b>bold</b> "quoted"')
    rows = [
        {
            "label": label,
            "accuracy": a,
            "diverged": False,
            "diverged_round": None,
            "clients": 100,
            "cohort_size": 10,
            "dirichlet": 0.1,
            "seed": 0,
        }
        for label, a in (("fedavg", 0.5), ("fedinit", 0.6))
    ]
    table = tables.accuracy_table(pd.DataFrame(rows), caption="Accuracy in %.")
    one.save_table(table, "table4")
    one.save_table(table, "table4 again")
    ledger = pd.DataFrame(
        {"claim": ["<script>alert(1)</script> beats all"] * 3, "verdict": ["reproduced", "not reproduced", "not tested at this scale"]},
        index=["A1", "A2", "A3"],
    )
    artefacts.Artefact("claims", out=str(tmp_path / "figures"), store=store).save_frame(ledger, "claims", "The ledger.")
    (tmp_path / "figures" / "notes.json").write_text("[1, 2]")
    (tmp_path / "figures" / "torn.json").write_text("{")
    return tmp_path / "figures"


def test_report_has_no_broken_link_and_every_picture(figures):
    notebook(figures / "notebooks" / "claims.ipynb", title="Every claim")
    path = write_report(figures)
    page = Page(path.read_text())
    assert len(page.ids) == len(set(page.ids))
    for link in page.links:
        assert link[1:] in page.ids if link.startswith("#") else (figures / unquote(link)).is_file(), link
    assert [image["src"] for image in page.images] == ["curves.svg"]
    assert all((figures / image["src"]).is_file() and image["alt"] for image in page.images)
    assert set(page.labels) <= set(page.ids)
    assert not any(tag in ("script", "link") and attrs.get("href") != "data:," for tag, attrs in page.tags)
    assert all(attrs.get("scope") for tag, attrs in page.tags if tag == "th")
    assert "table4.tex" in page.links and "curves.pdf" in page.links


def test_report_text(figures):
    text = write_report(figures).read_text()
    assert text.index('id="claims"') < text.index('id="table4_cifar10"') < text.index('id="provenance"')
    assert "<b>1</b> not reproduced" in text and '<span class="verdict yes">reproduced</span>' in text
    assert "<script" not in text and "Curves &amp; &lt;b&gt;bold" in text
    assert "#T_table4_row1_col0" in text and "#T_t_" not in text and "<caption" not in text
    assert "synthetic:200/100" in text and "<dt>hardware</dt>" in text and artefacts.commit() in text
    assert "http" not in text.replace("http-equiv", "") and str(figures) not in text


def test_every_notebook_has_its_place_in_the_report():
    assert set(READING) == set(artefacts.RUNS) and READING[0] == "claims"


def test_report_of_nothing(tmp_path):
    page = Page(write_report(tmp_path / "new").read_text())
    assert "provenance" in page.ids and page.images == []
