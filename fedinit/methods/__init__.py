"""Federated methods: the protocol, one method or wrapper a file, names, and the contract tests."""

from fedinit.methods.base import Cohort, Method, Wrapper
from fedinit.methods.check import check
from fedinit.methods.fedadam import FedAdam
from fedinit.methods.fedavg import FedAvg
from fedinit.methods.fedcm import FedCM
from fedinit.methods.feddyn import FedDyn
from fedinit.methods.fedprox import FedProx
from fedinit.methods.momentum import FedAvgM, Lagged
from fedinit.methods.registry import hyperparameters, label, make
from fedinit.methods.relaxed import RelaxedInit
from fedinit.methods.sam import SAM
from fedinit.methods.scaffold import Scaffold

__all__ = [
    "SAM",
    "Cohort",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedCM",
    "FedDyn",
    "FedProx",
    "Lagged",
    "Method",
    "RelaxedInit",
    "Scaffold",
    "Wrapper",
    "check",
    "hyperparameters",
    "label",
    "make",
]
