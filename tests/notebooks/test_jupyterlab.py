"""Notebooks in a real JupyterLab, in a real (headless) browser: Run All Cells, and the table and the figure appear, without an error; a
sweep is watched while it runs, its tab closed, its kernel interrupted, and it goes on.

Needs chromium and chromedriver (Debian: the packages chromium and chromium-driver); skipped where they are not installed. The browser is
spoken to by the WebDriver protocol, which is JSON over HTTP: no further Python package.
"""

import base64
import contextlib
import functools
import json
import math
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import nbformat
import psutil
import pytest

from fedinit import Simulation, preset

ROOT = Path(__file__).resolve().parents[2]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
DRIVER = shutil.which("chromedriver")
TOKEN = "a-token-of-this-test"
JOBS = min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
PARAMETERS = {  # smaller than quick, and all computed anew
    "table4_cifar10": 'preset = "quick"\ndata = "synthetic:600/100"\ndevice = "cpu"\njobs = 1\nseeds = [0]\nout = "out"',
    "schematic": 'preset = "quick"\ndata = device = jobs = seeds = None\nout = "out"\nbeta = 0.5',
}
#: notebooks of one's own: their seeds, and for how many seconds their sweep of four runs is to last, about
SEEDS, SECONDS = {"left": (0, 1), "interrupted": (2, 3)}, {"left": 10, "interrupted": 6}
SWEEP = [
    "import fedinit\nfrom fedinit.results import plots",
    """experiments = [
    fedinit.preset("quick", method, data="synthetic:640/100", rounds=ROUNDS, seed=seed)
    for seed in SEEDS
    for method in ("fedavg", "fedinit")
]
frame = fedinit.sweep(experiments, jobs=JOBS, progress=plots.accuracy_panels)""",
    'print(len(frame), "rows of", frame.key.nunique(), "runs")',
]
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},  # cells out of sight stay in the page, so that they can be looked at
}
FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1400,1000"),
]

pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER),
    reason="no browser here: chromium and chromedriver are needed (Debian: apt-get install chromium chromium-driver)",
)


class Browser:
    """A page, by WebDriver."""

    def __init__(self, driver: str, profile: Path):
        self._folder = profile.parent
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        options = {"binary": BROWSER, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}}
        self._session = f"{driver}/session"
        self._session += "/" + self._post("", wanted)["sessionId"]

    def _post(self, path: str, body: dict):
        return self._ask(urllib.request.Request(self._session + path, json.dumps(body).encode(), {"Content-Type": "application/json"}))

    def _ask(self, request: urllib.request.Request):
        try:
            with self._open(request, timeout=90) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def go(self, url: str) -> None:
        self._post("/url", {"url": url})

    def js(self, expression: str):
        return self._post("/execute/sync", {"script": f"return {expression}", "args": []})

    def click(self, xpath: str) -> None:
        """Wait for the element, then click it as a hand would."""
        self._post(f"/element/{self._find(xpath)}/click", {})

    def press(self, xpath: str, keys: str) -> None:
        self._post(f"/element/{self._find(xpath)}/value", {"text": keys})

    def _find(self, xpath: str) -> str:
        element = self.until(lambda: self._post("/elements", {"using": "xpath", "value": xpath}), xpath, 120)[0]
        return next(iter(element.values()))

    def until(self, question, what: str, seconds: float):
        end = time.monotonic() + seconds
        while not (answer := question()):
            if time.monotonic() > end:
                pytest.fail(f"waited {seconds} s in vain for: {what}; cells {self.js(PROMPTS)}; the page: {self.picture('in_vain')}")
            time.sleep(0.25)
        return answer

    def picture(self, name: str) -> Path:
        """The page as it looks now, in a file."""
        path = self._folder / f"{name}.png"
        path.write_bytes(base64.b64decode(self._ask(urllib.request.Request(self._session + "/screenshot"))))
        return path

    def close_tab(self) -> None:
        """Close the tab, whatever it holds, and look at a new, empty one."""
        new = self._post("/window/new", {"type": "tab"})["handle"]
        self._ask(urllib.request.Request(self._session + "/window", method="DELETE"))
        self._post("/window", {"handle": new})

    def close(self) -> None:
        with contextlib.suppress(OSError, urllib.error.URLError):
            self._open(urllib.request.Request(self._session, method="DELETE"), timeout=20).close()


