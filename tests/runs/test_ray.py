"""Sweeps over a real Ray cluster of two nodes on this machine. A node is killed, a driver interrupted; the bits are the local engine's.

The whole cluster listens on the loopback address only, keeps its files in a folder of its own, and leaves no process behind.
"""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from fedinit import FedAvg, InputError, RelaxedInit, Store, sweep
from fedinit.runs import cluster
from fedinit.runs.footprint import estimate
from fedinit.runs.store import read_history
from fedinit.runs.workers import WorkerDied
from tests.runs.test_runs import KillsItsWorker, same
from tests.training.tiny import tiny

os.environ |= cluster.QUIET | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # "0": loopback, on Linux too
ray = pytest.importorskip("ray", reason="Ray has no wheel for this Python; pip install 'fedinit[ray]' where there is one")

ROOT = Path(__file__).parents[2]
NODE = {"num_cpus": 1, "object_store_memory": 100_000_000}


@pytest.fixture(scope="module")
def nodes(one_cluster):
    """(cluster, its second node): two nodes of one core; this process is connected to the first, so the second can be killed."""
    before = psutil.Process().children(recursive=True)
    folder = tempfile.mkdtemp(prefix="ray-")  # not tmp_path: sockets must have short paths
    with one_cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        made, second = _started()
        ray.init(made.address, log_to_driver=False, logging_level="ERROR")
        yield made, second
    started = [process for process in psutil.Process().children(recursive=True) if process not in before]
    ray.shutdown()
    made.shutdown()
    _, left = psutil.wait_procs(started, timeout=10)
    shutil.rmtree(folder, ignore_errors=True)
    assert started
    assert not left


def _started(tries: int = 3):
    """Ray gives up when its own processes take more than 15 seconds to start, as they may on a busy machine."""
    from ray.cluster_utils import Cluster

    alone = {"include_dashboard": False, "include_log_monitor": False}
    try:
        made = Cluster(initialize_head=True, head_node_args={**NODE, **alone})
        return made, made.add_node(**NODE)
    except Exception:
        if tries == 1:
            raise
        return _started(tries - 1)


def test_ctrl_c_leaves_everything_resumable(nodes, tmp_path):
    """The command line on this cluster, stopped by SIGINT: exit code 130, one line, and what was computed goes on with the local engine."""
    made, _ = nodes
    size = "--data synthetic:200/100 --clients 4 --cohort-size 2 --samples 25 --batch-size 10 --local-epochs 1 --width 4 --rounds 500"
    command = [sys.executable, "-m", "fedinit.cli", "sweep", "--engine", "ray", "--runs", str(tmp_path / "runs"), *size.split()]
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"RAY_ADDRESS": made.address}, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and sum(len(read_history(p)) for p in (tmp_path / "runs").glob("*/history.csv")) < 6:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, ""), errors
    assert errors.strip().splitlines()[-1].startswith("fedinit: interrupted")
    assert "Traceback" not in errors
    assert "runs 0/2" in errors  # the progress display
    done = [len(read_history(p)) for p in (tmp_path / "runs").glob("*/history.csv")]
    assert 6 <= sum(done) < 1000
    experiments = [tiny(method, width=4, rounds=max(done) + 2) for method in ("fedavg", "fedinit")]
    there, here = (sweep(experiments, jobs=1, store=Store(tmp_path / name), progress=False) for name in ("runs", "local"))
    same(there, here)


def test_a_task_that_is_killed_again_and_again_is_given_up(nodes, tmp_path, monkeypatch):
    """And what a killed task leaves in the node's temporary folder goes with a next one (one that still dies, with the one after)."""
    monkeypatch.setattr(cluster, "LOSSES", 2)
    with pytest.raises(WorkerDied, match="lost 2 times"):
        sweep([tiny(KillsItsWorker())], engine="ray", store=Store(tmp_path), progress=False)
    left = [Path(tempfile.gettempdir())]
    for seed in range(5):
        if left:
            sweep([tiny(seed=seed)], engine="ray", store=Store(tmp_path), progress=False)
            left = list(Path(tempfile.gettempdir()).glob("fedinit-ray-*"))
    assert not left


