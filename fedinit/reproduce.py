"""Every table and figure from one command: what it would cost here (`plan`), and papermill over the notebooks (`reproduce`)."""

from __future__ import annotations

import ast
import contextlib
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedinit import artefacts
from fedinit.errors import InputError, unknown
from fedinit.experiment import PRESETS, Experiment
from fedinit.playing import Piece, Player, Teller, read
from fedinit.runs.footprint import footprint, sizes, vectors
from fedinit.runs.progress import clock
from fedinit.runs.run import rounds_tested
from fedinit.runs.store import Store
from fedinit.runs.workers import check_jobs, cores

AT_ONCE = 2  # notebooks that are played at a time


# ---- what would run --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One notebook's share of a plan.

    runs          distinct runs that it shows
    new           those that no earlier notebook of the plan has computed by then
    stored        those that are in the store, or committed, already
    to_run        what is left to compute: new and not stored (or stored with too few rounds)
    local_steps, gradients   of what is left: local SGD steps of all clients; gradient computations (SAM: two a step)
    memory_bytes  of the largest run that is left
    disk_bytes    that the runs that are left will take in the store
    hours         estimated, on this device with the plan's jobs
    test_hours    of these, those that go into testing the model
    """

    notebook: str
    runs: int
    new: int
    stored: int
    to_run: int
    local_steps: int
    gradients: int
    memory_bytes: int
    disk_bytes: int
    hours: float
    test_hours: float


@dataclass(frozen=True)
class Timing:
    """Measured here: seconds of one local step (batch, forward, backward, update) and of one test image; and the d parameters."""

    model: str
    width: int
    batch_size: int
    precision: str
    seconds_per_step: float
    seconds_per_test_image: float
    parameters: int


@dataclass(frozen=True)
class Plan:
    """What `reproduce` with the same arguments would run and cost. `print` it, or take its `data()`."""

    preset: str
    seeds: tuple[int, ...]
    device: str
    jobs: int
    threads: int
    rows: list[Row]
    timings: list[Timing]
    stored: int  # distinct runs that are stored already

    @property
    def total(self) -> Row:
        """Over all notebooks, each run counted once; memory is that of the largest run."""
        sums = {name: sum(getattr(row, name) for row in self.rows) for name in Row.__annotations__ if name != "notebook"}
        sums |= {"runs": sums["new"], "stored": self.stored, "memory_bytes": max((row.memory_bytes for row in self.rows), default=0)}
        return Row("total", **sums)

    def data(self) -> dict:
        """JSON-ready."""
        about = {name: getattr(self, name) for name in ("preset", "device", "jobs", "threads")} | {"seeds": list(self.seeds)}
        return about | {
            "notebooks": [vars(row) for row in self.rows],
            "total": {name: value for name, value in vars(self.total).items() if name != "notebook"},
            "timings": [vars(timing) for timing in self.timings],
        }

    def __str__(self) -> str:
        head = ("notebook", "runs", "new", "stored", "to run", "local steps", "gradients", "memory a run", "disk", "time")
        lines = [head] + [_cells(row) for row in [*self.rows, self.total]]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        text = ["  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]) for line in lines]
        rule = "─" * len(text[0])
        text = [text[0], rule, *text[1:-1], rule, text[-1], ""]
        text.append(
            f"preset {self.preset}; seeds {', '.join(map(str, self.seeds))}; {self.device}; "
            f"{self.jobs} job{'s' if self.jobs > 1 else ''} of {self.threads} thread{'s' if self.threads > 1 else ''}"
        )
        text.append("runs: shown by the notebook; new: by no notebook above it; to run: new and not stored; steps and gradients: of these")
        text += [
            f"timed here: {t.model} width {t.width} ({_amount(t.parameters)} parameters), batch {t.batch_size}, {t.precision}: "
            f"{1e3 * t.seconds_per_step:.3g} ms a step, {1e3 * t.seconds_per_test_image:.2g} ms a test image"
            for t in self.timings
        ]
        return "\n".join(text + self._notes())

    def _notes(self) -> list[str]:
        import psutil

        if not self.total.to_run:
            return ["nothing to compute: every run is stored"]
        every = artefacts.EVALUATE[self.preset]
        when = f"every {every['evaluate_every']} rounds and in each of the last {every['evaluate_last']}" if every else "every round"
        notes = [f"the model is tested {when}: {self.total.test_hours / self.total.hours:.0%} of the time"]
        at_once = self.total.memory_bytes * min(self.jobs, self.total.to_run)
        here = psutil.virtual_memory().total
        if at_once > here:
            notes.append(
                f"{self.jobs} such runs at a time want {_bytes(at_once)} of memory, this machine has {_bytes(here)}: use fewer --jobs"
            )
        if self.device != "cpu" and self.jobs > 1:
            notes.append("the runs share one accelerator: times are as if one ran after another")
        return [*notes, "times are estimates from a few timed steps; each notebook adds seconds of its own"]


def plan(
    preset: str = "quick",
    only: Sequence[str] | None = None,
    data: str | None = None,
    seeds: Sequence[int] | None = None,
    jobs: int | None = None,
    device: str = "auto",
    threads: int = 1,
    store: Store | None = None,
) -> Plan:
    """Runs, steps, memory, disk and hours of `reproduce` with the same arguments; times a few steps, runs nothing else.

    Raises InputError for an unknown preset or notebook, data or a device that are not there, or more processes × threads
    than cores.
    """
    from fedinit.training.rounds import pick_device

    wanted = _wanted(preset, only, data, seeds)
    jobs, chip = _jobs(jobs, threads), pick_device(device).type
    store = _with_committed(store or Store(), preset)
    timings: dict[tuple, Timing] = {}
    planned: dict[str, int] = {}  # key → rounds that the notebooks so far will have computed
    rows = [_row(name, preset, runs, planned, store, jobs, threads, chip, timings) for name, runs in wanted.items()]
    distinct = _longest([experiment for runs in wanted.values() for experiment in runs]).values()
    stored = sum(store.load(experiment) is not None for experiment in distinct)
    numbers = sorted({e.seed for e in distinct} or artefacts.SEEDS[preset])
    return Plan(preset, tuple(numbers), chip, jobs, threads, rows, list(timings.values()), stored)


def _row(name, preset, experiments, planned, store, jobs, threads, chip, timings) -> Row:
    longest = _longest(experiments)
    new = [key for key in longest if key not in planned]
    stored = {key for key, experiment in longest.items() if store.load(experiment) is not None}
    steps = gradients = memory = disk = to_run = 0
    seconds: list[float] = []
    testing: list[float] = []
    for key, experiment in longest.items():
        done = max(planned.get(key, 0), store.rounds_done(experiment))
        planned[key] = max(planned.get(key, 0), experiment.rounds)
        if key in stored or done >= experiment.rounds:
            continue
        train, test, classes = sizes(experiment.data)
        timing = _timing(experiment, classes, chip, threads, timings)
        a_step = vectors(experiment.method).gradients
        rounds = experiment.rounds - done
        local = rounds * experiment.cohort_size * experiment.local_epochs * math.ceil(_samples(experiment, train) / experiment.batch_size)
        to_run += 1
        steps += local
        gradients += local * a_step
        tests = len(rounds_tested(experiment.rounds, **artefacts.EVALUATE[preset])) * rounds / experiment.rounds
        testing.append(tests * test * timing.seconds_per_test_image)
        seconds.append(local * a_step * timing.seconds_per_step + testing[-1])
        run_memory, run_disk = footprint(experiment, timing.parameters, train + test)
        memory, disk = max(memory, run_memory), disk + run_disk
    at_once = min(jobs, to_run) if chip == "cpu" else 1
    spent = max(sum(seconds) / at_once, max(seconds)) if seconds else 0.0
    test_hours = spent / 3600 * sum(testing) / sum(seconds) if seconds else 0.0
    return Row(name, len(longest), len(new), len(stored), to_run, steps, gradients, memory, disk, spent / 3600, test_hours)


def _timing(experiment: Experiment, classes: int, chip: str, threads: int, timings: dict) -> Timing:
    """A few steps of the real loop on random images, once for each kind of step."""
    e = experiment
    kind = (e.model, e.width, e.stem, e.batch_size, e.precision, e.augment, classes)
    if kind not in timings:
        timings[kind] = _measure(e, classes, chip, threads)
    return timings[kind]


def _measure(e: Experiment, classes: int, chip: str, threads: int) -> Timing:
    import numpy as np
    import torch

    from fedinit.data import Images
    from fedinit.methods import FedAvg
    from fedinit.training.rounds import Simulation

    luck = np.random.default_rng(0)

    def arrays(count: int):
        return luck.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), np.arange(count, dtype=np.int64) % classes

    steps = math.ceil(max(4 * e.batch_size, classes) / e.batch_size)
    train, test = arrays(steps * e.batch_size), arrays(500)
    images = Images(*train, *test, tuple(map(str, range(classes))), "random", "random")
    one = {"clients": 1, "cohort_size": 1, "participation": "exact", "samples": None, "partition": "iid", "local_epochs": 1}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        simulation = Simulation(e.replace(method=FedAvg(), data="synthetic", lr=1e-4, **one), images, device=chip)
        simulation.step(evaluate=True)  # the first round warms up
        rounds: list[float] = []
        while len(rounds) < 3 or (sum(rounds) < 0.3 and len(rounds) < 30):
            rounds.append(simulation.step(evaluate=False)["train_seconds"])
            if sum(rounds) > 5:
                break
        began = time.perf_counter()
        simulation.evaluate()
        tested = time.perf_counter() - began
    finally:
        torch.set_num_threads(before)
    return Timing(e.model, e.width, e.batch_size, e.precision, statistics.median(rounds) / steps, tested / 500, len(simulation.model))


def _samples(experiment: Experiment, train: int) -> int:
    return max(train // experiment.clients, 1) if experiment.samples is None else experiment.samples


def _longest(experiments: Sequence[Experiment]) -> dict[str, Experiment]:
    """Each distinct run once, with the most rounds that are asked of it."""
    longest: dict[str, Experiment] = {}
    for experiment in experiments:
        known = longest.get(experiment.key)
        if known is None or known.rounds < experiment.rounds:
            longest[experiment.key] = experiment
    return longest


def _cells(row: Row) -> tuple[str, ...]:
    counts = [str(n) if n else "–" for n in (row.runs, row.new, row.stored, row.to_run)]
    sizes = [_amount(row.local_steps), _amount(row.gradients), _bytes(row.memory_bytes), _bytes(row.disk_bytes), _span(row.hours)]
    return (row.notebook, *counts, *sizes)


def _amount(number: float) -> str:
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if number >= size:
            return f"{number / (size if unit != 'k' else 1e3):.1f} {unit}"
    return str(int(number)) if number else "–"


def _bytes(number: float) -> str:
    if not number:
        return "–"
    unit, size = next(
        (unit, size) for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if number >= size or unit == "kB"
    )
    return f"{number / size:.1f} {unit}"


def _span(hours: float) -> str:
    if not hours:
        return "–"
    seconds = 3600 * hours
    return (
        f"{seconds:.1f} s"
        if seconds < 60
        else f"{seconds / 60:.1f} min"
        if hours < 1
        else f"{hours:.1f} h"
        if hours < 48
        else f"{hours / 24:.1f} days"
    )


# ---- what is asked for -----------------------------------------------------------------------------------------------------


def _wanted(preset: str, only, data, seeds) -> dict[str, list[Experiment]]:
    """The notebooks in the order of `artefacts.RUNS`, each with its experiments (validated: a missing file is refused here)."""
    if preset not in tuple(PRESETS):
        raise unknown("preset", preset, PRESETS)
    names = list(artefacts.RUNS)
    if only is not None:
        prefixes = [only] if isinstance(only, str) else [str(prefix).strip() for prefix in only]
        for prefix in prefixes:
            if not prefix or not any(name.startswith(prefix) for name in names):
                raise unknown("only", prefix, names)
        names = [name for name in names if name.startswith(tuple(prefixes))]
    if data is not None:
        from fedinit.data import identity

        identity(data)
    numbers, images = _seeds(seeds), data or artefacts.committed_data(preset)
    # Table 5 has images of its own where none are given
    return {
        name: [e for runs in artefacts.RUNS[name] for e in runs(preset, numbers, data if runs is artefacts.table5 else images)]
        for name in names
    }


def _seeds(seeds) -> tuple[int, ...] | None:
    return None if seeds is None else tuple(artefacts.listed("seeds", seeds, int))


def _jobs(jobs: int | None, threads: int) -> int:
    check_jobs(jobs, threads)
    return jobs or max(cores() // threads, 1)


def _with_committed(store: Store, preset: str) -> Store:
    """The store, reading the histories committed with the preset's figures too, as notebooks do."""
    committed = artefacts.figures_folder(preset) / "runs"
    return Store(store.folder, also=(*store.also, *([] if committed in store.also else [committed])))


