"""One run: found in the store, or computed there, resumed where it was left."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedinit.data import Images, load_images
from fedinit.data.known import content
from fedinit.errors import InputError
from fedinit.experiment import Experiment
from fedinit.runs import packing
from fedinit.runs.crew import Crew
from fedinit.runs.provenance import now, provenance
from fedinit.runs.store import Run, Store, read_history, read_json, write_atomic
from fedinit.runs.workers import check_jobs, cores
from fedinit.training.memory import Memory
from fedinit.training.rounds import COLUMNS, Simulation

PATIENCE = 50.0  # times what a checkpoint costs, until there is a next one: it takes at most 2 % of a run
WORTH_A_CREW = 60.0  # seconds of training that must be left before further processes are started for one run


def run(
    experiment: Experiment,
    *,
    store: Store | str | Path | None = None,
    images: Images | None = None,
    device: str = "auto",
    threads: int = 1,
    jobs: int | None = None,
    evaluate_every: int = 1,
    evaluate_last: int = 1,
    memory: str = "auto",
    checkpoint_seconds: float = 30.0,
    compiled: bool = False,
    on_round: Callable[[dict], None] | None = None,
) -> Run:
    """The run of an experiment: read if it is stored, else computed and stored, going on from the newest checkpoint.

    Killed at any instant and called again, it ends with the same bits as if never interrupted (same machine, same threads). If another
    process is computing the same run, this call waits for it and reads.

    Parameters
        store               where, or its folder (default: `Store()`)
        images              the data set, if it is loaded already
        device              "auto", "cpu", "cuda", "mps"
        threads             of torch's, while computing; recorded, since sums may differ in the last bit with their number
        jobs                processes that the clients of a round are spread over, on the CPU: at most so many (default: cores //
                            threads), and only where more than a minute is left to train. The bits do not depend on their number
        evaluate_every      test the global model every so many rounds,
        evaluate_last       and in each of the last so many, which a rule such as "the smoothed maximum of the last 50" needs
        memory              where the clients' vectors live between rounds: "ram", "disk", or "auto", by the estimate and what is free
        checkpoint_seconds  at most so much computing is lost by a kill (0: every round); less where a checkpoint is cheap
        compiled            train through torch.compile (needs a C++ compiler); other last bits, so it is recorded like the device
        on_round            called with each new record

    Raises InputError for bad arguments, before any work.
    """
    if not isinstance(experiment, Experiment):
        raise InputError(f"run takes an Experiment, not {type(experiment).__name__}; make one with Experiment(…) or preset(…).")
    if images is not None and images.identity != (asked := experiment.canonical()["data"]):
        raise InputError(f"images = {images.identity!r} are not the experiment's data, {asked!r}; load_images(experiment.data) are.")
    packing.memory(memory, [], 1, device)
    check_jobs(jobs, threads)
    for name, value in (("evaluate_every", evaluate_every), ("evaluate_last", evaluate_last)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{name} = {value!r} is not allowed; allowed: a whole number of rounds ≥ 1.")
    store = store if isinstance(store, Store) else Store(store)
    found = store.load(experiment)
    if found is not None:
        tell_few_tests([found], evaluate_every, evaluate_last)
        return found
    with store.lock(experiment):
        if (found := store.load(experiment)) is None:  # else the process that we waited for has done it
            memory = packing.memory(memory, [experiment], 1, device)
            with _threads(threads):
                _compute(
                    experiment,
                    store,
                    images,
                    device,
                    threads,
                    jobs,
                    (evaluate_every, evaluate_last),
                    memory,
                    checkpoint_seconds,
                    compiled,
                    on_round,
                )
            found = store.load(experiment)
    return found


def rounds_tested(rounds: int, evaluate_every: int = 1, evaluate_last: int = 1) -> list[int]:
    """The rounds (from 1) in which a run of so many rounds tests the global model."""
    return [t for t in range(1, rounds + 1) if t % evaluate_every == 0 or t > rounds - evaluate_last]


def tell_few_tests(runs: Iterable[Run], evaluate_every: int, evaluate_last: int) -> None:
    """Say on stderr which stored runs were tested in fewer rounds than is asked for now: a rule sees only these tests."""
    few = []
    for found in runs:
        history = found.history[found.history.diverged == 0]
        asked = rounds_tested(found.experiment.rounds, evaluate_every, evaluate_last)
        missing = set(asked) & set(history["round"][history.test_accuracy.isna()])
        if missing:
            tested = int(history.test_accuracy.notna().sum())
            few.append(f"{found.experiment.label} seed {found.experiment.seed} ({tested} of {len(history)} rounds, {found.folder})")
    if few:
        more = f" and {len(few) - 3} more" if len(few) > 3 else ""
        told = f"fedinit: stored with fewer tests than asked for: {', '.join(few[:3])}{more}."
        print(f"{told} What is reported rests on these; to test more, delete the folder and run again.", file=sys.stderr)


def _compute(experiment, store, images, device, threads, jobs, evaluate, memory, checkpoint_seconds, compiled, on_round) -> None:
    folder = store.path(experiment)
    files = folder / "checkpoint"
    files.mkdir(exist_ok=True)
    shown = images if images is not None else load_images(experiment.data)
    simulation = Simulation(experiment, shown, device=device, memory=Memory(files, keep_in_ram=memory == "ram"), compiled=compiled)
    history = _resume(simulation, folder)
    write_atomic(folder / "experiment.json", json.dumps(experiment.canonical(), indent=1, sort_keys=True) + "\n")
    attempt = provenance(simulation.device, threads) | {"from_round": simulation.round, "compiled": compiled}
    partition = simulation.batches.partition
    about = {"partition": {"digest": partition.digest, "overlap": partition.overlap()}, "images": content(shown)}
    jobs = (jobs or cores() // threads) if simulation.device.type == "cpu" and not compiled else 1
    with open(history, "a", newline="", encoding="utf-8") as file, contextlib.ExitStack() as crew:
        rows = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        tested, saved, cost = set(rounds_tested(experiment.rounds, *evaluate)), time.monotonic(), 0.0
        while simulation.round < experiment.rounds and not simulation.diverged:
            record = simulation.step(evaluate=simulation.round + 1 in tested)
            rows.writerow(record)
            file.flush()
            ending = simulation.round == experiment.rounds or simulation.diverged
            if jobs > 1 and not ending and record["train_seconds"] * (experiment.rounds - simulation.round) > WORTH_A_CREW:
                crew.enter_context(Crew(simulation, min(jobs, experiment.cohort_size), threads, images))
                jobs = 1  # it is at work from now on
            if ending:
                _write_provenance(folder, {**attempt, "ended": now(), "rounds": simulation.round}, about)
            began = time.monotonic()
            if ending or began - saved >= min(checkpoint_seconds, PATIENCE * cost):
                os.fsync(file.fileno())
                _checkpoint(simulation, files)
                saved = time.monotonic()
                cost = saved - began
            if on_round is not None:
                on_round(record)


def _checkpoint(simulation: Simulation, files: Path) -> None:
    """First the vectors of clients that changed, under new names; then the state that names them, moved into place; then the old files go.

    A kill between any two of these leaves one whole checkpoint.
    """
    clients = simulation.memory.flush()
    vectors, numbers = simulation.state()
    metadata = {"numbers": json.dumps(numbers), "clients": json.dumps(clients)}
    part = files / "state.part"
    save_file({name: vector.cpu().contiguous() for name, vector in vectors.items()}, part, metadata=metadata)
    part.replace(files / "state.safetensors")
    simulation.memory.forget_files(but=clients)


def _resume(simulation: Simulation, folder: Path) -> Path:
    """Take up the newest checkpoint if there is one, and cut the history back to it; returns the history's path."""
    history, state = folder / "history.csv", folder / "checkpoint" / "state.safetensors"
    done = read_history(history)
    if state.exists():
        try:
            with safe_open(state, framework="pt") as file:
                vectors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
                metadata = file.metadata()
            numbers = json.loads(metadata["numbers"])
            _check_fits(simulation, vectors, numbers)
            if numbers["round"] <= len(done):
                simulation.memory.restore({int(c): r for c, r in json.loads(metadata["clients"]).items()}, simulation.device)
                simulation.restore(vectors, numbers)
                done = done.iloc[: simulation.round]
        except (
            SafetensorError,
            FileNotFoundError,
            AttributeError,
            KeyError,
            TypeError,
            ValueError,
        ) as error:  # damaged from outside: the run starts again
            print(f"fedinit: checkpoint {state} is damaged ({error}); the run starts again from its first round.", file=sys.stderr)
            simulation.memory.restore({}, simulation.device)
    if simulation.round == 0:
        done = done.iloc[:0]
        shutil.rmtree(folder / "checkpoint")
        (folder / "checkpoint").mkdir()
    text = history.read_text(encoding="utf-8", errors="replace") if len(done) else ""  # a torn tail is cut off here
    lines = text.splitlines(keepends=True)[: len(done) + 1] if len(done) else [",".join(COLUMNS) + "\n"]
    write_atomic(history, "".join(lines))
    return history


def _check_fits(simulation: Simulation, vectors: dict[str, torch.Tensor], numbers: dict) -> None:
    """Raise ValueError for a checkpoint of another model or with a part missing."""
    form = {(vector.shape, vector.dtype) for vector in vectors.values()}
    expected = simulation.state()[0]
    if form != {(simulation.w.shape, simulation.w.dtype)} or expected.keys() - vectors.keys():
        raise ValueError("its vectors are not this model's and method's")
    if not (numbers["round"] >= 1 and isinstance(numbers["divergence"], float)):
        raise ValueError("its numbers are not a run's")


def _write_provenance(folder: Path, attempt: dict, about: dict) -> None:
    path = folder / "provenance.json"
    attempts = read_json(path).get("attempts", [])
    write_atomic(path, json.dumps({"attempts": [*attempts, attempt], **about}, indent=1) + "\n")


@contextlib.contextmanager
def _threads(count: int):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
