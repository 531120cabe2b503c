"""The committed results of preset small: README, tables, figures and histories say the same, and a clone redraws them without training."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pytest

from fedinit.results.published import claim

ROOT = Path(__file__).resolve().parents[1]
SMALL = ROOT / "figures" / "small"


def row(verdict) -> str:
    """A line of README's table, from one of claims.csv or questions.csv."""
    published = claim(verdict.Index).published
    cells = [verdict.Index, claim(verdict.Index).text, published, verdict.measured, verdict.seeds or "—", f"**{verdict.verdict}**"]
    cells.append(f"[{verdict.notebook}](figures/small/notebooks/{verdict.notebook}.ipynb)")
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"


def rows() -> list[str]:
    ledgers = [pd.read_csv(SMALL / f"{name}.csv", index_col="id") for name in ("claims", "questions")]
    ledgers[1]["notebook"] = [claim(one).notebook for one in ledgers[1].index]
    return [row(verdict) for ledger in ledgers for verdict in ledger.itertuples()]


def test_readme_has_the_ledger():
    """Each claim and question with what was measured and its verdict, in order, and none besides."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    there = [line for line in readme.splitlines() if line.startswith("| ") and "](figures/small/notebooks/" in line]
    assert there == rows(), "\n".join(["README's table of claims should be:", *rows()])


def test_readme_says_how_much_was_computed():
    """The number of committed histories, and the sum of their seconds of training and testing."""
    histories = [pd.read_csv(path) for path in SMALL.glob("runs/*/history.csv")]
    hours = sum(history[["train_seconds", "eval_seconds"]].sum().sum() for history in histories) / 3600
    assert f"So far {len(histories)} runs are computed, {hours:.1f} hours of one core" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_shows_committed_pictures():
    pictures = re.findall(r"\]\((figures/[^)#]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(pictures) >= 4
    assert not [path for path in pictures if not (ROOT / path).exists()]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """The package, the notebooks, the committed histories and the seconds of Table 7; tables and figures are drawn anew."""
    place = tmp_path_factory.mktemp("clone")
    for name in ("fedinit", "notebooks"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", place)
    shutil.copytree(SMALL / "runs", place / "figures" / "small" / "runs")
    for kept in SMALL.glob("table7_times.*"):
        shutil.copy(kept, place / "figures" / "small")
    environment = {k: v for k, v in os.environ.items() if k != "FEDINIT_RUNS"} | {"PYTHONPATH": str(place), "FEDINIT_OFFLINE": "1"}
    command = [sys.executable, "-m", "fedinit.cli", "reproduce", "--preset", "small", "--redraw", "--device", "cpu", "--json"]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    computed = [notebook["runs"]["computed"] for notebook in json.loads(done.stdout)["notebooks"]]
    assert not any(computed)
    return place / "figures" / "small"


def test_a_clone_redraws_the_numbers(clone):
    """Every committed table, to the last digit of its file (what is measured on this machine, the theory's, to a thousandth)."""
    committed = sorted(path.name for path in SMALL.glob("*.csv"))
    assert committed == sorted(path.name for path in clone.glob("*.csv"))
    for name in committed:
        theirs, ours = (pd.read_csv(folder / name) for folder in (SMALL, clone))
        pd.testing.assert_frame_equal(ours, theirs, rtol=1e-3 if "theory" in name or "table2" in name else 1e-12, obj=name)


def test_a_clone_redraws_the_captions(clone):
    """With the same runs, seeds, rule and data behind each; only when and where the theory was measured may differ."""
    for path in sorted(SMALL.glob("*.json")):
        theirs, ours = (json.loads((folder / path.name).read_text(encoding="utf-8")) for folder in (SMALL, clone))
        for record in (theirs, ours):
            record["caption"] = re.sub(r"measured \d{4}-\d\d-\d\d on [^.;]*", "measured", record.get("caption", ""))
        same = ["caption", "notebook", "preset", "data", "seeds", "rule", "runs"]
        assert [theirs.get(name) for name in same] == [ours.get(name) for name in same], path.name


def test_a_clone_redraws_the_pictures(clone):
    """Pixel by pixel, but for what another version of a library smooths otherwise."""
    committed = sorted(path.name for path in SMALL.glob("*.png"))
    assert len(committed) > 10 and committed == sorted(path.name for path in clone.glob("*.png"))
    for name in committed:
        theirs, ours = (matplotlib.image.imread(folder / name) for folder in (SMALL, clone))
        assert theirs.shape == ours.shape and np.abs(theirs - ours).mean() < 0.01, name
