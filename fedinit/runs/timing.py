"""Seconds of a training round, methods in turn."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fedinit.data import load_images
from fedinit.errors import InputError
from fedinit.experiment import Experiment
from fedinit.runs.run import _threads
from fedinit.training.rounds import Simulation


def time_rounds(
    experiments: Sequence[Experiment], repeats: int = 5, *, device: str = "auto", threads: int = 1, baseline: str = "fedavg"
) -> pd.DataFrame:
    """Training seconds of `repeats` rounds of each experiment: columns label, repeat, seconds, ratio (to `baseline` in that repeat).

    The experiments take turns round by round, each repeat beginning with another one, so that a machine that slows down or speeds up
    does so for all; a first round of each warms up and is not counted. Nothing is evaluated. Every simulation has just the clients of
    one cohort, each with as many images as in the experiment: the same clients train in every round, as they would late in a
    run, and memory stays small. Raises InputError when no experiment is the baseline.
    """
    if baseline not in {e.label for e in experiments}:
        raise InputError(f"baseline = {baseline!r} is not among the experiments; add it.")
    simulations = []
    for e in experiments:
        images = load_images(e.data)
        samples = e.samples or max(len(images.y_train) // e.clients, 1)
        simulations.append(Simulation(e.replace(clients=e.cohort_size, samples=samples), images, device=device))
    rows = []
    with _threads(threads):
        for simulation in simulations:
            simulation.step(evaluate=False)
        for repeat in range(repeats):
            first = repeat % len(simulations)
            seconds = {s.experiment.label: s.step(evaluate=False)["train_seconds"] for s in [*simulations[first:], *simulations[:first]]}
            rows += [(label, repeat, value, value / seconds[baseline]) for label, value in seconds.items()]
    return pd.DataFrame(rows, columns=["label", "repeat", "seconds", "ratio"])