@contextlib.contextmanager
def program(command: list[str], folder: Path, ready: str, **environment):
    """A server in the background until the context ends; then it and all that it started are gone."""
    log = folder / f"{Path(command[0]).name}.log"
    with open(log, "w") as out:
        process = subprocess.Popen(command, cwd=folder, env={**os.environ, **environment}, stdout=out, stderr=subprocess.STDOUT)
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for _ in range(720):
            assert process.poll() is None, f"{command[0]} ended at once:\n{log.read_text()[-2000:]}"
            with contextlib.suppress(OSError):
                opener.open(ready, timeout=5).close()
                break
            time.sleep(0.25)
        else:
            pytest.fail(f"{command[0]} did not answer in three minutes:\n{log.read_text()[-2000:]}")
        yield
    finally:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        for left in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()  # knows its process by pid and start time
        process.wait()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@functools.cache
def rounds_of(name: str) -> int:
    """The rounds of each run of a notebook, by this machine's pace."""
    return min(max(round(SECONDS[name] * JOBS / 4 / pace()), 20), 1000)


@functools.cache
def pace() -> float:
    """Seconds a round."""
    simulation = Simulation(preset("quick", "fedinit", data="synthetic:640/100"), device="cpu")
    records = [simulation.step() for _ in range(6)]
    return statistics.median(record["train_seconds"] + record["eval_seconds"] for record in records[1:])


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab on a copy of the notebooks without outputs and with small parameters: (browser, address, folder)."""
    home = tmp_path_factory.mktemp("lab")
    notebooks = home / "notebooks"
    notebooks.mkdir()
    for name, parameters in PARAMETERS.items():
        notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
            if "parameters" in cell.metadata.get("tags", []):
                cell.source += f"\n{parameters}"
        nbformat.write(notebook, notebooks / f"{name}.ipynb")
    for name, seeds in SEEDS.items():
        values = {"ROUNDS": rounds_of(name), "SEEDS": seeds, "JOBS": JOBS}
        sources = [re.sub("|".join(values), lambda found, values=values: str(values[found[0]]), source) for source in SWEEP]
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), notebooks / f"{name}.ipynb")
    for name, values in SETTINGS.items():
        path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(values))
    environment = {
        "FEDINIT_RUNS": str(home / "runs"),
        "FEDINIT_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        **{f"JUPYTER_{kind}_DIR": str(home / kind.lower()) for kind in ("CONFIG", "RUNTIME", "DATA")},
        "IPYTHONDIR": str(home / "ipython"),
    }
    port, driver = free_port(), free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}"]
    command += ["--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={notebooks}"]
    with (
        program(command, home, f"{address}/api?token={TOKEN}", **environment),
        program([DRIVER, f"--port={driver}"], home, f"http://127.0.0.1:{driver}/status", HOME=str(home)),
    ):
        browser = Browser(f"http://127.0.0.1:{driver}", home / "profile")
        try:
            yield browser, address, notebooks
        finally:
            browser.close()


ERRORS = """[...document.querySelectorAll('[data-mime-type$="jupyter.error"], [data-mime-type$="jupyter.stderr"]')].map(e => e.innerText)"""
PROMPTS = (
    "[...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell .jp-InputPrompt')].map(e => e.innerText.trim())"
)
STATUS = "document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status"
RUN_MENU = "//div[contains(@class, 'lm-MenuBar-itemLabel') and text()='Run']"
RIGHT = "\ue014"  # WebDriver's name of the right arrow key
INTERRUPT = "//*[@data-command='notebook:interrupt-kernel']"
RUN_ALL = "//li[@data-command='runmenu:run-all']"


def show(lab, name: str, idle: bool = True) -> Browser:
    """Open the notebook and wait for its cells, and for its kernel unless that has work left."""
    browser, address, folder = lab
    cells = sum(cell.cell_type == "code" for cell in nbformat.read(folder / f"{name}.ipynb", as_version=4).cells)
    browser.go(f"{address}/lab/workspaces/{name}/tree/{name}.ipynb?token={TOKEN}")
    since = math.inf

    def ready() -> bool:
        nonlocal since
        is_ready = len(browser.js(PROMPTS)) == cells and (browser.js(STATUS) == "idle" or not idle)
        since = min(since, time.monotonic()) if is_ready else math.inf
        return time.monotonic() - since > 1  # it may look ready for a moment and then connect to the kernel

    browser.until(ready, f"{name}: notebook shown, kernel ready", 180)
    return browser


def click_run_all(browser: Browser) -> None:
    browser.click(RUN_MENU)
    browser.click(RUN_ALL)


def until_ran(browser: Browser, question, what: str, seconds: float = 400) -> None:
    """Wait for cells to run; an error in the page ends it.

    JupyterLab may drop the cells that it has just been told to run when it connects to the kernel in that very moment: their prompts are
    blank again. A hand would click again, and so does this.
    """
    blank_since = time.monotonic()

    def asked():
        nonlocal blank_since
        assert not browser.js(ERRORS), "\n".join(browser.js(ERRORS))
        if not all(text.strip("[]: ") == "" for text in browser.js(PROMPTS)):
            blank_since = time.monotonic()
        elif time.monotonic() > blank_since + 5:
            click_run_all(browser)
            blank_since = time.monotonic()
        return question()

    browser.until(asked, what, seconds)


def all_done(browser: Browser) -> bool:
    return all(text.strip("[]:").isdigit() for text in browser.js(PROMPTS))


def run_all(lab, name: str) -> Browser:
    """Open the notebook, run all its cells, and wait for their end."""
    browser = show(lab, name)
    click_run_all(browser)
    until_ran(browser, lambda: all_done(browser), f"{name}: all cells done")
    return browser


def texts(browser: Browser, selector: str) -> list[str]:
    return browser.js(f"[...document.querySelectorAll('.jp-OutputArea-output {selector}')].map(e => e.innerText)")


def pictures(browser: Browser) -> list[int]:
    """Widths in pixels of the figures that the page has really loaded."""
    return browser.js("[...document.querySelectorAll('.jp-RenderedImage img')].filter(e => e.complete).map(e => e.naturalWidth)")


def test_a_table_and_its_figure_appear(lab):
    """28 runs are computed while the page shows their progress; then Table 4, its curves and the verdicts stand in the page."""
    browser = run_all(lab, "table4_cifar10")
    assert any("FedInit" in text and "SCAFFOLD" in text for text in texts(browser, "table"))
    assert any("not tested at this scale" in text for text in texts(browser, "table"))
    browser.until(lambda: pictures(browser), "a figure", 60)
    assert min(pictures(browser)) > 300
    assert (lab[2] / "out" / "table4_curves.png").exists()


def test_the_slider_redraws_the_schematic(lab):
    """In JupyterLab the notebook has a control for β; one step of it draws the figure anew."""
    browser = run_all(lab, "schematic")
    readout = "document.querySelector('.jp-OutputArea-output .widget-readout')?.innerText"
    browser.until(lambda: browser.js(readout) == "0.50", "the slider", 90)
    drawn = "[...document.querySelectorAll('.widget-interact .jp-RenderedImage img')].map(e => e.src).join()"
    before = browser.until(lambda: browser.js(drawn), "the figure under the slider", 90)
    browser.press("//*[contains(@class, 'noUi-handle')]", RIGHT)
    browser.until(lambda: browser.js(readout) == "0.55" and browser.js(drawn) not in ("", before), "the figure of β = 0.55", 90)


def histories(lab, name: str) -> dict[Path, int]:
    """The histories of the notebook's runs, with the rounds that they have."""
    found = {}
    for path in (lab[2].parent / "runs").glob("*/experiment.json"):
        told = json.loads(path.read_text())
        if told["seed"] in SEEDS[name] and told["data"].startswith("synthetic:640/100"):
            found[path.with_name("history.csv")] = path.with_name("history.csv").read_text().count("\n") - 1
    return found


