"""Names of methods: `make("scaffold+ri", beta=0.05)`, `label(method)`, and the hyperparameters as plain data."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import textwrap

from fedinit.errors import InputError, unknown
from fedinit.methods.base import Method, Wrapper
from fedinit.methods.fedadam import FedAdam
from fedinit.methods.fedavg import FedAvg
from fedinit.methods.fedcm import FedCM
from fedinit.methods.feddyn import FedDyn
from fedinit.methods.fedprox import FedProx
from fedinit.methods.momentum import FedAvgM, Lagged
from fedinit.methods.relaxed import RelaxedInit
from fedinit.methods.sam import SAM
from fedinit.methods.scaffold import Scaffold

BASES = {
    "fedavg": FedAvg,
    "fedavgm": FedAvgM,
    "fedprox": FedProx,
    "fedadam": FedAdam,
    "scaffold": Scaffold,
    "feddyn": FedDyn,
    "fedcm": FedCM,
    "lagged": Lagged,
}
WRAPPERS = {"sam": SAM, "ri": RelaxedInit}
SHORT = {  # the literature's own names for a wrapper over a base
    "fedinit": "fedavg+ri",
    "fedsam": "fedavg+sam",
    "mofedsam": "fedcm+sam",
    "fedgamma": "scaffold+sam",
    "fedspeed": "feddyn+sam",
}
_NAMES = {cls: name for name, cls in {**BASES, **WRAPPERS}.items()}


def make(text: str, **hyperparameters) -> Method:
    """A method from its name: a base, then wrappers from the inside out, e.g. "scaffold+ri" or "fedcm+sam+ri".

    Each hyperparameter goes to the part that has it. Raises InputError for an unknown name, a hyperparameter that no part
    has, or a value out of range.
    """
    if not isinstance(text, str):
        raise InputError(f"method = {text!r} is not a name; allowed: a name such as 'scaffold+ri'.")
    first, *rest = text.strip().lower().split("+")
    first, *inner = SHORT.get(first, first).split("+")
    if first not in BASES:
        wrapped = [f"{base}+{wrapper}" for base in BASES for wrapper in WRAPPERS]
        wrapped.remove("lagged+ri")  # which RelaxedInit refuses
        raise unknown("method", text, [*BASES, *SHORT, *wrapped])
    classes = [BASES[first]]
    for name in inner + rest:
        if name not in WRAPPERS:
            raise unknown(f"method {text!r}: the wrapper", name, WRAPPERS)
        if WRAPPERS[name] in classes:
            parts = "+".join([first, *inner, *rest])
            raise InputError(f"method {text!r} has the wrapper {name!r} twice ({parts}); allowed: once, so leave one out.")
        classes.append(WRAPPERS[name])
    owners = {field.name for cls in classes for field in dataclasses.fields(cls)} - {"base"}
    for name in hyperparameters:
        if name not in owners:
            raise unknown(f"method {text!r}: the hyperparameter", name, owners or {"(none)"})
    method = None
    for cls in classes:
        own = {f.name: hyperparameters[f.name] for f in dataclasses.fields(cls) if f.name in hyperparameters}
        method = cls(**own) if method is None else cls(method, **own)
    return method


def chain(method: Method) -> list[Method]:
    """The method and what it wraps, from the outside in."""
    parts = [method]
    while isinstance(parts[-1], Wrapper):
        parts.append(parts[-1].base)
    return parts


def label(method: Method) -> str:
    """The shortest name of a method's kind, without hyperparameters: "fedinit", "scaffold+ri"; a user's class goes by its `label`, if it
    has one of its own, else by its name."""
    return called([_NAMES.get(type(part)) or _own_name(part) for part in reversed(chain(method))])


def called(names: list[str]) -> str:
    """The shortest name of a base and its wrappers, from the inside out: ["fedavg", "ri"] → "fedinit"."""
    for short, long in SHORT.items():
        if names[:2] == long.split("+"):
            names = [short, *names[2:]]
            break
    return "+".join(names)


def _own_name(part: Method) -> str:
    name = part.label if isinstance(vars(type(part)).get("label"), str) else type(part).__name__
    return f"{name} (own)" if name.lower() in {**BASES, **WRAPPERS, **SHORT} else name  # not to be taken for the package's


def hyperparameters(method: Method) -> dict[str, object]:
    """All hyperparameters of the parts in one flat dict; of two parts with the same name the outer wins."""
    flat: dict[str, object] = {}
    for part in reversed(chain(method)):
        flat.update(_fields(part))
    return flat


def _fields(part: Method) -> dict[str, object]:
    """The part's own hyperparameters; whole numbers of a field for decimals as decimals, so that β = 0 and 0.0 are one run."""
    values = {f: getattr(part, f.name) for f in dataclasses.fields(part) if not (f.name == "base" and isinstance(part, Wrapper))}
    return {f.name: float(v) if f.type in ("float", float) and type(v) is int else v for f, v in values.items()}


def describe(method: Method) -> dict:
    """The method as JSON-ready data: what enters an experiment's key.

    A class from outside the package carries a fingerprint of its source and the constants in its body, so that an edited method is
    another method (what its code calls elsewhere is not seen).
    """
    parts = []
    for part in chain(method):
        if type(part) in _NAMES:
            parts.append({"name": _NAMES[type(part)], **_fields(part)})
        else:
            own = {"code": _fingerprint(type(part)), "constants": _constants(type(part))}
            parts.append({"name": type(part).__name__, **own, "fields": _fields(part)})
    return {"parts": parts}


def rebuild(description: dict) -> Method:
    """The inverse of `describe` for the package's own methods; raises InputError for a user's class."""
    method = None
    for entry in reversed(description["parts"]):
        fields = {k: v for k, v in entry.items() if k != "name"}
        cls = {**BASES, **WRAPPERS}.get(entry["name"])
        if cls is None:
            raise InputError(f"method {entry['name']!r} is not one of the package's; pass the dataclass itself to Experiment(method=…).")
        method = cls(**fields) if method is None else cls(method, **fields)
    return method


def _fingerprint(cls: type) -> str:
    """Digest of the source of a user's class, read once and kept on the class: a worker, which gets the class of a notebook's cell by
    value and the cell's text not at all, then knows it by the same digest."""
    if "_fingerprint" not in vars(cls):
        digest = hashlib.sha256()
        for name, member in _members(cls):
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if inspect.isfunction(function) and not (name.startswith("__") and name != "__post_init__"):
                digest.update(f"{name}\n{_source(function)}\n".encode())
        cls._fingerprint = digest.hexdigest()
    return vars(cls)["_fingerprint"]


def _constants(cls: type) -> dict[str, str]:
    """What stands in the body of a user's class beside functions, fields and its label."""
    aside = {"label", "_fingerprint", *(field.name for field in dataclasses.fields(cls))}
    kinds = (int, float, str, bytes, tuple, list, dict)
    found = [(name, member) for name, member in _members(cls) if name not in aside and not name.startswith("__")]
    return {name: repr(member) for name, member in reversed(found) if isinstance(member, kinds)}


def _members(cls: type) -> list[tuple[str, object]]:
    """The members of a user's class and of its ancestors outside the package, by name."""
    owners = [owner for owner in cls.__mro__ if not owner.__module__.startswith("fedinit.methods") and owner is not object]
    return [(name, member) for owner in owners for name, member in sorted(vars(owner).items())]


def _source(function) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except OSError:  # typed at a prompt: no file to read; the compiled code stands in
        code = function.__code__
        return repr((code.co_code.hex(), code.co_names, [c for c in code.co_consts if not inspect.iscode(c)]))
