"""Paper-style tables: mean ± std over seeds, the best of each column bold, diverged runs named, what was not run as a dash."""

from __future__ import annotations

import html
import math
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedinit.errors import InputError, unknown
from fedinit.results.metrics import acceleration, mean_std, paired
from fedinit.results.names import canonical, display_name, rank, split_label, with_beta, with_setup
from fedinit.results.published import EM_DASH, readme_figures

_SYMBOLS = {"beta": "β", "local_epochs": "K"}
SETUP_COLUMNS = ("setup", "split")
NOT_RUN = "not run"


@dataclass(frozen=True)
class Table:
    """A table three times over: `text` (cells as printed), `best` (same shape, bool: bold), `numbers` (long, one row a cell:
    the row, the column keys, mean, std, n, diverged; in the unit of the cells). A notebook shows it as HTML by itself."""

    text: pd.DataFrame
    best: pd.DataFrame
    numbers: pd.DataFrame
    caption: str = ""

    def __repr__(self) -> str:
        return self.text.to_string()

    def _repr_html_(self) -> str:
        return own_ids(to_html(self))


def accuracy_table(
    summary: pd.DataFrame, rows: str = "label", columns: Sequence[str] = SETUP_COLUMNS, caption: str = "", planned: Iterable = ()
) -> Table:
    """Test accuracy in %, "xx.x ± y.y" (mean and sample std over seeds; a single seed without ±), highest mean bold: Tables 4, 5."""
    return value_table(summary, "accuracy", rows, columns, scale=100, digits=1, best="high", caption=caption, planned=planned)


def value_table(
    summary: pd.DataFrame,
    value: str,
    rows: str = "label",
    columns: Sequence[str] = SETUP_COLUMNS,
    *,
    scale: float = 1,
    digits: int = 2,
    best: str = "low",
    caption: str = "",
    planned: Iterable = (),
) -> Table:
    """Any column of a summary as a table: seconds_per_round (Table 7), rounds_to_target or acceleration (Table 8).

    A cell is the mean ± std over its runs of `value` × `scale`; "diverged (r)" when all its runs diverged, r the rounds in
    which they did; "… (1 of 3 diverged)" when some did; "not reached" when none has a value; "not run" when none was run of those `planned`
    (the experiments that the table is to show); an em dash when none was planned.
    Bold is the `best` ("high" or "low") mean of a column among cells without a diverged run and with a value in every run.
    Raises InputError for an unknown column.
    """
    if best not in ("high", "low"):
        raise unknown("best", best, ("high", "low"))
    summary, columns = _with_setup(summary, columns), list(columns)
    numbers = _with_planned(_numbers(summary, value, rows, columns, scale, digits), summary, planned, rows, columns)
    return _assemble(numbers, rows, columns, best, caption)


def _with_planned(numbers: pd.DataFrame, summary: pd.DataFrame, planned: Iterable, rows: str, columns: Sequence[str]) -> pd.DataFrame:
    """`numbers` with a "not run" for every cell that is planned and has no run; of the summary's models only."""
    frame = planned if isinstance(planned, pd.DataFrame) else pd.DataFrame([experiment.columns() for experiment in planned])
    if frame.empty:
        return numbers
    frame, parts = with_setup(frame), [split_label(label) for label in frame.label]
    frame = frame.assign(label=frame.label.map(canonical), base=[b for b, _ in parts], variant=["+RI" if ri else "-" for _, ri in parts])
    frame = frame.assign(**{name: numbers[name].iloc[0] for name in columns if name not in frame})  # a heading, one for all cells
    keys = [rows, *columns]
    cells = frame[frame.model.isin(summary.model)][keys].drop_duplicates().merge(numbers[keys], how="left", indicator="there")
    missing = cells[cells.there == "left_only"].drop(columns="there")
    missing = missing.assign(mean=np.nan, std=np.nan, n=0, runs=0, diverged=0, text=NOT_RUN)
    return pd.concat([numbers, missing], ignore_index=True) if len(missing) else numbers


