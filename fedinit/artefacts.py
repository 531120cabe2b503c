"""Which runs each table and figure needs, and where its notebook puts what it made.

A notebook opens its `Artefact`, sweeps, shows, and saves through it; `fedinit plan` asks the same functions what would run. One
store feeds all, so two artefacts never contradict each other.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from fedinit import kept
from fedinit.data import identity, load_images
from fedinit.data.cifar import DATASETS
from fedinit.data.known import CONTENT, classes, content
from fedinit.errors import InputError, unknown
from fedinit.experiment import PRESETS, SETUPS, Experiment, preset
from fedinit.results.metrics import HISTORY, rule_text
from fedinit.results.names import canonical, data_name, display_name
from fedinit.runs.provenance import commit, versions
from fedinit.runs.store import Run, Store, read_history, read_json, write_atomic
from fedinit.runs.sweep import sweep

METHODS = ("fedavg", "fedadam", "fedsam", "scaffold", "feddyn", "fedcm", "fedinit")  # the columns of Tables 4 and 5
SPLITS = (0.6, 0.1)  # D_r
SEEDS = {"quick": (0, 1), "small": (0,), "paper": (0, 1, 2)}
MORE_SEEDS = {  # of methods whose comparison decides claims, where three seeds of everything take too long
    "small": dict.fromkeys((*METHODS, "scaffold+ri", "fedavgm", "lagged"), (0, 1, 2)),
}
MODELS = {"quick": ("cnn",), "small": ("resnet18-gn",), "paper": ("resnet18-gn", "vgg11")}
DATA100 = {"quick": "synthetic100:3000/500", "small": "cifar100", "paper": "cifar100"}
ROUNDS100 = {"quick": {}, "small": {}, "paper": {"rounds": 800}}
# the paper tests every round; here only the rule's rounds are dense
EVALUATE = {
    "quick": {},
    "small": {"evaluate_every": 5, "evaluate_last": 50},
    "paper": {"evaluate_every": 5, "evaluate_last": 50},
}
RULE = {"quick": {"window": 5, "filter_width": 3}, "small": {"window": 50, "filter_width": 5}, "paper": {"window": 50, "filter_width": 5}}
REPEATS = {"quick": 8, "small": 12, "paper": 3}  # rounds that are timed for Table 7, beside one to warm up
BETAS = {  # the last one or two fail: in few rounds, only far beyond C/N · β = 1
    "quick": (-0.1, 0.0, 0.05, 0.1, 0.2, 0.5, 1.5),
    "small": (-0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.3),
    "paper": (-0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.3),
}
EPOCHS = {"quick": (1, 2, 4, 8), "small": (1, 2, 5, 10, 20), "paper": (1, 2, 5, 10, 20)}
MOMENTA = (0.3, 0.5, 0.7)  # of FedAvgM, beside RI
SHARES = {"quick": (0.05, 0.1, 0.2), "small": (0.05, 0.1, 0.2, 0.5), "paper": (0.05, 0.1, 0.2, 0.5)}  # participations of the stability map,
RATIOS = {"quick": (0.5, 1.0, 2.0, 4.0), "small": (0.5, 1.0, 1.5, 2.0, 3.0), "paper": (0.5, 1.0, 1.5, 2.0, 3.0)}  # and its β / (N/C)
SAMPLES = {"quick": 100, "small": 150, "paper": 500}  # images a client at other participations, as at 10%-100
NOISES = {"client_noise": 0.3, "category_noise": 0.1}  # where the noises are on; the paper gives no strength


# The functions below name the runs of a preset on `data` (None: the preset's images). `seeds`: these, of every run; None: the preset's own,
# which are more of some methods than of others.


def seeds_of(name: str, method: str, seeds: Sequence[int] | None = None) -> Sequence[int]:
    """The seeds of a method in a preset."""
    return MORE_SEEDS.get(name, {}).get(canonical(method), SEEDS[name]) if seeds is None else seeds


def table4(name: str, seeds: Sequence[int] | None, data: str | None = None, methods: Sequence[str] = METHODS) -> list[Experiment]:
    """Every method in both participations and both splits, for each model of the preset."""
    return [
        preset(name, method, setup, dirichlet=split, seed=seed, model=model, **_data(data))
        for model in MODELS[name]
        for method in methods
        for setup in SETUPS
        for split in SPLITS
        for seed in seeds_of(name, method, seeds)
    ]


def table5(name: str, seeds: Sequence[int] | None, data: str | None = None) -> list[Experiment]:
    """Table 4's runs on 100 classes, longer in the paper's preset; none on images of other classes."""
    data = data or DATA100[name]
    return [e.replace(**ROUNDS100[name]) for e in table4(name, seeds, data)] if classes(data) in (100, None) else []


def table6(name: str, seeds: Sequence[int] | None, data: str | None = None) -> list[Experiment]:
    """Each base method of Table 4 with and without RI, on the preset's first model."""
    bases = [method for method in METHODS if method != "fedinit"]
    both = table4(name, seeds, data, [*bases, *(f"{base}+ri" for base in bases)])
    return [e for e in both if e.model == MODELS[name][0]]


