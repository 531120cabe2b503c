"""Runs on disk (`store`), one run (`run`), many runs (`sweep`)."""

from fedinit.runs.run import run
from fedinit.runs.store import Run, Store
from fedinit.runs.sweep import frame, sweep

__all__ = ["Run", "Store", "frame", "run", "sweep"]
