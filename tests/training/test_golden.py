"""Trajectories computed independently in float64 by a NumPy simulator: every method must follow them."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from fedinit.experiment import Experiment
from fedinit.methods import make
from fedinit.training.rounds import Simulation

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())
PROBLEM, SETTINGS = GOLDEN["problem"], GOLDEN["settings"]
NAMES = {name.lower(): name for name in {run.split("|")[0] for run in GOLDEN["runs"]} - {"FedSMOO"}}
VECTORS = {"m": "m", "v": "v", "c": "c", "h": "h"}


class GoldenBatches:
    """Samples 0–3, then 4–7, twice; never shuffled."""

    classes = SETTINGS["classes"]

    def __init__(self, dtype):
        self.x = torch.tensor(PROBLEM["x"], dtype=dtype)
        self.y = torch.tensor(PROBLEM["y"])

    def train(self, client, round):
        for _ in range(SETTINGS["epochs"]):
            yield from zip(self.x[client].split(SETTINGS["batch"]), self.y[client].split(SETTINGS["batch"]), strict=True)

    def test(self):
        yield self.x.flatten(0, 1), self.y.flatten()


class GoldenSimulation(Simulation):
    def cohort(self, round):
        return SETTINGS["selected"][round - 1]


def simulation(run: str, precision: str) -> GoldenSimulation:
    name, beta, aggregate, clip = (part.split("=")[-1] for part in run.split("|"))
    text, hyper = name.lower(), {}
    if float(beta) != 0:
        text, hyper = f"{text}+ri", {"beta": float(beta), "aggregate": "end" if aggregate == "any" else aggregate}
    for field, setting in (("mu", "lamb"), ("lamb", "lamb"), ("alpha", "alpha"), ("rho", "rho"), ("epsilon", "epsilon")):
        if field in {**vars(make(text)), **vars(getattr(make(text), "base", make(text)))}:
            hyper[field] = SETTINGS[setting]
    module = nn.Linear(SETTINGS["d"], SETTINGS["classes"])
    with torch.no_grad():
        flat = torch.tensor(PROBLEM["w0"], dtype=torch.float64)
        module.weight.copy_(flat[:18].view(3, 6))
        module.bias.copy_(flat[18:])
    module = module.double()
    with torch.no_grad():
        module.weight.copy_(flat[:18].view(3, 6))
        module.bias.copy_(flat[18:])
    experiment = Experiment(
        method=make(text, **hyper),
        clients=SETTINGS["C"],
        cohort_size=3,
        lr=SETTINGS["lr"],
        lr_decay=SETTINGS["lr_decay"],
        weight_decay=SETTINGS["weight_decay"],
        clip=float(clip),
        rounds=SETTINGS["rounds"],
        precision=precision,
    )
    dtype = torch.float64 if precision == "float64" else torch.float32
    return GoldenSimulation(experiment, device="cpu", batches=GoldenBatches(dtype), module=module)


RUNS = [run for run in GOLDEN["runs"] if not run.startswith("FedSMOO")]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-10), ("float32", 5e-6)])
def test_follows_the_golden_trajectory(run, precision, tolerance):
    """w, Δ over all and over active clients, the clients' latest models and the server's vectors agree in every round."""
    golden, played = GOLDEN["runs"][run], simulation(run, precision)
    scale = max(1.0, max(golden["delta_all"]))
    for r in range(SETTINGS["rounds"]):
        record = played.step()
        torch.testing.assert_close(played.w.double(), torch.tensor(golden["w"][r], dtype=torch.float64), rtol=0, atol=tolerance)
        assert abs(record["divergence_all"] - golden["delta_all"][r]) < 10 * tolerance * scale
        assert abs(record["divergence_active"] - golden["delta_sel"][r]) < 10 * tolerance * scale
    for client, expected in enumerate(golden["w_last"]):
        last = played.memory.get(client, played.device)["last"].double()
        torch.testing.assert_close(last, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance)
    for name, vector in played.server.items():
        if name in golden["state"]:
            expected = torch.tensor(golden["state"][name], dtype=torch.float64)
            torch.testing.assert_close(vector.double(), expected, rtol=0, atol=tolerance)


def test_golden_covers_every_method_coefficient_reading_and_clip():
    """11 methods in the file; all but FedSMOO are built here, each at β = 0, 0.1, −0.05."""
    seen = {(run.split("|")[0], float(run.split("|")[1].split("=")[1])) for run in RUNS}
    assert seen == {(name, beta) for name in NAMES.values() for beta in SETTINGS["betas"]}
    assert {run.split("=")[-1] for run in RUNS} == {"10", "0.5"}
    assert {run.split("|")[2] for run in RUNS} == {"aggregate=any", "aggregate=start", "aggregate=end"}
