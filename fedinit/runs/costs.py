"""What a method costs, counted from a few rounds of the running code (Table 9), beside what its algorithm says on paper.

Unit: vectors of the model's d parameters, a client and round. Sizes of images and numbers of rounds do not matter to the counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from fedinit.experiment import Experiment
from fedinit.methods import Method, RelaxedInit, label, make
from fedinit.methods.registry import chain
from fedinit.training.rounds import Simulation

METHODS = ("fedavg", "fedinit", *(name for base in ("fedadam", "fedsam", "scaffold", "feddyn", "fedcm") for name in (base, f"{base}+ri")))
COUNTS = ("up", "down", "communication", "gradients", "stored", "server")
TINY = {
    "data": "synthetic:200/20",
    "clients": 4,
    "cohort_size": 2,
    "samples": 25,
    "batch_size": 10,
    "local_epochs": 1,
    "rounds": 3,
}

#: base → (up, down, gradients, stored, server) as its paper's algorithm has them: w and the final model always travel.
_ALGORITHM = {
    "fedavg": (1, 1, 1, 0, 0),
    "fedprox": (1, 1, 1, 0, 0),
    "fedadam": (1, 1, 1, 0, 2),  # first and second moment
    "scaffold": (2, 2, 1, 1, 1),  # c down, the change of c_i up; c_i kept
    "feddyn": (1, 1, 1, 1, 1),  # h_i kept, h on the server
    "fedcm": (1, 2, 1, 0, 1),  # the momentum down; the server makes it of the final models
}
#: base → the readings of RI's server under which the base needs mean(end) and mean(end − start), two messages
_BOTH_MEANS = {"feddyn": ("end", "start"), "fedcm": ("end",)}


def metered_costs(
    methods: Iterable[str | Method] = METHODS, readings: Sequence[str] = ("end",), device: str = "cpu", **model
) -> pd.DataFrame:
    """Counts from three rounds of `Simulation` with 2 of 4 clients, one row a method (and reading, where the counts differ):

        label                    as in tidy frames
        reading                  what RI's server averages: "end" or "start", "either" where the counts agree; "" without RI
        up, down, communication  vectors that a client sends, receives, and their sum
        gradients                gradient computations a local step
        stored, server           vectors kept by a client between rounds; by the server beside w
        sends, receives, keeps   the names of those vectors (sends: of the first reading)
        parameters, bytes        d, and communication × d × bytes a number

    A method name with RI is counted under each of `readings`; a method object as it is. `model`: fields of `Experiment` that set d
    and the bytes of a number (model, width, stem, precision); by default a small CNN.
    """
    model = {"model": "cnn", "width": 4, **model}
    rows = []
    for method in methods:
        if not isinstance(method, str):
            rows.append(_count(method, model, device))
            continue
        if not any(isinstance(part, RelaxedInit) for part in chain(make(method))):
            rows.append(_count(make(method), model, device))
            continue
        counted = [_count(make(method, aggregate=reading), model, device) for reading in readings]
        same = len(counted) > 1 and all(all(row[c] == counted[0][c] for c in COUNTS) for row in counted)
        rows += [{**counted[0], "reading": "either"}] if same else counted
    return pd.DataFrame(rows)


def _count(method: Method, model: dict, device: str) -> dict:
    """One row of `metered_costs`."""
    simulation = Simulation(Experiment(method=method, **TINY, **model), device=device)
    steps = computed = 0
    batch = simulation.model.gradient_on

    def metered(x, y, losses):
        nonlocal steps
        steps += 1
        gradient = batch(x, y, losses)

        def counted(vector):
            nonlocal computed
            computed += 1
            return gradient(vector)

        return counted

    simulation.model.gradient_on = metered
    up, down = set(), set()
    for _ in range(simulation.experiment.rounds):
        down |= {"w", *method.broadcast(simulation.server)}
        simulation.step(evaluate=False)
        up |= simulation.sent
    kept = {name for client in simulation.memory.rounds for name in simulation.memory.get(client, simulation.device)}
    if "last" not in method.init_client(simulation.initial, simulation.w):
        kept.discard("last")  # the simulator's own, for the divergence Δ^t
    d, size = len(simulation.model), simulation.initial.element_size()
    relaxed = next((part for part in chain(method) if isinstance(part, RelaxedInit)), None)
    return {
        "label": label(method),
        "reading": relaxed.aggregate if relaxed else "",
        "up": len(up),
        "down": len(down),
        "communication": len(up) + len(down),
        "gradients": computed / steps,
        "stored": len(kept),
        "server": len(simulation.server),
        "sends": _names(up),
        "receives": _names(down),
        "keeps": _names(kept),
        "parameters": d,
        "bytes": (len(up) + len(down)) * d * size,
    }


def analytic_costs(name: str, aggregate: str = "end") -> dict[str, int]:
    """The same counts (`COUNTS`) from the algorithms' text, for a method name such as "scaffold+ri".

    SAM doubles the gradients. RI keeps one more vector on the client, the last local model. It sends nothing more where the server
    needs one mean only; FedDyn's needs the final models and the movements from the relaxed starts, and so does FedCM's with
    aggregate="end": one more up.
    """
    classes = [type(part).__name__.lower() for part in chain(make(name))]
    base = classes[-1]
    up, down, gradients, stored, server = _ALGORITHM[base]
    relaxed = "relaxedinit" in classes
    up += relaxed and aggregate in _BOTH_MEANS.get(base, ())
    counts = (up, down, up + down, gradients * (2 if "sam" in classes else 1), stored + relaxed, server)
    return dict(zip(COUNTS, counts, strict=True))


def _names(vectors: set[str]) -> str:
    """In a fixed order: what every method has first."""
    words = {"walked": "end − start", "last": "last"}
    return ", ".join(words.get(name, name) for name in sorted(vectors, key=lambda n: (n not in ("w", "end"), n)))