def table6_neutral(name: str, seeds: Sequence[int] | None, data: str | None = None) -> list[Experiment]:
    """RI at β = 0 over FedAvg and SCAFFOLD, which must be the methods themselves (claim M1)."""
    return [_one(name, f"{base}+ri", seed, data, {"beta": 0.0}) for base in ("fedavg", "scaffold") for seed in seeds or SEEDS[name]]


def table8(name: str, seeds: Sequence[int] | None, data: str | None = None) -> list[Experiment]:
    """Table 4's column 10%-100, Dir-0.1."""
    return [_one(name, method, seed, data) for method in METHODS for seed in seeds_of(name, method, seeds)]


def table8_column(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of a tidy frame or summary in Table 8's column: the higher participation, the smallest D_r of Table 4."""
    if frame.empty:
        return frame
    return frame[(frame.cohort_size / frame.clients > 0.07) & (frame.dirichlet == min(SPLITS))]


def figure1_epochs(name: str, seeds: Sequence[int] | None, data: str | None = None, grid: Sequence[int] | None = None) -> list[Experiment]:
    """FedInit at several numbers of local epochs K."""
    return [_one(name, "fedinit", seed, data, local_epochs=k) for k in (grid or EPOCHS[name]) for seed in seeds or SEEDS[name]]


def figure1_beta(name: str, seeds: Sequence[int] | None, data: str | None = None, grid: Sequence[float] | None = None) -> list[Experiment]:
    """FedInit at several β; β = 0 is FedAvg bit for bit."""
    return [_one(name, "fedinit", seed, data, {"beta": float(beta)}) for beta in (grid or BETAS[name]) for seed in seeds or SEEDS[name]]


def figure2(name: str, seeds: Sequence[int] | None, data: str | None = None, grid: Sequence[float] = (-0.1, 0.0, 0.05, 0.1)):
    """FedAvg and SCAFFOLD with RI at a negative and positive β, and without: a method is its own β = 0 (claim M1)."""
    return [
        _one(name, f"{base}+ri" if beta else base, seed, data, {"beta": float(beta)} if beta else None)
        for base in ("fedavg", "scaffold")
        for beta in grid
        for seed in seeds_of(name, base, seeds)
    ]


def momentum(name: str, seeds: Sequence[int] | None, data: str | None = None) -> list[Experiment]:
    """Is RI momentum in disguise? FedInit under both readings of the server beside FedAvg, FedAvg with server momentum, and RI's server
    term alone, at the paper's two participations with β = N/C, and at full participation with β = 0.1 (where that term is zero)."""
    runs = [("fedavg", {}), *(("fedavgm", {"momentum": m}) for m in MOMENTA)]
    return [
        at_share(name, method, share, seed, data, hyper)
        for share in (0.1, 0.05, 1.0)
        for beta in [min(share, 0.1)]
        for method, hyper in [
            *runs,
            ("fedinit", {"beta": beta}),
            *([("fedinit", {"beta": beta, "aggregate": "start"}), ("lagged", {"beta": beta})] if share < 1 else []),
        ]
        for seed in seeds_of(name, method, seeds)
    ]


def threshold(name: str, seeds: Sequence[int] | None, data: str | None = None) -> list[Experiment]:
    """The stability map: FedInit at several β / participation and participations, and FedAvg at each participation."""
    return [
        at_share(name, method, share, seed, data, hyper)
        for share in SHARES[name]
        for seed in seeds or SEEDS[name][:1]
        for method, hyper in [("fedavg", {}), *(("fedinit", {"beta": round(ratio * share, 6)}) for ratio in RATIOS[name])]
    ]


def noise(name: str, seeds: Sequence[int] | None, data: str | None = None) -> list[Experiment]:
    """FedAvg and FedInit without the two noises and with both."""
    return [
        _one(name, method, seed, data, **noises)
        for noises in ({}, NOISES)
        for method in ("fedavg", "fedinit")
        for seed in seeds_of(name, method, seeds)
    ]


def newcomers(name: str, seeds: Sequence[int] | None, data: str | None = None) -> list[Experiment]:
    """FedInit under both readings of a client's first participation."""
    return [
        _one(name, "fedinit", seed, data, {"first": first}, setup)
        for setup in SETUPS
        for first in ("initial", "none")
        for seed in seeds_of(name, "fedinit", seeds)
    ]


def plugin(name: str, seeds: Sequence[int] | None, data: str | None = None) -> list[Experiment]:
    """Table 6's column 10%-100, Dir-0.1: each base method without RI, and with it under both readings of the server."""
    return [
        _one(name, method, seed, data, hyper)
        for base in METHODS
        if base != "fedinit"
        for method, hyper in ((base, None), *((f"{base}+ri", {"aggregate": server}) for server in ("end", "start")))
        for seed in seeds_of(name, method, seeds)
    ]


def at_share(name: str, method: str, share: float, seed: int, data: str | None = None, hyper: dict | None = None) -> Experiment:
    """A run at any participation, by another number of clients C with the same N, each with as many images: fewer clients hold fewer images
    in all. Local steps a round stay those of 10%-100.

    5 % is the paper's 5%-200, with its smaller batch. At full participation each of the N clients has the images of all its local epochs,
    and takes one epoch over them, so that the few clients do not hold a few images only.
    """
    paper = _one(name, method, seed, data, hyper, "5%-200" if share == 0.05 else "10%-100")
    if share in (0.05, 0.1):
        return paper
    many = {"samples": SAMPLES[name] * paper.local_epochs, "local_epochs": 1} if share == 1 else {"samples": SAMPLES[name]}
    return paper.replace(clients=round(paper.cohort_size / share), **many)


def _one(name, method, seed, data, hyper=None, setup="10%-100", **fields) -> Experiment:
    return preset(name, method, setup, hyper=hyper, seed=seed, model=MODELS[name][0], **_data(data), **fields)


def _data(data: str | None) -> dict:
    return {} if data is None else {"data": data}


# notebook → the functions that name its runs, in an order that shares runs
RUNS: dict[str, tuple[Callable[..., list[Experiment]], ...]] = {
    "schematic": (),
    "table2_3_theory": (),
    "data_heterogeneity": (),
    "table4_cifar10": (table4, noise),
    "table6_plugin": (table6, table6_neutral),
    "table7_8_time": (table8,),
    "figure1_sensitivity": (figure1_epochs, figure1_beta),
    "figure2_divergence": (figure2,),
    "table9_cost": (),
    "your_own_method": (),  # trains what its own cell defines, beside the computing for the next one
    "table5_cifar100": (table5,),
    "open_questions": (momentum, plugin, threshold, noise, newcomers),
    "claims": (),
}
RUNS["claims"] = tuple(dict.fromkeys(function for functions in RUNS.values() for function in functions))  # the ledger looks at all


@dataclass
class Artefact:
    """One notebook's table or figure: its parameters checked, its runs, and its files in figures/<preset>/.

    Every file gets a sidecar <file>.json with the caption, the keys of the runs behind it, preset, data, seeds, rule, commit, versions.
    With `redraw` it shows stored and committed runs alone: nothing is trained or timed, what is not there is "not run".
    Raises InputError for a parameter that is not allowed.
    """

    name: str
    preset: str = "quick"
    data: str | None = None
    device: str = "auto"
    jobs: int | None = None
    seeds: Sequence[int] | None = None
    out: str | None = None
    redraw: bool = False
    store: Store | None = None
    frames: list[pd.DataFrame] = field(default_factory=list, repr=False)

    def __post_init__(self):
        if self.name not in RUNS:
            raise unknown("artefact", self.name, RUNS)
        if self.preset not in tuple(PRESETS):
            raise unknown("preset", self.preset, PRESETS)
        if self.seeds is not None:
            self.seeds = tuple(listed("seeds", self.seeds, int))
        self.folder = Path(self.out) if self.out else figures_folder(self.preset)
        if self.data is None:
            self.data = committed_data(self.preset)
        if self.store is None:
            self.store = Store(also=(figures_folder(self.preset) / "runs",))

    @property
    def seed(self) -> int:
        """The first of the seeds, where one is enough."""
        return (self.seeds or SEEDS[self.preset])[0]

    @property
    def rule(self) -> dict:
        """window and filter_width of the reported accuracy, for `metrics.summarise`."""
        return RULE[self.preset]

    def sweep(self, experiments: list[Experiment], live=True) -> pd.DataFrame:
        """The tidy frame of the runs; what is not stored yet is run, with a display (`live`: a function frame → figure).

        Runs whose images are neither here nor to be downloaded, and under `redraw` all that are not stored, are left out, and a line says
        why; the frame may be empty. Known images are called by their name in its column `data`, from whatever file they were read.
        """
        if not experiments:
            print(f"not run: {data_name(_name(self.data))} has {classes(self.data)} classes, Table 5 shows 100.")
            return pd.DataFrame()
        possible, why = self._possible(experiments)
        if len(possible) < len(experiments):
            missing = dict.fromkeys(display_name(e.label) for e in experiments if e not in possible)
            print(f"not run: {len(experiments) - len(possible)} of {len(experiments)} runs ({', '.join(missing)}). {why}")
        if not possible:
            return pd.DataFrame()
        frame = self.compute(possible, live)
        frame["data"] = frame["data"].map({data: _name(data, self.store.load(e)) for data, e in {e.data: e for e in possible}.items()})
        self.frames.append(frame)
        return frame

    def computable(self, experiments: list[Experiment]) -> list[Experiment]:
        """Those that are not stored, and that `sweep` would run."""
        return [experiment for experiment in self._possible(experiments)[0] if self.store.load(experiment) is None]

    def compute(self, experiments: list[Experiment], live=False, threads: int = 1) -> pd.DataFrame:
        """`runs.sweep` of just these."""
        how = {"jobs": self.jobs, "device": self.device, "threads": threads, "store": self.store, "progress": live}
        return sweep(experiments, **how, **EVALUATE[self.preset])

    @property
    def ran(self) -> bool:
        """Whether there is any run to show; after a sweep that could not run, cells have nothing to do."""
        return bool(self.frames)

    def summary(self, frame: pd.DataFrame, target: float | None = None) -> pd.DataFrame:
        """One row a run, by the preset's rule (`metrics.summarise`); empty if there are no runs."""
        from fedinit.results.metrics import summarise

        return summarise(frame, target=target, **self.rule) if len(frame) else pd.DataFrame()

    def ends(self, frame: pd.DataFrame) -> pd.DataFrame:
        """As `summary`, with the mean of the last tests: a run that collapsed late keeps nothing of its best rounds."""
        from fedinit.results.metrics import summarise

        return summarise(frame, rule="last_mean", window=self.last) if len(frame) else pd.DataFrame()

    @property
    def last(self) -> int:
        """The last rounds that `ends` looks at."""
        return max(3, self.rule["window"] // 5)

    def times(self, experiments: list[Experiment], again: bool = False) -> tuple[pd.DataFrame, str]:
        """(seconds a round of each method as `runs.timing.time_rounds` gives them, when and where they were timed).

        Those kept in the folder, if the same code, versions and hardware made them; else, or with `again`, they are timed now and kept.
        Where that cannot be, whatever is kept is shown, and under `redraw` also that of the preset's own folder. Empty if nothing is.
        """
        possible, why = self._possible(experiments, stored=False)
        if possible and (again or self.must_time(experiments)):
            return kept.time_again(self.folder, possible, REPEATS[self.preset], self.device)
        found = kept.kept_times(self.folder) or (self.redraw and kept.kept_times(figures_folder(self.preset)))
        if not found:
            print(f"not timed. {why}")
            return pd.DataFrame(), ""
        return found[:2]

    def must_time(self, experiments: list[Experiment]) -> bool:
        """Whether `times` would time now: it can, and what is kept is not there or was made by something else."""
        possible, _ = self._possible(experiments, stored=False)
        found, makers = kept.kept_times(self.folder), (possible, REPEATS[self.preset], self.device)
        return bool(possible) and (found is None or not kept.same_makers(found[2], kept.made_by(*makers)))

    def theory(self, groups: int = 5) -> tuple[pd.DataFrame, pd.DataFrame, str]:
        """(curves, findings, when and where) of the theory claims on quadratics, see `kept.theory`."""
        return kept.theory(self.store, groups)

    def _possible(self, experiments: list[Experiment], stored: bool = True) -> tuple[list[Experiment], str]:
        """(the experiments that are stored or, without `redraw`, whose images are to be had; why the others cannot run)."""
        if self.redraw:
            there = [e for e in experiments if stored and self.store.load(e) is not None]
            return there, "They are not kept here, and redraw trains nothing."
        reasons: dict[str, str] = {}
        possible = []
        for experiment in experiments:
            elsewhere = experiment.data in DATASETS or experiment.data.startswith("sha256:")
            if elsewhere and not (stored and self.store.load(experiment) is not None):
                if experiment.data not in reasons:
                    try:
                        load_images(experiment.data)
                        reasons[experiment.data] = ""
                    except InputError as error:
                        reasons[experiment.data] = str(error)
                if reasons[experiment.data]:
                    continue
            possible.append(experiment)
        return possible, " ".join(filter(None, reasons.values()))

    def caption(self, text: str, rule: bool = True, of: pd.DataFrame | None = None) -> str:
        """The text with what a reader must know: rule, seeds, preset, data.

        of   the runs that are shown, if not all of the notebook's; a frame that is not of runs (times, say) has no seeds to name
        """
        of = pd.concat(self.frames) if of is None and self.frames else of
        runs, every = of is not None and "key" in of, EVALUATE[self.preset]
        parts = [f"accuracy: {rule_text('smoothed_max', **self.rule)}"] if rule and self.frames else []
        if runs and every:
            parts += [f"tested every {every['evaluate_every']} rounds, and in each of the last {every['evaluate_last']}"]
        parts += [_seeds_text(of)] if runs else []
        parts += [f"preset {self.preset}", f"data {', '.join(self._images())}"]
        facts = "; ".join(parts)
        return f"{text} {facts[0].upper()}{facts[1:]}."

    def save(self, figure, name: str, caption: str) -> None:
        """Write <name>.png, .svg, .pdf and the sidecar."""
        from fedinit.results import style

        self.folder.mkdir(parents=True, exist_ok=True)
        style.save(figure, self.folder / name, caption, self._meta())

    def save_table(self, table, name: str) -> None:
        """Write <name>.csv (numbers), .tex, .html and the sidecar of a `tables.Table`."""
        from fedinit.results import tables

        self.folder.mkdir(parents=True, exist_ok=True)
        tables.to_csv(table, self.folder / f"{name}.csv")
        (self.folder / f"{name}.tex").write_text(tables.to_latex(table, label=f"tab:{name}"), encoding="utf-8")
        (self.folder / f"{name}.html").write_text(tables.to_html(table), encoding="utf-8")
        self._sidecar(name, table.caption)

    def save_frame(self, frame: pd.DataFrame, name: str, caption: str) -> None:
        """Write any other table: <name>.csv, .tex, .html and the sidecar."""
        self.folder.mkdir(parents=True, exist_ok=True)
        frame.to_csv(self.folder / f"{name}.csv", lineterminator="\n")
        (self.folder / f"{name}.tex").write_text(frame.to_latex(escape=True, caption=caption), encoding="utf-8")
        (self.folder / f"{name}.html").write_text(frame.to_html(border=0), encoding="utf-8")
        self._sidecar(name, caption)

    def _sidecar(self, name: str, caption: str) -> None:
        text = json.dumps({"caption": caption, **self._meta()}, indent=2, sort_keys=True, ensure_ascii=False)
        (self.folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")

    def _images(self) -> list[str]:
        """The data sets behind this artefact, those of its runs or the one that runs would take; of a path only the last part."""
        data = {str(d) for frame in self.frames for d in frame["data"].unique()}
        return sorted(map(data_name, data or {_name(self.data or str(PRESETS[self.preset]["data"]))}))

    def _meta(self) -> dict:
        keys = sorted({key for frame in self.frames for key in frame["key"].unique()})
        return {
            "notebook": self.name,
            "preset": self.preset,
            "data": ", ".join(self._images()),
            "seeds": sorted({int(seed) for frame in self.frames for seed in frame["seed"].unique()}) or [self.seed],
            "rule": self.rule,
            "runs": keys,
            "commit": commit(),
            "versions": versions(),
        }


def _name(data: str, run: Run | None = None) -> str:
    """ "cifar10" for its official images under whatever path or digest, by what a run of them recorded or by themselves; else `data`."""
    if not identity(data).startswith("sha256:"):
        return data
    digest = run.provenance.get("images") if run else None
    if digest is None and identity(data) != data:
        digest = content(load_images(data))
    return CONTENT.get(digest, data)


def _seeds_text(runs: pd.DataFrame) -> str:
    """ "3 seeds (0, 1, 2)"; where some runs have fewer, how many at least, and how one sees it."""
    about = [c for c in runs if c not in (*HISTORY, "key", "seed", "rounds")]
    each = runs.drop_duplicates("key").groupby(about, dropna=False).seed.nunique()
    seeds = sorted(map(int, runs["seed"].unique()))
    many = f"{each.min()} to {each.max()}" if each.min() < each.max() else str(each.max())
    text = f"{many} seed{'s' if many != '1' else ''} ({', '.join(map(str, seeds))})"
    return text + ("; where a spread is shown, what has none is of one seed" if each.min() == 1 < each.max() else "")


def listed(name: str, value, kind: type) -> list:
    """A list of numbers from a list, or from its text: papermill's -p hands '[-0.1, 0, 0.1]' over as a string."""
    if isinstance(value, str):
        parts = [part for part in re.split(r"[\s,]+", value.strip("[]() ")) if part]
    else:
        parts = list(value) if isinstance(value, Sequence) else [value]
    try:
        numbers = [kind(part) for part in parts]
    except (TypeError, ValueError):
        numbers = []
    if not numbers:
        allowed = "a list of whole numbers such as [0, 1]" if kind is int else "a list of numbers such as [-0.1, 0, 0.1]"
        raise InputError(f"{name} = {value!r} is not allowed; allowed: {allowed}.")
    return numbers


def checkout() -> Path:
    """The folder with notebooks/ and figures/: the source checkout, or the current folder."""
    here = Path(__file__).resolve().parents[1]
    return here if (here / "notebooks").is_dir() else Path.cwd()


def committed_data(preset_name: str) -> str | None:
    """The identity of the preset's images behind its committed histories, where they were read from a file: a clone without that file finds
    the histories by it, and draws from them without training."""
    for file in sorted((figures_folder(preset_name) / "runs").glob("*/experiment.json")):
        data, images = read_json(file).get("data", ""), read_json(file.with_name("provenance.json")).get("images")
        if data.startswith("sha256:") and CONTENT.get(images) == PRESETS[preset_name]["data"]:
            return data
    return None


def keep_histories(folder: Path, stores: Sequence[Path]) -> None:
    """Copy the histories behind the figures of a folder, as its sidecars name them, to <folder>/runs, without checkpoints: committed with
    the figures, they are what a clone draws from. Of several copies the one with most rounds is kept: a run that was begun again elsewhere
    never replaces a finished one."""
    for sidecar in folder.glob("*.json"):
        try:
            keys = json.loads(sidecar.read_text(encoding="utf-8"))["runs"]
        except (ValueError, KeyError, TypeError):  # not a sidecar
            continue
        for key in keys:
            places = [root / key for root in (*stores, folder / "runs")]
            found = max(places, key=lambda place: len(read_history(place / "history.csv")))  # the first of the longest, as `Store.load`
            if found.parent != folder / "runs" and (found / "history.csv").exists():
                (folder / "runs" / key).mkdir(parents=True, exist_ok=True)
                for file in ("experiment.json", "history.csv", "provenance.json"):
                    if (found / file).exists():
                        write_atomic(folder / "runs" / key / file, (found / file).read_text(encoding="utf-8"))


def output_folder(folder: str | Path) -> Path:
    """The folder, made if it is missing. Raises InputError if nothing can be written there."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # asked by doing: permissions alone do not tell
    except OSError as error:
        raise InputError(f"out = {str(folder)!r} cannot be written ({error.strerror}); name a folder of yours with --out.") from None
    return Path(folder)


def figures_folder(preset_name: str) -> Path:
    return checkout() / "figures" / preset_name
