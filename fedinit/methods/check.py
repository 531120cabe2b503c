"""The contract of a method, as tests that a user can call on a method of their own."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import pickle

from fedinit.methods.base import Cohort, Method, reads
from fedinit.methods.momentum import Lagged
from fedinit.methods.registry import chain, label
from fedinit.methods.relaxed import RelaxedInit

_COHORTS = ((0, 1, 2), (1, 2, 3), (0, 2, 3))


def check(method: Method) -> list[str]:
    """Play the method on a tiny problem and test what the simulator relies on.

    Three rounds of four clients, each with a quadratic of its own in three dimensions, float64. Tested: frozen, hashable, picklable
    configuration; every hook returns new vectors of the right shape and leaves those it was given alone; clients share nothing;
    finite results; the same result twice; each hyperparameter, changed, changes the result; RI with β = 0 changes nothing.

    Returns the list of what was checked. Raises AssertionError that names the hook and the broken rule.
    """
    name = label(method)
    done = []

    def rule(holds: bool, text: str, wrong: str) -> None:
        if not holds:
            raise AssertionError(f"{name}: {wrong}")
        if text and text not in done:
            done.append(text)

    kind = type(method)
    bare = inspect.get_annotations(kind) and "__dataclass_params__" not in vars(kind)  # fields, and the decorator forgotten
    is_frozen = dataclasses.is_dataclass(method) and kind.__dataclass_params__.frozen and not bare
    rule(is_frozen, "a frozen dataclass", "the method must be a @dataclass(frozen=True); its fields are its hyperparameters.")
    try:
        hash(method)
    except TypeError as error:
        raise AssertionError(f"{name}: a hyperparameter cannot be hashed ({error}); take numbers, strings or tuples.") from None
    done.append("hashable")
    if type(method).__module__ != "__main__":  # classes of a notebook are sent to workers by value, not by plain pickle
        rule(pickle.loads(pickle.dumps(method)) == method, "picklable", "pickling must give back an equal method.")
    result = _play(method, rule)
    rule(all(math.isfinite(x) for x in result), "finite results", "results are not finite on a convex quadratic at rate 0.1.")
    rule(_play(method) == result, "the same result twice", "two runs differ: state hides outside the dicts that hooks return.")
    for changed, field in _changed(method):
        rule(_play(changed) != result, f"{field} matters", f"changing the hyperparameter {field} changes nothing.")
    if any(isinstance(part, Lagged) for part in chain(method)):
        return done  # RI does not go over it
    bare, neutral = _neutral(method)
    same = _play(neutral) == _play(bare)
    rule(same, "RI with β = 0 changes nothing", "RI with β = 0 changes the result: a hook mixes w and start.")
    return done


def _play(method: Method, rule=lambda holds, text, wrong: None) -> list[float]:
    """The global models of three rounds in one list; `rule` is called with each observation on the way."""
    import torch

    curvature = torch.tensor([[1.0, 2.0, 0.5], [0.3, 1.0, 2.0], [2.0, 0.2, 1.0], [1.0, 1.5, 0.1]], dtype=torch.float64)
    optimum = torch.tensor([[1.0, 0.0, -1.0], [-2.0, 1.0, 0.5], [0.0, -1.0, 2.0], [1.5, 2.0, 0.0]], dtype=torch.float64)
    initial = torch.tensor([0.1, -0.2, 0.3], dtype=torch.float64)
    lr, steps = 0.1, 3

    def slope(i: int, buffer, v):
        return torch.mul(curvature[i], v - optimum[i], out=buffer)

    def call(hook: str, *args, what: type = dict):
        """Run one hook; see that it returns what it should, flat vectors all, and left its arguments alone."""
        vectors = [v for a in args for v in (a.values() if isinstance(a, dict) else [a]) if isinstance(v, torch.Tensor)]
        before = [v.clone() for v in vectors]
        out = trying(hook, getattr(method, hook), *args)
        same = all(torch.allclose(v, b, rtol=0, atol=0, equal_nan=True) for v, b in zip(vectors, before, strict=True))
        given, wrong = "its arguments", "a vector that it was given; return a new one"
        if hook == "direction":
            given, wrong = "y", "y; only the gradient may be overwritten"
        rule(same, f"{hook} leaves {given} alone", f"{hook} changed {wrong}.")
        kinds = {dict: "a dict of vectors", torch.Tensor: "a flat vector", tuple: "(w, server vectors)"}
        rule(isinstance(out, what), "", f"{hook} must return {kinds[what]}, not {type(out).__name__}.")
        if what is tuple:
            rule(len(out) == 2 and isinstance(out[1], dict), "step returns (w, server)", "step must return (w, server vectors).")
        returned = {"w": out[0], **out[1]} if what is tuple else out if what is dict else {"": out}
        for part, v in returned.items():
            good = isinstance(v, torch.Tensor) and v.shape == initial.shape
            rule(good, f"{hook} returns flat vectors", f"{hook} returned {part} that is not a flat vector of the model's d numbers.")
        return out

    def trying(hook: str, function, *args):
        try:
            return function(*args)
        except Exception as error:
            raise AssertionError(f"{label(method)}: {hook} raised {type(error).__name__}: {error}") from error

    names = trying("step", reads, method, initial.clone())
    w, server, clients, trace = initial.clone(), call("init_server", initial), {}, []
    for members in _COHORTS:
        cohort = Cohort(w, len(members) / len(curvature), names)
        received = call("broadcast", server)
        for i in members:
            mine = clients[i] if i in clients else call("init_client", initial, w)
            start = call("start", w, mine, what=torch.Tensor)
            constants = call("constants", start, received, mine)
            y, buffer = start.clone(), torch.empty_like(w)
            for _ in range(steps):
                gradient = functools.partial(slope, i, buffer)
                y = y - lr * call("direction", gradient, y, constants, what=torch.Tensor)
            new = call("keep", received, mine, start, y, lr * steps)
            trying("step", cohort.add, start, y, lr * steps, mine, new)  # which vectors it compares, step says
            clients[i] = new
        w, server = call("step", w, server, cohort, what=tuple)
        trace += w.tolist()
    held = [v.data_ptr() for mine in clients.values() for v in mine.values()]
    apart = len(held) == len(set(held))
    rule(apart, "clients share nothing", "two clients share one buffer: keep must return vectors of the client's own.")
    return trace


def _neutral(method: Method) -> tuple[Method, Method]:
    """The method without RI, and with RI of β = 0 where it has RI, else outermost."""
    if not any(isinstance(part, RelaxedInit) for part in chain(method)):
        return method, RelaxedInit(method, beta=0.0)
    if isinstance(method, RelaxedInit):
        return method.base, dataclasses.replace(method, beta=0.0)
    return tuple(dataclasses.replace(method, base=base) for base in _neutral(method.base))


def _changed(method: Method):
    """The method with each numeric hyperparameter changed in turn."""
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            for other in (value * 0.5 + 0.01, value * 2 + 0.1):
                try:
                    changed = dataclasses.replace(method, **{field.name: other})
                except ValueError:
                    continue  # outside its range
                yield changed, field.name
                break
        elif isinstance(value, Method):
            for inner, name in _changed(value):
                yield dataclasses.replace(method, **{field.name: inner}), name