# ---- parameters of a notebook ----------------------------------------------------------------------------------------------

_KINDS = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "list": (list, tuple),
    "dict": (dict,),
    "None": (type(None),),
}
_NATURE = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "True or False",
    "list": "a list",
    "dict": "a dict",
    "None": "None",
}
_LISTS = ("list", "tuple", "Sequence", "Iterable")


@dataclass(frozen=True)
class Parameter:
    """One line of a notebook's cell tagged `parameters`: the kinds it takes (none: any) and, of a list, its elements' kind."""

    name: str
    kinds: frozenset[str]
    element: str = "float"

    @property
    def allowed(self) -> str:
        of = {"int": " of whole numbers", "float": " of numbers", "str": " of strings"}[self.element]
        return " or ".join(_NATURE[kind] + (of if kind == "list" else "") for kind in _KINDS if kind in self.kinds)


def declared(notebook: str | os.PathLike) -> dict[str, Parameter]:
    """The parameters of a notebook: the assignments of its cell tagged `parameters`, typed by annotation (or `# type:` comment, as
    papermill reads them), else by default value."""
    path = Path(notebook)
    cells = read(path).cells
    cell = next((c for c in cells if c.cell_type == "code" and "parameters" in c.metadata.get("tags", [])), None)
    if cell is None:
        return {}
    try:
        body = ast.parse(cell.source, type_comments=True).body
    except SyntaxError as error:
        raise InputError(f"notebook {path.name}: the parameters cell is not Python ({error.msg}, line {error.lineno}); mend it.") from None
    found = {}
    for line in body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            found[line.target.id] = _parameter(line.target.id, line.annotation, line.value)
        elif isinstance(line, ast.Assign) and len(line.targets) == 1 and isinstance(line.targets[0], ast.Name):
            hint = ast.Constant(line.type_comment) if line.type_comment else None
            found[line.targets[0].id] = _parameter(line.targets[0].id, hint, line.value)
    return found


