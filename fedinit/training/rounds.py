"""The round loop: draw the cohort, train it, step the server, evaluate; one record a round."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from fedinit.data import Images, load_images
from fedinit.errors import InputError
from fedinit.experiment import COLUMNS, Experiment
from fedinit.methods.base import Cohort, Vectors, reads
from fedinit.streams import stream
from fedinit.training import local
from fedinit.training.batches import Batches
from fedinit.training.divergence import Divergence
from fedinit.training.flat import FlatModel, keep_memory
from fedinit.training.memory import Memory
from fedinit.training.models import build


def pick_device(device: str) -> torch.device:
    """ "auto" → cuda, mps or cpu, whichever is there first; or the named one. Raises InputError when it is not there."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if available[name]))
    kind, colon, number = str(device).partition(":")
    count = {"cuda": torch.cuda.device_count()}.get(kind, 1)
    if not available.get(kind, False) or (colon and not (number.isdecimal() and int(number) < count)):
        names = ", ".join(name for name, there in available.items() if there)
        raise InputError(f"device = {device!r} is not available here; allowed: auto, {names}.")
    return torch.device(device)


@dataclass(frozen=True)
class Task:
    """A client to be trained: its own vectors, and its latest local model (w^0 before the first)."""

    client: int
    mine: Vectors
    last: torch.Tensor


