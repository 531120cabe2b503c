"""One display for all runs of a sweep: runs done, rounds, time left. It reads the run folders, so it shows whoever computes."""

from __future__ import annotations

import contextlib
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from fedinit.experiment import Experiment
from fedinit.runs.store import Store, read_history

EVERY = 0.5  # seconds between two updates in a terminal
EVERY_LIVE = 2.0  # and of a live figure in a notebook


class Progress:
    """A context: a tqdm bar in a terminal; in a notebook one line of text and, if `show` is a function, its live figure.

    Both are gone at the end, when the line says what is there, or why not all is.
    """

    def __init__(
        self,
        experiments: list[Experiment],
        pending: list[Experiment],
        store: Store,
        show: bool | Callable[[pd.DataFrame], object],
    ):
        self.experiments, self.pending, self.store, self.show = experiments, pending, store, show
        self._bar = self._handle = None
        self._next = self._next_picture = 0.0
        self._moving: tuple[float, int] | None = None  # when rounds were first seen to come, and how many there were
        self._png: bytes | None = None
        self._histories = [(experiment, store.path(experiment) / "history.csv") for experiment in pending]
        self._seen: dict[Path, tuple[tuple[int, int], tuple[int, bool]]] = {}  # history → its date and size, what was in it

    def __enter__(self) -> Progress:
        if self.show is False:
            return self
        if not self.pending:
            if _in_notebook():
                from IPython.display import display

                display(_Live(self._ready(), None))  # the same words whether they were computed now or before
            return self
        self._began, self._first = time.monotonic(), self._rounds()
        self._total = sum(experiment.rounds for experiment in self.pending)
        if _in_notebook():
            from IPython.display import display

            self._handle = display(_Live(self._text(), None), display_id=True)
        else:
            from tqdm import tqdm

            self._bar = tqdm(total=self._total, initial=self._first, unit="round", file=sys.stderr, dynamic_ncols=True, mininterval=EVERY)
        self.update(force=True)
        return self

    def update(self, force: bool = False) -> None:
        """Look at the disk and redraw, at most every `EVERY` seconds."""
        now = time.monotonic()
        if (self._bar is None and self._handle is None) or (not force and now < self._next):
            return
        live = self._handle is not None and callable(self.show)
        # a live figure is sent anew with every line: the longer the sweep, the more seldom
        self._next = now + (max(EVERY_LIVE, (now - self._began) / 200) if live else EVERY)
        if self._bar is not None:
            self._bar.n = self._rounds()
            self._bar.set_description(f"runs {len(self.pending) - self._left()}/{len(self.pending)}", refresh=False)
            self._bar.refresh()
            return
        if live and now >= self._next_picture:
            first, spent = self._png is None, time.process_time()
            self._png = self._picture() or self._png
            if not first:  # drawing may not take more than a tenth of a core; the first figure loads matplotlib too
                self._next_picture = now + 10 * (time.process_time() - spent)
        self._handle.update(_Live(self._text(), self._png))

    def __exit__(self, kind, error, trace) -> None:
        if self._bar is not None:
            self.update(force=True)
            self._bar.close()
        if self._handle is not None:
            self._handle.update(_Live(self._ready() if kind is None else self._stopped(kind), None))

    def _stopped(self, kind: type[BaseException]) -> str:
        why = "interrupted" if issubclass(kind, KeyboardInterrupt) else "stopped by an error"
        return f"{why}: what was computed is stored, run the cell again to go on"

    def _ready(self) -> str:
        return f"{len(self.experiments)} run{'s' if len(self.experiments) > 1 else ''} ready"

    def _rounds(self) -> int:
        return sum(rounds for rounds, _ in self._look())

    def _left(self) -> int:
        return sum(not done for _, done in self._look())

    def _look(self) -> list[tuple[int, bool]]:
        """(rounds stored, whether it is done) of each pending run; only files that changed are read."""
        for experiment, path in self._histories:
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                mark = stat.st_mtime_ns, stat.st_size
                if self._seen.get(path, (None,))[0] != mark:
                    rounds = self.store.rounds_done(experiment)
                    self._seen[path] = mark, (rounds, rounds == experiment.rounds or self.store.load(experiment) is not None)
        return [self._seen[path][1] if path in self._seen else (0, False) for _, path in self._histories]

    def _text(self) -> str:
        done, now = self._rounds(), time.monotonic()
        if done > self._first and self._moving is None:
            self._moving = now, done  # from here on: the start of the workers says nothing of the rounds' pace
        since, first = self._moving or (now, done)
        left = clock((self._total - done) * (now - since) / (done - first)) + " left" if done > first else ""
        words = (f"runs {len(self.pending) - self._left()}/{len(self.pending)}", f"rounds {done}/{self._total}", left)
        return " · ".join(filter(None, words if self._moving else (*words, "starting")))

    def _picture(self) -> bytes | None:
        frames = []
        for experiment in self.experiments:
            history = read_history(self.store.path(experiment) / "history.csv")
            if len(history):
                frames.append(pd.DataFrame(experiment.columns(), index=history.index).join(history))
        if not frames:
            return None
        import io

        from matplotlib import pyplot as plt

        drawn = self.show(pd.concat(frames, ignore_index=True))
        figure = getattr(drawn, "figure", drawn)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
        plt.close(figure)
        return buffer.getvalue()


class _Live:
    """A line of text with a picture under it, for IPython's display."""

    def __init__(self, text: str, png: bytes | None):
        self.text, self.png = text, png

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        import base64

        if not self.png:
            return f"<span>{self.text}</span>"
        width, height = struct.unpack(">II", self.png[16:24])  # known before it is decoded, so that the page does not jump
        source = f"data:image/png;base64,{base64.b64encode(self.png).decode()}"
        size = f'width="{width}" height="{height}" style="max-width: 100%; height: auto"'
        return f'<span>{self.text}</span><br><img src="{source}" alt="the curves so far" {size}>'


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    shell = get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


def clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
