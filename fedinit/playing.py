"""Notebooks played by papermill: a kernel each, lines of progress, and what came of it."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import nbformat

from fedinit.errors import InputError
from fedinit.experiment import Experiment
from fedinit.runs.progress import clock
from fedinit.runs.store import Store, default_folder, write_atomic

START_SECONDS = 120  # a kernel that has not answered by then hangs
QUIET = 60.0  # seconds between two lines of progress where there is no terminal


class NotebookFailed(RuntimeError):
    """A notebook that did not reach its end; the message names cell and error."""

    def __init__(self, message: str, cell: int | None = None):
        super().__init__(message)
        self.cell = cell


def read(path: Path) -> nbformat.NotebookNode:
    """The notebook there; raises InputError when it cannot be read."""
    try:
        return nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise InputError(f"notebook {str(path)!r} is not there.") from None
    except Exception as error:
        raise InputError(f"notebook {str(path)!r} cannot be read ({type(error).__name__}); restore it.") from None


@dataclass(frozen=True)
class Piece:
    """One notebook to play: where it lies, where its executed copy goes, its parameters, and the distinct runs that it shows."""

    name: str
    path: Path
    target: Path
    parameters: dict
    experiments: list[Experiment]


class Player:
    """Plays notebooks, each in a kernel of its own, `at_once` at a time and beside what the caller does meanwhile.

    A context: left by an exception, such as Ctrl-C, it ends the kernels.
    """

    def __init__(self, store: Store, say: Teller, at_once: int):
        self.store, self.say = store, say
        self._kernels = _Kernels(store)
        self._pool, self._playing = ThreadPoolExecutor(at_once), []

    def __enter__(self) -> Player:
        return self

    def __exit__(self, kind, error, trace) -> None:
        if kind is not None:
            self._kernels.end()
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)

    def play(self, piece: Piece, todo: Sequence[Experiment] = (), compute: Callable[[Sequence[Experiment]], object] | None = None) -> None:
        """Have it played, after `compute(todo)`, called here, if there is anything to do before."""
        places = {experiment.key: _where(experiment, self.store) for experiment in piece.experiments}
        began, spent = time.monotonic(), None
        if todo:
            self.say.line(f"started; {len(todo)} run{'s' if len(todo) > 1 else ''} to compute", piece.name)
            with self.say.about(piece.name, todo, self.store):
                try:
                    compute(todo)
                except Exception as error:  # its notebook goes on from there, and fails if it meets the same
                    self.say.line(f"computing stopped: {_last_line(error)}", piece.name)
            spent = time.monotonic() - began
        self._playing.append(self._pool.submit(self._play, piece, places, spent))

    def rest(self) -> None:
        """Wait until all that was asked for is played."""
        wait(self._playing)

    def results(self) -> list[dict]:
        """Wait for all; what came of each, in the order in which they were asked for."""
        return [future.result() for future in self._playing]

    def _play(self, piece: Piece, places: dict, spent: float | None) -> dict:
        error = cell = None
        pending = [experiment for experiment in piece.experiments if places[experiment.key] is None]
        if spent is None:
            self.say.line("started", piece.name)
        began = time.monotonic() - (spent or 0.0)
        with self.say.about(piece.name, pending, self.store) as on_cell:
            try:
                _execute(piece, self._kernels.manager(), on_cell)
            except NotebookFailed as failure:
                error, cell = str(failure), failure.cell
        _without_paths(piece.target)
        if self._kernels.ended:
            return {}  # interrupted: nobody asks
        seconds = time.monotonic() - began
        computed = sum(_where(experiment, self.store) is not None for experiment in pending)
        runs = {where: list(places.values()).count(where) for where in ("committed", "stored")}
        runs |= {"computed": computed, "missing": len(pending) - computed}
        counted = ", ".join(f"{count} {what}" for what, count in runs.items() if count)
        self.say.line(f"{'FAILED after' if error else 'done in'} {clock(seconds)}{f'; runs: {counted}' if counted else ''}", piece.name)
        if error:
            self.say.line(error, "")
        common = {"notebook": piece.name, "seconds": round(seconds, 3), "error": error, "cell": cell}
        return {**common, "runs": runs, "executed": str(piece.target)}


def _where(experiment: Experiment, store: Store) -> str | None:
    """ "stored", "committed" (among the histories that came with the figures), or None."""
    found = store.load(experiment)
    return None if found is None else "stored" if found.folder.parent == store.folder else "committed"


def _execute(piece: Piece, manager: type, on_cell: Callable[[int, int], None]) -> None:
    """papermill on one notebook. Raises NotebookFailed. A kernel that does not start (two that hit on one port, say) is tried once more."""
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    logging.getLogger("papermill").addHandler(logging.NullHandler())  # its warnings are told here, better
    number, cells = _numbering(read(piece.path), bool(piece.parameters))
    for attempt in (1, 2):
        at: list[int] = []  # indices, in papermill's copy, of the cells that were started

        def started(cell, cell_index, at=at):
            at.append(cell_index)
            on_cell(number(cell_index), cells)

        try:
            papermill.execute_notebook(
                _plain(piece.path),
                _plain(piece.target),
                parameters=piece.parameters,
                kernel_name="python3",
                language="python",
                progress_bar=False,
                start_timeout=START_SECONDS,
                kernel_manager_class=manager,
                iopub_timeout=START_SECONDS,  # a busy machine may be late with a cell's last output
                on_cell_start=started,
            )
            return
        except PapermillExecutionError as error:
            lines = f"{error.ename}: {error.evalue}".strip().splitlines()
            text = lines[0] if len(lines) == 1 else f"{error.ename}: … {lines[-1].strip()}"
            raise NotebookFailed(f"cell {number(error.cell_index)}: {text}", number(error.cell_index)) from None
        except (RuntimeError, OSError, TimeoutError) as error:
            if at:
                died = isinstance(error, DeadKernelError)
                what = "the kernel died (killed, most often for memory)" if died else f"{type(error).__name__}: {_last_line(error)}"
                _mark(piece.target, at[-1], type(error).__name__, what)
                cell = number(at[-1])
                raise NotebookFailed(f"cell {cell}: {what}; what was computed is stored, run the same again to go on.", cell) from None
            if attempt == 2:
                raise NotebookFailed(f"its kernel did not start: {_last_line(error)}") from None


def _without_paths(target: Path) -> None:
    """papermill notes where the notebook lay on this machine; a copy that is handed on needs the names alone."""
    with contextlib.suppress(OSError, ValueError):
        copy = nbformat.read(target, as_version=4)
        about = copy.metadata.get("papermill", {})
        about.update({name: Path(about[name]).name for name in ("input_path", "output_path") if about.get(name)})
        write_atomic(target, nbformat.writes(copy) + "\n")


def _mark(target: Path, index: int, name: str, text: str) -> None:
    """Put into the executed copy what its dead kernel could not."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        copy = nbformat.read(target, as_version=4)
        copy.cells[index].outputs.append(nbformat.v4.new_output("error", ename=name, evalue=text, traceback=[f"{name}: {text}"]))
        copy.cells[index].metadata.setdefault("papermill", {}).update(exception=True, status="failed")
        nbformat.write(copy, target)


