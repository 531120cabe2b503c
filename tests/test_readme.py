"""Every command and every Python block of the README runs. Sizes and data that a test cannot have are replaced, nothing else."""

import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
COMMANDS = [line for kind, text in BLOCKS if kind == "bash" for line in text.strip().splitlines()]
COMMANDS.remove("fedinit reproduce --preset small --redraw")  # test_results.py runs it as it stands
PROGRAMS = [text for kind, text in BLOCKS if kind == "python"]
SMALLER = {  # the command as printed → the command as tested
    "--preset small": "--preset quick",
    "--preset paper": "--preset quick --rounds 2",
    "--data cifar10": "--data images.npz",
    "--device cuda": "--device cpu",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with a small images.npz, the checkout's notebooks, and the checkout's own run store (so that runs are shared)."""
    luck = np.random.default_rng(0)
    arrays = {f"x_{part}": luck.integers(0, 256, (n, 32, 32, 3), np.uint8) for part, n in (("train", 600), ("test", 100))}
    arrays |= {f"y_{part}": np.arange(n) % 10 for part, n in (("train", 600), ("test", 100))}
    np.savez(tmp_path / "images.npz", **arrays)
    (tmp_path / "notebooks").symlink_to(ROOT / "notebooks")
    monkeypatch.delenv("FEDINIT_RUNS")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def execute(command: list[str], folder: Path) -> subprocess.CompletedProcess:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done


@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.startswith("make ")])
def test_command(command, folder, one_cluster):
    ray = "--engine ray" in command
    if ray:
        pytest.importorskip("ray", reason="Ray has no wheel for this Python")
    for printed, tested in SMALLER.items():
        command = command.replace(printed, tested)
    words = shlex.split(command)
    if words[:2] == ["fedinit", "reproduce"]:
        words += ["--out", "out", "--seeds", "0"]
    if words[0] == "fedinit":
        words[:1] = [sys.executable, "-m", "fedinit.cli"]
    if words[0] == "papermill":
        words[:1] = [sys.executable, "-m", "papermill"]
        words += ["-p", "seeds", "[0]", "-p", "out", "out"]
    with one_cluster if ray else nullcontext():
        execute(words, folder)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make ")] + ["make lab"])
def test_make_target_exists_and_would_run(command):
    """The whole of `make test` cannot run inside itself; its recipe is read instead."""
    done = execute([*shlex.split(command), "--dry-run"], ROOT)
    program = {"make reproduce": "fedinit reproduce", "make test": "pytest", "make lab": "jupyter lab"}[command]
    assert program in done.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_python(program, folder):
    (folder / "program.py").write_text(program, encoding="utf-8")
    assert execute([sys.executable, "program.py"], folder).stdout


def test_every_notebook_is_in_the_readme_and_the_other_way_round():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"`{notebook.stem}`" in text


def test_every_package_that_is_installed_is_pinned():
    """Those that a requirement of a requirement brings along, too: without a pin pip chooses, and an older one searches for minutes."""
    from packaging.requirements import Requirement

    pinned = {_plain(line.split("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    wanted, seen = [("fedinit", frozenset({"test"}))], set()
    while wanted:
        name, extras = wanted.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        for requirement in map(Requirement, importlib.metadata.requires(name) or ()):
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}):
                wanted.append((_plain(requirement.name), frozenset(requirement.extras)))
    names = {name for name, _ in seen} - {"fedinit", "pip", "setuptools"}
    assert "coverage" in names
    assert not {name for name in names - pinned if not re.match("nvidia-|cuda-|triton", name)}  # torch names these to the digit


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_three_files_of_requirements_agree():
    """environment.yml and the Makefile take their pins from constraints.txt; every requirement of pyproject.toml is pinned there, inside
    its range."""
    import tomllib

    from packaging.requirements import Requirement

    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pins = {_plain(name): version.split("+")[0] for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [r for name, group in project["optional-dependencies"].items() if name == "test" for r in group]
    for requirement in map(Requirement, project["dependencies"] + extras):
        assert requirement.specifier.contains(pins[requirement.name.lower()]), requirement
    for name in ("environment.yml", "Makefile"):
        assert "constraints.txt" in (ROOT / name).read_text()
        assert "[test]" in (ROOT / name).read_text()


def test_a_script_beside_the_clone(tmp_path):
    """A folder named fedinit (the clone) next to a script does not hide the installed package."""
    (tmp_path / "fedinit").mkdir()
    (tmp_path / "mine.py").write_text("import fedinit\nprint(fedinit.preset('quick', 'fedinit').method.beta)\n", encoding="utf-8")
    assert execute([sys.executable, "mine.py"], tmp_path).stdout.strip() == "0.1"
