"""Measurements that are made once and kept with what determines them: the theory's curves and findings, and Table 7's seconds a round.

They are made again when that has changed. Whoever shows them says when and where they were made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fedinit.experiment import Experiment
from fedinit.runs.provenance import commit, now, processor, provenance, versions
from fedinit.runs.store import Store, write_atomic

SECONDS = "table7_times"


def theory(store: Store, groups: int) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """(`theory.rate_curves`, `theory.findings`, when and where) of `groups` groups of runs: of the store, or measured now and put there.

    They depend on the code of fedinit.theory, its random streams and NumPy, on nothing else: no preset, no images.
    """
    name = f"theory-{_code('theory', 'streams.py', str(groups), versions()['numpy'])[:16]}.json"
    kept = next(filter(None, (_read(root / name) for root in (store.folder, *store.also))), None)
    if kept is None:
        from fedinit.theory import findings, rate_curves

        about = {"began": now(), "hardware": processor(), "versions": versions(), "commit": commit()}
        curves = rate_curves(groups)
        tables = {"curves": curves.to_dict("list"), "findings": findings(groups, curves=curves).to_dict("list")}
        store.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(store.folder / name, json.dumps({"about": about, **tables}) + "\n")
        kept = _read(store.folder / name)
    when = f"measured {kept['about']['began'][:10]} on {kept['about']['hardware']}"
    return pd.DataFrame(kept["curves"]), pd.DataFrame(kept["findings"]), when


def _read(path: Path) -> dict | None:
    """What `theory` keeps in the file; None if it is not there, or damaged: then it is measured again."""
    try:
        kept = json.loads(path.read_text())
        return kept if {"about", "curves", "findings"} <= kept.keys() else None
    except (OSError, ValueError, AttributeError):
        return None


def kept_times(folder: Path) -> tuple[pd.DataFrame, str, dict] | None:
    """(seconds a round as `runs.timing.time_rounds` gave them, when and where, what made them), as kept in the folder."""
    try:
        times, about = pd.read_csv(folder / f"{SECONDS}.csv"), json.loads((folder / f"{SECONDS}.json").read_text())
        where = f"{about['hardware']} ({about['device']}, {about['threads']} thread), torch {about['versions']['torch']}"
        when = f"timed {about['began'][:10]} on {where}"
    except (OSError, ValueError, KeyError, TypeError):  # not there, or damaged: to be timed again
        return None
    return None if times.empty else (times, when, about)


def made_by(experiments: Sequence[Experiment], repeats: int, device: str) -> dict:
    """What determines the seconds a round: the runs, the code that plays them, versions and hardware; with date and commit."""
    from fedinit.training.rounds import pick_device

    code = _code("training", "methods", "data", "streams.py", "runs/timing.py")
    return {**provenance(pick_device(device), threads=1), "runs": [e.key for e in experiments], "repeats": repeats, "code": code}


def same_makers(one: dict, other: dict) -> bool:
    """Whether two of `made_by` differ in date and commit at most."""
    return all(one.get(name) == value for name, value in other.items() if name not in ("began", "commit"))


def time_again(folder: Path, experiments: Sequence[Experiment], repeats: int, device: str) -> tuple[pd.DataFrame, str]:
    """Measure seconds a round now and keep them in the folder; as of `kept_times`."""
    from fedinit.runs.timing import time_rounds

    about, times = made_by(experiments, repeats, device), time_rounds(experiments, repeats, device=device)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / f"{SECONDS}.csv", times.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    write_atomic(folder / f"{SECONDS}.json", json.dumps(about, indent=1) + "\n")
    return kept_times(folder)[:2]


def _code(*parts: str) -> str:
    """SHA-256 of the package's files and folders of these names, and of the names themselves."""
    whole, root = hashlib.sha256("\n".join(parts).encode()), Path(__file__).parent
    for part in parts:
        for file in sorted((root / part).glob("*.py")) if (root / part).is_dir() else [root / part]:
            whole.update(file.read_bytes() if file.exists() else b"")
    return whole.hexdigest()
