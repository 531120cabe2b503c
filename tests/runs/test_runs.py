"""Runs on disk: exact resume, prefix property, locks, torn files, diverged runs, sweeps."""

import dataclasses
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from fedinit import FedAvg, InputError, Simulation, Store, frame, run, simulate, sweep
from fedinit.data import load_images
from fedinit.data.known import content
from fedinit.results.metrics import HISTORY
from fedinit.runs import packing
from fedinit.runs.crew import _Layout
from fedinit.runs.footprint import estimate
from fedinit.runs.store import SECONDS, read_history
from fedinit.runs.workers import WorkerDied
from fedinit.training.rounds import COLUMNS
from tests.training.tiny import tiny


def bits(history: pd.DataFrame) -> pd.DataFrame:
    """What must be the same to the last bit: all but the seconds."""
    return history.drop(columns=list(SECONDS)).reset_index(drop=True)


def same(a: pd.DataFrame, b: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(bits(a), bits(b), check_exact=True)


class Killed(Exception):
    """Stands for a kill between two rounds."""


@pytest.mark.parametrize("memory", ["ram", "disk"])
@pytest.mark.parametrize("method", ["scaffold+ri", "fedadam", "feddyn+ri", "fedcm"])
@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_a_run_stopped_after_any_round_and_started_again_has_the_bits_of_one_never_stopped(method, memory, seconds, tmp_path, monkeypatch):
    """With a checkpoint every round, and with none before the end (then the rounds are played again)."""
    monkeypatch.setattr(sys.modules["fedinit.runs.run"], "PATIENCE", float("inf") if seconds else 0.0)
    whole = run(tiny(method), store=Store(tmp_path / "whole"))
    for stop in (1, 3):
        store = Store(tmp_path / f"stopped-{stop}")

        def bomb(record, stop=stop):
            if record["round"] == stop:
                raise Killed

        with pytest.raises(Killed):
            run(tiny(method), store=store, memory=memory, checkpoint_seconds=seconds, on_round=bomb)
        assert store.load(tiny(method)) is None
        same(run(tiny(method), store=store, memory=memory).history, whole.history)


@pytest.mark.parametrize("memory", ["ram", "disk"])
def test_resumed_vectors_begin_where_new_ones_do(memory, tmp_path, monkeypatch):
    """torch begins a vector at a multiple of 64 bytes, a file's tensors begin anywhere; by where they begin MKL's dot adds in another
    order, so a resumed run had other last bits of Δ^t. Names of several lengths shift the tensors within their files."""
    seen = []
    for rounds, method in enumerate(["fedavg", "fedinit", "scaffold+ri", "feddyn", "fedcm", "fedadam"], 2):
        experiment, restore = tiny(method, rounds=rounds), Simulation.restore

        def watch(self, vectors, numbers, restore=restore):
            restore(self, vectors, numbers)
            clients = [self.memory.get(client, self.device) for client in self.memory.rounds]
            everything = [self.w, self.divergence.offset, *self.server.values(), *(v for mine in clients for v in mine.values())]
            seen.extend(vector.data_ptr() % 64 for vector in everything)

        run(experiment, store=Store(tmp_path), memory=memory)
        monkeypatch.setattr(Simulation, "restore", watch)
        run(experiment.replace(rounds=rounds + 1), store=Store(tmp_path), memory=memory)
        monkeypatch.setattr(Simulation, "restore", restore)
    assert len(seen) > 40 and set(seen) == {0}


def test_vectors_on_the_board_of_a_crew_begin_where_new_ones_do(tmp_path):
    """91 numbers a vector, so that rows laid end to end would begin in the middle of one."""
    layout = _Layout(str(tmp_path / "board"), 91, torch.float32, ("c",), ("c_i", "last"), 4)
    rows = layout.rows()
    assert {(row.data_ptr() % 64, row.shape, row.is_contiguous()) for row in rows} == {(0, (91,), True)}


def test_stopped_in_the_middle_of_a_round(tmp_path, monkeypatch):
    """The clients' vectors of the unfinished round must not leak into the resumed one."""
    experiment = tiny("scaffold+ri", rounds=4)
    whole = run(experiment, store=Store(tmp_path / "whole"))
    for memory in ("ram", "disk"):
        store, keep, calls = Store(tmp_path / memory), Simulation._keep, []

        def bomb(self, client, result, keep=keep, calls=calls):
            keep(self, client, result)
            calls.append(client)
            if len(calls) == 5:  # the first client of round 3
                raise Killed

        monkeypatch.setattr(Simulation, "_keep", bomb)
        with pytest.raises(Killed):
            run(experiment, store=store, memory=memory, checkpoint_seconds=0)
        monkeypatch.setattr(Simulation, "_keep", keep)
        same(run(experiment, store=store, memory=memory).history, whole.history)


def test_killed_by_the_system_and_started_again(tmp_path):
    """SIGKILL while computing, in a process of its own; then resumed here."""
    experiment = tiny("fedinit", rounds=60)
    code = (
        "import torch; torch.set_num_threads(1)\n"
        "from fedinit import Store, run\nfrom tests.training.tiny import tiny\n"
        f"run(tiny('fedinit', rounds=60), store=Store({str(tmp_path / 'killed')!r}), checkpoint_seconds=0.05)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    store = Store(tmp_path / "killed")
    deadline = time.monotonic() + 120
    while store.rounds_done(experiment) < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = store.rounds_done(experiment)
    assert 5 <= done < 60
    resumed = run(experiment, store=store)
    same(resumed.history, run(experiment, store=Store(tmp_path / "whole")).history)
    assert resumed.provenance["attempts"][-1]["from_round"] > 0


def test_rounds_are_a_prefix(tmp_path):
    """A run of 4 rounds answers a question about 2; asked for 6, it goes on from round 4; all with the bits of a run of 6."""
    store = Store(tmp_path / "grown")
    four = run(tiny("fedinit", rounds=4), store=store)
    two = store.load(tiny("fedinit", rounds=2))
    same(two.history, four.history.iloc[:2])
    six = run(tiny("fedinit", rounds=6), store=store)
    assert six.provenance["attempts"][-1]["from_round"] == 4
    same(six.history, run(tiny("fedinit", rounds=6), store=Store(tmp_path / "whole")).history)


def test_another_setting_is_another_folder():
    """Trap: same name, other settings. Each field but `rounds` changes the key."""
    base = tiny()
    changes = {
        "method": FedAvg(global_lr=0.5),
        "data": "synthetic:200/101",
        "clients": 5,
        "cohort_size": 1,
        "participation": "coin",
        "samples": 24,
        "partition": "iid",
        "dirichlet": 0.2,
        "prior": "class",
        "draws": "cyclic",
        "classes_per_client": 3,
        "client_noise": 0.1,
        "category_noise": 0.1,
        "category_scope": "client",
        "model": "vgg11",
        "width": 6,
        "stem": "cifar",
        "local_epochs": 2,
        "batch_size": 11,
        "lr": 0.2,
        "lr_decay": 0.9,
        "weight_decay": 0.0,
        "clip": None,
        "augment": False,
        "precision": "bf16",
        "seed": 1,
    }
    assert set(changes) == {f.name for f in dataclasses.fields(base)} - {"rounds"}
    keys = {base.replace(**{name: value}).key for name, value in changes.items()}
    assert len(keys | {base.key}) == len(changes) + 1
    assert base.replace(rounds=9).key == base.key


def test_a_torn_last_line_is_dropped_and_a_half_written_checkpoint_is_not_seen(tmp_path):
    store, experiment = Store(tmp_path), tiny("scaffold")
    whole = run(experiment, store=store)
    history = whole.folder / "history.csv"
    history.write_text(history.read_text()[:-20])
    assert len(read_history(history)) == 3
    assert store.load(experiment) is None
    (whole.folder / "checkpoint" / "state.part").write_bytes(b"half")
    same(run(experiment, store=store).history, whole.history)


@pytest.mark.parametrize("memory", ["ram", "disk"])
@pytest.mark.parametrize(
    "damage", ["state", "size", "server", "numbers", "client", "last", "history", "garbage", "tail", "twice", "record"]
)
def test_a_run_whose_files_were_damaged_starts_again(tmp_path, capsys, damage, memory):
    """Garbage in the checkpoint, vectors of another model, a part of it or a client's file gone, a history cut short or with a tail of
    another file or a row twice, a record that is none: played again, from the start where need be, with the same bits."""
    whole = run(tiny("scaffold+ri", rounds=6), store=Store(tmp_path / "whole"))
    store = Store(tmp_path / "damaged")
    folder = run(tiny("scaffold+ri"), store=store).folder
    if damage == "state":
        (folder / "checkpoint" / "state.safetensors").write_bytes(b"garbage")
    elif damage == "client":
        next((folder / "checkpoint").glob("client-*")).unlink()
    elif damage == "last":
        save_file({"c_i": torch.zeros(3)}, next((folder / "checkpoint").glob("client-*")))
    elif damage in ("size", "server", "numbers"):
        state = folder / "checkpoint" / "state.safetensors"
        with safe_open(state, "pt") as file:
            vectors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
        if damage == "size":
            vectors["w"] = vectors["w"][:-1]
        elif damage == "server":
            del vectors["server.c"]
        else:
            metadata["numbers"] = json.dumps(json.loads(metadata["numbers"]) | {"divergence": None})
        save_file(vectors, state, metadata=metadata)
    elif damage == "record":
        (folder / "provenance.json").write_text("[]")
        (folder / "experiment.json").write_text('{"meth')
    elif damage == "tail":
        with open(folder / "history.csv", "ab") as file:
            file.write(b"\xff\xfe\x00abc")
    elif damage == "twice":
        lines = (folder / "history.csv").read_text().splitlines(keepends=True)
        (folder / "history.csv").write_text("".join([*lines[:3], *lines[2:-1]]))
        assert store.load(tiny("scaffold+ri")) is None
    elif damage == "garbage":
        (folder / "history.csv").write_bytes(bytes(range(256)) * 3)
    else:
        (folder / "history.csv").write_text((folder / "history.csv").read_text()[:300])
    same(run(tiny("scaffold+ri", rounds=6), store=store, memory=memory).history, whole.history)
    assert ("is damaged" in capsys.readouterr().err) == (damage in ("state", "size", "server", "numbers", "client", "last"))


@pytest.mark.parametrize("text", ["", "null", "{}", "[]", '{"method'])
def test_a_damaged_record_hides_one_run_at_most(tmp_path, capsys, text):
    """Without its provenance a run is still a run; without its experiment it is not listed, and all others are."""
    store = Store(tmp_path)
    one, two = (run(tiny("fedavg", rounds=1, seed=seed), store=store) for seed in (0, 1))
    for done in (one, two):
        (done.folder / "provenance.json").write_text(text)
    assert len(store.runs()) == 2 and store.load(one.experiment).provenance == {}
    (one.folder / "experiment.json").write_text(text)
    assert store.runs().seed.tolist() == [1] and store.load(one.experiment) is not None
    assert "experiment.json is damaged" in capsys.readouterr().err


def test_the_same_bits_with_one_and_two_jobs_and_in_any_order(tmp_path):
    experiments = [tiny(method, seed=seed) for method in ("fedinit", "scaffold") for seed in (0, 1)]
    one = sweep(experiments, jobs=1, store=Store(tmp_path / "one"), progress=False)
    two = sweep(experiments[::-1], jobs=2, store=Store(tmp_path / "two"), progress=False)
    again = frame(experiments, Store(tmp_path / "two"))
    same(one, again)
    assert len(two) == len(one) == 4 * 4


def test_what_ran_before_in_the_same_process_does_not_matter():
    alone = simulate(tiny("fedinit"))
    torch.manual_seed(7)
    np.random.seed(7)
    simulate(tiny("scaffold", seed=3))
    same(simulate(tiny("fedinit")), alone)


def test_twins_share_partition_cohorts_batches_and_initial_weights():
    base, twin = Simulation(tiny("fedavg"), device="cpu"), Simulation(tiny("fedinit"), device="cpu")
    assert torch.equal(base.initial, twin.initial)
    assert base.batches.partition.digest == twin.batches.partition.digest
    for _ in range(3):
        first, second = base.step(), twin.step()
        assert first["active"] == second["active"]
    x, y = next(base.batches.train(1, 2)), next(twin.batches.train(1, 2))
    assert torch.equal(x[0], y[0])
    assert torch.equal(x[1], y[1])


def test_a_run_whose_only_active_client_diverges_is_a_result(tmp_path):
    """There is no sum over the cohort then."""
    experiment = tiny("fedavg", lr=1e20, clip=None, rounds=5, cohort_size=1)
    done = run(experiment, store=Store(tmp_path))
    assert done.diverged == len(done.history) < 5 and run(experiment, store=Store(tmp_path)).diverged == done.diverged


@pytest.mark.parametrize("seconds", [0.0, 30.0])
def test_a_diverged_run_is_a_result(tmp_path, seconds):
    """η = 1e20 overflows at once: the run stops, is stored as diverged, and is not run again."""
    store, experiment = Store(tmp_path), tiny("fedavg", lr=1e20, clip=None, rounds=50)
    done = run(experiment, store=store, checkpoint_seconds=seconds)
    assert done.diverged == len(done.history) < 5
    assert done.history["diverged"].tolist()[-1] == 1
    assert store.load(experiment).diverged == done.diverged

    def never(record):
        raise AssertionError("a diverged run was run again")

    same(run(experiment, store=store, on_round=never).history, done.history)


def _race(folder, queue):
    torch.set_num_threads(1)
    done = run(tiny("fedinit", rounds=8), store=Store(folder), device="cpu")
    queue.put(len(done.provenance["attempts"]))


def test_two_processes_that_want_the_same_run_share_it(tmp_path):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    both = [context.Process(target=_race, args=(str(tmp_path), queue)) for _ in range(2)]
    for process in both:
        process.start()
    assert [queue.get(timeout=120), queue.get(timeout=120)] == [1, 1]  # one attempt in all: the other waited and read
    for process in both:
        process.join()
        assert process.exitcode == 0


@dataclasses.dataclass(frozen=True)
class KillsItsWorker(FedAvg):
    def step(self, w, server, cohort):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_noticed(tmp_path):
    """Trap: a worker killed for memory and a sweep that waits for ever."""
    experiments = [tiny(KillsItsWorker()), tiny(KillsItsWorker(), seed=1)]
    with pytest.raises(WorkerDied, match="killed"):
        sweep(experiments, jobs=2, store=Store(tmp_path), progress=False)


def _alive(group: int) -> bool:
    """Whether any process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("end, number", [(os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM)], ids=["terminal", "scheduler"])
def test_an_ended_sweep_leaves_everything_resumable(tmp_path, end, number):
    """A terminal sends SIGINT to the whole group, a scheduler SIGTERM to the command: exit code 130, one line, no worker left; started
    again, the bits of a run never stopped."""
    size = "--data synthetic:200/100 --clients 4 --cohort-size 2 --samples 25 --batch-size 10 --local-epochs 1 --width 4 --rounds 150"
    command = [
        sys.executable,
        "-m",
        "fedinit.cli",
        "sweep",
        "--seeds",
        "0,1",
        "--jobs",
        "2",
        "--runs",
        str(tmp_path / "runs"),
        *size.split(),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and sum(len(read_history(p)) for p in (tmp_path / "runs").glob("*/history.csv")) < 6:
        time.sleep(0.05)
    end(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip().splitlines()[-1].startswith("fedinit: interrupted")
    assert "Traceback" not in errors
    deadline = time.monotonic() + 20
    while _alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _alive(process.pid)  # no worker outlives the command
    done = [len(read_history(p)) for p in (tmp_path / "runs").glob("*/history.csv")]
    assert 6 <= sum(done) < 600
    experiment = tiny("fedavg", width=4, rounds=12)
    again = run(experiment, store=Store(tmp_path / "runs"))
    same(again.history, run(experiment, store=Store(tmp_path / "whole")).history)


def test_a_method_of_a_notebook_cell_reaches_the_workers(tmp_path):
    """Trap: spawned workers and classes defined in __main__."""
    code = (
        "from dataclasses import dataclass\nfrom fedinit import FedAvg, Store, sweep\nfrom tests.training.tiny import tiny\n"
        "@dataclass(frozen=True)\nclass Mine(FedAvg):\n    pull: float = 0.5\n"
        "    def start(self, w, mine): return w * self.pull\n"
        f"f = sweep([tiny(Mine(), seed=s) for s in (0, 1)], jobs=2, store=Store({str(tmp_path)!r}), progress=False)\n"
        "print(len(f), set(f.label), set(f.pull))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=180, check=True
    )
    assert out.stdout.strip() == "8 {'Mine'} {0.5}"


def test_an_edited_method_is_another_run():
    """The key carries a fingerprint of a user's class: the same name with another formula is not the stored run."""

    def make(factor):
        namespace = {"FedAvg": FedAvg, "dataclass": dataclasses.dataclass}
        source = f"@dataclass(frozen=True)\nclass Mine(FedAvg):\n    def start(self, w, mine):\n        return w * {factor}\n"
        exec(source, namespace)
        return namespace["Mine"]()

    assert tiny(make(0.5)).key != tiny(make(0.25)).key
    assert tiny(make(0.5)).key == tiny(make(0.5)).key


def test_provenance_says_where_a_run_comes_from(tmp_path):
    done = run(tiny("fedinit"), store=Store(tmp_path))
    attempt = done.provenance["attempts"][0]
    assert attempt["threads"] == 1
    assert attempt["device"] == "cpu"
    assert attempt["versions"]["torch"] == torch.__version__.split("+")[0] or attempt["versions"]["torch"] == torch.__version__
    assert len(done.provenance["partition"]["digest"]) == 64
    assert done.provenance["images"] == content(load_images(tiny().data))
    stored = json.loads((done.folder / "experiment.json").read_text())
    assert type(tiny()).from_canonical(stored, rounds=4).key == tiny("fedinit").key == done.folder.name


def test_committed_histories_answer_without_training(tmp_path):
    """A clone redraws: the store reads histories elsewhere when its own folder has none."""
    experiment = tiny("fedinit")
    made = run(experiment, store=Store(tmp_path / "committed"))
    fresh = Store(tmp_path / "fresh", also=(tmp_path / "committed",))
    same(fresh.load(experiment).history, made.history)
    assert not (tmp_path / "fresh").exists()


def test_results_know_the_columns_that_rounds_write():
    """`results` imports nothing that trains, so it has the names a second time."""
    assert set(HISTORY) == set(COLUMNS)


def test_tidy_frame_has_fields_hyperparameters_and_rounds(tmp_path):
    table = sweep([tiny("fedavg"), tiny("fedinit")], jobs=1, store=Store(tmp_path), progress=False)
    assert len(table) == 8
    assert {"key", "label", "seed", "round", "test_accuracy", "divergence_all", "beta", "cohort_size", "dirichlet"} <= set(table)
    assert table.loc[table.label == "fedavg", "beta"].isna().all()
    assert (table.loc[table.label == "fedinit", "beta"] == 0.1).all()
    assert table.test_accuracy.between(0, 1).all()


def test_evaluation_cadence_changes_no_other_number(tmp_path):
    """Tested in rounds 2, 4 and the last, 5; the test accuracies that are there are the same."""
    dense = run(tiny("fedinit", rounds=5), store=Store(tmp_path / "dense")).history
    sparse = run(tiny("fedinit", rounds=5), store=Store(tmp_path / "sparse"), evaluate_every=2).history
    assert sparse.loc[sparse.test_accuracy.notna(), "round"].tolist() == [2, 4, 5]
    tail = run(tiny("fedinit", rounds=5), store=Store(tmp_path / "tail"), evaluate_every=9, evaluate_last=2).history
    assert tail.loc[tail.test_accuracy.notna(), "round"].tolist() == [4, 5]
    seen = sparse.test_accuracy.notna()
    assert (sparse.test_accuracy[seen] == dense.test_accuracy[seen]).all()
    pd.testing.assert_series_equal(sparse.train_loss, dense.train_loss, check_exact=True)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sweep([]), "at least one"),
        (lambda: sweep(None), "not NoneType"),
        (lambda: sweep(tiny()), r"pass \[experiment\] for one"),
        (lambda: Store(__file__), "is a file"),
        (lambda: tiny(model="os:getcwd", width=4), "cannot be imported"),
        (lambda: sweep([tiny()], store=Store("/proc/none")), "cannot be written .* --runs"),
        (lambda: sweep([tiny()], store=Store("~none-of-that-name/x" * 300)), "cannot be written"),
        (lambda: sweep([tiny()], jobs=0), "jobs = 0"),
        (lambda: sweep([tiny()], jobs=1000), "cores"),
        (lambda: sweep(["fedavg"]), "not str"),
        (lambda: run(tiny(), memory="tape"), "ram, disk"),
        (lambda: run(tiny(), evaluate_every=0), "evaluate_every = 0"),
        (lambda: run(tiny(), device="cuda:9" if not torch.cuda.is_available() else "tpu"), "not available"),
        (lambda: frame([tiny()]), "not stored"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, words):
    with pytest.raises(InputError, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_run_asked_for_twice_is_in_the_frame_once(tmp_path):
    assert len(sweep([tiny(), tiny()], jobs=1, store=Store(tmp_path), progress=False)) == 4


@pytest.mark.parametrize(("method", "memory"), [("fedinit", "disk"), ("scaffold+ri", "ram")])
def test_one_run_over_several_processes_has_the_same_bits(tmp_path, monkeypatch, method, memory):
    """The clients of a round on two processes, from the second round on; vectors on the client, broadcast ones, clients seen for the
    first time."""
    alone = run(tiny(method, rounds=4), store=Store(tmp_path / "alone"), jobs=1)
    monkeypatch.setattr(sys.modules["fedinit.runs.run"], "WORTH_A_CREW", 0.0)
    crew = run(tiny(method, rounds=4), store=Store(tmp_path / "crew"), jobs=2, memory=memory)
    same(crew.history, alone.history)


def test_a_killed_process_of_a_crew_is_named_and_nothing_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["fedinit.runs.run"], "WORTH_A_CREW", 0.0)

    def kill(record):
        if record["round"] == 2:
            for child in psutil.Process().children(recursive=True):
                if "loky" in " ".join(child.cmdline()) and "LokyProcess" in " ".join(child.cmdline()):
                    child.kill()

    with pytest.raises(WorkerDied, match="killed"):
        run(tiny("fedinit", rounds=4), store=Store(tmp_path), jobs=2, checkpoint_seconds=0, on_round=kill)
    done = run(tiny("fedinit", rounds=4), store=Store(tmp_path), jobs=1)
    same(done.history, run(tiny("fedinit", rounds=4), store=Store(tmp_path / "alone"), jobs=1).history)
    assert [attempt["from_round"] for attempt in done.provenance["attempts"]] == [2]


def test_vectors_that_do_not_fit_go_to_disk_and_a_line_says_so(tmp_path, monkeypatch, capsys):
    """The machine is made to have as much memory free as the estimate, of which 90 % may be taken, or twice that."""
    experiment = tiny("fedinit", rounds=1)
    each = estimate(experiment)
    for free, where in ((2 * each, "ram"), (each, "disk")):  # 90 % of what is free may be taken
        monkeypatch.setattr("psutil.virtual_memory", lambda free=free: type("", (), {"available": free, "total": free}))
        assert packing.memory("auto", [experiment], 1, "cpu") == where
        assert ("kept on disk" in capsys.readouterr().err) == (where == "disk")
    assert packing.memory("auto", [experiment], 2, "cpu") == "disk"
    assert packing.memory("ram", [experiment], 2, "cpu") == "ram"
    with pytest.raises(InputError, match="auto, ram, disk"):
        run(tiny(), store=Store(tmp_path), memory="tape")


@dataclasses.dataclass(frozen=True)
class Grows(FedAvg):
    """Keeps a vector at its first participation and two, one of them the end itself, from the second on; none is named by init_client."""

    def constants(self, start, received, mine):
        return {"pull": mine.get("once", start * 0) + 2 * mine.get("twice", start * 0)}

    def direction(self, gradient, y, constants):
        return gradient(y) + constants["pull"]

    def keep(self, received, mine, start, end, lr_sum):
        return {"once": end - start, "prev": end, **({"twice": start - end} if "once" in mine else {})}


def test_a_method_that_comes_to_keep_more_resumes_and_spreads_with_the_same_bits(tmp_path, monkeypatch):
    """Stopped after round 2, extended from 2 rounds to 4, and over two processes: as never stopped, on one."""
    experiment = tiny(Grows(), rounds=4)
    whole = run(experiment, store=Store(tmp_path / "whole"), jobs=1).history
    run(experiment.replace(rounds=2), store=Store(tmp_path / "parts"), jobs=1)
    same(run(experiment, store=Store(tmp_path / "parts"), jobs=1).history, whole)
    monkeypatch.setattr(sys.modules["fedinit.runs.run"], "WORTH_A_CREW", 0.0)
    same(run(experiment, store=Store(tmp_path / "crew"), jobs=2).history, whole)


@pytest.mark.parametrize("memory", ["ram", "disk"])
def test_a_damaged_client_file_starts_the_run_again(tmp_path, memory, capsys):
    experiment, store = tiny("fedinit", rounds=4), Store(tmp_path / "damaged")
    whole = run(experiment, store=Store(tmp_path / "whole")).history
    run(experiment.replace(rounds=2), store=store)
    file = next((store.path(experiment) / "checkpoint").glob("client-*.safetensors"))
    file.write_bytes(file.read_bytes()[:-40])
    same(run(experiment, store=store, memory=memory).history, whole)
    assert "is damaged" in capsys.readouterr().err


def test_fewer_tests_than_asked_for_are_told(tmp_path, capsys):
    """Tested in round 4 alone, then asked for every round: rounds 1 to 3 are missing. What is asked for and there is not told."""
    experiment = tiny("fedavg", rounds=4)
    run(experiment, store=tmp_path, evaluate_every=4)
    run(experiment, store=tmp_path, evaluate_every=4)
    sweep([experiment], store=str(tmp_path), evaluate_every=4, progress=False)
    assert capsys.readouterr().err == ""
    for again in (lambda: run(experiment, store=tmp_path), lambda: sweep([experiment], store=tmp_path, progress=False)):
        again()
        assert "fedavg seed 0 (1 of 4 rounds, " in (told := capsys.readouterr().err) and told.count("\n") == 1


def test_what_is_not_the_experiments_is_refused(tmp_path):
    """Other images would be stored under the key of its own."""
    with pytest.raises(InputError, match=r"images = 'synthetic.* are not the experiment's data"):
        run(tiny(), store=tmp_path, images=load_images("synthetic:90/20"))
    with pytest.raises(InputError, match="run takes an Experiment, not str"):
        run("fedinit", store=tmp_path)
    assert not list(tmp_path.iterdir())
