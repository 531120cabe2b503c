"""What methods and setups are called in tables and figures: one name per method, wherever it appears."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

#: Method string → name in print, in the order in which the paper lists them, extensions after.
METHODS = {
    "fedavg": "FedAvg",
    "fedadam": "FedAdam",
    "fedsam": "FedSAM",
    "scaffold": "SCAFFOLD",
    "feddyn": "FedDyn",
    "fedcm": "FedCM",
    "fedinit": "FedInit",
    "fedprox": "FedProx",
    "fedavgm": "FedAvgM",
    "lagged": "RI's server term",
    "mofedsam": "MoFedSAM",
    "fedgamma": "FedGamma",
    "fedspeed": "FedSpeed",
}
_WRAPPERS = {"sam": "SAM", "ri": "RI"}
#: Compositions that the literature gives a name of their own.
ALIASES = {"fedavg+sam": "fedsam", "fedcm+sam": "mofedsam", "scaffold+sam": "fedgamma", "feddyn+sam": "fedspeed"}


def split_label(label: str) -> tuple[str, bool]:
    """(base method, whether relaxed initialization is on): "scaffold+ri" → ("scaffold", True), "fedinit" → ("fedavg", True). Names that
    the package knows are put in lower case, a user's own are left as they are."""
    parts = [part.lower() if part.lower() in {**METHODS, **_WRAPPERS} else part for part in label.strip().split("+")]
    relaxed = "ri" in parts or "fedinit" in parts
    base = "+".join("fedavg" if part == "fedinit" else part for part in parts if part != "ri") or "fedavg"
    return ALIASES.get(base, base), relaxed


def canonical(label: str) -> str:
    """One spelling per method: "fedavg+ri" → "fedinit", "fedavg+sam" → "fedsam", "SCAFFOLD+RI" → "scaffold+ri"."""
    base, relaxed = split_label(label)
    return base if not relaxed else "fedinit" if base == "fedavg" else f"{base}+ri"


def display_name(label: str) -> str:
    """The name in print: "scaffold+ri" → "SCAFFOLD + RI", "fedavg+ri" → "FedInit". A user's own method keeps its spelling."""
    name = canonical(label)
    if name in METHODS:
        return METHODS[name]
    base, relaxed = split_label(label)
    return " + ".join([*({**METHODS, **_WRAPPERS}.get(part, part) for part in base.split("+")), *["RI"] * relaxed])


def data_name(data: str) -> str:
    """A data set's name in print: "cifar10" → "CIFAR-10"; of a path only its last part."""
    if data in ("cifar10", "cifar100"):
        return data.upper().replace("CIFAR", "CIFAR-")
    return f"images {Path(data).name}" if data.endswith(".npz") or "/" in data.split(":")[0] else data


def with_beta(frame: pd.DataFrame) -> pd.DataFrame:
    """A tidy frame or summary with the column `base`, and `beta` = 0 where there is no RI: a method is its own β = 0 (claim M1).

    Where a base method was run both without RI and with β = 0, the one without RI stands for both.
    """
    parts = [split_label(label) for label in frame.label]
    relaxed = np.array([ri for _, ri in parts], bool)
    frame = frame.assign(base=[base for base, _ in parts], beta=np.where(relaxed, frame.beta, 0.0))
    plain = set(frame.loc[~relaxed, ["base", "seed"]].itertuples(index=False, name=None))
    doubled = [
        ri and beta == 0 and pair in plain
        for ri, beta, pair in zip(relaxed, frame.beta, zip(frame.base, frame.seed, strict=False), strict=False)
    ]
    return frame[~np.array(doubled, bool)]


def variants(summary: pd.DataFrame) -> pd.Series:
    """What tells the runs of one label apart in `artefacts.momentum`: "FedAvgM 0.5", "FedInit, start" (the server's reading of RI)."""

    def name(run) -> str:
        label = canonical(run["label"])
        if label == "fedavgm":
            return f"{display_name(label)} {run['momentum']:g}"
        return f"{display_name(label)}, {run['aggregate']}" if label == "fedinit" else display_name(label)

    return pd.Series([name(run) for _, run in summary.iterrows()], summary.index, dtype=str)


def rank(label: str) -> tuple:
    """Sort key: the paper's order of base methods, each directly followed by its +RI twin; FedInit after the six; others last."""
    base, relaxed = split_label(label)
    name = canonical(label)
    order = list(METHODS)
    return order.index(name if name in METHODS else base) if base in METHODS else len(order), relaxed, name


def setup_name(clients: int, cohort_size: int) -> str:
    """The paper's name of a participation setup: (100, 10) → "10%-100"."""
    return f"{100 * cohort_size / clients:.3g}%-{int(clients)}"


def with_setup(summary: pd.DataFrame) -> pd.DataFrame:
    """`summary` with two text columns more: `setup` ("10%-100") and `split` ("Dir-0.1", or the partition's name when it
    has no D_r)."""
    kinds = summary["partition"] if "partition" in summary else ["dirichlet"] * len(summary)
    return summary.assign(
        setup=[setup_name(c, n) for c, n in zip(summary.clients, summary.cohort_size, strict=True)],
        split=[f"Dir-{d:g}" if str(kind).startswith("dirichlet") else str(kind) for d, kind in zip(summary.dirichlet, kinds, strict=True)],
    )
