"""`Experiment`: the frozen description of one run, its key, and the presets.

It holds everything that can change a number and nothing else: device, processes, paths of results, the cadence of evaluation
and progress displays are not part of it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

from fedinit import methods
from fedinit.data.images import identity
from fedinit.errors import InputError, unknown
from fedinit.methods import Method

FORMAT = 2  # part of every key; raised when a change of the code changes numbers

COLUMNS = (  # of a history, one row a round
    "round",
    "lr",
    "train_loss",
    "test_loss",
    "test_accuracy",
    "divergence_all",
    "divergence_active",
    "movement",
    "norm",
    "train_seconds",
    "eval_seconds",
    "active",
    "diverged",
)
PARTITIONS = ("dirichlet", "dirichlet-disjoint", "pathological", "iid")
MODELS = ("resnet18-gn", "vgg11", "cnn")


def _field(default, doc: str, *, unit: str = "", source: str = "", allowed=None, low=None, high=None, optional=False):
    metadata = {"doc": doc, "unit": unit, "source": source, "allowed": allowed, "low": low, "high": high, "optional": optional}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Experiment:
    """One run, complete. Defaults are the paper's section 5.1 (CIFAR-10 columns "10%-100", Dir-0.1) on the embedded data set.

    `method` may be a name ("scaffold+ri") or a method. `Experiment.documentation()` lists every field with unit, default and
    source. Raises InputError, one line, for a value that is not allowed.
    """

    method: Method = _field(methods.FedAvg, "the federated method: a name such as scaffold+ri, or a method object", source="Tables 4 to 6")  # noqa: RUF009
    data: str = _field(
        "synthetic",
        "synthetic[:TRAIN/TEST], synthetic100[…], cifar10, cifar100, a .npz of x_train, y_train, x_test, y_test, or a folder train/, test/",
        source="section 5.1 uses cifar10, cifar100",
    )
    clients: int = _field(100, "number of clients C", low=1, source="section 5.1: 100 or 200")
    cohort_size: int = _field(10, "active clients a round N", low=1, source="section 5.1: 10% of 100, 5% of 200")
    participation: str = _field(
        "exact",
        "exact: N clients drawn without replacement; coin: each client with probability N/C (at least one)",
        allowed=("exact", "coin"),
        source="paper's words; released code flips coins",
    )
    samples: int | None = _field(
        None, "training images a client; none: images / clients", low=1, optional=True, source="500 on 100 clients"
    )
    partition: str = _field(
        "dirichlet",
        "dirichlet: a class prior a client, with replacement; dirichlet-disjoint: without; pathological: k classes a client; iid",
        allowed=PARTITIONS,
        source="section 5.1",
    )
    dirichlet: float = _field(0.1, "Dirichlet coefficient D_r > 0; smaller is more heterogeneous", low=0, source="section 5.1: 0.1, 0.6")
    prior: str = _field(
        "uniform",
        "Dirichlet parameter: uniform = D_r a class; class = D_r times the class frequencies (Hsu et al. 2019)",
        allowed=("uniform", "class"),
        source="released code: uniform",
    )
    draws: str = _field(
        "iid",
        "with replacement: iid = independent draws from a class; cyclic = the class's images in turn, over and over",
        allowed=("iid", "cyclic"),
        source="released code: cyclic",
    )
    classes_per_client: int = _field(2, "k of the pathological partition", low=1, source="McMahan et al. 2017")
    client_noise: float = _field(
        0.0,
        "standard deviation of a client's R, G, B gains around 1",
        unit="relative",
        low=0,
        high=1,
        source="strength unknown in the paper",
    )
    category_noise: float = _field(
        0.0,
        "standard deviation of a category's brightness shift",
        unit="of the range 0–1",
        low=0,
        high=1,
        source="strength unknown in the paper",
    )
    category_scope: str = _field(
        "global",
        "global: one shift a category for everybody; client: one a (client, category)",
        allowed=("global", "client"),
        source="the paper is silent",
    )
    model: str = _field(
        "resnet18-gn",
        "resnet18-gn, vgg11, cnn, or module:factory, a callable (classes) → nn.Module without buffers",
        source="section 5.1: ResNet-18-GN, VGG-11",
    )
    width: int = _field(64, "channels of the first stage", low=1, source="64")
    stem: str = _field(
        "imagenet",
        "ResNet's first layers: imagenet = 7×7 stride 2 and max-pool; cifar = 3×3",
        allowed=("imagenet", "cifar"),
        source="released code: imagenet",
    )
    rounds: int = _field(500, "communication rounds T", low=1, source="section 5.1: 500; 800 on CIFAR-100")
    local_epochs: int = _field(5, "passes over a client's images a round, K", unit="epochs", low=1, source="released code: 5")
    batch_size: int = _field(50, "images a local step; the last, short batch is used", low=1, source="released code: 50; 25 at 5%-200")
    lr: float = _field(0.1, "local learning rate η of the first round", low=0, source="section 5.1")
    lr_decay: float = _field(0.998, "factor of η a round", low=0, high=1, source="section 5.1; FedDyn 0.9995")
    weight_decay: float = _field(1e-3, "κ, applied to every parameter outside the clip", low=0, source="released code")
    clip: float | None = _field(
        10.0, "largest norm of a step's direction; none: no clipping", low=0, optional=True, source="released code: 10"
    )
    augment: bool = _field(True, "flip with p .5, then with p .5 a crop from 4 px zero padding", source="released code")
    precision: str = _field(
        "float32",
        "float32, float64, or bf16 (autocast of forward and backward; parameters stay float32)",
        allowed=("float32", "float64", "bf16"),
    )
    seed: int = _field(0, "seeds partition, noise, initial weights, cohorts, batches and augmentation", low=0)

    def __post_init__(self):
        if isinstance(self.method, str):
            object.__setattr__(self, "method", methods.make(self.method))
        if not isinstance(self.method, Method):
            raise InputError(f"method = {self.method!r} is not a method; allowed: a name such as 'fedinit', or an object such as FedAvg().")
        for field in dataclasses.fields(self)[1:]:
            object.__setattr__(self, field.name, _checked(field, getattr(self, field.name)))
        if self.cohort_size > self.clients:
            raise InputError(
                f"cohort_size = {self.cohort_size} active of clients = {self.clients} is not possible; "
                f"allowed: 1 to {self.clients}. Lower cohort_size or raise clients."
            )
        _check_model(self.model)
        if self.model in ("resnet18-gn", "cnn") and self.width % 2:
            raise InputError(f"width = {self.width} of {self.model} is not allowed; allowed: even numbers, for GroupNorm's 2 groups.")
        identity(self.data)  # an unknown name or a missing file is refused here, before any work

    @property
    def label(self) -> str:
        """The method's name without hyperparameters, e.g. "scaffold+ri"."""
        return methods.label(self.method)

    def replace(self, **changes) -> Experiment:
        """A copy with some fields changed (validated again)."""
        _refuse_unknown(changes)
        return dataclasses.replace(self, **changes)

    def canonical(self) -> dict:
        """JSON-ready data of all that can change a number of a round: every field but `rounds` (a prefix property), with
        the images' identity (name or content digest) in place of a path, and a digest of a user's own model module."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("rounds", "method")}
        values["data"] = identity(self.data)
        values["method"] = methods.registry.describe(self.method)
        values["format"] = FORMAT
        if ":" in self.model:
            source = Path(importlib.util.find_spec(self.model.split(":")[0]).origin)
            values["model_code"] = hashlib.sha256(source.read_bytes()).hexdigest()
        return values

    @property
    def key(self) -> str:
        """SHA-256 (hex) of the canonical JSON: the name of the run on disk."""
        text = json.dumps(self.canonical(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def columns(self) -> dict[str, object]:
        """The fields and the method's hyperparameters as one flat dict: the columns of a tidy frame. The rate is `initial_lr`
        there, beside the history's `lr` of each round; a hyperparameter of a name that is taken, such as lr, is `method_lr`."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "method"}
        fields["initial_lr"] = fields.pop("lr")
        fields = {"key": self.key, "label": self.label, **fields}
        taken = {*fields, *COLUMNS}
        own = methods.hyperparameters(self.method).items()
        return {**fields, **{f"method_{name}" if name in taken else name: value for name, value in own}}

    @classmethod
    def from_canonical(cls, values: dict, rounds: int) -> Experiment:
        """The experiment back from its canonical JSON (for the package's own methods)."""
        values = {k: v for k, v in values.items() if k not in ("format", "model_code")}
        return cls(**{**values, "method": methods.registry.rebuild(values["method"]), "rounds": rounds})

    @classmethod
    def documentation(cls) -> str:
        """Every field: name, default, unit, meaning, source; as a Markdown table."""
        rows = ["| field | default | meaning | source |", "|---|---|---|---|"]
        for f in dataclasses.fields(cls):
            default = "fedavg" if f.name == "method" else "none" if f.default is None else f.default
            unit = f" [{f.metadata['unit']}]" if f.metadata["unit"] else ""
            rows.append(f"| `{f.name}` | {default} | {f.metadata['doc']}{unit} | {f.metadata['source']} |")
        return "\n".join(rows)


