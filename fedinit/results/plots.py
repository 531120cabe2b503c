"""The figures, from tidy frames, summaries and arrays. Every function takes `ax=None` and returns the Axes it drew on.

Bands are minimum to maximum over seeds, which needs no resampling and hides nothing at three seeds; a single seed is a thin line.
"""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from fedinit.errors import InputError, unknown
from fedinit.results.metrics import by_seed, moving_average, paired, paired_difference, relative, select
from fedinit.results.names import canonical, display_name, rank, variants, with_beta, with_setup
from fedinit.results.published import EM_DASH
from fedinit.results.style import COLUMN, PAGE, beta_color, look, save, use_style

__all__ = [
    "COLUMN",
    "PAGE",
    "accuracy_curves",
    "accuracy_panels",
    "bar_seconds",
    "divergence_curves",
    "divergence_panels",
    "gains",
    "look",
    "noise_panels",
    "partition_bubbles",
    "rate_lines",
    "relative_divergence",
    "save",
    "schematic",
    "schematic_slider",
    "sensitivity",
    "sensitivity_panels",
    "stability_lines",
    "stability_map",
    "threshold_map",
    "use_style",
    "variant_gains",
]


# --- curves over rounds -------------------------------------------------------------------------------------------------------


def accuracy_curves(frame: pd.DataFrame, by: str = "label", filter_width: int = 1, ax: Axes | None = None) -> Axes:
    """Test accuracy (%) against rounds: one line per `by` ("label", or "beta" for Figure 2), the mean over its seeds.

    filter_width > 1 draws the moving average over that many evaluations and says so on the axis. A line whose runs diverged
    ends in a ✕ at the last round that all its seeds have.
    """
    with use_style():
        ax = _curves(frame, "test_accuracy", by, filter_width, 100, ax)
        ax.set_ylabel("test accuracy (%)" + (f"\nmean of {filter_width} evaluations" if filter_width > 1 else ""))
        return _finish_curves(ax)


def accuracy_panels(frame: pd.DataFrame, filter_width: int = 1, ax=None) -> Figure:
    """`accuracy_curves` by method in one panel per participation and D_r (the columns of Table 4), one row per model, one legend for all.
    `ax`: as many Axes."""
    frame = with_setup(frame)
    columns = list(
        frame[["clients", "cohort_size", "setup", "split", "dirichlet"]]
        .drop_duplicates()
        .sort_values(["clients", "dirichlet"], ascending=[True, False])[["setup", "split"]]
        .itertuples(index=False, name=None)
    )
    models = list(dict.fromkeys(frame.model))
    with use_style():
        if ax is None:
            size = (PAGE, 0.35 + 1.75 * len(models)) if len(columns) > 1 else (COLUMN, 0.5 + 2.0 * len(models))
            _, ax = plt.subplots(len(models), len(columns), figsize=size, sharex=True, sharey="row", squeeze=False)
        ax = np.reshape(ax, (len(models), len(columns)))
        for line, model in zip(ax, models, strict=True):
            for axis, (setup, split) in zip(line, columns, strict=True):
                runs = frame[(frame.model == model) & (frame.setup == setup) & (frame.split == split)]
                axis.set_title(f"{setup}, {split}" + (f", {model}" if len(models) > 1 else ""))
                if len(runs):
                    _curves(runs, "test_accuracy", "label", filter_width, 100, axis)
                axis.set_xlim(0, frame["round"].max())
                axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
                axis.label_outer()
            line[0].set_ylabel("test accuracy (%)" + (f"\nmean of {filter_width} evaluations" if filter_width > 1 else ""))
        return _legend(ax)


def divergence_panels(frame: pd.DataFrame, filter_width: int = 1, ax=None) -> Figure:
    """Figure 2: for each base method a row of Δ^t over all clients, over the active ones, and test accuracy, one line per β.
    `ax`: rows × 3 Axes."""
    frame = with_beta(frame)
    bases = sorted(frame.base.unique(), key=rank)
    with use_style():
        if ax is None:
            _, ax = plt.subplots(len(bases), 3, figsize=(PAGE, 0.45 + 1.65 * len(bases)), sharex=True, sharey="col", squeeze=False)
        ax = np.reshape(ax, (len(bases), 3))
        for row, (line, base) in enumerate(zip(ax, bases, strict=True), 1):
            runs = frame[frame.base == base]
            for axis, (column, width, scale, title) in zip(
                line,
                (
                    ("divergence_all", 1, 1, r"$\Delta^t$ over all clients"),
                    ("divergence_active", 1, 1, r"$\Delta^t$ over active clients"),
                    ("test_accuracy", filter_width, 100, "test accuracy (%)" + (f", mean of {filter_width}" if filter_width > 1 else "")),
                ),
                strict=True,
            ):
                _curves(runs, column, "beta", width, scale, axis)
                if column != "test_accuracy":
                    _log_y(axis)
                axis.set_xlim(0, frame["round"].max())
                axis.set_title(f"{display_name(base)}: {title}")
                axis.set_xlabel("round" if row == len(bases) else "")
        return _legend(ax)


