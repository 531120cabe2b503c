"""Every test has a run store and data folder of its own, no network, no display, one thread."""

import os

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


@pytest.fixture(autouse=True)
def apart(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDINIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("FEDINIT_OFFLINE", "1")
    torch.set_num_threads(1)