LARGEST = 10**9  # of a count: beyond it a slip of the hand, and no machine's integer
_KINDS = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}


def _refuse_unknown(changes: dict) -> None:
    names = [f.name for f in dataclasses.fields(Experiment)]
    for name in changes:
        if name not in names:
            raise unknown("field of Experiment", name, names)


def _checked(field: dataclasses.Field, value):
    kind, meta = str(field.type).split(" | ")[0], field.metadata
    if value is None and meta["optional"]:
        return None
    if getattr(value, "ndim", None) == 0 and not isinstance(value, (int, float)):
        value = value.item()  # a NumPy scalar
    bounds = [f"> {meta['low']}" if kind == "float" and field.name in ("dirichlet", "clip", "lr", "lr_decay") else f"≥ {meta['low']}"]
    bounds = (bounds if meta["low"] is not None else []) + ([f"≤ {meta['high']}"] if meta["high"] is not None else [])
    nature = {"int": "a whole number", "float": "a number", "str": "a string", "bool": "true or false"}[kind]
    allowed = ", ".join(meta["allowed"]) if meta["allowed"] else " ".join([nature, *bounds])
    if not isinstance(value, _KINDS[kind]) or (kind != "bool" and isinstance(value, bool)):
        hint = " Write numbers with a decimal point and without quotes." if isinstance(value, str) else ""
        raise InputError(f"{field.name} = {value!r} is not allowed; allowed: {allowed}.{hint}")
    if meta["allowed"] and value not in meta["allowed"]:
        raise unknown(field.name, value, meta["allowed"])
    if kind in ("int", "float"):
        strict = any(bound.startswith(">") for bound in bounds)
        low = -math.inf if meta["low"] is None else meta["low"]
        high = math.inf if meta["high"] is None else meta["high"]
        if kind == "int" and value > LARGEST and field.name != "seed":
            raise InputError(f"{field.name} = {value!r} is not allowed; allowed: {allowed}, at most {LARGEST:,}.")
        if not abs(value) <= sys.float_info.max or not low <= value <= high or (strict and value == low):
            raise InputError(f"{field.name} = {value!r} is not allowed; allowed: {allowed}.")
    return float(value) if kind == "float" else value