def check_parameters(notebook: str | os.PathLike, parameters: dict[str, object]) -> dict[str, object]:
    """The values as the notebook wants them; papermill alone would only warn of an unknown name and take any type.

    A number may come as its text (YAML reads 1e-3 as a string), a list as its text ('[0, 0.1]', as `papermill -p` hands it over) or as
    a single number. Raises InputError, naming the known parameters or what is allowed.
    """
    known, name = declared(notebook), Path(notebook).stem
    for parameter in parameters:
        if parameter not in known:
            if not known:
                raise InputError(f"parameter {parameter!r} of notebook {name}: it has no cell tagged 'parameters', so it takes none.")
            raise unknown(f"parameter of notebook {name}", parameter, known)
    return {parameter: _fitted(name, known[parameter], value) for parameter, value in parameters.items()}


def _parameter(name: str, annotation: ast.expr | None, default: ast.expr | None) -> Parameter:
    kinds, element = _annotated(annotation) if annotation is not None else (set(), None)
    try:
        value = ast.literal_eval(default) if default is not None else None
        plain = default is not None
    except (ValueError, TypeError):  # an expression
        value, plain = None, False
    if not kinds and plain and value is not None:
        kinds = {next((kind for kind in ("bool", "int", "float", "str", "list", "dict") if isinstance(value, _KINDS[kind])), "")} - {""}
    if kinds and plain and value is None:
        kinds |= {"None"}
    if element is None and isinstance(value, list | tuple) and value:
        element = "int" if all(type(v) is int for v in value) else "str" if all(isinstance(v, str) for v in value) else "float"
    return Parameter(name, frozenset(kinds), element or "float")


