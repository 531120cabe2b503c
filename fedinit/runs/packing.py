"""How many runs go on a device at a time, and on which."""

from __future__ import annotations

import os

from fedinit.errors import InputError

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
