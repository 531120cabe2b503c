"""Many runs over a Ray cluster, one task a run.

Only the driver, the process that calls `sweep`, touches the store. A task computes its run in a folder of its own, on whichever node it
landed, and streams each file that is new or changed back: the history after every round, the checkpoint whenever there is a new one. So
the driver always holds a checkpoint from which the run of a lost node goes on elsewhere. The images come from the driver, too: nodes need
the package (and the module of a user's own model or method, unless it is a notebook's), no data and no shared file system.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

from filelock import FileLock, Timeout

from fedinit.data import Images, identity, load_images
from fedinit.errors import InputError
from fedinit.experiment import Experiment
from fedinit.runs import packing
from fedinit.runs.footprint import estimate
from fedinit.runs.progress import Progress
from fedinit.runs.run import run
from fedinit.runs.store import Store
from fedinit.runs.workers import WorkerDied, cores

STATE = "checkpoint/state.safetensors"  # names the other files of a checkpoint, so it travels after them
LOSSES = 3  # a run that is lost so often without a new checkpoint in between is given up
QUEUED = 4  # tasks beyond the cluster's cores, for a cluster that grows when tasks wait
QUIET = {  # before Ray is imported: no statistics to its makers; none of its words between ours
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}


def play(pending: list[Experiment], store: Store, options: dict, display: Progress, jobs: int | None, gpu_share: float | None) -> None:
    """Compute the runs into the store, at most `jobs` at a time (default: as many as the cluster takes). See `fedinit.sweep`.

    Raises InputError when there is no Ray; WorkerDied when a run's process or node is lost `LOSSES` times without a new checkpoint.
    """
    if not pending:
        with display:
            return
    with _connected() as ray, display:
        driver = _Driver(ray, pending, store, options, jobs, gpu_share)
        try:
            while driver.busy():
                driver.advance()
                display.update()
        finally:
            driver.stop()


@contextlib.contextmanager
def _connected() -> Iterator:
    """Ray: the caller's connection; else a cluster that is there; else one of this machine alone, which ends with the context."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise InputError("engine = 'ray' needs Ray, which is not installed here; pip install 'fedinit[ray]'.") from None
    mine = not ray.is_initialized()
    if mine:
        _connect(ray)
    try:
        if ray.util.client.ray.is_connected():
            raise InputError("engine = 'ray' does not go through a Ray client (ray://…); start the sweep on a machine of the cluster.")
        yield ray
    finally:
        if mine:
            ray.shutdown()


def _connect(ray) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    given, address = os.environ.get("RAY_ADDRESS"), _address()
    if address and _answers(address):  # asked first: Ray itself waits for minutes
        ray.init(address, **quiet)
    elif given:
        way_out = "allowed: host:port of one that this machine is in, or no RAY_ADDRESS"
        raise InputError(f"RAY_ADDRESS = {given!r}: no Ray cluster answers; {way_out}.")
    else:
        ray._private.ray_constants.ENABLE_RAY_CLUSTER = False  # the new one listens on the loopback address only
        try:
            ray.init("local", num_cpus=cores(), include_dashboard=False, **quiet)
        except Exception as error:  # Ray gives its processes 15 seconds to start
            raise WorkerDied(f"Ray did not start here ({error}); try again on a less busy machine, or with engine='local'.") from None


def _address() -> str | None:
    """host:port of the cluster to join: RAY_ADDRESS; else the one that `ray start` has noted on this machine."""
    if (given := os.environ.get("RAY_ADDRESS", "auto")) not in ("", "auto"):
        return given
    noted = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray" / "ray_current_cluster"
    return noted.read_text().strip() if noted.exists() else None


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, ValueError):
        return False
    return True