def _numbers(summary: pd.DataFrame, value: str, rows: str, columns: list[str], scale: float, digits: int) -> pd.DataFrame:
    """One row a cell: its keys, mean, std, n, runs, diverged and its text."""
    for name in (value, rows, *columns):
        if name not in summary:
            raise unknown("column", name, summary.columns)
    if summary.empty:
        raise InputError("the summary has no rows; run the experiments first.")
    row_of = summary[rows].map(canonical) if rows == "label" else summary[rows]
    numbers = []
    for keys, cell in summary.groupby([row_of, *columns], sort=False):
        mean, std, n = mean_std(cell[value] * scale)
        numbers.append(
            dict(zip([rows, *columns], keys, strict=True))
            | {
                "mean": mean,
                "std": std,
                "n": n,
                "runs": len(cell),
                "diverged": int(cell.diverged.sum()),
                "text": _cell(cell, mean, std, n, digits),
            }
        )
    return pd.DataFrame(numbers)


def plugin_table(summary: pd.DataFrame, columns: Sequence[str] = SETUP_COLUMNS, caption: str = "", planned: Iterable = ()) -> Table:
    """Table 6: each base method without ("-") and with RI ("+RI"), in %, and Δ, the mean ± std of the differences seed by seed
    in points. Bold is the better of "-" and "+RI". `planned` as in `value_table`."""
    summary, columns = _with_setup(summary, columns), list(columns)
    parts = [split_label(label) for label in summary.label]
    summary = summary.assign(base=[base for base, _ in parts], variant=["+RI" if ri else "-" for _, ri in parts])
    keys = [*columns, "variant"]
    plain = _with_planned(_numbers(summary, "accuracy", "base", keys, 100, 1), summary, planned, "base", keys)
    gains = []
    for group, cell in summary.groupby(["base", *columns], sort=False):
        pair = paired(cell[cell.variant == "+RI"], cell[cell.variant == "-"])
        text = f"{round(100 * pair.mean, 1) + 0.0:+.1f}" + (f" ± {100 * pair.std:.1f}" if pair.n > 1 else "") if pair.n else EM_DASH
        gains.append(
            dict(zip(["base", *columns], group, strict=True))
            | {
                "variant": "Δ",
                "mean": 100 * pair.mean,
                "std": 100 * pair.std,
                "n": pair.n,
                "runs": pair.n + pair.lost,
                "diverged": pair.lost,
                "text": text.replace("-", "−"),
            }
        )
    table = _assemble(pd.concat([plain, pd.DataFrame(gains)], ignore_index=True), "base", keys, "high", caption)
    best = table.best & False
    for column in best.columns[best.columns.get_level_values(-1) != "Δ"]:
        twin = (*column[:-1], "-" if column[-1] == "+RI" else "+RI")
        mine, other = (_means(table.numbers, "base", keys, c).reindex(best.index) for c in (column, twin))
        best[column] = mine > other
    return Table(table.text, best, table.numbers, caption)


def beside_published(summary: pd.DataFrame, caption: str = "") -> Table:
    """Table 4 beside what is published, in %: "paper" (an em dash: no copy of the table's body could be found), "README" (the released
    code's figures, `published.README_SOURCE`, not the paper's) and "here" (mean over seeds). Columns pair by participation share."""
    summary = with_setup(summary)
    summary = summary.assign(label=summary.label.map(canonical), share=[f"{s.split('-')[0]} active" for s in summary.setup])
    readme = {
        (r.label, f"{r.setup.split('-')[0]} active", d): getattr(r, c)
        for r in _readme()
        for d, c in (("Dir-0.6", "dir_06"), ("Dir-0.1", "dir_01"))
    }
    rows = []
    for (label, share, split), cell in summary.groupby(["label", "share", "split"], sort=False):
        mean, std, n = mean_std(100 * cell.accuracy)
        known = readme.get((label, share, split), np.nan)
        for source, value, text in (
            ("paper", np.nan, EM_DASH),
            ("README", known, EM_DASH if np.isnan(known) else f"{known:.1f}"),
            ("here", mean, f"{mean:.1f}" if n == len(cell) else _cell(cell, mean, std, n, 1)),
        ):
            own = source == "here"
            rows.append(
                (label, share, split, source, value, std if own else np.nan, n * own, len(cell) * own, int(cell.diverged.sum()) * own, text)
            )
    keys = ["share", "split", "source"]
    numbers = pd.DataFrame(rows, columns=["label", *keys, "mean", "std", "n", "runs", "diverged", "text"])
    table = _assemble(numbers, "label", keys, "high", caption)
    return Table(table.text, table.best & False, table.numbers, caption)


