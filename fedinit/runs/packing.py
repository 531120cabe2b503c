"""How many runs go on a device at a time, and on which; and where their clients' vectors live."""

from __future__ import annotations

import os
import sys

from fedinit.errors import InputError
from fedinit.experiment import Experiment
from fedinit.runs.footprint import estimate

FILL = 0.9  # of a device's free memory


def fitting(room: int, each: int) -> int:
    """How many runs of `each` bytes go into `room` bytes, at least one."""
    return max(int(FILL * room // each), 1)


def places(room: dict[str, int], each: int, most: int) -> list[str]:
    """The device of each of a sweep's processes, at most `most` of them.

    room  device → bytes free on it
    each  bytes that a run takes

    Every device takes one run before any takes a second, and none more than `fitting`.
    """
    slots = sorted((turn, at, device) for at, device in enumerate(room) for turn in range(min(fitting(room[device], each), most)))
    return [device for _, _, device in slots[:most]]


def memory(asked: str, experiments: list[Experiment], at_once: int, device: str) -> str:
    """Where the clients' vectors of runs live: as asked, or for "auto" in RAM if `at_once` of the largest of them fit; else on disk, and a
    line says so. Raises InputError for what is neither."""
    if asked not in ("auto", "ram", "disk"):
        raise InputError(f"memory = {asked!r} is not allowed; allowed: auto, ram, disk.")
    if asked != "auto" or not experiments:
        return asked
    room = rooms(device)
    each = max(estimate(experiment, "ram", next(iter(room))) for experiment in experiments)
    if len(places(room, each, at_once)) == at_once and each <= FILL * max(room.values()):
        return "ram"
    free = " + ".join(f"{free / 1e9:.1f}" for free in room.values())
    print(
        f"fedinit: clients' vectors are kept on disk: in memory {at_once} run{'s' if at_once > 1 else ''} would take {each / 1e9:.1f} GB "
        f"each of {free} GB free (memory='ram' keeps them there all the same).",
        file=sys.stderr,
    )
    return "disk"


def rooms(device: str) -> dict[str, int]:
    """device → bytes free: of every CUDA device for "cuda", of the machine's memory for what is not CUDA.

    Raises InputError for a device that is not here.
    """
    import psutil
    import torch

    from fedinit.training.rounds import pick_device

    chip = pick_device(device)
    if chip.type != "cuda":
        return {str(chip): psutil.virtual_memory().available}
    here = range(torch.cuda.device_count())
    if chip.index is not None and chip.index not in here:
        raise InputError(f"device = {device!r} is not here; allowed: cuda, {', '.join(f'cuda:{i}' for i in here)}.")
    return {f"cuda:{i}": torch.cuda.mem_get_info(i)[0] for i in (here if chip.index is None else [chip.index])}


def environment(device: str, threads: int) -> dict[str, str]:
    """The environment of a worker process: its threads; and of several CUDA devices its own one only, which it knows as "cuda"."""
    given = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    kind, _, index = device.partition(":")
    if kind == "cuda":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        given["CUDA_VISIBLE_DEVICES"] = visible.split(",")[int(index)].strip() if visible else index
    return given
