"""Every test has a run store and data folder of its own, no network, no display, one thread."""

import os
import signal

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from filelock import FileLock

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in a shell's background job; the commands under test are to be interrupted by it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def apart(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDINIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("FEDINIT_OFFLINE", "1")
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def one_cluster(tmp_path_factory):
    """Held around a Ray cluster: tests run two at a time, and two clusters on one machine would wait for each other's memory."""
    return FileLock(tmp_path_factory.getbasetemp().parent / "ray.lock")