def _numbering(source: nbformat.NotebookNode, injected: bool) -> tuple[Callable[[int], int], int]:
    """(index in papermill's copy → number from 1 in the notebook itself, its number of cells): papermill adds one after the parameters."""
    tags = [cell.metadata.get("tags", []) for cell in source.cells]
    place = next((i + 1 for i, tag in enumerate(tags) if "parameters" in tag), 0)
    shifted = injected and not any("injected-parameters" in tag for tag in tags)
    return lambda index: index + 1 - (shifted and index >= place), len(tags)


def _plain(path: Path) -> str:
    """A path that papermill's str.format leaves as it is."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


class _Kernels:
    """Kernels that are this interpreter with this package, whatever "python3" means among the installed ones; and how to end them all.

    What a kernel writes past Jupyter (its own complaints while it is shut down) is not for the reader.
    """

    def __init__(self, store: Store):
        from ipykernel.kernelspec import get_kernel_dict
        from jupyter_client.kernelspec import KernelSpec

        env = {
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",  # figures in the notebook, whatever the shell has set
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),  # two kernels and a sweep share the cores
        }
        if store.folder != default_folder():
            env["FEDINIT_RUNS"] = str(store.folder.absolute())
        package = Path(__file__).resolve().parents[1]
        if "site-packages" not in package.parts:
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
        env = {name: text.replace("$", "$$") for name, text in env.items()}  # jupyter_client substitutes $names
        self._spec = KernelSpec(**get_kernel_dict(extra_arguments=["--log-level=ERROR"]), env=env)
        self._started: list = []
        self.ended = False

    def manager(self) -> type:
        """The class of kernel manager for papermill."""
        from jupyter_client.manager import AsyncKernelManager

        kernels = self

        class Kernel(AsyncKernelManager):
            @property
            def kernel_spec(self):
                return kernels._spec

            async def start_kernel(self, **options):
                if kernels.ended:
                    raise RuntimeError("interrupted")
                kernels._started.append(self)
                return await super().start_kernel(**options, stderr=subprocess.DEVNULL)

        return Kernel

    def end(self) -> None:
        """Kill every kernel, from any thread; those that play notebooks find them dead. A sweep's workers end with their kernel."""
        self.ended = True
        for manager in self._started:
            process = getattr(manager.provisioner, "process", None)
            if process is not None:
                process.kill()


