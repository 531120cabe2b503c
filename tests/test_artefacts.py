"""Artefacts: known images by name, what is left out and why, measurements that are kept, histories kept for a clone."""

import json

import numpy as np
import pandas as pd
import pytest

import fedinit
from fedinit import artefacts, kept
from fedinit.artefacts import Artefact
from fedinit.data import known
from fedinit.experiment import Experiment
from fedinit.runs import Store, run, timing
from fedinit.runs.run import rounds_tested
from tests.training.tiny import tiny

LUCK = np.random.default_rng(0)


@pytest.fixture
def images(tmp_path):
    """The path of a .npz with 40 + 20 images of 10 classes."""
    arrays = {f"x_{part}": LUCK.integers(0, 256, (n, 32, 32, 3), np.uint8) for part, n in (("train", 40), ("test", 20))}
    np.savez(tmp_path / "mine.npz", **arrays, y_train=np.arange(40) % 10, y_test=np.arange(20) % 10)
    return str(tmp_path / "mine.npz")


@pytest.fixture(autouse=True)
def checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(artefacts, "checkout", lambda: tmp_path)


def small(data, **changes) -> Experiment:
    return tiny(data=data, rounds=2, **changes)


# ---- images ----------------------------------------------------------------------------------------------------------------


def test_images_that_are_known_are_called_by_their_name(images, monkeypatch):
    """From a file under its path; from its digest alone, as a clone knows it, by what the run recorded; others by the file's name."""
    this = Artefact("table4_cifar10", data=images, jobs=1)
    assert set(this.sweep([small(images)], live=False).data) == {images} and "data images mine.npz" in this.caption("A.")
    monkeypatch.setitem(known.CONTENT, known.content(fedinit.load_images(images)), "cifar10")
    for data in (images, fedinit.data.identity(images)):
        this = Artefact("table4_cifar10", data=data, jobs=1)
        assert set(this.sweep([small(data)], live=False).data) == {"cifar10"}
        assert this.caption("A.").endswith("data CIFAR-10.")
    assert Artefact("data_heterogeneity", data=images).caption("A.").endswith("data CIFAR-10.")


def test_table_5_is_of_100_classes(images, capsys):
    assert artefacts.table5("quick", (0,), images) == artefacts.table5("quick", (0,), "cifar10") == []
    assert len(artefacts.table5("quick", (0,))) == len(artefacts.table5("small", (0,), "cifar100")) == 7 * 2 * 2
    assert Artefact("table5_cifar100", data=images).sweep(artefacts.table5("quick", (0,), images)).empty
    assert capsys.readouterr().out == "not run: images mine.npz has 10 classes, Table 5 shows 100.\n"


@pytest.mark.parametrize(
    "data, count", [("cifar10", 10), ("cifar100", 100), ("synthetic100:200/100", 100), ("synthetic", 10), ("sha256:" + 64 * "0", None)]
)
def test_classes(data, count):
    assert known.classes(data) == count


def test_the_committed_histories_of_the_preset_s_own_images_are_found(tmp_path, monkeypatch):
    """Of two digests among the histories the one whose images are CIFAR-10; without one, the preset's name stands."""
    monkeypatch.setitem(known.CONTENT, "of cifar", "cifar10")
    for key, images in (("a", "of another"), ("b", "of cifar")):
        assert artefacts.committed_data("small") is None
        folder = tmp_path / "figures" / "small" / "runs" / key
        folder.mkdir(parents=True)
        (folder / "experiment.json").write_text(json.dumps({"data": f"sha256:{key * 64}"}))
        (folder / "provenance.json").write_text(json.dumps({"images": images}))
    assert artefacts.committed_data("small") == Artefact("table4_cifar10", "small").data == f"sha256:{'b' * 64}"


# ---- redraw ----------------------------------------------------------------------------------------------------------------


def test_redraw_runs_nothing(capsys):
    stored = run(tiny("fedavg"))
    this = Artefact("table4_cifar10", redraw=True)
    frame = this.sweep([tiny("fedavg"), tiny("fedcm"), tiny("scaffold+ri", seed=1)])
    assert set(frame.key) == {stored.experiment.key}
    assert "not run: 2 of 3 runs (FedCM, SCAFFOLD + RI). They are not kept here, and redraw trains nothing." in capsys.readouterr().out
    assert Artefact("table4_cifar10", redraw=True).sweep([tiny("fedcm")]).empty
    assert len(list(Store().folder.iterdir())) == 1


# ---- measurements that are kept ----------------------------------------------------------------------------------------------


@pytest.fixture
def timed(monkeypatch):
    """Counts how often seconds are measured; what is measured is their number so far."""
    calls = []

    def time_rounds(experiments, repeats, device):
        calls.append(repeats)
        return pd.DataFrame([(e.label, i, 1 / 3, float(len(calls))) for e in experiments for i in range(repeats)], columns=COLUMNS)

    monkeypatch.setattr(timing, "time_rounds", time_rounds)
    return calls


