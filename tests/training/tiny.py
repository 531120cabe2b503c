"""A run of a second: 4 clients, 2 active, a CNN of width 4 on embedded images."""

from fedinit import Experiment


def tiny(method="fedavg", **changes) -> Experiment:
    values = {
        "data": "synthetic:200/100",
        "clients": 4,
        "cohort_size": 2,
        "samples": 25,
        "batch_size": 10,
        "local_epochs": 1,
        "model": "cnn",
        "width": 4,
        "rounds": 4,
    }
    return Experiment(method=method, **{**values, **changes})