def time_table(times: pd.DataFrame, caption: str = "") -> Table:
    """Table 7: seconds a round (mean ± std over the repeats) and the ratio to FedAvg (mean, smallest to largest) here, beside the paper's
    (em dash: unknown) and the released code's README on a V100. `times`: `runs.timing.time_rounds`; bold: the least mean."""
    readme = {r.label: r.seconds_per_round for r in _readme() if r.setup == "10%-100"}
    rows = []
    for label, cell in times.groupby(times.label.map(canonical)):
        mean, std, n = mean_std(cell.seconds)
        ratio, ratio_std, _ = mean_std(cell.ratio)
        known = readme.get(label, np.nan)
        share = known / readme["fedavg"]
        dash = {True: EM_DASH}
        for source, quantity, value, spread, text in (
            ("here", "s / round", mean, std, _seconds(mean) + (f" ± {_seconds(std, mean)}" if n > 1 else "")),
            ("here", "× FedAvg", ratio, ratio_std, f"{ratio:.2f} ({cell.ratio.min():.2f} to {cell.ratio.max():.2f})"),
            ("paper", "× FedAvg", np.nan, np.nan, EM_DASH),
            ("README, V100", "s / round", known, np.nan, dash.get(bool(np.isnan(known)), f"{known:.2f}")),
            ("README, V100", "× FedAvg", share, np.nan, dash.get(bool(np.isnan(known)), f"{share:.2f}")),
        ):
            rows.append((label, source, quantity, value, spread, n if source == "here" else 0, n if source == "here" else 0, 0, text))
    numbers = pd.DataFrame(rows, columns=["label", "source", "quantity", "mean", "std", "n", "runs", "diverged", "text"])
    table = _assemble(numbers, "label", ["source", "quantity"], "low", caption)
    best = table.best & False
    best[("here", "s / round")] = table.best[("here", "s / round")]
    order = [
        ("here", "s / round"),
        ("here", "× FedAvg"),
        ("paper", "× FedAvg"),
        ("README, V100", "s / round"),
        ("README, V100", "× FedAvg"),
    ]
    return Table(table.text[order], best[order], table.numbers, caption)


def _seconds(value: float, like: float | None = None) -> str:
    """With three digits, or with as many decimals as `like` gets by that: "2.74", "0.213"."""
    return f"{value:.{max(2 - math.floor(math.log10(like or value)), 0)}f}"


def target_table(summary: pd.DataFrame, caption: str = "", planned: Iterable = ()) -> Table:
    """Table 8: rounds and training seconds to the target, and both as acceleration over FedAvg, mean ± std over seeds; bold: the best.

    `summary` needs a target (`summarise(…, target=…)`). The paper's accelerations are unknown. `planned` as in `value_table`."""
    speed = {v: acceleration(summary, v).acceleration for v in ("rounds_to_target", "seconds_to_target")}
    summary = summary.assign(more_rounds=speed["rounds_to_target"].to_numpy(), more_seconds=speed["seconds_to_target"].to_numpy())
    parts = []
    for value, quantity, unit, digits, best in (
        ("rounds_to_target", "rounds", "to target", 1, "low"),
        ("more_rounds", "rounds", "acceleration (×)", 2, "high"),
        ("seconds_to_target", "time", "to target (s)", 1, "low"),
        ("more_seconds", "time", "acceleration (×)", 2, "high"),
    ):
        parts.append(
            value_table(
                summary.assign(quantity=quantity, unit=unit), value, columns=["quantity", "unit"], digits=digits, best=best, planned=planned
            )
        )
    return Table(
        *(pd.concat([getattr(p, part) for p in parts], axis=1) for part in ("text", "best")), pd.concat([p.numbers for p in parts]), caption
    )


