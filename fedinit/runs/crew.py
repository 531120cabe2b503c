"""The clients of a single run's rounds over a few persistent processes; the bits do not depend on their number.

Each process has the images and a model of its own. Vectors go through one mapped file, the board: the global model and what is broadcast,
and a place for each client that is being trained, with its vectors on the way there and its results on the way back."""

from __future__ import annotations

import contextlib
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
import torch

from fedinit.data import Images, load_images
from fedinit.runs import packing
from fedinit.runs.workers import killed, pool, stop
from fedinit.training.local import Local
from fedinit.training.rounds import Simulation, Task


@dataclass(frozen=True)
class _Layout:
    """Which rows of the board hold what: w, the broadcast vectors, then a place for each client in work: its own vectors, end, new ones."""

    path: str
    length: int
    dtype: torch.dtype
    broadcast: tuple[str, ...]
    own: tuple[str, ...]
    places: int

    def rows(self) -> list[torch.Tensor]:
        count = 1 + len(self.broadcast) + self.places * (2 * len(self.own) + 1)
        room = -(-self.length // 64) * 64  # each begins where torch lets a vector begin: BLAS adds in another order elsewhere
        board = torch.from_file(self.path, shared=True, size=count * room, dtype=self.dtype)
        return list(board.view(count, room)[:, : self.length])

    def shared(self, rows: list) -> tuple[torch.Tensor, dict]:
        return rows[0], dict(zip(self.broadcast, rows[1:], strict=False))

    def place(self, rows: list, number: int) -> tuple[dict, torch.Tensor, dict]:
        """(the client's vectors as they go, the end as it comes back, its new vectors)"""
        many = len(self.own)
        first = 1 + len(self.broadcast) + number * (2 * many + 1)
        return (
            dict(zip(self.own, rows[first:], strict=False)),
            rows[first + many],
            dict(zip(self.own, rows[first + many + 1 :], strict=False)),
        )


class Crew:
    """`with Crew(simulation, jobs, threads): simulation.step()`: the simulation's clients are trained by `jobs` processes of `threads`
    threads.

    To be entered after the first round, which shows what vectors there are. On the CPU only.
    """

    def __init__(self, simulation: Simulation, jobs: int, threads: int, images: Images | None = None):
        self.simulation, self.jobs, self.threads, self.images = simulation, jobs, threads, images

    def __enter__(self) -> Crew:
        simulation, w = self.simulation, self.simulation.w
        self._folder = tempfile.TemporaryDirectory(prefix="fedinit-")
        broadcast = tuple(simulation.experiment.method.broadcast(simulation.server))
        path = str(Path(self._folder.name) / "board")
        self._layout = _Layout(path, len(w), w.dtype, broadcast, tuple(sorted(simulation.own)), 2 * self.jobs)
        self._rows = self._layout.rows()
        payload = cloudpickle.dumps((simulation.experiment, self.images, self._layout))
        self._pool = pool(self.jobs, packing.environment("cpu", self.threads), _begin, (payload, self.threads))
        simulation.train_clients = self.train_clients
        return self

    def __exit__(self, *_) -> None:
        self.simulation.train_clients = self.simulation.train_here
        stop(self._pool)
        self._rows = []
        self._folder.cleanup()

    def train_clients(self, tasks: Iterable[Task], received: dict, lr: float) -> Iterator[tuple[Task, Local]]:
        """The results in the order of the tasks; a few clients are in work at a time. What the board has no place for (a method may come
        to keep more vectors than it did in the first round) is trained here."""
        from loky.process_executor import TerminatedWorkerError

        layout, simulation = self._layout, self.simulation
        if received.keys() != set(layout.broadcast):
            yield from simulation.train_here(tasks, received, lr)
            return
        w, shared = layout.shared(self._rows)
        w.copy_(simulation.w)
        for name, vector in received.items():
            shared[name].copy_(vector)
        tasks, working = iter(tasks), deque()

        def hand_out(number: int) -> None:
            with contextlib.suppress(StopIteration):
                task = next(tasks)
                given, _, _ = layout.place(self._rows, number)
                if not task.mine.keys() <= given.keys():
                    working.append((task, number, None))
                    return
                for name, vector in task.mine.items():
                    given[name].copy_(vector)
                arguments = (number, simulation.round, task.client, tuple(task.mine), lr)
                working.append((task, number, self._pool.submit(_train, *arguments)))

        for number in range(layout.places):
            hand_out(number)
        try:
            while working:
                task, number, future = working.popleft()
                if (result := future and future.result()) is None:
                    hand_out(number)
                    yield task, simulation.train_client(task, received, lr)
                    continue
                at_w, names, lr_sum, loss = result
                _, end, new = layout.place(self._rows, number)
                end = end.clone()
                kept = {name: end if is_end else new[name].clone() for name, is_end in names.items()}
                hand_out(number)
                start = simulation.w if at_w else simulation.experiment.method.start(simulation.w, task.mine)
                yield task, Local(start, end, kept, lr_sum, loss)
        except TerminatedWorkerError:
            raise killed() from None
        finally:
            for _, _, future in working:  # a round that broke off leaves no one at work on the board
                if future is not None and not future.cancel():
                    with contextlib.suppress(Exception):
                        future.result()


_here: tuple[Simulation, _Layout, list]  # of a worker process


def _begin(payload: bytes, threads: int) -> None:
    global _here
    torch.set_num_threads(threads)
    experiment, images, layout = cloudpickle.loads(payload)
    _here = Simulation(experiment, images or load_images(experiment.data), device="cpu"), layout, layout.rows()


def _train(number: int, round: int, client: int, names: tuple[str, ...], lr: float) -> tuple[bool, dict[str, bool], float, float] | None:
    """Train the client whose vectors are in this place of the board; (it began at w, name → is the end itself, lr_sum, loss), or None if
    it came to keep vectors that have no place there."""
    simulation, layout, rows = _here
    simulation.w, received = layout.shared(rows)
    simulation.round = round
    given, end, new = layout.place(rows, number)
    result = simulation.train_client(Task(client, {name: given[name] for name in names}, simulation.initial), received, lr)
    if not result.new.keys() <= new.keys():
        return None
    end.copy_(result.end)
    for name, vector in result.new.items():
        if vector is not result.end:
            new[name].copy_(vector)
    return result.start is simulation.w, {name: vector is result.end for name, vector in result.new.items()}, result.lr_sum, result.loss