COLUMNS = ["label", "repeat", "seconds", "ratio"]


def test_seconds_are_measured_once_and_again_when_something_else_would_make_them(timed, tmp_path):
    experiments = [tiny("fedavg"), tiny("fedinit")]

    def ratio(*changed, **options):
        times, when = Artefact("table7_8_time", device="cpu", **options).times([*experiments, *changed])
        assert when.startswith("timed 20") and "(cpu, 1 thread), torch " in when
        return times.ratio.iloc[0]

    assert [ratio(), ratio()] == [1.0, 1.0] and timed == [artefacts.REPEATS["quick"]]
    assert Artefact("table7_8_time", device="cpu").times(experiments, again=True)[0].ratio.iloc[0] == 2.0
    assert ratio() == 2.0
    assert [ratio(tiny("fedcm")), ratio(tiny("fedcm")), ratio()] == [3.0, 3.0, 4.0]  # another setup
    record = tmp_path / "figures" / "quick" / "table7_times.json"
    for change in ({"hardware": "an abacus"}, {"code": "0"}, {"versions": {"torch": "0"}}):
        record.write_text(json.dumps(json.loads(record.read_text()) | change))
        assert ratio(redraw=True) == len(timed), "kept ones are shown, whoever made them"
        assert ratio(redraw=True, out=tmp_path / "copy") == len(timed), "those of the preset's own folder, where another has none"
        assert ratio() == len(timed) and json.loads(record.read_text()) != change
    record.write_text(json.dumps(json.loads(record.read_text()) | {"began": "2000-12-31", "commit": "another"}))
    assert ratio() == len(timed) == 7  # date and commit are told, not compared


def test_seconds_that_are_not_kept_are_not_timed_under_redraw(timed, capsys):
    times, when = Artefact("table7_8_time", redraw=True).times([tiny("fedavg")])
    assert times.empty and when == "" and not timed
    assert capsys.readouterr().out == "not timed. They are not kept here, and redraw trains nothing.\n"


def test_theory_is_measured_once_for_every_notebook(tmp_path, monkeypatch):
    from fedinit import theory

    calls, curves, findings = [], theory.rate_curves, theory.findings
    monkeypatch.setattr(theory, "rate_curves", lambda groups: calls.append(groups) or curves(groups, rounds=(16, 32), runs=1))
    monkeypatch.setattr(theory, "findings", lambda groups, curves: findings(groups, 1, (16, 32), curves))
    first, again = (kept.theory(Store(tmp_path / "here"), 2) for _ in range(2))
    elsewhere = kept.theory(Store(tmp_path / "clone", also=(tmp_path / "here",)), 2)
    assert calls == [2] and not (tmp_path / "clone").exists()
    pd.testing.assert_frame_equal(first[0], curves(2, rounds=(16, 32), runs=1), check_exact=True)
    for other in (again, elsewhere):
        pd.testing.assert_frame_equal(first[0], other[0], check_exact=True)
        pd.testing.assert_frame_equal(first[1], other[1], check_exact=True)
        assert first[2] == other[2] and first[2].startswith("measured 20")
    assert len(kept.theory(Store(tmp_path / "here"), 3)[0]) == len(first[0]) * 3 / 2 and calls == [2, 3]
    monkeypatch.setattr(kept, "_code", lambda *parts: "another code")
    kept.theory(Store(tmp_path / "here"), 3)
    assert calls == [2, 3, 3]


# ---- for a clone -------------------------------------------------------------------------------------------------------------


def test_histories_behind_figures_are_kept_beside_them(tmp_path):
    """Those that a sidecar names, without checkpoints; a store reads them, and nothing else is needed."""
    shown, other = run(tiny("fedavg")), run(tiny("fedcm"))
    folder = tmp_path / "figures" / "small"
    folder.mkdir(parents=True)
    (folder / "table4.json").write_text(json.dumps({"notebook": "table4_cifar10", "runs": [shown.experiment.key, "0" * 64]}))
    (folder / "notes.json").write_text("[1, 2]")
    (folder / "torn.json").write_text("{")
    artefacts.keep_histories(folder, (Store().folder,))
    assert [path.name for path in (folder / "runs").iterdir()] == [shown.experiment.key]
    files = {path.name for path in (folder / "runs" / shown.experiment.key).iterdir()}
    assert files == {"experiment.json", "history.csv", "provenance.json"}
    clone = Store(tmp_path / "nothing", also=(folder / "runs",))
    pd.testing.assert_frame_equal(clone.load(tiny("fedavg")).history, shown.history, check_exact=True)
    assert clone.load(tiny("fedcm")) is None and other is not None