def divergence_table(summary: pd.DataFrame, caption: str = "", planned: Iterable = ()) -> Table:
    """Figure 2 as numbers: a row per base method and β; accuracy in %, Δ^t over all and over the active clients (means over the window).
    `planned` as in `value_table`."""
    summary, planned = _by_beta(summary), _by_beta(pd.DataFrame([experiment.columns() for experiment in planned]))
    both = pd.concat([frame[["base", "beta", "method"]] for frame in (summary, planned) if len(frame)])
    order = list(dict.fromkeys(sorted(both.itertuples(index=False, name=None), key=lambda row: (rank(row[0]), row[1]))))
    parts = []
    for value, quantity, scale, digits in (
        ("accuracy", "accuracy (%)", 100, 1),
        ("divergence_all", "Δ^t, all clients", 1, 2),
        ("divergence_active", "Δ^t, active clients", 1, 2),
    ):
        runs = summary.assign(quantity=quantity)
        parts.append(value_table(runs, value, "method", ["quantity"], scale=scale, digits=digits, best="high", planned=planned))
    text = pd.concat([p.text for p in parts], axis=1).loc[[method for _, _, method in order]]
    return Table(text, text.map(lambda _: False), pd.concat([p.numbers for p in parts], ignore_index=True), caption)


def _by_beta(runs: pd.DataFrame) -> pd.DataFrame:
    """`with_beta` with a column `method`, such as "SCAFFOLD, β = −0.1"."""
    if runs.empty:
        return runs
    runs = with_beta(runs)
    names = [f"{display_name(base)}, β = {beta:g}".replace("-", "−") for base, beta in zip(runs.base, runs.beta, strict=True)]
    return runs.assign(method=names)


def to_html(table: Table) -> str:
    """The table as an HTML fragment, best cells bold, numbers right-aligned with tabular figures."""
    style = (
        table.text.style.set_caption(html.escape(table.caption))
        .apply(lambda _: np.where(table.best, "font-weight: bold", ""), axis=None)
        .set_table_styles(
            [
                {"selector": "td", "props": "text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums"},
                {"selector": "th", "props": "text-align: left; white-space: nowrap"},
                {"selector": "caption", "props": "caption-side: top; text-align: left; padding-bottom: .5em"},
            ]
        )
    )
    return style.format(escape="html").format_index(escape="html").format_index(escape="html", axis=1).to_html(table_uuid="t")


def own_ids(fragment: str) -> str:
    """A table's HTML with an id of its own, made of its content: two tables of one page that share one also share their bold cells."""
    own = f"T_{zlib.crc32(fragment.encode()):08x}"
    return re.sub(r'(?<=#)T_t(?=[ _{,])|(?<=id=")T_t(?=[_"])', own, fragment)


def to_latex(table: Table, label: str = "") -> str:
    """The table for a paper: booktabs rules, best cells \\textbf; needs the packages booktabs and multirow."""
    text = table.text.map(_tex)
    text = text.where(~table.best, text.map(lambda cell: rf"\textbf{{{cell}}}"))
    text.index = text.index.map(lambda name: _tex(str(name)))
    text.columns = (
        pd.MultiIndex.from_tuples([tuple(map(_tex, map(str, c))) for c in text.columns])
        if isinstance(text.columns, pd.MultiIndex)
        else text.columns.map(lambda c: _tex(str(c)))
    )
    return text.style.to_latex(
        hrules=True,
        multicol_align="c",
        column_format="l" + "r" * text.shape[1],
        caption=_tex(table.caption) or None,
        label=label or None,
        position="t",
    )


def to_csv(table: Table, path=None) -> str | None:
    """The numbers behind the table, one row a cell: keys, mean, std, n, runs, diverged. Returned as text without a path."""
    return table.numbers.drop(columns="text").to_csv(path, index=False, float_format="%.6g", lineterminator="\n")