class Teller:
    """Lines of progress; in a terminal, beside them, one line that changes while notebooks run. A context."""

    def __init__(self, stream, width: int):
        self.stream, self.width, self.live = stream, width, stream.isatty()
        self._open: dict[str, _Where] = {}
        self._lock, self._ended = threading.RLock(), threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Teller:
        self._thread.start()
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._ended.set()
        self._thread.join()
        self._write("", "")

    def line(self, text: str, name: str | None = None) -> None:
        """A whole line; with `name`, in the column beside the notebooks' names."""
        self._write(text if name is None else f"{name:<{self.width}}  {text}", "\n")

    @contextlib.contextmanager
    def about(self, name: str, pending: Sequence[Experiment], store: Store) -> Iterator[Callable[[int, int], None]]:
        """Tells, until the context ends, which cell runs, and how many rounds of the `pending` runs are done."""
        where = _Where(name, pending, store, time.monotonic())
        with self._lock:
            self._open[name] = where
        try:
            yield where.at
        finally:
            with self._lock:
                self._open.pop(name)

    def _tell(self) -> None:
        while not self._ended.wait(1.0):
            with self._lock:
                wheres = list(self._open.values())
            if self.live:
                columns = shutil.get_terminal_size().columns
                self._write(" | ".join(f"{where.name}  {where}" for where in wheres)[: columns - 1], "")
                continue
            for where in wheres:
                if time.monotonic() - where.told >= QUIET:
                    where.told = time.monotonic()
                    self.line(str(where), where.name)

    def _write(self, text: str, end: str) -> None:
        with self._lock:
            if text or self.live:
                print(f"\r\x1b[2K{text}" if self.live else text, end=end, file=self.stream, flush=True)


class _Where:
    """How far one notebook is."""

    def __init__(self, name: str, pending: Sequence[Experiment], store: Store, began: float):
        self.name, self.pending, self.store, self.began = name, pending, store, began
        self.told, self.cell = began, ""
        self.total = sum(experiment.rounds for experiment in pending)

    def at(self, cell: int, cells: int) -> None:
        self.cell = f"cell {cell} of {cells}"

    def __str__(self) -> str:
        done = sum(self.store.rounds_done(experiment) for experiment in self.pending)
        rounds = f"rounds {done}/{self.total}" if done < self.total else ""
        return " · ".join(filter(None, [self.cell, rounds, clock(time.monotonic() - self.began)]))
