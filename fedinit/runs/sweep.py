"""Many runs over local processes."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait

import cloudpickle
import pandas as pd

from fedinit.errors import InputError
from fedinit.experiment import Experiment
from fedinit.runs.progress import Progress
from fedinit.runs.run import run
from fedinit.runs.store import Run, Store


class WorkerDied(RuntimeError):
    """A worker process was killed from outside, most often for memory."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sweep(
    experiments: Iterable[Experiment],
    *,
    jobs: int | None = None,
    device: str = "auto",
    threads: int = 1,
    store: Store | None = None,
    evaluate_every: int = 1,
    memory: str = "ram",
    progress: bool | Callable[[pd.DataFrame], object] = True,
) -> pd.DataFrame:
    """Run what is not stored yet, `jobs` runs at a time, and return the tidy frame of all (see DESIGN.md for its columns).

    The bits do not depend on `jobs`. Interrupted (Ctrl-C, a closed tab, a killed kernel), everything stays resumable: call it again.

    Parameters
        jobs      processes (default: cores // threads, at most one a run); jobs × threads may not exceed the cores
        threads   of each process (default 1: a sweep is faster with one run a core)
        progress  one display for all runs; False for none; a function (tidy frame) → figure is drawn live in a notebook
        device, store, evaluate_every, memory   as in `fedinit.run`
    """
    if isinstance(experiments, Experiment) or not isinstance(experiments, Iterable):
        raise InputError(f"sweep takes a list of Experiments, not {type(experiments).__name__}; pass [experiment] for one.")
    experiments = list(experiments)
    for experiment in experiments:
        if not isinstance(experiment, Experiment):
            raise InputError(f"sweep takes Experiments, not {type(experiment).__name__}; make one with Experiment(…) or preset(…).")
    if not experiments:
        raise InputError("sweep of no experiments; pass at least one.")
    for name, value in (("jobs", jobs), ("threads", threads)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise InputError(f"{name} = {value!r} is not allowed; allowed: a whole number ≥ 1.")
    if (jobs or 1) * threads > cores():
        raise InputError(f"jobs × threads = {jobs or 1} × {threads} is more than the {cores()} cores here; lower one of them.")
    store = store or Store()
    longest: dict[str, Experiment] = {}
    for experiment in experiments:
        known = longest.get(experiment.key)
        if known is None or known.rounds < experiment.rounds:
            longest[experiment.key] = experiment
    pending = [experiment for experiment in longest.values() if store.load(experiment) is None]
    if pending:
        store.check_writable()
    options = {"device": device, "threads": threads, "evaluate_every": evaluate_every, "memory": memory}
    with Progress(list(longest.values()), pending, store, progress) as display:
        jobs = min(jobs or max(cores() // threads, 1), max(len(pending), 1))
        if jobs == 1:
            for experiment in pending:
                run(experiment, store=store, images=_images(experiment.data), on_round=lambda _: display.update(), **options)
        elif pending:
            _in_processes(pending, jobs, store, options, display)
    return frame(experiments, store)


def frame(experiments: Iterable[Experiment], store: Store | None = None) -> pd.DataFrame:
    """The tidy frame of stored runs, each once; raises InputError if one is missing."""
    store, runs = store or Store(), []
    for experiment in {(experiment.key, experiment.rounds): experiment for experiment in experiments}.values():
        found = store.load(experiment)
        if found is None:
            raise InputError(f"run {experiment.label} seed {experiment.seed} ({experiment.key[:12]}) is not stored in {store.folder}; run it first.")
        runs.append(found)
    return tidy(runs)


def tidy(runs: Iterable[Run]) -> pd.DataFrame:
    """Histories stacked, each row with its experiment's fields and its method's hyperparameters."""
    return pd.concat([run.tidy() for run in runs], ignore_index=True)


def _in_processes(pending: list[Experiment], jobs: int, store: Store, options: dict, display: Progress) -> None:
    from loky import ProcessPoolExecutor
    from loky.process_executor import TerminatedWorkerError

    threads = str(options["threads"])
    # loky: workers take code from a notebook's cells by value, need no __main__ guard, and a killed one is noticed
    pool = ProcessPoolExecutor(jobs, initializer=_enter, initargs=(os.getpid(),), env={"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads})
    waiting: set[Future] = set()
    try:
        waiting = {pool.submit(_work, cloudpickle.dumps((experiment, store, options))) for experiment in pending}
        while waiting:
            done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
            display.update()
        pool.shutdown(wait=True)
    except TerminatedWorkerError:
        left = sum(store.load(experiment) is None for experiment in pending)
        raise WorkerDied(
            f"a worker process was killed (often for memory); {left} of {len(pending)} runs are left, nothing stored is lost: "
            "run the same again to go on, with fewer jobs or memory='disk' if it happens again."
        ) from None
    finally:
        for future in waiting:
            future.cancel()
        pool.shutdown(wait=True, kill_workers=True)


def _enter(parent: int) -> None:
    """In a new worker: leave Ctrl-C to the parent, which ends its workers; and end when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _work(payload: bytes) -> None:
    experiment, store, options = cloudpickle.loads(payload)
    run(experiment, store=store, images=_images(experiment.data), **options)


@functools.lru_cache(maxsize=2)
def _images(data: str):
    from fedinit.data import load_images

    return load_images(data)
