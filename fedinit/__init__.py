"""fedinit: personalized relaxed initialization (RI, the method FedInit) in federated learning, reproduced.

    import fedinit
    history = fedinit.sweep([fedinit.preset("quick", method) for method in ("fedavg", "fedinit")])
"""

from fedinit.data import Images, Partition, load_images, make_noise, make_partition
from fedinit.errors import InputError
from fedinit.experiment import BETA, PRESETS, SETUPS, Experiment, preset
from fedinit.methods import SAM, FedAvg, Method, RelaxedInit, Wrapper, make
from fedinit.runs import Run, Store, frame, run, sweep
from fedinit.training.rounds import Simulation, simulate

__version__ = "0.1.0"

__all__ = [
    "BETA",
    "PRESETS",
    "SAM",
    "SETUPS",
    "Experiment",
    "FedAvg",
    "Images",
    "InputError",
    "Method",
    "Partition",
    "RelaxedInit",
    "Run",
    "Simulation",
    "Store",
    "Wrapper",
    "frame",
    "load_images",
    "make",
    "make_noise",
    "make_partition",
    "preset",
    "run",
    "simulate",
    "sweep",
]
