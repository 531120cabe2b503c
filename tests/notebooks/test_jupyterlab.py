"""Notebooks in a real JupyterLab, in a real (headless) browser: open, Run All Cells, and the table and the figure appear, without an error.

Needs chromium and chromedriver (Debian: the packages chromium and chromium-driver); skipped where they are not installed. The browser is
spoken to by the WebDriver protocol, which is JSON over HTTP: no further Python package.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
DRIVER = shutil.which("chromedriver")
TOKEN = "a-token-of-this-test"
PARAMETERS = {  # smaller than quick, and all computed anew
    "table4_cifar10": 'preset = "quick"\ndata = "synthetic:600/100"\ndevice = "cpu"\njobs = 1\nseeds = [0]\nout = "out"',
    "schematic": 'preset = "quick"\ndata = device = jobs = seeds = None\nout = "out"\nbeta = 0.5',
}
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},  # cells out of sight stay in the page, so that they can be looked at
}
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1400,1000"
).split()

pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER),
    reason="no browser here: chromium and chromedriver are needed (Debian: apt-get install chromium chromium-driver)",
)


class Browser:
    """A page, by WebDriver."""

    def __init__(self, driver: str, profile: Path):
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        options = {"binary": BROWSER, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}}
        self._session = f"{driver}/session"
        self._session += "/" + self._post("", wanted)["sessionId"]

    def _post(self, path: str, body: dict):
        request = urllib.request.Request(self._session + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
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
            assert time.monotonic() < end, f"waited {seconds} s in vain for: {what}"
            time.sleep(0.25)
        return answer

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
                cell.source = parameters
        nbformat.write(notebook, notebooks / f"{name}.ipynb")
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


ERRORS = """[...document.querySelectorAll('[data-mime-type="application/vnd.jupyter.error"], [data-mime-type="application/vnd.jupyter.stderr"]')]
    .map(e => e.innerText)"""
PROMPTS = "[...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell .jp-InputPrompt')].map(e => e.innerText.trim())"
RUN_MENU = "//div[contains(@class, 'lm-MenuBar-itemLabel') and text()='Run']"
RIGHT = "\ue014"  # WebDriver's name of the right arrow key
RUN_ALL = "//li[@data-command='runmenu:run-all']"


def run_all(lab, name: str) -> Browser:
    """Open the notebook, run all its cells by the menu, and wait for their end."""
    browser, address, folder = lab
    cells = sum(cell.cell_type == "code" for cell in nbformat.read(folder / f"{name}.ipynb", as_version=4).cells)
    browser.go(f"{address}/lab/workspaces/{name}/tree/{name}.ipynb?token={TOKEN}")
    idle = "document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status === 'idle'"
    browser.until(lambda: browser.js(idle) and len(browser.js(PROMPTS)) == cells, f"{name}: notebook shown, kernel ready", 180)
    browser.click(RUN_MENU)
    browser.click(RUN_ALL)

    def finished() -> bool:
        assert not browser.js(ERRORS), "\n".join(browser.js(ERRORS))
        prompts = browser.js(PROMPTS)
        return all(text.strip("[]:").isdigit() for text in prompts)

    browser.until(finished, f"{name}: all cells done", 400)
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
