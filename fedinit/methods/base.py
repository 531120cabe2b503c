"""The method protocol: what a federated method may do, on the server and on a client.

A method is a frozen dataclass. Its fields are its hyperparameters and its only configuration; nothing hides in `self`.
State is passed in and out as dicts of flat vectors (1-d tensors of the d model parameters): it never aliases, it can be
stored, counted and compared. Override what differs; `Method` alone is local SGD whose server does nothing yet.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable

from fedinit.errors import InputError

Vectors = dict  # name -> flat vector of shape (d,)


class Cohort:
    """What the server may learn of a round: uniform means over the N active clients. It meters what is read.

    Attributes (flat vectors of shape (d,), parameter units unless stated)
        share    N / C, a float
        moved    mean(end − start); under relaxed initialization with aggregate="end" it is mean(end) − w
        walked   mean(end − start), always measured from the start that local training really had
        end      mean of the final local models
        slope    −mean((end − start) / lr_sum), the mean direction of a local step (gradient units)
        change   dict: for each client vector that the step uses, mean(new − old)

    `sent` collects the distinct vectors that a client had to send for what was read; end and movement are one
    and the same message when every client started at w, which the server knows.
    """

    def __init__(self, w, share: float, names: frozenset[str] = frozenset()):
        """`names`: the client vectors whose change will be asked for (see `reads`)."""
        self.share = share
        self.sent: set[str] = set()
        self._w, self._names, self._count, self._lr_sum = w, names, 0, None
        self._from_w = self._walked = self._slope = None
        self._change: Vectors = {}
        self._global_origin = False

    def add(self, start, end, lr_sum: float, old: Vectors, new: Vectors):
        """Count one client in; returns (end − w, end − start), to be read before the next call. `start` must be the very object w where
        local training began at w."""
        from_w = end - self._w
        walked = from_w if start is self._w else end - start
        change = {name: new[name] - old[name] for name in self._names}
        if self._count == 0:
            self._from_w, self._walked, self._lr_sum, self._change = from_w, walked, lr_sum, change
        else:
            if self._slope is None and lr_sum != self._lr_sum:  # clients took different numbers of steps: a sum of its own
                self._slope = self._walked / -self._lr_sum
            if self._slope is not None:
                self._slope += walked / -lr_sum
            if self._walked is self._from_w and walked is not from_w:
                self._walked = self._walked.clone()
            self._from_w += from_w
            if self._walked is not self._from_w:
                self._walked += walked
            for name, vector in change.items():
                self._change[name] += vector
        self._count += 1
        return from_w, walked

    @property
    def total(self):
        """Σ(end − w), not metered: for what the simulation measures, not for methods."""
        return self._from_w

    def from_global(self) -> Cohort:
        """The same cohort with `moved` measured from the global model: mean(end) − w (Algorithm 1's server)."""
        view = object.__new__(Cohort)
        view.__dict__.update(self.__dict__, _global_origin=True)
        return view

    @property
    def moved(self):
        return self._read("end", self._from_w) if self._global_origin else self.walked

    @property
    def walked(self):
        return self._read("end" if self._walked is self._from_w else "walked", self._walked)

    @property
    def end(self):
        return self._w + self._read("end", self._from_w)

    @property
    def slope(self):
        total = self._walked / -self._lr_sum if self._slope is None else self._slope
        return self._read("end" if self._walked is self._from_w else "walked", total)

    @property
    def change(self) -> _Change:
        return _Change(self)

    def _read(self, message: str, total):
        self.sent.add(message)
        return total / self._count


class _Change:
    def __init__(self, cohort: Cohort):
        self._cohort = cohort

    def __getitem__(self, name: str):
        if name not in self._cohort._change:
            raise KeyError(f"cohort.change[{name!r}] was not gathered: a step must read the same client vectors in every round.")
        return self._cohort._read(name, self._cohort._change[name])


class Method:
    """The protocol with the neutral choice for every hook. All vectors are flat, shape (d,).

    A hook returns new vectors and never changes those it is given, with one exception: `direction` may overwrite
    the gradient that it has just asked for. Tables call a class by its name, or by an attribute `label = "…"` of its own.
    """

    # ---- server ------------------------------------------------------------------------------------------------
    def init_server(self, initial) -> Vectors:
        """The server's vectors before the first round; `initial` is w^0."""
        return {}

    def broadcast(self, server: Vectors) -> Vectors:
        """The server vectors sent to the round's clients, beside w."""
        return {}

    def step(self, w, server: Vectors, cohort: Cohort) -> tuple:
        """The next (global model, server vectors)."""
        raise TypeError(f"{type(self).__name__} has no server step: subclass FedAvg or define step(w, server, cohort).")

    # ---- client: sees w, what was broadcast, and its own vectors; nothing else ---------------------------------
    def init_client(self, initial, w) -> Vectors:
        """A client's own vectors at its first participation; `initial` is w^0, `w` the current global model."""
        return {}

    def start(self, w, mine: Vectors):
        """Where local training begins."""
        return w

    def constants(self, start, received: Vectors, mine: Vectors) -> Vectors:
        """What stays fixed during this client's local steps."""
        return {}

    def direction(self, gradient: Callable, y, constants: Vectors):
        """The direction d of one local step at y; `gradient(v)` is the mini-batch gradient at any v, in one shared buffer."""
        return gradient(y)

    def keep(self, received: Vectors, mine: Vectors, start, end, lr_sum: float) -> Vectors:
        """The client's vectors for its next participation; `lr_sum` = the sum of the rates of the steps really taken."""
        return mine


@dataclasses.dataclass(frozen=True)
class Wrapper(Method):
    """A method around another: every hook is the base's until overridden."""

    base: Method

    def __post_init__(self):
        if not isinstance(self.base, Method):
            raise InputError(f"{type(self).__name__}: base = {self.base!r} is not a method; pass one, such as FedAvg().")

    def init_server(self, initial):
        return self.base.init_server(initial)

    def broadcast(self, server):
        return self.base.broadcast(server)

    def step(self, w, server, cohort):
        return self.base.step(w, server, cohort)

    def init_client(self, initial, w):
        return self.base.init_client(initial, w)

    def start(self, w, mine):
        return self.base.start(w, mine)

    def constants(self, start, received, mine):
        return self.base.constants(start, received, mine)

    def direction(self, gradient, y, constants):
        return self.base.direction(gradient, y, constants)

    def keep(self, received, mine, start, end, lr_sum):
        return self.base.keep(received, mine, start, end, lr_sum)


def once(owner: Wrapper, *kinds: type[Method]) -> None:
    """Refuse a wrapper over a method that has one of these kinds in it already: they would share vectors and hyperparameters' names."""
    part = owner
    while isinstance(part, Wrapper):
        part = part.base
        if isinstance(part, kinds):
            what = f"{type(owner).__name__}: base = {owner.base!r} has {type(part).__name__} in it"
            raise InputError(f"{what}; allowed: one of them in a method, so leave one out.")


class _Probe(dict):
    """Stands for `cohort.change` while `reads` asks a method which client vectors its step looks at."""

    def __init__(self, vector):
        self.vector, self.names = vector, set()

    def __getitem__(self, name):
        self.names.add(name)
        return self.vector


class _ProbeCohort:
    share = 0.5

    def __init__(self, vector):
        self.moved = self.walked = self.end = self.slope = vector
        self.change = _Probe(vector)

    def from_global(self):
        return self


def reads(method: Method, vector) -> frozenset[str]:
    """The client vectors whose change the method's server step reads, found by one step on a tiny `vector`."""
    cohort = _ProbeCohort(vector)
    method.step(vector, method.init_server(vector), cohort)
    return frozenset(cohort.change.names)


def number(owner: object, name: str, low: float = -math.inf, high: float = math.inf, *, open_low=False, open_high=False) -> None:
    """Refuse a hyperparameter that is not a finite number in [low, high]; without low itself with open_low, without high with open_high."""
    value = getattr(owner, name)
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if good and low <= value <= high and not (open_low and value == low) and not (open_high and value == high):
        return
    lower = "" if low == -math.inf else f"{'>' if open_low else '≥'} {low:g}"
    upper = "" if high == math.inf else f"{'<' if open_high else '≤'} {high:g}"
    allowed = " and ".join(part for part in (lower, upper) if part) or "any finite number"
    hint = " Write decimals with a point and no quotes." if isinstance(value, str) else ""
    raise InputError(f"{type(owner).__name__}: {name} = {value!r} is not allowed; it must be a number, {allowed}.{hint}")
