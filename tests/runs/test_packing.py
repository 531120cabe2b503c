"""Runs on devices, with made-up devices: no GPU is needed."""

import pytest

from fedinit import InputError, Store, sweep
from fedinit.runs import packing
from fedinit.runs.packing import environment, fitting, places, rooms
from tests.runs.test_runs import same
from tests.training.tiny import tiny

GB = 10**9


def test_how_many_fit():
    """0.9 · 80 GB / 6.7 GB = 10.7; a run that is larger than the device gets it alone, and fails there with its own words if it must."""
    assert fitting(80 * GB, int(6.7 * GB)) == 10
    assert fitting(4 * GB, 6 * GB) == 1


def test_every_device_gets_one_before_any_gets_a_second():
    """Rooms for 1, 3 and 2 runs of 7 GB."""
    room = {"cuda:0": 8 * GB, "cuda:1": 24 * GB, "cuda:2": 16 * GB}
    assert places(room, 7 * GB, 100) == ["cuda:0", "cuda:1", "cuda:2", "cuda:1", "cuda:2", "cuda:1"]
    assert places(room, 7 * GB, 4) == ["cuda:0", "cuda:1", "cuda:2", "cuda:1"]
    assert places(room, 7 * GB, 1) == ["cuda:0"]


def test_a_cpu_is_one_device_with_the_machines_memory():
    assert places({"cpu": 24 * GB}, 5 * GB, 2) == ["cpu", "cpu"]
    assert places({"cpu": 8 * GB}, 5 * GB, 16) == ["cpu"]


def test_rooms_of_this_machine():
    assert list(rooms("cpu")) == ["cpu"]
    assert rooms("cpu")["cpu"] > 0
    with pytest.raises(InputError, match="not"):
        rooms("cuda:99")


def test_a_worker_sees_its_own_gpu_only(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert environment("cuda:1", 2) == {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "1"}
    assert "CUDA_VISIBLE_DEVICES" not in environment("cpu", 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-8932f937")
    assert environment("cuda:1", 1)["CUDA_VISIBLE_DEVICES"] == "GPU-8932f937"


def test_runs_go_over_the_processes_of_two_devices(tmp_path, monkeypatch):
    """A made-up second device: each has a pool of its own; what they compute is what one process computes."""
    experiments = [tiny(method, seed=seed) for method in ("fedavg", "fedinit") for seed in (0, 1)]
    one = sweep(experiments, jobs=1, store=Store(tmp_path / "one"), progress=False)
    monkeypatch.setattr(packing, "rooms", lambda device: {"cpu": 8 * GB, "cpu:0": 8 * GB})
    same(one, sweep(experiments, jobs=2, store=Store(tmp_path / "two"), progress=False))
