"""The HTML report of a folder of figures and tables: one page that opens from disk, without scripts or anything from outside."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedinit import artefacts
from fedinit.results.ledger import FAILS, HOLDS, NOT_REPRODUCED, NOT_TESTED, REPRODUCED
from fedinit.runs.store import read_history, read_json

PICTURES = (".svg", ".png")  # the first that is there is shown
DOWNLOADS = (".png", ".svg", ".pdf", ".csv", ".tex")
READING = (  # the order on the page: the ledger, then as in the paper
    "claims",
    "schematic",
    "data_heterogeneity",
    "table2_3_theory",
    "table4_cifar10",
    "table5_cifar100",
    "table6_plugin",
    "table7_8_time",
    "table9_cost",
    "figure1_sensitivity",
    "figure2_divergence",
    "open_questions",
    "your_own_method",
)
WIDE = 12  # a table of more columns is set smaller
ENLARGED = 1.6  # pictures are drawn for paper, with 8 pt text
KINDS = {REPRODUCED: "yes", NOT_REPRODUCED: "no", NOT_TESTED: "open"}
MARKS = {**KINDS, HOLDS: "yes", FAILS: "no"}  # and the answers to our own questions, which are not counted with the paper's claims


@dataclass(frozen=True)
class Item:
    """One figure or table of the folder: its sidecar, its picture (a file name) or table (markup without caption), its other files."""

    name: str
    meta: dict
    picture: str | None
    width: int | None  # of the picture on the page, in CSS pixels
    table: Markup | None
    downloads: list[tuple[str, str]]

    @property
    def caption(self) -> str:
        return self.meta.get("caption") or self.name.replace("_", " ")


@dataclass(frozen=True)
class Section:
    """One notebook: its items, and its executed copy (a relative path; `failed`: the error it ended with)."""

    name: str
    title: str
    items: list[Item]
    executed: str | None
    failed: str | None


def write_report(folder: str | Path, stores: Sequence[Path] = ()) -> Path:
    """Write <folder>/index.html from the sidecars, pictures, tables and executed notebooks that lie there; returns its path.

    The claims ledger comes first, then the notebooks in the paper's order. `stores` are folders of runs where the hardware behind
    the numbers is looked up, beside <folder>/runs. Links are relative: the folder may be moved or served as it is.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    items = [item for path in sorted(folder.glob("*.json")) if (item := _item(path)) is not None]
    sections = _sections(folder, items)
    page = (
        _environment()
        .get_template("report.html.jinja")
        .render(
            sections=sections,
            presets=_distinct(item.meta.get("preset") for item in items),
            verdicts=_verdicts(folder, items),
            kinds=KINDS,
            provenance=_provenance(items, [folder / "runs", *stores]),
            tables=sum(item.table is not None for item in items),
            figures=sum(item.picture is not None for item in items),
            runs=len({key for item in items for key in item.meta.get("runs", [])}),
        )
    )
    path = folder / "index.html"
    path.write_text(page, encoding="utf-8")
    return path.absolute()


def _environment() -> Environment:
    loader = PackageLoader("fedinit")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _item(sidecar: Path) -> Item | None:
    try:
        meta = json.loads(sidecar.read_text(encoding="utf-8"))
    except ValueError:
        return None
    if not isinstance(meta, dict) or "notebook" not in meta:
        return None
    there = {kind: f"{sidecar.stem}{kind}" for kind in (*DOWNLOADS, ".html") if sidecar.with_name(f"{sidecar.stem}{kind}").exists()}
    picture = next((there[kind] for kind in PICTURES if kind in there), None)
    table = _table(sidecar.stem, sidecar.with_suffix(".html").read_text(encoding="utf-8")) if ".html" in there else None
    downloads = [(kind.removeprefix("."), there[kind]) for kind in DOWNLOADS if kind in there] + [("sidecar", sidecar.name)]
    return Item(sidecar.stem, meta, picture, _width(sidecar.with_name(picture)) if picture else None, table, downloads)