class Simulation:
    """One run in memory: `step()` plays the next round. `state()` and `restore()` carry it over an interruption, bit for bit.

    Parameters
        experiment  what to run
        images      the data set; by default loaded from `experiment.data`
        device      "auto", "cpu", "cuda", "mps"
        memory      where the clients' vectors live between rounds (default: RAM)
        batches     the data side; by default made from experiment and images (any object with `train(client, round)`,
                    `test()` and `classes` will do)
        module      the model; by default built from the experiment
        compiled    train through torch.compile: for long runs on a GPU
    """

    def __init__(
        self, experiment: Experiment, images: Images | None = None, *, device="auto", memory=None, batches=None, module=None, compiled=False
    ):
        self.experiment = e = experiment
        self.device = pick_device(device)
        keep_memory()
        self.batches = batches or Batches(e, images if images is not None else load_images(e.data), self.device)
        seed = int(stream(e.seed, "initial weights").integers(2**63))
        module = module or build(e.model, self.batches.classes, width=e.width, stem=e.stem, seed=seed)
        dtype = torch.float64 if e.precision == "float64" else torch.float32
        self.model = FlatModel(module.to(self.device, dtype), torch.bfloat16 if e.precision == "bf16" else None, compiled=compiled)
        self.initial = self.model.initial
        self.memory = memory if memory is not None else Memory()
        self.round = 0
        self.diverged = False
        self.w = self.initial
        self.server = e.method.init_server(self.initial)
        self.divergence = Divergence(e.clients, self.initial)
        self.sent: frozenset[str] = frozenset()  # what a client had to send in the last round, beside nothing (metered)
        self.own = set(e.method.init_client(self.initial, self.w))  # names of a client's vectors, as far as seen
        self.train_clients = self.train_here  # or over several processes: runs.crew
        self._names = reads(e.method, self.initial.new_zeros(2))

    def cohort(self, round: int) -> list[int]:
        """The active clients of a round (numbered from 1), ascending."""
        e = self.experiment
        luck = stream(e.seed, "cohort", round)
        if e.participation == "exact":
            return sorted(luck.choice(e.clients, e.cohort_size, replace=False).tolist())
        active = (luck.random(e.clients) < e.cohort_size / e.clients).nonzero()[0].tolist()
        return active or [int(luck.integers(e.clients))]

    def step(self, evaluate: bool = True) -> dict:
        """Play one round; returns its record (`COLUMNS`). A non-finite loss or model ends the run: `diverged` = 1."""
        if self.diverged:
            raise RuntimeError(f"the run diverged in round {self.round}; there is no next round.")
        e, method, w = self.experiment, self.experiment.method, self.w
        began = time.perf_counter()
        self.round += 1
        lr = e.lr * e.lr_decay ** (self.round - 1)
        active = self.cohort(self.round)
        received = method.broadcast(self.server)
        cohort = Cohort(w, len(active) / e.clients, self._names)
        losses, movement, delta = [], 0.0, (math.nan, math.nan)
        for task, result in self.train_clients(map(self._task, active), received, lr):
            losses.append(result.loss)
            if not math.isfinite(result.loss):
                break
            moved, walked = cohort.add(result.start, result.end, result.lr_sum, task.mine, result.new)
            square = self.divergence.client_moved(w, task.last, moved)
            movement += (square if walked is moved else float(torch.dot(walked, walked))) / len(active)
            self._keep(task.client, result)
        else:
            self.w, self.server = method.step(w, self.server, cohort)
            self.sent = frozenset(cohort.sent)
            delta = self.divergence.server_moved(w, self.w, cohort.total)
        record = dict.fromkeys(COLUMNS, math.nan)
        self.diverged = not (all(map(math.isfinite, losses)) and math.isfinite(sum(delta)))
        trained = time.perf_counter()
        if evaluate and not self.diverged:
            record["test_loss"], record["test_accuracy"] = self.evaluate()
        record |= {
            "round": self.round,
            "lr": lr,
            "train_loss": sum(losses) / len(losses),
            "divergence_all": delta[0],
            "divergence_active": delta[1],
            "movement": movement,
            "norm": float(torch.dot(self.w, self.w)),
            "train_seconds": trained - began,
            "eval_seconds": time.perf_counter() - trained,
            "active": ";".join(map(str, active)),
            "diverged": int(self.diverged),
        }
        return record

    def evaluate(self) -> tuple[float, float]:
        """(mean cross-entropy in nats, accuracy in [0, 1]) of the global model on the whole test set."""
        module = self.model.bind(self.w)
        loss = correct = count = 0
        with torch.inference_mode():
            for x, y in self.batches.test():
                logits = module(x)
                loss += F.cross_entropy(logits.float(), y, reduction="sum")
                correct += (logits.argmax(1) == y).sum()
                count += len(y)
        return float(loss) / count, float(correct) / count

    def state(self) -> tuple[dict[str, torch.Tensor], dict]:
        """(vectors, numbers) from which `restore` goes on; the clients' own vectors are the memory's."""
        vectors = {"w": self.w, "offset": self.divergence.offset, **{f"server.{k}": v for k, v in self.server.items()}}
        numbers = {"round": self.round, "diverged": self.diverged, "divergence": self.divergence.total, "own": sorted(self.own)}
        return {name: vector.clone() for name, vector in vectors.items()}, numbers

    def restore(self, vectors: dict[str, torch.Tensor], numbers: dict) -> None:
        own, vectors = set(numbers["own"]), {name: v.to(self.device).clone() for name, v in vectors.items()}  # copied: see `memory._load`
        offset = vectors["offset"]  # a checkpoint that lacks one is refused before anything is taken up
        self.own, self.w, self.divergence.offset = own, vectors["w"], offset
        self.server = {k.removeprefix("server."): v for k, v in vectors.items() if k.startswith("server.")}
        self.round, self.diverged, self.divergence.total = numbers["round"], numbers["diverged"], numbers["divergence"]

    def train_here(self, tasks: Iterable[Task], received: Vectors, lr: float) -> Iterator[tuple[Task, local.Local]]:
        """Train one client after the other."""
        for task in tasks:
            yield task, self.train_client(task, received, lr)

    def train_client(self, task: Task, received: Vectors, lr: float) -> local.Local:
        """Local training of one client in the current round."""
        e = self.experiment
        with torch.random.fork_rng(devices=[]):  # a model of the user's own may draw (dropout): from a stream of this client and round
            torch.manual_seed(int(stream(e.seed, "batches", self.round, task.client).integers(2**63)))
            return local.train(
                self.model,
                e.method,
                self.batches.train(task.client, self.round),
                self.w,
                received,
                task.mine,
                lr=lr,
                weight_decay=e.weight_decay,
                clip=e.clip,
            )

    def _task(self, client: int) -> Task:
        if client not in self.memory:
            return Task(client, self.experiment.method.init_client(self.initial, self.w), self.initial)
        stored = self.memory.get(client, self.device)
        return Task(client, {name: vector for name, vector in stored.items() if name in self.own}, stored["last"])

    def _keep(self, client: int, result: local.Local) -> None:
        if "last" in result.new and result.new["last"] is not result.end:
            raise InputError(
                f"method {self.experiment.label}: the client vector 'last' is reserved for the latest local model, `end` itself; "
                "keep another vector under another name."
            )
        self.own |= result.new.keys()
        self.memory.put(client, self.round, {**result.new, "last": result.end})


def simulate(experiment: Experiment, images: Images | None = None, *, device: str = "auto", on_round: Callable | None = None):
    """The history of a run in memory, nothing on disk: a DataFrame with one row a round (`COLUMNS`)."""
    import pandas as pd

    simulation, records = Simulation(experiment, images, device=device), []
    while simulation.round < experiment.rounds and not simulation.diverged:
        records.append(simulation.step())
        if on_round is not None:
            on_round(records[-1])
    return pd.DataFrame(records, columns=list(COLUMNS))
