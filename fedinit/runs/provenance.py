"""Where a number comes from: commit, versions, device, threads, dates."""

from __future__ import annotations

import datetime
import functools
import platform
import subprocess
from importlib import metadata
from pathlib import Path

PACKAGES = ("fedinit", "torch", "torchvision", "numpy", "pandas", "matplotlib", "seaborn", "papermill")


@functools.cache
def commit() -> str:
    """The commit of the checkout that the package runs from, with "+changes" if files differ from it; "unknown" outside one."""
    here = Path(__file__).resolve().parents[2]

    def git(*args: str) -> str:
        return subprocess.run(["git", "-C", str(here), *args], capture_output=True, text=True, check=True, timeout=20).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != here:
            return "unknown"
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", "fedinit") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


@functools.cache
def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


@functools.cache
def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def provenance(device, threads: int) -> dict:
    """What is recorded with each attempt at a run."""
    import torch

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {
        "began": now(),
        "commit": commit(),
        "versions": versions(),
        "device": device.type,
        "hardware": name,
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
    }