def _width(picture: Path) -> int | None:
    """An svg drawn for a paper's column is shown enlarged; other pictures as they are."""
    with picture.open("rb") as file:
        points = re.search(rb'<svg\b[^>]*?\bwidth="([\d.]+)pt"', file.read(4000))
    return round(float(points[1]) / 72 * 96 * ENLARGED) if points else None


def _table(name: str, fragment: str) -> Markup:
    """A table that pandas wrote, fit for a page with others: ids of its own, scoped headers, marked verdicts; the page sets its caption."""
    own = f"T_{re.sub(r'[^A-Za-z0-9_-]', '_', name)}"
    text = re.sub(r'(?<=#)T_t(?=[ _{,])|(?<=id=")T_t(?=[_"])', own, fragment)
    text = re.sub(r"<caption\b.*?</caption>", "", text, flags=re.S)
    text = re.sub(r'<table border="\d+" class="dataframe"', "<table", text)
    text = re.sub(r"<th></th>((?:\s*<th>[^<]+</th>)+\s*</tr>)\s*<tr>\s*<th>([^<]+)</th>(?:\s*<th></th>)+\s*</tr>", r"<th>\2</th>\1", text)
    row = re.search(r"<tbody>\s*<tr.*?</tr>", text, flags=re.S)
    wide = ' class="wide"' if row and len(re.findall(r"<t[hd]\b", row[0])) > WIDE else ""
    text = re.sub(r"<table\b", f'<table{wide} aria-labelledby="caption-{name}"', text, count=1)
    head, body, rest = text.partition("</thead>")
    text = re.sub(r"<th(?=[ >])", '<th scope="col"', head) + body + re.sub(r"<th(?=[ >])", '<th scope="row"', rest)
    for verdict, kind in MARKS.items():
        text = re.sub(rf"<td([^>]*)>\s*{verdict}\s*</td>", rf'<td\1><span class="verdict {kind}">{verdict}</span></td>', text)
    # cells of running text may wrap, numbers may not
    return Markup(re.sub(r"<td([^>]*)>([^<]{40,})</td>", r'<td\1><span class="prose">\2</span></td>', text))


def _sections(folder: Path, items: list[Item]) -> list[Section]:
    order = sorted(artefacts.RUNS, key=lambda name: READING.index(name) if name in READING else len(READING))
    order += sorted({item.meta["notebook"] for item in items} - set(order))
    sections = []
    for name in order:
        path = folder / "notebooks" / f"{name}.ipynb"
        mine = [item for item in items if item.meta["notebook"] == name]
        if mine or path.exists():
            title, failed = _notebook(path if path.exists() else artefacts.checkout() / "notebooks" / path.name)
            sections.append(
                Section(
                    name, title or name.replace("_", " ").capitalize(), mine, f"notebooks/{path.name}" if path.exists() else None, failed
                )
            )
    return sections


def _notebook(path: Path) -> tuple[str | None, str | None]:
    """(title, error it ended with) of a notebook; (None, None) of one that is not there or cannot be read."""
    try:
        cells = nbformat.read(path, as_version=4).cells
    except Exception:  # half-written, or none
        return None, None
    texts = [
        cell.source for cell in cells if cell.cell_type == "markdown" and "papermill-error-cell-tag" not in cell.metadata.get("tags", [])
    ]
    title = next((line.lstrip("#").strip() for text in texts for line in text.splitlines() if line.startswith("# ")), None)
    errors = [o for cell in cells if cell.cell_type == "code" for o in cell.outputs if o.output_type == "error"]
    stopped = any(cell.metadata.get("papermill", {}).get("status", "completed") != "completed" for cell in cells)
    failed = f"{errors[0].ename}: {errors[0].evalue}" if errors else "it was stopped before its end" if stopped else None
    return re.sub(r"[*_`$]", "", title) if title else None, failed


