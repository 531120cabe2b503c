"""What a run takes, estimated before it starts: bytes of memory and of disk."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from fedinit.experiment import Experiment

PYTHON = 350_000_000  # bytes that Python and torch take in a process
CUDA = 1_000_000_000  # and on a GPU: context, workspaces, a batch's activations


@dataclass(frozen=True)
class Vectors:
    """Flat vectors that a method keeps for a client (with its latest local model) and on the server; gradients a local step."""

    client: int
    server: int
    gradients: int


def vectors(method) -> Vectors:
    """Counted by playing one client's round on vectors of two numbers."""
    w, calls = torch.ones(2), 0

    def gradient(_):
        nonlocal calls
        calls += 1
        return torch.ones(2)

    server = method.init_server(w)
    received, mine = method.broadcast(server), method.init_client(w, w)
    start = method.start(w, mine)
    method.direction(gradient, start.clone(), method.constants(start, received, mine))
    kept = method.keep(received, mine, start, start + 1, 1.0)
    return Vectors(len({*mine, *kept, "last"}), len(server), calls)


def sizes(data: str) -> tuple[int, int, int]:
    """(training images, test images, classes); reads files, downloads nothing."""
    from fedinit.data import identity, load_images, synthetic

    if data in ("cifar10", "cifar100"):
        return 50_000, 10_000, int(data.removeprefix("cifar"))
    if identity(data).startswith("synthetic"):
        recipe = synthetic.parse(identity(data))
        return recipe.train, recipe.test, recipe.classes
    images = load_images(data)
    return len(images.y_train), len(images.y_test), len(images.classes)


def footprint(experiment: Experiment, parameters: int, images: int, memory: str = "ram") -> tuple[int, int]:
    """(memory, disk) of a run in bytes, for a model of so many parameters and a data set of so many images.

    Memory: the clients' vectors, C × d × vectors a client (one client's with memory="disk"); the server's and a dozen working vectors; the
    images twice (host and device); and what Python and torch take. Disk: the checkpoint with every client's vectors, and the history.
    """
    count = vectors(experiment.method)
    vector = parameters * (8 if experiment.precision == "float64" else 4)
    seen = min(experiment.clients, experiment.cohort_size * experiment.rounds)
    clients = seen * count.client * vector
    held = clients if memory == "ram" else count.client * vector
    return (
        held + (12 + count.server) * vector + 2 * images * 32 * 32 * 3 + PYTHON,
        clients + (2 + count.server) * vector + 200 * experiment.rounds,
    )


def estimate(experiment: Experiment, memory: str = "ram", device: str = "cpu") -> int:
    """Bytes that a run takes of the machine's memory, or of a GPU's for a device "cuda…"."""
    train, test, classes = sizes(experiment.data)
    parameters = _parameters(experiment.model, experiment.width, experiment.stem, classes)
    taken, _ = footprint(experiment, parameters, train + test, memory)
    return taken + (CUDA if device.startswith("cuda") else 0)


@functools.cache
def _parameters(model: str, width: int, stem: str, classes: int) -> int:
    from fedinit.training.models import build

    return sum(p.numel() for p in build(model, classes, width=width, stem=stem).parameters() if p.requires_grad)