# --- cells ------------------------------------------------------------------------------------------------------------------


def _readme() -> list:
    return list(readme_figures().rename(columns={"dir_0.6": "dir_06", "dir_0.1": "dir_01"}).itertuples(index=False))


def _cell(runs: pd.DataFrame, mean: float, std: float, n: int, digits: int) -> str:
    diverged = int(runs.diverged.sum())
    if diverged == len(runs):
        first, last = int(runs.diverged_round.min()), int(runs.diverged_round.max())
        return f"diverged ({first})" if first == last else f"diverged ({first}–{last})"
    if n == 0:
        return "not reached"
    text = f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if n > 1 else "")
    short = len(runs) - diverged - n
    notes = [f"{diverged} of {len(runs)} diverged"] * (diverged > 0) + [f"{short} of {len(runs)} not reached"] * (short > 0)
    return f"{text} ({', '.join(notes)})" if notes else text


def _assemble(numbers: pd.DataFrame, rows: str, columns: list[str], best: str, caption: str) -> Table:
    text = numbers.pivot(index=rows, columns=columns, values="text") if columns else numbers.set_index(rows)[["text"]]
    order = sorted(text.index, key=rank) if rows in ("label", "base") else sorted(text.index)
    text = text.reindex(order).fillna(EM_DASH)
    text = text[sorted(text.columns, key=lambda c: tuple(map(_column_order, c if isinstance(c, tuple) else (c,))))]
    bold = pd.DataFrame(False, index=text.index, columns=text.columns)
    for column in text.columns:
        means = _means(numbers, rows, columns, column).reindex(text.index)
        bold[column] = means == (means.max() if best == "high" else means.min())
    if rows in ("label", "base"):
        text.index = bold.index = [display_name(name) for name in text.index]
        numbers = numbers.assign(**{rows: numbers[rows].map(display_name)})
    elif rows in _SYMBOLS:
        text.index = bold.index = [f"{_SYMBOLS[rows]} = {value:g}".replace("-", "−") for value in text.index]
    text.index.name = bold.index.name = None
    text.columns.names = bold.columns.names = [None] * text.columns.nlevels
    return Table(text, bold, numbers, caption)


def _means(numbers: pd.DataFrame, rows: str, columns: list[str], column) -> pd.Series:
    """The means that may compete in one column: complete, without a diverged run. Indexed by row."""
    inside = numbers[(numbers.diverged == 0) & (numbers.n == numbers.runs)]
    for name, key in zip(columns, column if isinstance(column, tuple) else (column,), strict=False):
        inside = inside[inside[name] == key]
    return inside.set_index(rows)["mean"]


def _column_order(key) -> tuple:
    """The paper's order: 10%-100 before 5%-200, Dir-0.6 before Dir-0.1, "-", "+RI", Δ; other keys as they sort."""
    text = str(key)
    fixed = {"-": 0, "+RI": 1, "Δ": 2, "paper": 0, "README": 1, "here": 2}
    if text in fixed:
        return 0, fixed[text], ""
    number = text.split("%")[0] if "%-" in text or "% active" in text else text.removeprefix("Dir-")
    try:
        return 0, -float(number) if number != text else float(text), ""
    except ValueError:
        return 1, 0, text


def _with_setup(summary: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    return with_setup(summary) if set(columns) & set(SETUP_COLUMNS) - set(summary.columns) else summary


def _tex(text: str) -> str:
    for plain, tex in (
        ("\\", r"\textbackslash "),
        ("%", r"\%"),
        ("&", r"\&"),
        ("_", r"\_"),
        ("#", r"\#"),
        ("±", r"$\pm$"),
        ("−", "$-$"),
        ("Δ", r"$\Delta$"),
        ("β", r"$\beta$"),
        (EM_DASH, "---"),
        ("–", "--"),
        ("×", r"$\times$"),
    ):
        text = text.replace(plain, tex)
    return text
