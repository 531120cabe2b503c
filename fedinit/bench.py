"""What the simulator costs: a plain PyTorch loop with no federated code beside the engine, on the same work, interleaved.

The plain loop has the images in memory, slices batches, augments them in one go, clips with torch's clip_grad_norm_ and steps with fused
SGD. Both do the same number of steps of the same batch size on the same model from the same initial weights; drift of the machine cancels
in the ratios.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F

from fedinit.data import load_images
from fedinit.errors import InputError
from fedinit.experiment import Experiment
from fedinit.methods import make
from fedinit.streams import stream
from fedinit.training import local
from fedinit.training.batches import Batches, augment
from fedinit.training.models import build
from fedinit.training.rounds import Simulation

EPOCHS = 5  # local epochs, as in the paper


def work(method: str, model: str, width: int, *, active: int = 2, steps: int = 10, batch: int = 50) -> Experiment:
    """A round of `active` clients, `steps` local steps each (a multiple of the five epochs), at the paper's rates, on embedded images.

    Every client is active in every round: after the round of warm-up all of them have their vectors.
    """
    if steps % EPOCHS:
        raise InputError(f"steps = {steps} is not allowed; allowed: a multiple of the {EPOCHS} local epochs.")
    return Experiment(
        method=make(method),
        data="synthetic:5000/500",
        clients=active,
        cohort_size=active,
        samples=batch * steps // EPOCHS,
        batch_size=batch,
        local_epochs=EPOCHS,
        model=model,
        width=width,
    )


def plain_loop(experiment: Experiment, device: torch.device) -> Callable[[], None]:
    """The same work as one round of `experiment`, as a function to be timed."""
    e, images = experiment, load_images(experiment.data)
    seed = int(stream(e.seed, "initial weights").integers(2**63))
    model = build(e.model, len(images.classes), width=e.width, stem=e.stem, seed=seed).to(device)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):  # torch's own, in its own memory format, for the 1×1 ones too
            module.weight.data = module.weight.data.contiguous()
            module.forward = functools.partial(nn.Conv2d.forward, module)
    x_all = (torch.tensor(images.x_train) / 255).to(device)
    mean, std = x_all.mean((0, 1, 2)), x_all.std((0, 1, 2))
    x_all, y_all = ((x_all - mean) / std), torch.tensor(images.y_train, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=e.lr, weight_decay=e.weight_decay, fused=True)
    luck, steps = np.random.default_rng(0), e.cohort_size * e.local_epochs * (e.samples // e.batch_size)

    def round() -> None:
        for _ in range(steps):
            chosen = torch.from_numpy(luck.integers(0, len(x_all), e.batch_size)).to(device)
            x = augment(x_all[chosen], luck).permute(0, 3, 1, 2).contiguous()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y_all[chosen]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), e.clip)
            optimizer.step()

    return round


def compare(
    methods: Sequence[str] = ("fedavg", "fedinit"), model: str = "resnet18-gn", width: int = 64, *, repeats: int = 5, device="cpu", **size
) -> pd.DataFrame:
    """Seconds of one round each, `repeats` times interleaved after one round of warm-up: columns what, repeat, seconds.

    "plain loop" is the baseline; the engine's rounds are without evaluation.
    """
    device = torch.device(device)
    rounds: dict[str, Callable] = {"plain loop": plain_loop(work("fedavg", model, width, **size), device)}
    for method in methods:
        simulation = Simulation(work(method, model, width, **size), device=device)
        rounds[method] = lambda simulation=simulation: simulation.step(evaluate=False)
    rows = []
    for repeat in range(repeats + 1):
        for what, play in rounds.items():
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            play()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if repeat:
                rows.append((what, repeat, time.perf_counter() - began))
    return pd.DataFrame(rows, columns=["what", "repeat", "seconds"])


def ratios(measured: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """One row each: median seconds a round, and min, median, max of the ratios to `baseline` of the same repeat."""
    wide = measured.pivot(index="repeat", columns="what", values="seconds")[list(dict.fromkeys(measured.what))]
    relative = wide.div(wide[baseline], axis=0)
    return pd.DataFrame({"seconds": wide.median(), "ratio": relative.median(), "lowest": relative.min(), "highest": relative.max()})


def overhead(width: int = 64, model: str = "resnet18-gn", *, rounds: int = 5, **size) -> pd.DataFrame:
    """Where the seconds of a FedAvg round go: forward and backward, batches, update, all else; share of the round, median of `rounds`."""
    simulation, spent, rows = Simulation(work("fedavg", model, width, **size), device="cpu"), {}, []

    def timed(name: str, call: Callable) -> Callable:
        def inner(*args, **kwargs):
            began = time.perf_counter()
            out = call(*args, **kwargs)
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - began
            return out

        return inner

    gradient_on = simulation.model.gradient_on
    simulation.model.gradient_on = lambda *args: timed("forward and backward", gradient_on(*args))
    update, train = local.update, Batches.train
    local.update = timed("update", update)

    def batches(client, round):
        inner = train(simulation.batches, client, round)
        following = timed("batches", lambda: next(inner, None))
        while (batch := following()) is not None:
            yield batch

    simulation.batches.train = batches
    try:
        for repeat in range(rounds + 1):
            spent.clear()
            began = time.perf_counter()
            simulation.step(evaluate=False)
            whole = time.perf_counter() - began
            if repeat:
                rows.append({**spent, "all else": whole - sum(spent.values()), "round": whole})
    finally:
        local.update = update
    table = pd.DataFrame(rows)
    return pd.DataFrame({"seconds": table.median(), "share": table.div(table["round"], axis=0).median()})


def report(folder: Path, methods: Sequence[str], model: str, width: int, *, repeats=5, device="cpu", threads=1, batch=50, steps=10) -> str:
    """Measure, write bench.csv and bench.png into `folder`, return the text for a terminal. `steps`: of a client in a round."""
    from matplotlib import pyplot as plt

    from fedinit.results import style
    from fedinit.results.names import display_name
    from fedinit.runs.provenance import provenance

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        measured = compare(methods, model, width, repeats=repeats, device=device, batch=batch, steps=steps)
        parts = overhead(width, model, rounds=repeats, batch=batch, steps=steps) if device == "cpu" else None
    finally:
        torch.set_num_threads(before)
    table = ratios(measured, "plain loop")
    table["over FedAvg"] = ratios(measured, "fedavg")["ratio"] if "fedavg" in table.index else float("nan")
    folder.mkdir(parents=True, exist_ok=True)
    measured = measured.assign(model=model, width=width, batch=batch, steps=steps, device=device, threads=threads)
    measured.to_csv(folder / "bench.csv", index=False)
    with style.use_style():
        figure, ax = plt.subplots(figsize=(style.COLUMN, 0.5 + 0.22 * len(table)))
        names = [name if name == "plain loop" else display_name(name) for name in table.index]
        ends = [table.ratio - table.lowest, table.highest - table.ratio]
        ax.barh(
            names,
            table.ratio,
            xerr=ends,
            color=["0.7"] + [style.look(m)["color"] for m in table.index[1:]],
            height=0.7,
            error_kw={"lw": 0.8},
        )
        ax.axvline(1, color="0.3", lw=0.6)
        ax.invert_yaxis()
        ax.set_xlabel("time of a round / plain loop")
        figure.savefig(folder / "bench.png")
        plt.close(figure)
    hardware = provenance(torch.device(device), threads)["hardware"]
    head = f"{model} width {width}, batch {batch}, {steps} local steps, float32, {device} ({hardware}), threads {threads}; "
    head += f"{repeats} interleaved repeats"
    text = f"{head}\n{table.to_string(float_format=lambda x: f'{x:.3f}')}\nratio below 1: faster than the plain loop"
    if parts is not None:
        text += f"\n\nwhere a FedAvg round goes\n{parts.to_string(float_format=lambda x: f'{x:.4f}')}"
    return f"{text}\n{folder / 'bench.csv'}, bench.png"