def _check_model(model: str) -> None:
    if model in MODELS:
        return
    module, _, factory = model.partition(":")
    if not factory:
        raise unknown("model", model, [*MODELS, "module:factory"])
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.has_location:
        raise InputError(
            f"model = {model!r}: the module {module!r} cannot be imported; allowed: {', '.join(MODELS)}, or an importable module:factory."
        )


# ---- presets: overrides of the paper's setup ---------------------------------------------------------------------

PRESETS: dict[str, dict[str, object]] = {
    "paper": {"data": "cifar10"},
    "small": {"data": "cifar10", "width": 16, "rounds": 100},
    "quick": {
        "data": "synthetic:3000/500",
        "model": "cnn",
        "width": 8,
        "rounds": 12,
        "local_epochs": 2,
    },
}

SETUPS: dict[str, dict[str, object]] = {  # the paper's two participations
    "10%-100": {"clients": 100, "cohort_size": 10, "batch_size": 50},
    "5%-200": {"clients": 200, "cohort_size": 10, "batch_size": 25},
}
_REDUCED: dict[str, dict[str, dict[str, object]]] = {
    "small": {"10%-100": {"samples": 150}, "5%-200": {"samples": 75}},  # three batches a client: 15 local steps in 5 epochs
    "quick": {
        "10%-100": {"clients": 30, "cohort_size": 3, "batch_size": 25},
        "5%-200": {"clients": 60, "cohort_size": 3, "batch_size": 25},
    },
}
BETA = {"10%-100": 0.1, "5%-200": 0.05}  # β = N / C: total momentum β · C / N stays 1


def preset(name: str, method: str | Method = "fedavg", setup: str = "10%-100", *, hyper: dict | None = None, **overrides) -> Experiment:
    """An experiment of a preset: `quick`, `small` or `paper`, with a participation, a method and any field overridden.

    The method's own settings follow section 5.1: FedDyn's rate decays by 0.9995; relaxed initialization takes β = N/C (0.1 at 10%,
    0.05 at 5%) unless `hyper` names a beta. Raises InputError for an unknown name or field.
    """
    for argument, value, known in (("preset", name, PRESETS), ("setup", setup, SETUPS)):
        if not isinstance(value, str) or value not in known:
            raise unknown(argument, value, known)
    if not isinstance(hyper, dict | None):
        raise InputError(f"hyper = {hyper!r} is not allowed; allowed: a dict such as {{'beta': 0.05}}.")
    if hyper and not isinstance(method, str):
        raise InputError(
            f"hyper = {hyper!r} with a method object; allowed: with a method's name. Give them to the object, as in SAM(rho=0.05)."
        )
    _refuse_unknown(overrides)
    if isinstance(method, str):
        hyper = dict(hyper or {})
        if any(isinstance(part, methods.RelaxedInit) for part in methods.registry.chain(methods.make(method))):
            hyper.setdefault("beta", BETA[setup])
        method = methods.make(method, **hyper)
    values = {**PRESETS[name], **SETUPS[setup], **_REDUCED.get(name, {}).get(setup, {}), "method": method}
    if any(isinstance(part, methods.FedDyn) for part in methods.registry.chain(method)):
        values["lr_decay"] = 0.9995
    return Experiment(**{**values, **overrides})
