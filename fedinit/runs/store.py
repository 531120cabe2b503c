"""Runs on disk: one folder a run, named by the experiment's key.

    <store>/<key>/experiment.json    the canonical experiment
    <store>/<key>/history.csv        one row a round, appended as rounds end
    <store>/<key>/provenance.json    commit, versions, device, threads, dates
    <store>/<key>/checkpoint/        the newest state, and one file per client vector set it refers to

A folder is believed only as far as it is consistent: a torn last line of a history is dropped, files are written under another name and
moved, and nothing is ever unpickled.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from filelock import FileLock

from fedinit.errors import InputError
from fedinit.experiment import Experiment
from fedinit.methods.registry import called
from fedinit.training.rounds import COLUMNS

SECONDS = ("train_seconds", "eval_seconds")  # the columns that differ between two runs of the same bits


def default_folder() -> Path:
    """$FEDINIT_RUNS; else `runs/` of the source checkout that the package is installed from; else ~/.cache/fedinit/runs."""
    if os.environ.get("FEDINIT_RUNS"):
        return Path(os.environ["FEDINIT_RUNS"]).expanduser()
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").exists() and (checkout / "notebooks").is_dir():
        return checkout / "runs"
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "fedinit" / "runs"


@dataclass(frozen=True)
class Run:
    """A finished run: its experiment, its history (one row a round, at most `experiment.rounds`) and where it came from."""

    experiment: Experiment
    history: pd.DataFrame
    provenance: dict
    folder: Path

    @property
    def diverged(self) -> int | None:
        """The round in which the run diverged, or None."""
        last = self.history.iloc[-1]
        return int(last["round"]) if last["diverged"] else None

    def tidy(self) -> pd.DataFrame:
        """The history with the experiment's fields and hyperparameters as columns."""
        return pd.DataFrame(self.experiment.columns(), index=self.history.index).join(self.history)


class Store:
    """Finds, locks and reads runs in a folder; `also` are further folders that are only read (committed histories)."""

    def __init__(self, folder: str | os.PathLike | None = None, also: tuple[Path, ...] = ()):
        self.folder = Path(os.path.expanduser(folder)) if folder else default_folder()
        if os.path.exists(self.folder) and not os.path.isdir(self.folder):
            raise InputError(f"runs folder {self.folder} is a file; allowed: a folder, which is made if it is missing.")
        self.also = tuple(Path(path) for path in also)

    def path(self, experiment: Experiment) -> Path:
        return self.folder / experiment.key

    def load(self, experiment: Experiment) -> Run | None:
        """The run, if enough rounds of it are stored (or it diverged before); else None."""
        for root in (self.folder, *self.also):
            folder = root / experiment.key
            history = read_history(folder / "history.csv")
            history = history[history["round"] <= experiment.rounds]
            if len(history) and (len(history) == experiment.rounds or history["diverged"].iloc[-1]):
                return Run(experiment, history, read_json(folder / "provenance.json"), folder)
        return None

    def rounds_done(self, experiment: Experiment) -> int:
        """How many rounds of the run are stored in this folder, at most `experiment.rounds` (cheap: counts lines)."""
        try:
            lines = (self.path(experiment) / "history.csv").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0
        return min(max(lines - 1, 0), experiment.rounds)

    def lock(self, experiment: Experiment, timeout: float = -1) -> FileLock:
        """The run's lock, held by whoever computes it. The operating system frees it when its owner dies."""
        folder = self.path(experiment)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from None
        return FileLock(folder / ".lock", timeout=timeout)

    def check_writable(self) -> None:
        """Refuse a folder that cannot be written, or made, before any work; makes nothing."""
        try:
            nearest = next(path for path in (self.folder, *self.folder.absolute().parents) if path.exists())
            tempfile.TemporaryFile(dir=nearest).close()  # asked by doing: permissions alone do not tell
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> InputError:
        way_out = "name a folder of yours with --runs (in Python: Store(folder)) or FEDINIT_RUNS"
        return InputError(f"runs folder {self.folder} cannot be written ({error.strerror}); {way_out}.")

    def runs(self) -> pd.DataFrame:
        """One row a stored run: key, label, seed, rounds done, diverged, size in bytes, content digest of its images (none before an
        attempt ended), and the experiment as a dict."""
        rows = []
        for file in sorted(self.folder.glob("*/experiment.json")):
            canonical, history = read_json(file), read_history(file.with_name("history.csv"))
            if "method" not in canonical:
                print(f"fedinit: {file} is damaged; the run is left out until it is run again.", file=sys.stderr)
                continue
            size = sum(path.stat().st_size for path in file.parent.rglob("*") if path.is_file())
            name = called([part["name"] for part in reversed(canonical["method"]["parts"])])
            diverged = bool(len(history)) and bool(history["diverged"].iloc[-1])
            images = read_json(file.with_name("provenance.json")).get("images")
            rows.append((file.parent.name, name, canonical["seed"], len(history), diverged, size, images, canonical))
        return pd.DataFrame(rows, columns=["key", "label", "seed", "rounds", "diverged", "bytes", "images", "experiment"])


def read_json(path: Path) -> dict:
    """The dict in a file; empty where there is none, or none that can be read: what it says of a run is not the run."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_history(path: Path) -> pd.DataFrame:
    """A history up to a torn last line, or to a row that is not the next round's; empty if there is none. Numbers come back with the bits
    that were written."""
    text = path.read_bytes().decode("utf-8", errors="replace") if os.path.exists(path) else ""
    whole = text[: text.rfind("\n") + 1]
    if not whole:
        return pd.DataFrame(columns=list(COLUMNS))
    kinds = {**dict.fromkeys(COLUMNS, float), "round": int, "diverged": int, "active": str}
    try:
        rows = list(csv.DictReader(io.StringIO(whole)))
        rows = [row for _, row in itertools.takewhile(lambda pair: int(pair[1]["round"]) == pair[0], enumerate(rows, 1))]
        return pd.DataFrame({name: [kinds[name](row[name]) for row in rows] for name in COLUMNS})
    except (KeyError, TypeError, ValueError, csv.Error):  # damaged from outside: not a history, so the run is played again
        return pd.DataFrame(columns=list(COLUMNS))


def write_atomic(path: Path, text: str) -> None:
    """Write a whole file or nothing: under another name, to the disk, then moved."""
    part = path.with_name(path.name + ".part")
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
