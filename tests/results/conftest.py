"""Fake tidy frames: closed-form curves, no training. One call makes one run's history."""

import zlib

import numpy as np
import pandas as pd
import pytest


def make_run(
    label="fedavg",
    seed=0,
    rounds=60,
    final=0.5,
    diverged_at=None,
    every=1,
    beta=np.nan,
    seconds=2.0,
    noise=0.0,
    clients=100,
    cohort_size=10,
    dirichlet=0.1,
    data="cifar10",
    divergence=5.0,
    **fields,
):
    """Accuracy final · (1 − exp(−5 t / T)) + noise; Δ^t falls from 10× `divergence`; a diverged run stops at its round."""
    key = f"{label}|{seed}|{beta}|{clients}|{dirichlet}|{data}|{sorted(fields.items())}"
    rng = np.random.default_rng(zlib.crc32(key.encode()))
    t = np.arange(1, (diverged_at or rounds) + 1)
    accuracy = np.clip(final * (1 - np.exp(-5 * t / rounds)) + noise * rng.normal(size=t.size), 0, 1)
    accuracy[t % every != 0] = np.nan
    delta = divergence * (1 + 9 * np.exp(-5 * t / rounds)) * np.exp(noise * rng.normal(size=t.size))
    return pd.DataFrame(
        {
            "key": key,
            "label": label,
            "seed": seed,
            "data": data,
            "model": "resnet18-gn",
            "width": 16,
            "clients": clients,
            "cohort_size": cohort_size,
            "participation": "exact",
            "partition": "dirichlet",
            "dirichlet": dirichlet,
            "client_noise": 0.0,
            "category_noise": 0.0,
            "rounds": rounds,
            "local_epochs": 5,
            "batch_size": 50,
            "beta": beta,
            **fields,
            "round": t,
            "lr": 0.1 * 0.998 ** (t - 1),
            "train_loss": 2.3 * np.exp(-t / rounds),
            "test_loss": 2.3 * np.exp(-t / rounds),
            "test_accuracy": accuracy,
            "divergence_all": delta,
            "divergence_active": delta / 4,
            "movement": delta / 5,
            "norm": 100.0,
            "train_seconds": seconds + 8.0 * (t == 1),
            "eval_seconds": 100.0,
            "active": "1;2;3",
            "diverged": ((t == diverged_at) if diverged_at else np.zeros(t.size)).astype(int),
        }
    )


def make_frame(*runs):
    """Several histories stacked; each run given as keyword arguments of `make_run`."""
    return pd.concat([make_run(**run) for run in runs], ignore_index=True)


@pytest.fixture(scope="session")
def run():
    return make_run


@pytest.fixture(scope="session")
def frame():
    return make_frame
