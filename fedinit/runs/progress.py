"""One display for all runs of a sweep: runs done, rounds, time left. It reads the run folders, so it shows whoever computes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pandas as pd

from fedinit.experiment import Experiment
from fedinit.runs.store import Store, read_history

EVERY = 0.5  # seconds between two updates in a terminal
EVERY_LIVE = 2.0  # and of a live figure in a notebook


class Progress:
    """A context: a tqdm bar in a terminal; in a notebook one line of text and, if `show` is a function, its live figure, both gone at the end."""

    def __init__(self, experiments: list[Experiment], pending: list[Experiment], store: Store, show: bool | Callable[[pd.DataFrame], object]):
        self.experiments, self.pending, self.store, self.show = experiments, pending, store, show
        self._bar = self._handle = None
        self._next = 0.0

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

            self._handle = display(self._text(), display_id=True)
        else:
            from tqdm import tqdm

            self._bar = tqdm(total=self._total, initial=self._first, unit="round", file=sys.stderr, dynamic_ncols=True, mininterval=EVERY)
        self.update(force=True)
        return self

    def update(self, force: bool = False) -> None:
        """Look at the disk and redraw, at most every `EVERY` seconds."""
        if (self._bar is None and self._handle is None) or (not force and time.monotonic() < self._next):
            return
        live = self._handle is not None and callable(self.show)
        self._next = time.monotonic() + (EVERY_LIVE if live else EVERY)
        if self._bar is not None:
            self._bar.n = self._rounds()
            self._bar.set_description(f"runs {len(self.pending) - self._left()}/{len(self.pending)}", refresh=False)
            self._bar.refresh()
            return
        began = time.monotonic()
        self._handle.update(_Live(self._text(), self._picture() if live else None))
        self._next += 9 * (time.monotonic() - began)  # drawing may not take more than a tenth of the time

    def __exit__(self, kind, error, trace) -> None:
        if self._bar is not None:
            self.update(force=True)
            self._bar.close()
        if self._handle is not None:
            text = self._ready() if kind is None else "interrupted: what was computed is stored, run the cell again to go on"
            self._handle.update(_Live(text, None))

    def _ready(self) -> str:
        return f"{len(self.experiments)} run{'s' if len(self.experiments) > 1 else ''} ready"

    def _rounds(self) -> int:
        return sum(self.store.rounds_done(experiment) for experiment in self.pending)

    def _left(self) -> int:
        return sum(self.store.rounds_done(experiment) < experiment.rounds and self.store.load(experiment) is None for experiment in self.pending)

    def _text(self) -> str:
        done = self._rounds()
        spent = time.monotonic() - self._began
        rate = (done - self._first) / spent if spent else 0.0
        left = f"{clock((self._total - done) / rate)} left" if rate else "starting"
        return f"runs {len(self.pending) - self._left()}/{len(self.pending)} · rounds {done}/{self._total} · {left}"

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

        picture = f'<br><img src="data:image/png;base64,{base64.b64encode(self.png).decode()}">' if self.png else ""
        return f"<span>{self.text}</span>{picture}"


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
