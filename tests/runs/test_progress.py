"""What a sweep shows in a notebook while it runs: one line, and the live figure under it; both gone at the end."""

import struct

import IPython.display
import pytest
from matplotlib import pyplot as plt

from fedinit import Store, run
from fedinit.runs import progress
from tests.training.tiny import tiny


class Page:
    """Stands for the page: what it showed, one after the other."""

    def __init__(self):
        self.shown, self.now = [], 100.0

    def display(self, thing, display_id=None):
        self.update(thing)
        return self

    def update(self, thing):
        self.shown.append(thing)

    @property
    def lines(self):
        return [repr(thing) for thing in self.shown]


@pytest.fixture
def page(monkeypatch):
    page = Page()
    monkeypatch.setattr(progress, "_in_notebook", lambda: True)
    monkeypatch.setattr(IPython.display, "display", page.display)
    monkeypatch.setattr(progress.time, "monotonic", lambda: page.now)
    return page


def write(store, experiment, rounds):
    """A history of so many rounds, as the run itself writes it."""
    path = store.path(experiment) / "history.csv"
    whole = run(experiment, store=Store(store.folder / "whole")).folder / "history.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(whole.read_text().splitlines(keepends=True)[: rounds + 1]))


def test_the_line_counts_and_tells_the_time_left_from_the_pace_of_the_rounds(page, tmp_path):
    """The workers take 30 s to start; then 2 of 8 rounds are seen, and 2 more 10 s later: 5 s a round, so 20 s for the last four."""
    store, (one, other) = Store(tmp_path), (tiny("fedavg"), tiny("fedinit"))
    with progress.Progress([one, other], [one, other], store, True) as shown:
        page.now += 30
        write(store, one, 2)
        shown.update()
        page.now += 10
        write(store, one, 4)
        shown.update()
        page.now += 0.1
        shown.update()  # too soon
        page.now += 10
        write(store, other, 4)
        shown.update()
    assert page.lines == [
        *["runs 0/2 · rounds 0/8 · starting"] * 2,
        "runs 0/2 · rounds 2/8",
        "runs 1/2 · rounds 4/8 · 20 s left",
        "runs 2/2 · rounds 8/8 · 0 s left",
        "2 runs ready",
    ]


def test_the_figure_comes_with_its_size_and_goes_at_the_end(page, tmp_path):
    """Its size is in the page before it is decoded, so nothing jumps. Between two drawings the line goes on under the last figure."""
    store, experiment, drawn = Store(tmp_path), tiny("fedinit"), []

    def draw(frame):
        drawn.append(len(frame))
        return plt.figure(figsize=(2, 1))

    with progress.Progress([experiment], [experiment], store, draw) as shown:
        for rounds in (1, 2, 3):
            write(store, experiment, rounds)
            page.now += 3
            shown.update()
        shown._next_picture = page.now + 100
        page.now += 3
        shown.update()
    assert drawn == [1, 2, 3] or drawn == [1, 2]  # a slow machine draws more seldom
    html = [thing._repr_html_() for thing in page.shown]
    width, height = struct.unpack(">II", page.shown[-2].png[16:24])
    assert all(f'width="{width}" height="{height}"' in text for text in html[2:-1]) and len(html) == 7
    assert "<img" not in html[-1] and page.lines[-1] == "1 run ready"


@pytest.mark.parametrize(("error", "says"), [(KeyboardInterrupt, "interrupted: "), (ValueError, "stopped by an error: ")])
def test_the_line_says_that_nothing_is_lost(page, tmp_path, error, says):
    experiment = tiny("fedinit")
    with pytest.raises(error), progress.Progress([experiment], [experiment], Store(tmp_path), True):
        raise error
    assert page.lines[-1] == f"{says}what was computed is stored, run the cell again to go on"


def test_runs_that_are_there_are_told_in_the_same_words(page, tmp_path):
    """A notebook run again shows what it showed before."""
    with progress.Progress([tiny("fedinit")], [], Store(tmp_path), True):
        pass
    assert page.lines == ["1 run ready"]