def numbers(histories: Iterable[Path]) -> dict[Path, int]:
    """The files' numbers: a run that starts again, or goes on, begins by moving a new file into place."""
    return {path: path.stat().st_ino for path in histories}


def workers() -> list[psutil.Process]:
    """The processes that run a sweep's runs for a kernel of this test."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any("popen_loky" in word for word in process.cmdline()):
                found.append(process)
    return found


LIVE = "document.querySelector('.jp-OutputArea-output img[src^=\"data:image/png\"]')"


def test_a_sweep_is_watched_and_a_closed_tab_loses_nothing(lab):
    """While it runs, the page shows a line of progress and a curve, both of which move on. The tab is closed in the middle; in a new one,
    the cell run again gives all runs, and those that were there have not been touched: nothing was computed twice."""
    browser, rounds = show(lab, "left"), rounds_of("left")
    click_run_all(browser)
    lines, curves = set(), set()

    def moved_on() -> bool:
        lines.update(text for text in texts(browser, "span") if text.startswith("runs "))
        curves.add(browser.js(f"{LIVE}?.naturalWidth > 300 ? {LIVE}.src : null"))
        done = histories(lab, "left").values()
        assert sum(done) < 4 * rounds, f"the sweep ended before its progress was seen: {lines}, {len(curves - {None})} curves"
        return len(curves - {None}) > 1 and rounds in done

    until_ran(browser, moved_on, "a curve that moves and a run that is done")
    assert len([line for line in lines if re.fullmatch(rf"runs \d/4 · rounds \d+/{4 * rounds}( · .+)?", line)]) > 2, lines
    browser.close_tab()
    there = histories(lab, "left")
    assert rounds <= sum(there.values()) < 4 * rounds  # closed in the middle
    before = numbers(there)
    browser = show(lab, "left", idle=False)  # the kernel goes on computing
    click_run_all(browser)
    until_ran(browser, lambda: all_done(browser), "all cells done")
    assert "4 runs ready" in texts(browser, "span")
    assert f"{4 * rounds} rows of 4 runs" in " ".join(texts(browser, "pre"))
    assert list(histories(lab, "left").values()) == [rounds] * 4
    assert numbers(before) == before


def test_an_interrupted_sweep_leaves_no_process_and_goes_on(lab):
    """The toolbar's button stops the cell at once, and its workers; run again, what was finished is read, the rest computed."""
    browser, rounds = show(lab, "interrupted"), rounds_of("interrupted")
    click_run_all(browser)
    until_ran(browser, lambda: rounds in histories(lab, "interrupted").values(), "a run that is done")
    assert workers() or JOBS == 1
    browser.click(INTERRUPT)
    browser.until(lambda: browser.js(ERRORS), "the cell stopped", 10)
    assert [error for error in browser.js(ERRORS) if "KeyboardInterrupt" not in error] == []
    assert "interrupted: what was computed is stored, run the cell again to go on" in texts(browser, "span")
    browser.until(lambda: not workers(), "no worker left", 10)
    browser.until(lambda: browser.js(STATUS) == "idle", "kernel ready again", 30)
    there = histories(lab, "interrupted")
    assert rounds <= sum(there.values()) < 4 * rounds  # stopped in the middle
    before = numbers(path for path, done in there.items() if done == rounds)
    click_run_all(browser)
    browser.until(lambda: not browser.js(ERRORS), "the cell started again", 30)
    until_ran(browser, lambda: all_done(browser), "all cells done")
    assert f"{4 * rounds} rows of 4 runs" in " ".join(texts(browser, "pre"))
    assert list(histories(lab, "interrupted").values()) == [rounds] * 4
    assert numbers(before) == before