def _verdicts(folder: Path, items: list[Item]) -> list[tuple[str, int]]:
    """How many claims came out how, in the order of KINDS; empty without a ledger."""
    for item in items:
        path = folder / f"{item.name}.csv"
        if item.meta["notebook"] == "claims" and path.exists():
            with path.open(encoding="utf-8", newline="") as file:
                counts = Counter(row.get("verdict") for row in csv.DictReader(file))
            if any(counts[kind] for kind in KINDS):
                return [(kind, counts[kind]) for kind in KINDS]
    return []


def _provenance(items: list[Item], stores: Iterable[Path]) -> list[tuple[str, str]]:
    """(what, text) rows: what the sidecars say, and the runs behind them as far as they can be found."""
    metas = [item.meta for item in items]
    stores = [Path(store) for store in stores]
    versions: dict[str, list[str]] = {}
    for meta in metas:
        for package, version in meta.get("versions", {}).items():
            versions.setdefault(package, []).append(version)
    rows = [
        ("preset", ", ".join(_distinct(meta.get("preset") for meta in metas))),
        ("data", ", ".join(_distinct(meta.get("data") for meta in metas))),
        ("seeds", "; ".join(_distinct(", ".join(map(str, meta["seeds"])) for meta in metas if meta.get("seeds")))),
        ("accuracy", "; ".join(_distinct(_rule(meta["rule"]) for meta in metas if meta.get("rule")))),
        ("commit", ", ".join(_distinct(meta.get("commit") for meta in metas))),
        ("versions", ", ".join(f"{package} {' / '.join(_distinct(found))}" for package, found in versions.items())),
    ]
    keys = sorted({key for meta in metas for key in meta.get("runs", [])})
    found = [record for key in keys if (record := _record(key, stores)) is not None]
    attempts = [attempt for _, record in found for attempt in record.get("attempts", [])]
    if keys:
        data = _distinct(experiment.get("data") for experiment, _ in found)
        if data and not rows[1][1]:
            rows[1] = ("data", ", ".join(data))
        hardware = Counter(
            f"{a.get('hardware', '?')} ({a.get('device', '?')}, {a.get('threads', '?')} thread, {a.get('system', '?')})" for a in attempts
        )
        days = sorted(a[when][:10] for a in attempts for when in ("began", "ended") if a.get(when))
        rows += [
            ("runs", f"{len(keys)}" + (f", of which {len(found)} were found for this report" if len(found) < len(keys) else "")),
            ("hardware", "; ".join(hardware)),
            ("computed", days[0] if days and days[0] == days[-1] else f"{days[0]} to {days[-1]}" if days else ""),
            ("computing", _hours(keys, stores)),
        ]
    return [(what, text) for what, text in rows if text]


def _hours(keys: Iterable[str], stores: Sequence[Path]) -> str:
    """How long the runs trained and tested, one after the other, by their histories."""
    seconds = 0.0
    for key in keys:
        path = next((path for store in stores if (path := store / key / "history.csv").exists()), None)
        if path is not None:
            seconds += float(read_history(path)[["train_seconds", "eval_seconds"]].sum().sum())
    amount = f"{seconds / 3600:.1f} hours" if seconds > 3600 else f"{seconds / 60:.0f} minutes"
    return f"{amount} of training and testing, all runs one after the other" if seconds else ""


def _rule(rule: dict) -> str:
    from fedinit.results.metrics import rule_text

    try:
        return rule_text("smoothed_max", **rule)
    except TypeError:
        return ", ".join(f"{name} {value}" for name, value in rule.items())


def _record(key: str, stores: Sequence[Path]) -> tuple[dict, dict] | None:
    """(canonical experiment, provenance) of a stored run."""
    for store in stores:
        experiment, provenance = (read_json(store / key / f"{name}.json") for name in ("experiment", "provenance"))
        if experiment or provenance:
            return experiment, provenance
    return None


def _distinct(values: Iterable) -> list[str]:
    return list(dict.fromkeys(str(value) for value in values if value))
