"""How every figure looks: sizes of a paper's columns, one colour and marker per method, files with reproducible bytes."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from fedinit.results.names import canonical, split_label

COLUMN, PAGE = 3.3, 6.9  # inches: one column and the full width of a two-column paper

_RC = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "font.family": "DejaVu Sans",
    "mathtext.fontset": "dejavusans",
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "0.3",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.color": "0.3",
    "ytick.color": "0.3",
    "xtick.labelcolor": "0.1",
    "ytick.labelcolor": "0.1",
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "figure.dpi": 150,
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "svg.hashsalt": "fedinit",
    "savefig.dpi": 300,
}

# Okabe and Ito's palette (told apart with every common colour blindness), its yellow left out for want of contrast on white,
# then six of Paul Tol's muted colours for the extensions.
_LOOK = {  # base or named method: colour, marker
    "fedavg": ("#4D4D4D", "o"),
    "fedadam": ("#E69F00", "v"),
    "fedsam": ("#56B4E9", "^"),
    "scaffold": ("#0072B2", "s"),
    "feddyn": ("#009E73", "D"),
    "fedcm": ("#CC79A7", "P"),
    "fedinit": ("#D55E00", "*"),
    "fedprox": ("#999933", "X"),
    "mofedsam": ("#882255", "<"),
    "fedgamma": ("#332288", ">"),
    "fedspeed": ("#117733", "h"),
    "fedavgm": ("#44AA99", "p"),
    "lagged": ("#AA4499", "d"),
}


@contextlib.contextmanager
def use_style() -> Iterator[None]:
    """The package's look: `with use_style(): …`.

    Whether pyplot is interactive survives the context: a notebook's backend, loaded with the first figure, switches it on.
    """
    interactive = mpl.is_interactive()
    try:
        with mpl.rc_context(_RC):
            try:
                yield
            finally:
                interactive = mpl.is_interactive()
    finally:
        mpl.interactive(interactive)


def look(label: str) -> dict:
    """Colour, marker and line style of a method, the same in every figure: +RI is the base method's colour, dashed; FedInit, the
    paper's own method, has a colour to itself. A user's method gets a colour that depends on its name alone."""
    name = canonical(label)
    base, relaxed = (name, False) if name in _LOOK else split_label(name)
    color, marker = _LOOK.get(base) or (("#6A3D9A", "#B15928", "#000000", "#5F7A00")[zlib.crc32(base.encode()) % 4], "d")
    return {"color": color, "marker": marker, "linestyle": (0, (4, 1.5)) if relaxed else "-"}


def beta_color(beta: float) -> str:
    """One colour per β: greys at 0 (the method without RI), blues below, oranges to reds above, darker with size."""
    if beta == 0:
        return _LOOK["fedavg"][0]
    depth = 0.35 + 0.6 * min(abs(beta) / 0.2, 1)
    return mpl.colors.to_hex(mpl.colormaps["Oranges" if beta > 0 else "Blues"](depth))


def save(fig: Figure, path_stem, caption: str, meta: dict | None = None) -> list[Path]:
    """Write path_stem.png (300 dpi), .svg, .pdf and the sidecar .json; returns the four paths.

    Bytes depend on the figure alone: no date, no program version, a fixed salt for svg ids. The sidecar holds the caption and
    `meta` (run keys, preset, data, commit, versions), JSON-ready, sorted.
    """
    stem = Path(path_stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    nothing = {
        "png": {"Software": None},
        "svg": {"Date": None, "Creator": None},
        "pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
    }
    paths = []
    with use_style():
        for kind, metadata in nothing.items():
            paths.append(stem.with_name(f"{stem.name}.{kind}"))
            fig.savefig(paths[-1], metadata=metadata)
    paths.append(stem.with_name(f"{stem.name}.json"))
    paths[-1].write_text(
        json.dumps({"caption": caption, **(meta or {})}, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    return paths