def _annotated(node: ast.expr) -> tuple[set[str], str | None]:
    """(kinds, kind of a list's elements) of an annotation; no kinds when it says nothing that can be checked."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            return _annotated(ast.parse(node.value, mode="eval").body)
        except SyntaxError:
            return set(), None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        (left, first), (right, second) = _annotated(node.left), _annotated(node.right)
        return (left | right if left and right else set()), first or second
    if isinstance(node, ast.Constant) and node.value is None:
        return {"None"}, None
    base = node.value if isinstance(node, ast.Subscript) else node
    name = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
    if name == "Optional" and isinstance(node, ast.Subscript):
        kinds, element = _annotated(node.slice)
        return (kinds | {"None"} if kinds else set()), element
    if name in _LISTS:
        inner = (
            node.slice.elts[0] if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) else getattr(node, "slice", None)
        )
        element = inner.id if isinstance(inner, ast.Name) and inner.id in ("int", "float", "str") else None
        return {"list"}, element
    return ({name} if name in _KINDS else set()), None


def _fitted(notebook: str, parameter: Parameter, value):
    kinds = parameter.kinds
    if not kinds:
        return value
    for kind in kinds:
        if isinstance(value, _KINDS[kind]) and not (isinstance(value, bool) and kind != "bool") and kind != "list":
            return value
    what = f"{notebook}: {parameter.name}"
    if "list" in kinds and isinstance(value, list | tuple | str | int | float) and not isinstance(value, bool):
        if parameter.element == "str":
            return [part.strip(" '\"") for part in value.strip("[]() ").split(",")] if isinstance(value, str) else [str(v) for v in value]
        return artefacts.listed(what, value, {"int": _exact, "float": float}[parameter.element])
    if isinstance(value, str):
        for kind, read in (("int", int), ("float", float)):
            if kind in kinds:
                with contextlib.suppress(ValueError):
                    return read(value)
    raise InputError(f"{what} = {value!r} is not allowed; allowed: {parameter.allowed}.")


def _exact(value) -> int:
    """int() that refuses 1.5 and True."""
    if isinstance(value, float | bool):
        raise TypeError
    return int(value)


# ---- running ---------------------------------------------------------------------------------------------------------------


def reproduce(
    preset: str = "quick",
    only: Sequence[str] | None = None,
    data: str | None = None,
    seeds: Sequence[int] | None = None,
    jobs: int | None = None,
    device: str = "auto",
    threads: int = 1,
    store: Store | None = None,
    out: str | os.PathLike | None = None,
    json_output: bool = False,
    parameters: dict[str, object] | None = None,
    redraw: bool = False,
) -> int:
    """Execute the notebooks by papermill, in an order that shares runs, and write the report; returns the exit code, 0 or 1.

    What a notebook needs and the store lacks is computed here, on all cores; the notebook is played then, beside the computing for the next
    one. A notebook that times is alone on the machine, and so is one with `parameters` of its own, which finds its runs itself.

    Executed notebooks go to <out>/notebooks/. A notebook that fails is named with cell and error, the rest still runs, and the code is 1.
    With `redraw` nothing is trained or timed: tables and figures show stored and committed runs, what else belongs there is "not run".
    `parameters` are further notebook parameters, which every notebook that runs must know. With `json_output`, standard output is one
    JSON object and the progress goes to standard error.

    Raises InputError for bad arguments, and for parameters that a notebook does not know or of a wrong type, before anything runs.
    """
    from fedinit.report import write_report
    from fedinit.training.rounds import pick_device

    wanted = _wanted(preset, only, data, seeds)
    pick_device(device)
    workers = _jobs(jobs, threads)
    notebooks = _notebooks(wanted, only)
    folder = Path(out).expanduser().absolute() if out else artefacts.figures_folder(preset)
    asked = {
        "preset": preset,
        "data": data,
        "device": None if device == "auto" else device,
        "jobs": workers if threads > 1 else jobs,
        "threads": None if threads == 1 else threads,
        "seeds": None if seeds is None else list(_seeds(seeds)),
        "out": str(folder) if out else None,
        "redraw": redraw or None,
    }
    handed = {}
    for name, path in notebooks.items():
        common = {key: value for key, value in asked.items() if value is not None and key in declared(path)}
        handed[name] = check_parameters(path, common | (parameters or {}))
    store = _with_committed(store or Store(), preset)
    if not redraw and any(store.load(experiment) is None for experiments in wanted.values() for experiment in experiments):
        store.check_writable()
    artefacts.output_folder(folder)
    artefacts.output_folder(folder / "notebooks")

    began, at_once = time.monotonic(), min(AT_ONCE, workers)
    with Teller(sys.stderr if json_output else sys.stdout, max(map(len, notebooks))) as say, Player(store, say, at_once) as player:
        for name, path in notebooks.items():
            piece = Piece(name, path, folder / "notebooks" / f"{name}.ipynb", handed[name], list(_longest(wanted[name]).values()))
            part = artefacts.Artefact(name, preset, data, device, jobs, seeds, str(folder), redraw, store)
            alone = bool(parameters) or (name == "table7_8_time" and part.must_time(artefacts.table8(preset, [part.seed], part.data)))
            if alone:
                player.rest()
            todo = [] if parameters else part.computable(piece.experiments)
            player.play(piece, todo, lambda todo, part=part: part.compute(todo, threads=threads))
            if alone or at_once == 1:
                player.rest()
        results = player.results()
    failed = [result for result in results if result["error"]]
    if preset != "quick":  # hours of computing are worth keeping beside the figures; minutes are not
        artefacts.keep_histories(folder, (store.folder, *store.also))
    report = write_report(folder, stores=(store.folder, *store.also))
    say.line(f"{len(results) - len(failed)} of {len(results)} notebooks in {clock(time.monotonic() - began)}; report: {report.as_uri()}")
    for result in failed:
        print(f"fedinit: notebook {result['notebook']} failed: {result['error']} See {result['executed']}.", file=sys.stderr)
    if json_output:
        print(json.dumps({"preset": preset, "out": str(folder), "report": str(report), "notebooks": results}))
    return 1 if failed else 0


def _notebooks(names, only) -> dict[str, Path]:
    folder = artefacts.checkout() / "notebooks"
    paths = {name: folder / f"{name}.ipynb" for name in names}
    missing = [name for name, path in paths.items() if not path.exists()]
    if only is not None and missing:
        raise InputError(f"notebook {missing[0]}.ipynb is not in {folder}; run from a checkout of the source, where notebooks/ lies.")
    if len(missing) == len(paths):
        raise InputError(f"no notebooks in {folder}; run from a checkout of the source, where notebooks/ lies.")
    return {name: path for name, path in paths.items() if name not in missing}
