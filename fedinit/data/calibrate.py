"""How hard is the synthetic data set? `python -m fedinit.data.calibrate` prints the table kept in CALIBRATION.md.

Plain PyTorch on purpose: a central run and FedAvg, written out here, so that the data's difficulty owes nothing to the
package's training code or to any method under test.
"""

from __future__ import annotations

import argparse
import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from . import synthetic
from .partition import make_partition

BATCH, RATE, DECAY, CLIP, WEIGHT_DECAY = 25, 0.1, 0.998, 10.0, 1e-3


def network(classes: int) -> nn.Module:
    """Three convolutions with GroupNorm, 34,000 parameters."""

    def block(inward: int, outward: int) -> list[nn.Module]:
        return [nn.Conv2d(inward, outward, 3, padding=1), nn.GroupNorm(2, outward), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*block(3, 16), *block(16, 32), *block(32, 64), nn.Flatten(), nn.Linear(64 * 16, classes))


def augmented(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """A mirror image with probability 0.5, then with probability 0.5 a crop from 4 pixels of zero padding."""
    x = torch.where(torch.from_numpy(rng.random(len(x)) < 0.5)[:, None, None, None], x.flip(3), x)
    dy, dx = rng.integers(-4, 5, (2, len(x))) * (rng.random(len(x)) < 0.5)
    rows, columns = torch.from_numpy(dy)[:, None] + torch.arange(4, 36), torch.from_numpy(dx)[:, None] + torch.arange(4, 36)
    each = torch.arange(len(x))[:, None, None]
    return F.pad(x, (4, 4, 4, 4))[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int, rate: float, rng: np.random.Generator) -> None:
    """SGD in place over the given samples."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)
    for _ in range(epochs):
        for batch in np.array_split(rng.permutation(len(x)), -(-len(x) // BATCH)):
            loss = F.cross_entropy(model(augmented(x[batch], rng)), y[batch])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()


def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return float(torch.cat([model(part).argmax(1) for part in x.split(500)]).eq(y).float().mean())


def tensors(arrays: dict[str, np.ndarray]) -> list[torch.Tensor]:
    """x_train, y_train, x_test, y_test: images float32 NCHW, standardised by the training images."""
    x = [torch.from_numpy(arrays[name]).permute(0, 3, 1, 2).float() / 255 for name in ("x_train", "x_test")]
    mean, std = x[0].mean((0, 2, 3), keepdim=True), x[0].std((0, 2, 3), keepdim=True)
    return [
        (x[0] - mean) / std,
        torch.from_numpy(arrays["y_train"]),
        (x[1] - mean) / std,
        torch.from_numpy(arrays["y_test"]),
    ]


def central(arrays: dict[str, np.ndarray], epochs: int, seed: int) -> float:
    """Test accuracy after training on all images at one place, the rate falling linearly to 0."""
    x, y, x_test, y_test = tensors(arrays)
    torch.manual_seed(seed)
    model, rng = network(int(y.max()) + 1), np.random.default_rng(seed)
    for epoch in range(epochs):
        train(model, x, y, 1, RATE * (1 - epoch / epochs), rng)
    return accuracy(model, x_test, y_test)


def fedavg(arrays: dict[str, np.ndarray], split: dict, rounds: int, clients: int, active: int, epochs: int, seed: int) -> float:
    """Test accuracy, averaged over the last three rounds, of FedAvg."""
    x, y, x_test, y_test = tensors(arrays)
    partition = make_partition(arrays["y_train"], clients=clients, seed=seed, **split)
    torch.manual_seed(seed)
    model, rng = network(int(y.max()) + 1), np.random.default_rng(seed)
    last = []
    for number in range(rounds):
        ends = []
        for client in rng.choice(clients, active, replace=False):
            local = copy.deepcopy(model)
            mine = torch.tensor(partition[client])
            train(local, x[mine], y[mine], epochs, RATE * DECAY**number, rng)
            ends.append(local.state_dict())
        model.load_state_dict({name: sum(end[name] for end in ends) / active for name in ends[0]})
        if number >= rounds - 3:
            last.append(accuracy(model, x_test, y_test))
    return float(np.mean(last))


SPLITS = {"iid": {"scheme": "iid"}, "Dir-0.6": {"dirichlet": 0.6}, "Dir-0.1": {"dirichlet": 0.1}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="synthetic:4000/1000")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=8, help="of the central run")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--active", type=int, default=4)
    parser.add_argument("--local-epochs", type=int, default=2)
    options = parser.parse_args()

    recipe = synthetic.parse(options.data)
    print(f"{recipe}, {options.clients} clients, {options.active} active, {options.rounds} rounds, {options.local_epochs} local epochs")
    print("| seed | central |", " | ".join(SPLITS), "|\n|---|---|" + "---|" * len(SPLITS))
    for seed in range(options.seeds):
        arrays = synthetic.make(**recipe._replace(seed=recipe.seed + seed)._asdict())
        found = [central(arrays, options.epochs, seed)]
        for split in SPLITS.values():
            found.append(fedavg(arrays, split, options.rounds, options.clients, options.active, options.local_epochs, seed))
        print(f"| {recipe.seed + seed} |", " | ".join(f"{100 * value:.1f}" for value in found), "|", flush=True)


if __name__ == "__main__":
    main()