class _Driver:
    """Hands runs to the cluster and writes what comes back; holds the lock of every run that it has handed out."""

    def __init__(self, ray, pending: list[Experiment], store: Store, options: dict, jobs: int | None, gpu_share: float | None):
        self.ray, self.store, self.jobs, self.gpu_share = ray, store, jobs, gpu_share
        device = options["device"].split(":")[0]
        if device == "auto":
            device = "cuda" if ray.cluster_resources().get("GPU") else "cpu"
        self.gpu = _smallest_gpu(ray) if device == "cuda" else 0
        self.options = options | {"device": device, "memory": self._memory(options["memory"], pending, device)}
        self.images = {data: ray.put(load_images(data)) for data in {experiment.data for experiment in pending}}
        self.waiting, self.playing = deque(pending), {}
        self.lost: Counter[str] = Counter()
        self.task = ray.remote(max_retries=0, _generator_backpressure_num_objects=2)(_play)
        for experiment in pending[:1]:
            self._warn_if_too_large(demand(experiment, self.options, self.gpu, gpu_share))

    def _memory(self, asked: str, pending: list[Experiment], device: str) -> str:
        """Where clients' vectors live, for "auto": in RAM if the largest run fits the roomiest node, or the smallest GPU; else on disk."""
        if packing.memory(asked, [], 1, device) != "auto":
            return asked
        room = self.gpu or max((node.get("memory", 0) for node in self._nodes()), default=0)
        return "ram" if all(estimate(experiment, "ram", device) <= room for experiment in pending) else "disk"

    def _nodes(self) -> list[dict]:
        """What each node has: CPU, GPU, memory (bytes), …"""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def busy(self) -> bool:
        return bool(self.waiting or self.playing)

    def advance(self, seconds: float = 0.5) -> None:
        """Hand out what there is room for; take in what has come, waiting for it at most so long."""
        for _ in range(min(self._room(), len(self.waiting))):
            self._begin(self.waiting.popleft())
        if not self.playing:  # another process is computing what is left
            time.sleep(seconds)
            return
        ready, _ = self.ray.wait(list(self.playing), num_returns=1, timeout=seconds)
        for stream in ready:
            self._take(stream)

    def stop(self) -> None:
        """End the tasks that are left, if there are any; give them a moment to tidy up."""
        for stream in self.playing:
            self.ray.cancel(stream)
        deadline = time.monotonic() + 5
        for stream, (_, lock) in self.playing.items():
            with contextlib.suppress(StopIteration, self.ray.exceptions.RayError):
                while time.monotonic() < deadline:
                    if self.ray.wait([stream], timeout=0.1)[0]:
                        self.ray.get(next(stream))
            lock.release()

    def _room(self) -> int:
        if self.jobs:
            return self.jobs - len(self.playing)
        return int(self.ray.cluster_resources().get("CPU", 0) // self.options["threads"]) + QUEUED - len(self.playing)

    def _begin(self, experiment: Experiment) -> None:
        lock = self.store.lock(experiment, timeout=0)
        try:
            lock.acquire()
        except Timeout:  # another process is computing it
            self.waiting.append(experiment)
            return
        if self.store.load(experiment) is not None:
            lock.release()
            return
        folder = self.store.path(experiment)
        stored = {name: self.ray.put((folder / name).read_bytes()) for name in _files(folder)}
        wants = demand(experiment, self.options, self.gpu, self.gpu_share)
        there = experiment.replace(data=identity(experiment.data))  # images by their name: the file is not there
        task = self.task.options(name=f"{experiment.label} seed {experiment.seed}", **wants)
        stream = task.remote(experiment.key, there, self.images[experiment.data], stored, self.options)
        self.playing[stream] = experiment, lock

    def _take(self, stream) -> None:
        """One file of a run, its end, or its loss."""
        experiment, _ = self.playing[stream]
        try:
            name, content = self.ray.get(next(stream))
        except StopIteration:
            self._end(stream)
        except self.ray.exceptions.RayTaskError as error:  # the run itself raised
            raise error.cause or error from None
        except self.ray.exceptions.RayError as error:  # its process or its node is gone
            self.ray.cancel(stream, force=True)
            self._end(stream)
            self._lose(experiment, error)
        else:
            _put(self.store.path(experiment) / name, content)
            if name == STATE:
                self.lost[experiment.key] = 0

    def _end(self, stream) -> None:
        _, lock = self.playing.pop(stream)
        lock.release()

    def _lose(self, experiment: Experiment, error: Exception) -> None:
        self.lost[experiment.key] += 1
        if self.lost[experiment.key] == LOSSES:
            raise WorkerDied(
                f"run {experiment.label} seed {experiment.seed} was lost {LOSSES} times without a new checkpoint "
                f"({type(error).__name__}, often for memory); nothing stored is lost: run the same again to go on."
            )
        self.waiting.appendleft(experiment)

    def _warn_if_too_large(self, wants: dict) -> None:
        names = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
        if not any(all(node.get(names[what], 0) >= amount for what, amount in wants.items()) for node in self._nodes()):
            asked = ", ".join(f"{what} = {amount:g}" for what, amount in wants.items())
            print(f"fedinit: no node of the Ray cluster has what a run asks for ({asked}); waiting for one to join.", file=sys.stderr)


def demand(experiment: Experiment, options: dict, gpu: int, gpu_share: float | None) -> dict:
    """What a run asks of a node: CPUs, bytes of memory and, on a GPU of `gpu` bytes, its share of one (a whole one if gpu = 0: unknown)."""
    wants = {"num_cpus": options["threads"]}
    if options["device"] != "cuda":
        return wants | {"memory": estimate(experiment, options["memory"])}
    taken = estimate(experiment, options["memory"], "cuda")
    share = gpu_share or (1 / packing.fitting(gpu, taken) if gpu else 1)
    return wants | {"memory": estimate(experiment, "disk"), "num_gpus": max(int(share * 10_000), 1) / 10_000}  # Ray counts in 1/10,000


def _smallest_gpu(ray) -> int:
    """Bytes of memory of the cluster's smallest GPU; 0 when no node tells."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
    there = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
    told = ray.get([ray.remote(_gpu_bytes).options(num_cpus=0, scheduling_strategy=strategy).remote() for strategy in there])
    return min(told, default=0)


def _gpu_bytes() -> int:
    ask = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=60).stdout
        return min(int(line) for line in answer.split()) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0


# ---- on a node -------------------------------------------------------------------------------------------------------------


def _play(key: str, experiment: Experiment, images: Images, stored: dict, options: dict) -> Iterator[tuple[str, bytes | None]]:
    """A task: goes on with a run from what is `stored` of it (name → reference); yields (name, content) of each file that changes.

    The content of a file that goes is None. Raises InputError when the node knows the experiment by another key.
    """
    import ray

    if experiment.key != key:
        raise InputError(f"run {experiment.label}: another version of fedinit, or of the model's module, is installed on a node.")
    with _scratch() as scratch:
        store = Store(scratch)
        folder = store.path(experiment)
        for name, reference in stored.items():
            _put(folder / name, ray.get(reference))
        known = _files(folder)
        for _ in _records(lambda on_round: run(experiment, store=store, images=images, on_round=on_round, **options)):
            now = _files(folder)
            for name in sorted((name for name in now if now[name] != known.get(name)), key=lambda name: (name == STATE, name)):
                yield name, (folder / name).read_bytes()
            for name in known.keys() - now.keys():
                yield name, None
            known = now


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A folder in a temporary one; those of tasks that were killed here before go with it.

    Its content goes before the lock by which a later task knows that nobody uses it, should this task be killed while it tidies up.
    """
    for held in Path(tempfile.gettempdir()).glob("fedinit-ray-*/.held"):
        with contextlib.suppress(Timeout, OSError), FileLock(held, timeout=0):
            shutil.rmtree(held.parent, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="fedinit-ray-", ignore_cleanup_errors=True) as folder, FileLock(Path(folder) / ".held"):
        scratch = Path(folder) / "runs"
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _records(play: Callable[[Callable[[dict], None]], None]) -> Iterator[dict]:
    """What `play` hands to its callback, one by one. It waits there until the next one is asked for, and is ended there if none is."""
    records, turns = SimpleQueue(), SimpleQueue()
    failed: list[BaseException] = []

    def on_round(record: dict) -> None:
        records.put(record)
        if not turns.get():
            raise KeyboardInterrupt

    def work() -> None:
        try:
            play(on_round)
        except BaseException as error:
            failed.append(error)
        records.put(None)

    threading.Thread(target=work, daemon=True).start()
    try:
        while (record := _next(records)) is not None:
            yield record
            turns.put(True)
    finally:
        turns.put(False)
    if failed:
        raise failed[0]


def _next(records: SimpleQueue):
    while True:
        with contextlib.suppress(Empty):
            return records.get(timeout=0.2)  # so that a cancelled task notices


def _files(folder: Path) -> dict[str, tuple]:
    """name → what changes when the file does; a file that is being written is none yet."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".part" and path.name != ".lock")
    return {path.relative_to(folder).as_posix(): (path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_size) for path in found}


def _put(path: Path, content: bytes | None) -> None:
    """The whole file or nothing; None: it goes."""
    if content is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.replace(path)
