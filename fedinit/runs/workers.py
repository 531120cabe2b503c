"""Worker processes: what those of a sweep and those of a single run have in common."""

from __future__ import annotations

import os
import signal
import threading
import time


class WorkerDied(RuntimeError):
    """A worker process was killed from outside, most often for memory."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
