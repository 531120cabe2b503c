"""Many runs: over the processes of this machine, or over a Ray cluster (`cluster`)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

import cloudpickle
import pandas as pd

from fedinit.errors import InputError, unknown
from fedinit.experiment import Experiment
from fedinit.runs import packing
from fedinit.runs.footprint import estimate
from fedinit.runs.progress import Progress
from fedinit.runs.run import run, tell_few_tests
from fedinit.runs.store import Run, Store
from fedinit.runs.workers import check_jobs, cores, killed, pool, stop

ENGINES = ("local", "ray")


def chosen(engine: str | None) -> str:
    """The engine of a sweep, None meaning $FEDINIT_ENGINE, else "local". Raises InputError for an unknown one."""
    engine = engine or os.environ.get("FEDINIT_ENGINE") or "local"
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    return engine


def sweep(
    experiments: Iterable[Experiment],
    *,
    jobs: int | None = None,
    device: str = "auto",
    threads: int = 1,
    store: Store | str | Path | None = None,
    evaluate_every: int = 1,
    evaluate_last: int = 1,
    memory: str = "auto",
    checkpoint_seconds: float = 30.0,
    compiled: bool = False,
    engine: str | None = None,
    gpu_share: float | None = None,
    progress: bool | Callable[[pd.DataFrame], object] = True,
) -> pd.DataFrame:
    """Run what is not stored yet, `jobs` runs at a time, and return the tidy frame of all (see DESIGN.md for its columns).

    The bits do not depend on `jobs`. Interrupted (Ctrl-C, a closed tab, a killed kernel), everything stays resumable: call it again.

    Parameters
        jobs       runs at a time (default: as many as cores // threads and free memory allow); jobs × threads may not exceed the cores
        threads    of each process (default 1: a sweep is faster with one run a core)
        device     "cuda" spreads the runs over all CUDA devices, several on one as far as its memory allows
        engine     "local": processes of this machine; "ray": the Ray cluster that RAY_ADDRESS names or that runs here, else one that is
                   started here for the sweep (see `fedinit.runs.cluster`); None: $FEDINIT_ENGINE, else "local"
        gpu_share  with "ray": the part of a GPU, in (0, 1], that a run takes (default: from the run's memory and the GPU's)
        progress   one display for all runs; False for none; a function (tidy frame) → figure is drawn live in a notebook
        store, evaluate_every, evaluate_last, memory, checkpoint_seconds, compiled   as in `fedinit.run`

    Raises InputError for bad arguments, before any work; WorkerDied when a run's process is killed (with "ray": again and again).
    """
    if isinstance(experiments, Experiment) or not isinstance(experiments, Iterable):
        raise InputError(f"sweep takes a list of Experiments, not {type(experiments).__name__}; pass [experiment] for one.")
    experiments = list(experiments)
    for experiment in experiments:
        if not isinstance(experiment, Experiment):
            raise InputError(f"sweep takes Experiments, not {type(experiment).__name__}; make one with Experiment(…) or preset(…).")
    if not experiments:
        raise InputError("sweep of no experiments; pass at least one.")
    engine = chosen(engine)
    check_jobs(jobs, threads, here=engine == "local")
    if gpu_share is not None and (engine != "ray" or isinstance(gpu_share, bool) or not 0 < gpu_share <= 1):
        raise InputError(f"gpu_share = {gpu_share!r} is not allowed; allowed: a number in (0, 1], with engine='ray' (else set jobs).")
    store = store if isinstance(store, Store) else Store(store)
    longest: dict[str, Experiment] = {}
    for experiment in experiments:
        known = longest.get(experiment.key)
        if known is None or known.rounds < experiment.rounds:
            longest[experiment.key] = experiment
    stored = {key: store.load(experiment) for key, experiment in longest.items()}
    pending = [experiment for key, experiment in longest.items() if stored[key] is None]
    tell_few_tests(filter(None, stored.values()), evaluate_every, evaluate_last)
    if pending:
        store.check_writable()
    options = {
        "device": device,
        "threads": threads,
        "evaluate_every": evaluate_every,
        "evaluate_last": evaluate_last,
        "memory": memory,
        "checkpoint_seconds": checkpoint_seconds,
        "compiled": compiled,
        "jobs": 1,
    }
    display = Progress(list(longest.values()), pending, store, progress)
    if engine == "ray":
        from fedinit.runs import cluster

        cluster.play(pending, store, options, display, jobs, gpu_share)
    else:
        places = _places(pending, jobs, options)
        with display:
            if len(places) == 1:
                options["jobs"] = jobs if len(pending) == 1 else 1  # a run that has the machine to itself takes all of it
                for experiment in pending:
                    run(experiment, store=store, on_round=lambda _: display.update(), **options)
            elif places:
                _in_processes(pending, places, store, options, display)
    return frame(experiments, store)


def frame(experiments: Iterable[Experiment], store: Store | str | Path | None = None) -> pd.DataFrame:
    """The tidy frame of stored runs, each once; raises InputError if one is missing."""
    store, runs = store if isinstance(store, Store) else Store(store), []
    for experiment in {(experiment.key, experiment.rounds): experiment for experiment in experiments}.values():
        found = store.load(experiment)
        if found is None:
            which = f"{experiment.label} seed {experiment.seed} ({experiment.key[:12]})"
            raise InputError(f"run {which} is not stored in {store.folder}; run it first.")
        runs.append(found)
    return tidy(runs)


def tidy(runs: Iterable[Run]) -> pd.DataFrame:
    """Histories stacked, each row with its experiment's fields and its method's hyperparameters."""
    return pd.concat([run.tidy() for run in runs], ignore_index=True)


def _places(pending: list[Experiment], jobs: int | None, options: dict) -> list[str]:
    """The device of each process: as many as asked for; else as many as free memory and the cores allow; at most one a run. Decides
    options["memory"], too."""
    if not pending:
        return []
    wanted = min(jobs or max(cores() // options["threads"], 1), len(pending))
    options["memory"] = packing.memory(options["memory"], pending, wanted, options["device"])
    room = packing.rooms(options["device"])
    each = 1 if jobs else max(estimate(experiment, options["memory"], next(iter(room))) for experiment in pending)
    return packing.places(room, each, wanted)


def _in_processes(pending: list[Experiment], places: list[str], store: Store, options: dict, display: Progress) -> None:
    """One pool of processes a device, so that no process ever holds memory of two."""
    from loky.process_executor import TerminatedWorkerError

    pools = {place: pool(places.count(place), packing.environment(place, options["threads"])) for place in dict.fromkeys(places)}
    left = iter(pending)
    playing: dict[Future, str] = {}

    def begin(place: str) -> None:
        for experiment in itertools.islice(left, 1):
            there = {**options, "device": place.split(":")[0]}
            playing[pools[place].submit(_work, cloudpickle.dumps((experiment, store, there)))] = place

    try:
        for place in places:
            begin(place)
        while playing:
            done, _ = wait(playing, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                begin(playing.pop(future))
                future.result()
            display.update()
    except TerminatedWorkerError:
        left_over = sum(store.load(experiment) is None for experiment in pending)
        raise killed(f"{left_over} of {len(pending)} runs are left, ") from None
    finally:
        for each in pools.values():
            stop(each)


def _work(payload: bytes) -> None:
    experiment, store, options = cloudpickle.loads(payload)
    run(experiment, store=store, **options)