def test_a_run_begun_again_elsewhere_does_not_replace_a_kept_history(tmp_path):
    """The local copy is cut to its first round, as an interrupted run leaves it: the kept file stays, to the byte. A damaged kept file, on
    the other hand, is mended from a whole local one."""
    shown = run(tiny("fedavg"))
    local, folder = Store().path(shown.experiment) / "history.csv", tmp_path / "figures" / "small"
    folder.mkdir(parents=True)
    (folder / "table4.json").write_text(json.dumps({"runs": [shown.experiment.key]}))
    artefacts.keep_histories(folder, (Store().folder,))
    kept_file, whole = folder / "runs" / shown.experiment.key / "history.csv", local.read_bytes()
    assert kept_file.read_bytes() == whole and len(shown.history) > 1
    local.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    for stores in ((Store().folder, folder / "runs"), (Store().folder,)):
        artefacts.keep_histories(folder, stores)
        assert kept_file.read_bytes() == whole
    local.write_bytes(whole)
    kept_file.write_bytes(whole[:-9])
    artefacts.keep_histories(folder, (Store().folder, folder / "runs"))
    assert kept_file.read_bytes() == whole


# ---- which runs --------------------------------------------------------------------------------------------------------------


def test_deciding_methods_have_more_seeds_unless_seeds_are_named():
    """`small`: all seven methods (in 4 columns) three seeds; with RI, FedInit and SCAFFOLD three, the other four one; named seeds hold for all."""
    assert len(artefacts.table4("small", None)) == 4 * 7 * 3
    assert len(artefacts.table4("small", (0, 1))) == 4 * 7 * 2
    both = artefacts.table6("small", None)  # six bases and their twins, FedInit under its other spelling
    assert sorted({e.seed for e in both if e.label == "fedinit"}) == [0, 1, 2] and len(both) == 4 * (8 * 3 + 4 * 1)
    assert len(artefacts.table4("quick", None)) == 4 * 7 * 2


@pytest.mark.parametrize("name", ["quick", "small"])
def test_participations_keep_cohort_and_local_steps(name):
    """Another number of clients, C = N / share; at full participation five (quick: two) times the images and one epoch."""
    runs = {share: artefacts.at_share(name, "fedinit", share, 0, hyper={"beta": 0.1}) for share in (0.1, 0.2, 0.5, 1.0)}
    for share, e in runs.items():
        assert e.cohort_size / e.clients == pytest.approx(share) and e.cohort_size == runs[0.1].cohort_size
        assert (e.samples or 3000 // e.clients) * e.local_epochs == artefacts.SAMPLES[name] * runs[0.1].local_epochs
    assert artefacts.at_share(name, "fedavg", 0.05, 0) == fedinit.preset(name, "fedavg", "5%-200", model=runs[0.1].model)


def test_the_ledger_looks_at_all_runs():
    named = {f for functions in artefacts.RUNS.values() for f in functions}
    assert set(artefacts.RUNS["claims"]) == named and len(artefacts.RUNS["claims"]) == len(named)


def test_a_caption_says_how_many_seeds_there_are_at_least():
    """FedAvg has seeds 0 and 1, FedCM seed 0; FedInit seed 0 at one β and 1 at another, so one each. Alone, FedAvg's two."""
    this = Artefact("table4_cifar10", "small")
    runs = [("fedavg", 0, None), ("fedavg", 1, None), ("fedcm", 0, None), ("fedinit", 0, 0.1), ("fedinit", 1, 0.2)]
    frame = pd.DataFrame(runs, columns=["label", "seed", "beta"]).assign(data="cifar10", key=range(5))
    this.frames.append(frame)
    cadence = "Tested every 5 rounds, and in each of the last 50"
    seeds = "1 to 2 seeds (0, 1); where a spread is shown, what has none is of one seed"
    assert this.caption("A.", rule=False) == f"A. {cadence}; {seeds}; preset small; data CIFAR-10."
    assert "; 2 seeds (0, 1); " in this.caption("A.", of=frame[frame.label == "fedavg"])
    assert "; 1 seed (0); " in this.caption("A.", of=frame[frame.label == "fedcm"])
    assert this.caption("A.", rule=False, of=pd.DataFrame({"seconds": [1.0]})) == "A. Preset small; data CIFAR-10."


def test_a_sweep_of_small_tests_where_its_rule_looks(monkeypatch):
    """Every fifth round, and every one of the last 50: of 100 rounds 10 + 50."""
    told = {}
    monkeypatch.setattr(artefacts, "sweep", lambda experiments, **options: told.update(options) or pd.DataFrame())
    Artefact("table4_cifar10", "small").compute([tiny()])
    assert len(rounds_tested(100, told["evaluate_every"], told["evaluate_last"])) == 60
    assert rounds_tested(5) == [1, 2, 3, 4, 5] and rounds_tested(7, 3, 2) == [3, 6, 7]