def _legend(axes: np.ndarray) -> Figure:
    """One legend under all panels, for the lines of all of them."""
    fig = axes.flat[0].figure
    handles = {text: handle for axis in axes.flat for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    order = list(max((axis.get_legend_handles_labels()[1] for axis in axes.flat), key=len))
    order += [text for text in handles if text not in order]
    if handles:
        fig.legend(
            [handles[text] for text in order],
            order,
            loc="outside lower center",
            ncols=len(order) if len(order) < 8 else (len(order) + 1) // 2,
            columnspacing=1.2,
            handlelength=2.2,
        )
    return fig


def divergence_curves(frame: pd.DataFrame, which: str = "all", by: str = "beta", ax: Axes | None = None) -> Axes:
    """Δ^t (squared parameter distance, log scale) against rounds, over "all" clients (the paper's definition) or the "active" ones
    (what the released code logs); lines as in `accuracy_curves`."""
    if which not in ("all", "active"):
        raise unknown("which", which, ("all", "active"))
    with use_style():
        ax = _curves(frame, f"divergence_{which}", by, 1, 1, ax)
        _log_y(ax)
        ax.set_ylabel(rf"$\Delta^t$ over {which} clients")
        return _finish_curves(ax)


def _curves(frame, column, by, filter_width, scale, ax):
    if frame.empty or column not in frame:
        raise InputError(f"the frame has no {column!r} to draw; pass the tidy frame that the run store loads.")
    ax = ax or _axes(COLUMN, 2.3)
    ax._ends = []
    for name, runs in _groups(frame, by):
        style = look(name) if by == "label" else {"color": beta_color(name), "linestyle": "-", "marker": None}
        text = display_name(name) if by == "label" else rf"$\beta$ = {name:g}".replace("-", "−")
        table = runs.pivot(index="round", columns="key", values=column).dropna() * scale
        if filter_width > 1 and len(table) >= filter_width:
            smooth = np.column_stack([moving_average(table[key].to_numpy(), filter_width) for key in table])
            table = pd.DataFrame(smooth, index=table.index[filter_width - 1 :])
        table = table[np.isfinite(table).all(axis=1)]
        if table.empty:
            continue
        several = table.shape[1] > 1
        mean = table.mean(axis=1)
        # markers only tell lines apart in print without colour: a few, staggered, are enough
        every = max(1, len(mean) // 5)
        start = (every // 2 + len(ax._ends) * every // 5) % every
        ax.plot(mean.index, mean, lw=1.2 if several else 0.9, markevery=(start, every), label=text, **style)
        if several:
            ax.fill_between(mean.index, table.min(axis=1), table.max(axis=1), color=style["color"], alpha=0.13, lw=0)
        diverged = runs.diverged.any()
        if diverged:
            ax.plot(mean.index[-1], mean.iloc[-1], "X", color=style["color"], ms=5, mec="white", mew=0.5, zorder=5)
        ax._ends.append((mean.index[-1], mean.iloc[-1], text + (" ✕" if diverged else ""), style["color"]))
    ax.set_xlabel("round")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlim(0, frame["round"].max())
    return ax


def _groups(frame, by):
    if by == "label":
        return sorted(frame.groupby(frame.label.map(canonical)), key=lambda item: rank(item[0]))
    if by != "beta":
        raise unknown("by", by, ("label", "beta"))
    frame = with_beta(frame)
    if frame.base.nunique() > 1:
        raise InputError(f"by = 'beta' needs one base method, not {sorted(frame.base.unique())}; draw one panel for each.")
    return list(frame.groupby("beta"))


def _finish_curves(ax):
    """Direct labels beside the line ends, pushed apart where they would overlap; thin leaders to the ends."""
    ends, fig = ax._ends, ax.figure
    if len(ends) < 2:
        return ax
    fig.draw_without_rendering()
    to_axes = ax.transAxes.inverted()
    x, y = np.array([to_axes.transform(ax.transData.transform(end[:2])) for end in ends]).T
    gap = 9.5 * fig.dpi / 72 / ax.get_window_extent().height  # one line of 7-point text, in axes heights
    for (_, _, text, color), x0, y0, y1 in zip(ends, x, y, spread(y, gap, 0.02, 0.98), strict=False):
        leader = {
            "arrowstyle": "-",
            "color": color,
            "lw": 0.5,
            "shrinkA": 0,
            "shrinkB": 1,
            "relpos": (0, 0.5),
            "ls": "-" if x0 > 0.95 else ":",
        }
        ax.annotate(
            text,
            (x0, y0),
            (1.07, y1),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=color,
            fontsize=7,
            va="center",
            annotation_clip=False,
            arrowprops=leader,
        )
    return ax


def spread(y: np.ndarray, gap: float, low: float = -np.inf, high: float = np.inf) -> np.ndarray:
    """The positions nearest to `y` (least squares, order kept) that are at least `gap` apart and, if they fit, within [low, high];
    shape (n,) → (n,).

    Subtracting k · gap from the k-th smallest turns "at least gap apart" into "not decreasing": isotonic regression by pooling,
    whose solution may be clipped to bounds and stays optimal.
    """
    order = np.argsort(y, kind="stable")
    pools = []  # [sum, count] of neighbours that share a value
    for value in np.asarray(y, float)[order] - gap * np.arange(len(y)):
        pools.append([value, 1])
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] >= pools[-1][0] / pools[-1][1]:
            total, count = pools.pop()
            pools[-1][0] += total
            pools[-1][1] += count
    out = np.empty(len(y))
    level = np.concatenate([np.full(count, total / count) for total, count in pools])
    top = max(high - gap * (len(y) - 1), low) if np.isfinite(low) else high - gap * (len(y) - 1)
    out[order] = np.clip(level, low, top) + gap * np.arange(len(y))
    return out


# --- one number a run ---------------------------------------------------------------------------------------------------------


def sensitivity(summary: pd.DataFrame, x: str = "beta", ax: Axes | None = None) -> Axes:
    """Accuracy (%) against "beta" or "local_epochs" (log axis): Figure 1. Bars are minimum to maximum over seeds. A value at which any run
    diverged is a ✕ at the bottom, in a shaded region that reaches half way to its neighbours; shaded too is a β that keeps less than
    half of the accuracy at β = 0 (the ledger's rule for S2). The β axis is logarithmic beyond ±0.2 when it reaches further than 0.4."""
    names = {"beta": r"relaxed-initialization coefficient $\beta$", "local_epochs": "local epochs K"}
    if x not in names:
        raise unknown("x", x, names)
    if summary.empty or x not in summary:
        raise InputError(f"the summary has no {x!r} to draw; pass the summary of a sweep over it.")
    with use_style():
        ax = ax or _axes(COLUMN, 2.2)
        values = np.sort(summary[x].dropna().unique().astype(float))
        if x == "local_epochs":
            ax.set_xscale("log")
        elif np.abs(values).max() > 0.4:
            ax.set_xscale("symlog", linthresh=0.2, linscale=1)
        scale = ax.xaxis.get_transform()  # regions and margins are laid out as they look
        where, back = scale.transform, scale.inverted().transform
        steps = where(values)
        edges = (
            np.concatenate([[steps[0]], (steps[1:] + steps[:-1]) / 2, [steps[-1]]])
            if len(values) > 1
            else np.array([steps[0] - 0.5, steps[0] + 0.5])
        )
        pad = 0.05 * (edges[-1] - edges[0])
        edges[[0, -1]] += [-pad, pad]
        failed = {v for v, runs in summary.groupby(x) if runs.diverged.any()}
        means = summary.assign(accuracy=summary.accuracy.fillna(0)).groupby(x).accuracy.mean()
        poor = {v for v in values if x == "beta" and 0 in means.index and means[v] < means[0] / 2} - failed
        failed |= poor
        for i, v in enumerate(values):
            if v in failed:
                ax.axvspan(back(edges[i]), back(edges[i + 1]), color="0.93", lw=0, zorder=0)
        labels = sorted(summary.label.map(canonical).unique(), key=rank)
        for label in labels:
            runs = select(summary, label)
            fine = runs[~runs.diverged].groupby(x).accuracy.agg(["mean", "min", "max"]) * 100
            fine = fine[[v not in set(runs[runs.diverged][x]) for v in fine.index]]
            style = look(label)
            ax.errorbar(
                fine.index,
                fine["mean"],
                yerr=[fine["mean"] - fine["min"], fine["max"] - fine["mean"]],
                capsize=2,
                elinewidth=0.8,
                label=display_name(label),
                **style,
            )
            for v in sorted(poor & set(fine.index)):
                ax.plot(v, fine["mean"][v], "X", color=style["color"], ms=6, mec="white", mew=0.5, zorder=5)
            for v in sorted(runs[runs.diverged][x].unique()):
                ax.plot(v, 0.05, "X", color=style["color"], ms=6, mec="white", mew=0.5, transform=ax.get_xaxis_transform(), zorder=5)
        _ticks_at(ax, values)
        ax.set_xlim(back(edges[0]), back(edges[-1]))
        low, high = ax.get_ylim()
        ax.set_ylim(low - 0.12 * (high - low) * bool(failed), high)  # room for the crosses
        if failed:
            first = last = int(np.flatnonzero(values == max(failed))[0])
            while first and values[first - 1] in failed:
                first -= 1
            ax.text(
                back((edges[first] + edges[last + 1]) / 2),
                0.97 if poor else 0.13,
                "training\nfails" if poor else "diverged",
                fontsize=7,
                color="0.35",
                ha="center",
                va="top" if poor else "bottom",
                transform=ax.get_xaxis_transform(),
            )
        ax.set_xlabel(names[x])
        ax.set_ylabel("test accuracy (%)")
        if len(labels) > 1:
            ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=min(3, len(labels)), borderaxespad=0.2)
        return ax


def sensitivity_panels(epochs: pd.DataFrame, beta: pd.DataFrame, ax=None) -> Figure:
    """Figure 1: `sensitivity` to K (left) and to β (right); an empty summary leaves its panel out. `ax`: two Axes."""
    parts = [(x, summary) for x, summary in (("local_epochs", epochs), ("beta", beta)) if len(summary)]
    if not parts:
        raise InputError("both summaries are empty; run a sweep first.")
    with use_style():
        if ax is None:
            _, ax = plt.subplots(1, len(parts), figsize=(PAGE if len(parts) > 1 else COLUMN, 2.2), squeeze=False)
        ax = np.ravel(ax)
        for axis, (x, summary), letter in zip(ax, parts, "ab", strict=False):
            sensitivity(summary, x, axis)
            axis.set_title(f"({letter})")
        return ax[0].figure


def gains(summary: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """RI's gain, accuracy with RI minus without in points, per base method (Table 6): a dot for each pair of runs of one seed and setup,
    a bar and a number at their mean over the seeds, as in the ledger; pairs lost to divergence are counted beside it."""
    labels = set(summary.label.map(canonical))
    bases = [b for b in sorted(labels, key=rank) if canonical(f"{b}+ri") in labels and canonical(f"{b}+ri") != b]
    if not bases:
        raise InputError("no method both without and with RI in the summary; add their runs.")
    with use_style():
        ax = ax or _axes(COLUMN, 0.6 + 0.26 * len(bases))
        for i, base in enumerate(bases):
            pair = paired_difference(summary, f"{base}+ri", base)
            points = 100 * pair.differences.to_numpy()
            jitter = np.linspace(-0.22, 0.22, len(points)) if len(points) > 1 else np.zeros(len(points))
            style = look(base)
            ax.plot(points, i + jitter, "o", color=style["color"], ms=3, alpha=0.6, mew=0)
            if len(points):
                mean = 100 * by_seed(pair).mean
                ax.plot([mean] * 2, [i - 0.32, i + 0.32], color="0.1", lw=1.4)
            shown = f"{mean:+.1f}".replace("-", "−") if len(points) else EM_DASH
            lost = f", {pair.lost} lost" if pair.lost else ""
            ax.text(1.02, i, shown + lost, transform=ax.get_yaxis_transform(), va="center", fontsize=7)
        ax.axvline(0, color="0.2", lw=0.8, ls=(0, (2, 2)))
        ax.set_yticks(range(len(bases)), [display_name(base) for base in bases])
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", visible=False)
        ax.set_ylim(len(bases) - 0.5, -0.5)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}".replace("-", "−")))
        ax.set_xlabel("accuracy with RI − without (points)")
        return ax


def variant_gains(summary: pd.DataFrame, ax=None) -> Figure:
    """Accuracy minus FedAvg's (points) of every variant in `artefacts.momentum`, a panel per participation: a dot for each pair of runs
    of one seed, a bar at their mean, pairs lost to divergence counted beside it. `ax`: as many Axes."""
    summary = with_setup(summary).assign(variant=variants(summary))
    shares = sorted({(n / c, c, s) for n, c, s in zip(summary.cohort_size, summary.clients, summary.setup, strict=True)})
    order = list(summary.assign(rank=summary.label.map(rank)).sort_values(["rank", "variant"]).variant.unique())
    order.remove("FedAvg") if "FedAvg" in order else None
    with use_style():
        if ax is None:
            size = (PAGE, 0.75 + 0.2 * len(order))
            _, ax = plt.subplots(1, len(shares), figsize=size, sharey=True, sharex=True, squeeze=False)
        axes = np.ravel(ax)
        for axis, (share, clients, _) in zip(axes, shares, strict=True):
            runs = summary[summary.clients == clients]
            for i, variant in enumerate(order):
                mine = runs[runs.variant == variant]
                if mine.empty:
                    axis.text(1.03, i, EM_DASH, transform=axis.get_yaxis_transform(), va="center", fontsize=7)
                    continue
                pair = paired(mine, runs[runs.variant == "FedAvg"], ["seed", "clients"])
                points = 100 * pair.differences.to_numpy()
                color = look(mine.label.iloc[0])["color"]
                jitter = np.linspace(-0.2, 0.2, len(points)) if len(points) > 1 else np.zeros(len(points))
                axis.plot(points, i + jitter, "o", color=color, ms=3.5, alpha=0.7, mew=0)
                if len(points):
                    axis.plot([points.mean()] * 2, [i - 0.32, i + 0.32], color="0.1", lw=1.4)
                mean = f"{points.mean():+.1f}".replace("-", "−") if len(points) else EM_DASH
                lost = f" ({pair.n})" + (f", {pair.lost} lost" if pair.lost else "")
                axis.text(1.03, i, mean + lost, transform=axis.get_yaxis_transform(), va="center", fontsize=7)
            axis.axvline(0, color="0.2", lw=0.8, ls=(0, (2, 2)))
            axis.set_title(f"{share:.0%} of {clients:g} clients")
            axis.grid(axis="y", visible=False)
            axis.tick_params(axis="y", length=0)
            axis.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}".replace("-", "−")))
        axes[0].set_yticks(range(len(order)), order)
        axes[0].set_ylim(len(order) - 0.5, -0.5)
        axes[len(axes) // 2].set_xlabel("accuracy − FedAvg's (points)")
        return axes[0].figure


def threshold_map(gains: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """`questions.gains_by_ratio` as a map: FedInit's accuracy minus FedAvg's (points) by participation, down, and β / participation,
    across, β itself in small print. Where it harms the cell is orange, where it helps blue; ✕: every run diverged."""
    import seaborn as sns

    table = (100 * gains.pivot(index="share", columns="ratio", values="gain")).sort_index()
    betas = gains.pivot(index="share", columns="ratio", values="beta").reindex_like(table)
    lost = gains.assign(lost=gains.gain.isna()).pivot(index="share", columns="ratio", values="lost").reindex_like(table)
    words = pd.DataFrame("", index=table.index, columns=table.columns)
    for row in table.index:
        for column in table.columns:
            value = table.loc[row, column]
            main = f"{value:+.1f}".replace("-", "−") if np.isfinite(value) else "✕" if lost.loc[row, column] == True else ""  # noqa: E712  (NaN: not run)
            words.loc[row, column] = f"{main}\nβ {betas.loc[row, column]:g}" if main else ""
    with use_style():
        ax = ax or _axes(COLUMN, 0.75 + 0.42 * len(table))
        sns.heatmap(
            table.fillna(-100.0).where(words != ""),
            ax=ax,
            vmin=-10,
            vmax=10,
            cmap=sns.diverging_palette(25, 245, s=85, l=62, as_cmap=True),
            annot=words,
            fmt="",
            annot_kws={"fontsize": 7, "color": "0.1"},
            linewidths=0.8,
            linecolor="white",
            xticklabels=[f"{ratio:g}" for ratio in table.columns],
            yticklabels=[f"{share:.0%}" for share in table.index],
            cbar=False,  # the values are in the cells
        )
        ax.grid(False)
        ax.tick_params(length=0)
        ax.tick_params(axis="y", rotation=0)
        ax.set(xlabel="β / participation", ylabel="participation N/C")
        return ax


def relative_divergence(frame: pd.DataFrame, ax=None) -> Figure:
    """Δ^t over all clients divided by ‖w‖², and by the mean of ‖end − start‖² over the active clients, against rounds: a row per base
    method, a line per β. `ax`: rows × 2 Axes."""
    frame = relative(with_beta(frame))
    bases = sorted(frame.base.unique(), key=rank)
    with use_style():
        if ax is None:
            _, ax = plt.subplots(len(bases), 2, figsize=(PAGE, 0.45 + 1.65 * len(bases)), sharex=True, sharey="col", squeeze=False)
        ax = np.reshape(ax, (len(bases), 2))
        for row, (line, base) in enumerate(zip(ax, bases, strict=True), 1):
            titles = (("per_norm", r"$\Delta^t\,/\,\Vert w\Vert^2$"), ("per_movement", r"$\Delta^t\,/$ mean $\Vert$end − start$\Vert^2$"))
            for axis, (column, title) in zip(line, titles, strict=True):
                _curves(frame[frame.base == base], column, "beta", 1, 1, axis)
                _log_y(axis)
                axis.set_xlim(0, frame["round"].max())
                axis.set_title(f"{display_name(base)}: {title}")
                axis.set_xlabel("round" if row == len(bases) else "")
        return _legend(ax)


def bar_seconds(summary: pd.DataFrame, baseline: str = "fedavg", ax: Axes | None = None) -> Axes:
    """Training time a round as a multiple of the baseline's mean (Table 7): one bar a method, whiskers minimum to maximum over its runs.
    A frame of `runs.timing.time_rounds` (with `ratio`) compares repeat by repeat."""
    paired_times = "ratio" in summary
    base = select(summary, baseline)["seconds" if paired_times else "seconds_per_round"].mean()
    if not base > 0:
        raise InputError(f"baseline = {baseline!r} has no training seconds in the summary; add its runs.")
    labels = sorted(summary.label.map(canonical).unique(), key=rank)
    with use_style():
        ax = ax or _axes(COLUMN, 0.7 + 0.22 * len(labels))
        ratios = [(mine.ratio if paired_times else mine.seconds_per_round / base).dropna() for mine in (select(summary, x) for x in labels)]
        top = max(r.max() for r in ratios)
        for i, (label, r) in enumerate(zip(labels, ratios, strict=False)):
            style = look(label)
            ax.barh(
                i,
                r.mean(),
                height=0.66,
                color=style["color"],
                alpha=0.85,
                hatch="////" if style["linestyle"] != "-" else None,
                ec="white",
                lw=0,
            )
            if len(r) > 1:
                ax.plot([r.min(), r.max()], [i, i], color="0.1", lw=0.9, marker="|", ms=4)
            ax.text(r.max() + 0.02 * top, i, f"{r.mean():.2f}×", va="center", fontsize=7)
        ax.axvline(1, color="0.2", lw=0.8, ls=(0, (2, 2)))
        ax.set_yticks(range(len(labels)), [display_name(label) for label in labels])
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", visible=False)
        ax.invert_yaxis()
        ax.set_xlim(0, 1.16 * top)
        ax.set_xlabel(f"training time a round (× {display_name(baseline)}, {base:.3g} s)")
        return ax


# --- data ---------------------------------------------------------------------------------------------------------------------


def partition_bubbles(histograms: Mapping[str, np.ndarray], clients: int = 20, ax=None) -> Figure:
    """Label histograms of the first `clients` clients, one panel per entry: name → counts of shape (C, K). Bubble area ∝ number of samples,
    on one scale in all panels. `ax`: a sequence of one Axes per panel."""
    if not histograms:
        raise InputError("histograms is empty; give at least one name → (clients, classes) array of counts.")
    arrays = {name: np.atleast_2d(np.asarray(counts))[:clients] for name, counts in histograms.items()}
    largest = max(counts.max() for counts in arrays.values())
    with use_style():
        if ax is None:
            width = PAGE if len(arrays) > 1 else COLUMN
            _, ax = plt.subplots(1, len(arrays), figsize=(width, 2.3), sharey=True)
        axes = np.atleast_1d(ax)
        fig = axes[0].figure
        # the largest bubble is as large as a cell (geometric mean of its sides, in points, from the panel's share of the figure)
        columns, rows = (max(counts.shape[axis] for counts in arrays.values()) for axis in (0, 1))
        cell = 0.75 * 72 * np.sqrt(fig.get_figwidth() / len(arrays) / columns * fig.get_figheight() / rows)
        for axis, (name, counts) in zip(axes, arrays.items(), strict=True):
            client, label = np.nonzero(counts)
            axis.scatter(client, label, s=counts[client, label] / largest * cell**2, color="#0072B2", alpha=0.75, ec="white", lw=0.3)
            axis.set(xlim=(-0.8, counts.shape[0] - 0.2), ylim=(-0.8, counts.shape[1] - 0.2), title=name, xlabel="client")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
            axis.set_yticks(range(0, counts.shape[1], max(1, counts.shape[1] // 10)))
        axes[0].set_ylabel("class")
        axes[-1].set_title(f"largest: {int(largest)} samples", loc="right", fontsize=7, color="0.4")
        return fig


def noise_panels(before: np.ndarray, after: Mapping[str, np.ndarray] | np.ndarray, ax=None) -> Figure:
    """An image grid: a row of clean images, then the same images under each noise. before: (n, H, W, 3) uint8; after: the same shape, or
    row title → such an array. `ax`: an array of Axes of shape (rows, n)."""
    rows = {"clean": before, **(after if isinstance(after, Mapping) else {"with noise": after})}
    for name, images in rows.items():
        if np.shape(images) != np.shape(before) or np.ndim(images) != 4:
            raise InputError(
                f"{name!r} has shape {np.shape(images)}; every row needs the shape (n, H, W, 3) of the clean images, {np.shape(before)}."
            )
    with use_style():
        if ax is None:
            n = len(before)
            title = 1.1  # inches for the row titles
            side = (PAGE - title) / n
            fig = plt.figure(figsize=(PAGE, side * len(rows) + 0.04))
            grid = fig.add_gridspec(len(rows), n, left=title / PAGE, right=1, top=1, bottom=0, wspace=0.06, hspace=0.06)
            fig.set_layout_engine("none")
            ax = np.array([[fig.add_subplot(grid[r, c]) for c in range(n)] for r in range(len(rows))])
        for line, (name, images) in zip(np.atleast_2d(ax), rows.items(), strict=True):
            for axis, image in zip(line, images, strict=True):
                axis.imshow(np.clip(image, 0, 255).astype(np.uint8), interpolation="nearest")
                axis.set(xticks=[], yticks=[])
                axis.grid(False)
                axis.spines[:].set_visible(False)
            line[0].text(-0.12, 0.5, name, transform=line[0].transAxes, ha="right", va="center", fontsize=8)
        return np.atleast_2d(ax)[0, 0].figure


# --- mathematics --------------------------------------------------------------------------------------------------------------


def descend(start, optimum, curvature, eta: float, steps: int) -> np.ndarray:
    """Gradient descent on ½ (y − optimum)ᵀ H (y − optimum): the path, shape (steps + 1, 2), the start included."""
    path = [np.asarray(start, float)]
    for _ in range(steps):
        path.append(path[-1] - eta * curvature @ (path[-1] - optimum))
    return np.array(path)


#: Two clients in two dimensions: (optimum, curvature matrix). Chosen so that the picture is readable; the paths are computed.
_CLIENTS = tuple(
    (np.array(optimum), np.array(curvature))
    for optimum, curvature in (((-2.1, 0.75), ((0.9, 0.3), (0.3, 0.5))), ((2.1, 0.65), ((0.9, -0.3), (-0.3, 0.5))))
)


def schematic(beta: float = 0.5, ax=None) -> Figure:
    """RI in two dimensions: two clients with elliptical objectives, one round from w^t without RI (left) and with it (right).

    Everything drawn is computed: last_i (open squares) ends client i's round t − 1 from one common w^{t−1}; w^t (black) is their mean;
    round t runs gradient descent from w^t, or from the relaxed start w^t + β (w^t − last_i) (open circles), to the new local models (filled
    squares), whose mean is w^{t+1} (diamond). The dotted line joins the new local models; its length is in the title. `ax`: two Axes.
    """
    eta, steps, box = 0.12, 11, ((-3.2, 3.2), (-1.95, 1.6))
    colors, words = ("#0072B2", "#009E73"), {"fontsize": 7, "color": "0.1", "ha": "center"}
    with use_style():
        if ax is None:
            _, ax = plt.subplots(1, 2, figsize=(PAGE, 2.2), sharex=True, sharey=True)
        left, right = ax
        last = [descend((0.0, -2.3), *client, eta, steps)[-1] for client in _CLIENTS]
        w = np.mean(last, axis=0)
        x, y = np.meshgrid(np.linspace(*box[0], 200), np.linspace(*box[1], 120))
        for axis, b in ((left, 0.0), (right, beta)):
            ends = []
            for (optimum, curvature), mine, color, side, i in zip(_CLIENTS, last, colors, (-1, 1), (1, 2), strict=False):
                delta = np.stack([x - optimum[0], y - optimum[1]], -1)
                loss = np.einsum("...i,ij,...j->...", delta, curvature, delta) / 2
                axis.contour(x, y, loss, levels=[0.05, 0.2, 0.5, 1.0, 1.8], colors=color, alpha=0.25, linewidths=0.6)
                axis.plot(*optimum, "+", color=color, ms=6, mew=1.2)
                axis.annotate(f"optimum of client {i}", optimum, (0, 5), textcoords="offset points", **{**words, "color": color})
                start = w + b * (w - mine)
                path = descend(start, optimum, curvature, eta, steps)
                ends.append(path[-1])
                axis.plot(*mine, "s", mfc="white", mec=color, ms=4.5, zorder=4)
                axis.annotate(
                    rf"$last_{i}$",
                    mine,
                    (7 * side, -3),
                    textcoords="offset points",
                    **{**words, "color": color, "ha": "right" if side < 0 else "left"},
                )
                if b:
                    axis.plot(*np.array([mine, start]).T, color="#D55E00", lw=0.9, ls=(0, (3, 1.5)), zorder=2)
                    axis.plot(*start, "o", mfc="white", mec="#D55E00", ms=4.5, zorder=4)
                axis.plot(*path.T, "-", color=color, lw=1.2, marker=".", ms=3)
                axis.plot(*path[-1], "s", color=color, ms=4.5, zorder=4)
            new, apart = np.mean(ends, axis=0), np.linalg.norm(ends[0] - ends[1])
            axis.plot(*np.array(ends).T, ":", color="0.3", lw=0.9)
            axis.plot(*w, "o", color="0.1", ms=5, zorder=5)
            axis.plot(*new, "D", color="0.1", ms=4.5, zorder=5)
            axis.annotate("$w^t$", w, (0, -13), textcoords="offset points", **words)
            axis.annotate("$w^{t+1}$", new, (0, 6), textcoords="offset points", **words)
            if b:
                axis.annotate(
                    r"starts $w^t + \beta\,(w^t - last_i)$", w, (0, -24), textcoords="offset points", **{**words, "color": "#D55E00"}
                )
            axis.set_title(f"without RI: new local models {apart:.2f} apart" if not b else rf"with RI, $\beta$ = {b:g}: {apart:.2f} apart")
            axis.set(aspect="equal", xlim=box[0], ylim=box[1], xticks=[], yticks=[])
            axis.grid(False)
            axis.spines[:].set_visible(False)
        return left.figure


def schematic_slider(beta: float = 0.5):
    """`schematic` under a slider for β, an ipywidget; None where nobody can move it (papermill, nbclient, no notebook)."""
    from IPython import get_ipython

    # a front end with a person before it lets a cell ask for input; a batch runner does not
    if not getattr(getattr(get_ipython(), "kernel", None), "_allow_stdin", False):
        return None
    from ipywidgets import FloatSlider, interactive

    def draw(beta):
        schematic(beta)
        plt.show()

    return interactive(draw, beta=FloatSlider(value=beta, min=-0.5, max=1.5, step=0.05, description="β", continuous_update=False))


def stability_lines(betas=(0.05, 0.1, 0.2, 0.5), c_lipschitz: float = 0.1, steps=None, ax: Axes | None = None) -> Axes:
    """Theorem 12's factor (1/(1+2β))^{1/(1+cKL)} against the local steps K, one line per β; c_lipschitz is the product cL (no unit)."""
    from fedinit.theory.rates import stability_factor

    steps = np.unique(np.geomspace(1, 1000, 60).round()) if steps is None else np.asarray(steps, float)
    with use_style():
        ax = ax or _axes(COLUMN, 2.2)
        for beta, depth in zip(betas, np.linspace(0.55, 0.95, len(betas)), strict=False):
            factor = stability_factor(beta, 1.0, steps, c_lipschitz)
            color = plt.get_cmap("Oranges")(depth)
            ax.plot(steps, factor, color=color)
            ax.annotate(
                rf"$\beta$ = {beta:g}", (steps[0], factor[0]), (3, -3), textcoords="offset points", va="top", fontsize=7, color=color
            )
        ax.axhline(1, color="0.3", lw=0.8, ls=(0, (2, 2)))
        ax.set_ylim(bottom=ax.get_ylim()[0] - 0.03)  # room for the lowest label
        ax.text(0.98, 0.04, f"cL = {c_lipschitz:g}", transform=ax.transAxes, ha="right", fontsize=7, color="0.35")
        ax.set(xscale="log", xlim=(steps[0], steps[-1]), xlabel="local steps K", ylabel="bound with RI / without")
        return ax


def stability_map(betas=(0.05, 0.1, 0.2, 0.5, 1.0), steps=(1, 5, 10, 50, 100), c_lipschitz: float = 0.1, ax: Axes | None = None) -> Axes:
    """Theorem 12's factor (1/(1+2β))^{1/(1+cKL)} as a heat map, β down, local steps K across, the value in each cell."""
    import seaborn as sns

    from fedinit.theory.rates import stability_factor

    table = stability_factor(np.array(betas)[:, None], 1.0, np.array(steps)[None, :], c_lipschitz)
    with use_style():
        ax = ax or _axes(COLUMN, 2.2)
        sns.heatmap(
            table,
            ax=ax,
            vmin=0,
            vmax=1,
            cmap=sns.light_palette("#D55E00", as_cmap=True, reverse=True),
            annot=True,
            fmt=".2f",
            annot_kws={"fontsize": 7, "color": "0.1"},
            linewidths=0.8,
            linecolor="white",
            xticklabels=[f"{k:g}" for k in steps],
            yticklabels=[f"{b:g}" for b in betas],
            cbar=False,  # the values are in the cells
        )
        ax.tick_params(length=0)
        ax.tick_params(axis="y", rotation=0)
        ax.set(xlabel="local steps K", ylabel=r"$\beta$", title=f"bound with RI / without, cL = {c_lipschitz:g}")
        return ax


def rate_lines(curves: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Measured quantities against T on log-log axes, each with its theorem's order as a dashed line through its first point.

    curves: columns quantity, T, value, and order (the theorem's, at each T) or bound (its exponent of T), one row a point.
    """
    colors = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
    with use_style():
        ax = ax or _axes(COLUMN, 2.4)
        ax._ends = []
        for (quantity, points), color in zip(curves.groupby("quantity", sort=False), colors * 3, strict=False):
            ax.plot(points["T"], points["value"], color=color, marker="o", label=quantity)
            first = points.iloc[0]
            order = points["order"] if "order" in points else points["T"].astype(float) ** first["bound"]
            ax.plot(points["T"], first["value"] * order / order.iloc[0], color=color, lw=0.8, ls=(0, (3, 2)))
            ax._ends.append((points["T"].iloc[-1], points["value"].iloc[-1], quantity, color))
        ax.set(xscale="log", yscale="log", xlabel="rounds T", ylabel="measured (dashed: theorem's order)")
        _ticks_at(ax, np.unique(curves["T"]))
        return _finish_curves(ax)


def _ticks_at(ax: Axes, values) -> None:
    """Ticks of the x axis exactly at `values`, written in full."""
    ax.xaxis.set_major_locator(FixedLocator(values))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}".replace("-", "−")))


def _log_y(ax: Axes) -> None:
    """A log y axis with 1, 2, 5 of each decade written in full while that is readable."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    decades = np.log10(high / low)
    ax.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if decades < 2.5 else (1,), numticks=12))
    ax.yaxis.set_minor_formatter(NullFormatter())
    if decades < 5:
        ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


def _axes(width: float, height: float) -> Axes:
    return plt.subplots(figsize=(width, height))[1]
