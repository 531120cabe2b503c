"""Worker processes: what those of a sweep and those of a single run have in common."""

from __future__ import annotations

import os
import signal
import threading
import time

from fedinit.errors import InputError


class WorkerDied(RuntimeError):
    """A worker process was killed from outside, most often for memory."""


def killed(left: str = "") -> WorkerDied:
    """The error for a killed process of this machine; `left` says what is still to be computed."""
    return WorkerDied(
        f"a worker process was killed (often for memory); {left}nothing stored is lost: run the same again to go on, with fewer jobs or "
        "memory='disk' if it happens again."
    )


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_jobs(jobs: int | None, threads: int, *, here: bool = True) -> None:
    """Refuse what is not a whole number ≥ 1 and, unless the processes are to run elsewhere, more processes × threads than cores."""
    for name, value in (("jobs", 1 if jobs is None else jobs), ("threads", threads)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{name} = {value!r} is not allowed; allowed: a whole number ≥ 1.")
    if here and (jobs or 1) * threads > cores():
        raise InputError(f"jobs × threads = {jobs or 1} × {threads} is more than the {cores()} cores here; lower one of them.")


def pool(count: int, env: dict[str, str], then=None, given: tuple = ()):
    """`count` processes; each calls then(*given) when it starts.

    loky: workers take code from a notebook's cells by value, need no __main__ guard, and a killed one is noticed; it would restart a worker
    whose later work is larger than its first as one that leaks.
    """
    from loky import ProcessPoolExecutor

    return ProcessPoolExecutor(
        count, initializer=_enter, initargs=(os.getpid(), then, given), env={**env, "LOKY_MAX_MEMORY_LEAK_SIZE": "1e18"}
    )


def stop(pool) -> None:
    """End the processes at once, also those of a pool that was interrupted while it started them: no one else would."""
    if getattr(pool, "_executor_manager_thread", None) is None:
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.kill()
    pool.shutdown(wait=True, kill_workers=True)


def _enter(parent: int, then, given: tuple) -> None:
    """In a new worker: leave Ctrl-C to the parent, which ends its workers; and end when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    if then is not None:
        then(*given)