def test_an_error_of_a_run_is_raised_here(nodes, tmp_path):
    with pytest.raises(InputError, match="evaluate_every = 0") as error:
        sweep([tiny()], engine="ray", evaluate_every=0, store=Store(tmp_path), progress=False)
    assert "\n" not in str(error.value)


@dataclasses.dataclass(frozen=True)
class Meets(FedAvg):
    """FedAvg that goes on when two processes are at work."""

    place: str = ""

    def step(self, w, server, cohort):
        (Path(self.place) / str(os.getpid())).touch()
        while len(os.listdir(self.place)) < 2:
            time.sleep(0.02)
        return super().step(w, server, cohort)


def test_the_run_of_a_killed_node_goes_on_elsewhere_from_its_last_checkpoint(nodes, tmp_path):
    """Two runs on two nodes, one killed in the middle: both complete, with the local engine's bits; the lost one did not begin anew."""
    made, second = nodes
    (tmp_path / "place").mkdir()
    experiments = [tiny(RelaxedInit(Meets(place=str(tmp_path / "place"))), rounds=80, seed=seed) for seed in (0, 1)]
    store, seen = Store(tmp_path / "ray"), []

    def kill() -> None:
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline and min(map(store.rounds_done, experiments)) < 10:
            time.sleep(0.02)
        made.remove_node(second, allow_graceful=False)
        seen.extend(map(store.rounds_done, experiments))

    killer = threading.Thread(target=kill)
    killer.start()
    frame = sweep(experiments, engine="ray", store=store, checkpoint_seconds=0.1, progress=False)
    killer.join()
    assert all(10 <= rounds < 80 for rounds in seen)  # each node was in the middle of one
    same(frame, sweep(experiments, jobs=1, store=Store(tmp_path / "local"), progress=False))
    attempts = [attempt for experiment in experiments for attempt in store.load(experiment).provenance["attempts"]]
    kept, resumed = sorted(attempts, key=lambda attempt: attempt["from_round"])
    assert (kept["from_round"], kept["rounds"], resumed["rounds"]) == (0, 80, 80)
    assert 0 < resumed["from_round"] < 80  # the driver may have taken in a round more than was seen
    assert kept["threads"] == resumed["threads"] == 1


# ---- without a cluster -----------------------------------------------------------------------------------------------------


def test_what_a_run_asks_of_a_node():
    """On a CPU: its threads and memory. On a GPU of 80 GB: 1 / 52 of it, for 0.9 · 80 / 1.37 runs go in, cut to Ray's four digits."""
    options = {"device": "cpu", "threads": 2, "memory": "ram"}
    assert cluster.demand(tiny(), options, 0, None) == {"num_cpus": 2, "memory": estimate(tiny())}
    options["device"] = "cuda"
    assert int(0.9 * 80e9 // estimate(tiny(), "ram", "cuda")) == 53
    assert cluster.demand(tiny(), options, int(80e9), None)["num_gpus"] == 0.0188
    assert cluster.demand(tiny(), options, 0, None)["num_gpus"] == 1
    assert cluster.demand(tiny(), options, 0, 0.25)["num_gpus"] == 0.25


def test_a_round_waits_until_the_one_before_was_taken():
    """What is read of a folder between two rounds is at rest; and the work ends with whoever looks at it."""
    done = []

    def play(on_round):
        for number in range(4):
            done.append(number)
            on_round({"round": number})

    records = cluster._records(play)
    for expected in range(3):
        assert next(records)["round"] == expected
        time.sleep(0.05)
        assert done == list(range(expected + 1))
    records.close()
    time.sleep(0.3)
    assert done == [0, 1, 2]


def test_without_ray_one_line_tells_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'fedinit\[ray\]'") as error:
        sweep([tiny(FedAvg())], engine="ray", store=Store(tmp_path), progress=False)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "auto", "ray://127.0.0.1:1", "nowhere"])
def test_no_cluster_at_the_address(tmp_path, monkeypatch, address):
    """Nor where `ray start` has left a note: told at once."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(InputError, match="no Ray cluster answers") as error:
        sweep([tiny()], engine="ray", store=Store(tmp_path / "runs"), progress=False)
    assert "\n" not in str(error.value)
