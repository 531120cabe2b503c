"""Committed notebooks are clean, parametrized and executed; two at once share their runs. nbval runs them cell by cell in `make test`."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from fedinit.artefacts import RUNS

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
COMMON = {"preset": "quick", "data": None, "device": "auto", "jobs": None, "seeds": None, "out": None}
JUNK = {
    "a progress bar": r"\r|█|it/s\]|\[A",
    "an absolute path": r"(?<![\w.:/])/(home|Users|root|tmp|usr|var|opt|mnt|private)/|[A-Z]:\\\\",
    "a matplotlib object": r"Text\(|<Axes|<matplotlib\.|\[<",
    "a memory address": r" at 0x[0-9a-f]{6,}",
    "a warning": r"Warning:",
}


def read(path):
    return nbformat.read(path, as_version=4)


def texts(cell):
    """Everything that a cell's outputs say in words."""
    for output in cell.get("outputs", []):
        yield output.get("text", "")
        for kind, value in output.get("data", {}).items():
            if kind.startswith("text/"):
                yield "".join(value)


def test_every_artefact_has_its_notebook():
    assert {path.stem for path in NOTEBOOKS} == set(RUNS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_clean(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z][a-z0-9-]*", one) for one in ids), "ids are words, so that a re-run changes none"
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"tags"}
        for output in cell.get("outputs", []):
            assert output.output_type != "error"
            assert output.get("name") != "stderr"
            assert not any("widget" in kind for kind in output.get("data", {}))
        for text in texts(cell):
            for what, pattern in JUNK.items():
                assert not re.search(pattern, text), f"{what} in the output of cell {cell.id}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_one_tagged_parameters_cell_with_the_common_ones(path):
    tagged = [cell for cell in read(path).cells if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1
    names = {}
    for statement in ast.parse(tagged[0].source).body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        names[target.id] = ast.literal_eval(statement.value)
    assert {name: names[name] for name in COMMON} == COMMON
    assert all("#" in line for line in tagged[0].source.splitlines()), "each parameter says what it is"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_committed_with_outputs_in_order(path):
    code = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert any(cell.outputs for cell in code)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_thin(path):
    """No algorithm in a notebook: no class, no loop until, no training; a function only formats or shows, in a few lines. The notebook that
    shows how to write a method is the exception."""
    if path.stem == "your_own_method":
        return
    for cell in read(path).cells:
        if cell.cell_type == "code":
            for node in ast.walk(ast.parse(cell.source)):
                assert not isinstance(node, (ast.ClassDef, ast.While)), cell.id
                if isinstance(node, ast.FunctionDef):
                    assert len(node.body) <= 5, cell.id
                if isinstance(node, ast.Attribute):
                    assert node.attr not in {"backward", "grad", "autograd", "optim", "nn"}, cell.id


def test_two_notebooks_at_once_share_their_runs(tmp_path):
    """The same notebook in two kernels wants the same runs: started together, neither fails, and no run is computed twice."""
    import json
    import os

    environment = {**os.environ, "FEDINIT_RUNS": str(tmp_path / "runs"), "PYTHONPATH": str(FOLDER.parent)}
    values = {"seeds": "[0]", "jobs": "1", "out": str(tmp_path / "out"), "beta_grid": "[0, 0.1]", "epochs_grid": "[1]"}
    parameters = ["--cwd", tmp_path, "--no-progress-bar", *(word for name, value in values.items() for word in ("-p", name, value))]
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "papermill", FOLDER / "figure1_sensitivity.ipynb", tmp_path / f"{name}.ipynb", *parameters],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in ("first", "second")
    ]
    for process in both:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said[-3000:]
    folders = list((tmp_path / "runs").glob("*/provenance.json"))
    assert len(folders) == 3
    assert [len(json.loads(file.read_text())["attempts"]) for file in folders] == [1, 1, 1]
