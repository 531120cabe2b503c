"""The frozen description of a run: validation in one line, key, presets."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from fedinit import BETA, PRESETS, SETUPS, Experiment, InputError, RelaxedInit, Store, make, preset, run
from fedinit.methods import FedAvg
from tests.training.tiny import tiny


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "scafold"}, ("scafold", "Did you mean 'scaffold'")),
        ({"method": 3}, ("method = 3", "fedinit")),
        ({"dirichlet": 0.0}, ("dirichlet = 0.0", "> 0")),
        ({"dirichlet": -1}, ("dirichlet = -1", "> 0")),
        ({"dirichlet": float("inf")}, ("dirichlet = inf", "> 0")),
        ({"clients": 100, "cohort_size": 101}, ("cohort_size = 101", "clients = 100", "1 to 100")),
        ({"batch_size": 0}, ("batch_size = 0", "≥ 1")),
        ({"batch_size": 2.5}, ("batch_size = 2.5", "whole number")),
        ({"rounds": True}, ("rounds = True", "whole number")),
        ({"lr": "1e-3"}, ("lr = '1e-3'", "number", "quotes")),
        ({"lr": 0}, ("lr = 0", "> 0")),
        ({"lr": 10**400}, ("lr = 1000", "> 0")),
        ({"lr": True}, ("lr = True", "number > 0")),
        ({"lr": float("inf")}, ("lr = inf", "> 0")),
        ({"lr": [0.1]}, ("lr = [0.1]", "> 0")),
        ({"lr": np.array([0.1, 0.2])}, ("lr = array(", "> 0")),
        ({"rounds": np.eye(3)}, ("rounds = array(", "whole number")),
        ({"rounds": 0}, ("rounds = 0", "≥ 1")),
        ({"samples": 0}, ("samples = 0", "≥ 1")),
        ({"local_epochs": 0}, ("local_epochs = 0", "≥ 1")),
        ({"client_noise": -0.1}, ("client_noise = -0.1", "≥ 0")),
        ({"category_noise": float("nan")}, ("category_noise = nan", "≥ 0")),
        ({"category_noise": 25}, ("category_noise = 25", "≤ 1")),  # of 0 to 255, surely
        ({"batch_size": 10**12}, ("batch_size = 1000000000000", "at most 1,000,000,000")),
        ({"weight_decay": -1e-3}, ("weight_decay = -0.001", "≥ 0")),
        ({"augment": 1}, ("augment = 1", "true or false")),
        ({"augment": "yes"}, ("augment = 'yes'", "true or false")),
        ({"partition": None}, ("partition = None", "iid")),
        ({"lr_decay": 0}, ("lr_decay = 0", "> 0")),
        ({"lr_decay": 1.1}, ("lr_decay = 1.1", "≤ 1")),
        ({"clip": 0.0}, ("clip = 0.0", "> 0")),
        ({"seed": -1}, ("seed = -1", "≥ 0")),
        ({"participation": "exakt"}, ("exakt", "exact")),
        ({"width": 1}, ("width = 1", "even")),
        ({"model": "resnet18"}, ("resnet18", "Did you mean 'resnet18-gn'")),
        ({"model": "no_such_module:make"}, ("no_such_module", "imported")),
        ({"data": "cifra10"}, ("cifra10", "cifar10")),
        ({"data": "/no/such/file.npz"}, ("/no/such/file.npz",)),
        ({"precision": "fp16"}, ("fp16", "bf16")),
    ],
)
def test_a_value_that_is_not_allowed_is_named_in_one_line(changes, words):
    with pytest.raises(InputError) as error:
        Experiment(**changes)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_an_unknown_field_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match="Did you mean 'local_epochs'"):
        preset("quick", "fedavg", local_epoch=3)


def test_defaults_are_the_papers_setup():
    """Section 5.1: η 0.1, decay 0.998, 500 rounds, 5 epochs, 10 of 100 clients, batch 50, weight decay 1e-3, clip 10."""
    e = Experiment()
    assert (e.lr, e.lr_decay, e.rounds, e.local_epochs) == (0.1, 0.998, 500, 5)
    assert (e.cohort_size, e.clients, e.batch_size, e.weight_decay, e.clip) == (10, 100, 50, 1e-3, 10.0)
    assert (e.model, e.width, e.stem, e.partition, e.dirichlet) == ("resnet18-gn", 64, "imagenet", "dirichlet", 0.1)


def test_the_key_is_the_same_in_another_process_and_for_an_equal_number():
    """SHA-256 of canonical JSON: no dependence on hash seeds, field order, or 1 against 1.0."""
    code = "from fedinit import preset; print(preset('quick', 'scaffold+ri', seed=3).key)"
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "5", "PATH": ""}
    )
    assert other.stdout.strip() == preset("quick", "scaffold+ri", seed=3).key
    assert Experiment(dirichlet=1).key == Experiment(dirichlet=1.0).key


def test_a_path_enters_the_key_by_content_not_by_name(tmp_path):
    arrays = {"x_train": np.zeros((4, 32, 32, 3), np.uint8), "y_train": np.array([0, 1, 0, 1])}
    arrays |= {"x_test": arrays["x_train"], "y_test": arrays["y_train"]}
    np.savez(tmp_path / "a.npz", **arrays)
    (tmp_path / "b.npz").write_bytes((tmp_path / "a.npz").read_bytes())
    arrays["y_train"] = np.array([0, 1, 1, 1])
    np.savez(tmp_path / "c.npz", **arrays)
    a, b, c = (Experiment(data=str(tmp_path / f"{name}.npz")).key for name in "abc")
    assert a == b != c


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("setup", SETUPS)
def test_presets_keep_the_participation_and_choose_beta_by_it(name, setup):
    """β = N / C, a rule that looks at no image: 0.1 at 10%, 0.05 at 5%."""
    e = preset(name, "fedinit", setup)
    assert e.cohort_size / e.clients == pytest.approx(float(setup.split("%")[0]) / 100)
    assert e.method.beta == BETA[setup] == pytest.approx(e.cohort_size / e.clients)
    assert preset(name, "fedinit", setup, hyper={"beta": 0.3}).method.beta == 0.3


def test_presets_give_each_method_the_papers_own_settings():
    assert preset("paper", "feddyn").lr_decay == preset("paper", "feddyn+ri").lr_decay == 0.9995
    assert preset("paper", "fedavg").lr_decay == 0.998
    assert preset("paper", "fedadam").method.global_lr == 0.1
    assert preset("paper", RelaxedInit(FedAvg(), 0.1)).key == preset("paper", "fedinit").key


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: preset("tiny"), ("tiny", "quick")),
        (lambda: preset([]), ("preset = []", "quick")),
        (lambda: preset(None), ("preset = None", "quick")),
        (lambda: preset("quick", 3), ("method = 3", "fedinit")),
        (lambda: preset("quick", FedAvg), ("method = ", "FedAvg()")),
        (lambda: preset("quick", setup={}), ("setup = {}", "10%-100")),
        (lambda: preset("quick", hyper=[0.1]), ("hyper = [0.1]", "dict")),
        (lambda: preset("quick", RelaxedInit(), hyper={"beta": 0.3}), ("hyper", "method object")),
        (lambda: preset("quick", "fedinit+ri"), ("'ri' twice",)),
        (lambda: preset("quick", setup="10%"), ("10%", "10%-100")),
        (lambda: preset("quick", "fedavg", hyper={"beta": 0.1}), ("beta", "fedavg")),
    ],
)
def test_unknown_presets_setups_and_hyperparameters_are_refused(call, words):
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_every_field_is_documented_with_a_source_or_a_meaning():
    table = Experiment.documentation()
    for field in dataclasses.fields(Experiment):
        assert f"`{field.name}`" in table
        assert len(field.metadata["doc"]) > 10


def test_a_method_object_of_ones_own_is_accepted():
    e = Experiment(method=make("fedcm+ri", alpha=0.2))
    assert e.label == "fedcm+ri"
    assert e.columns()["alpha"] == 0.2
    assert e.columns()["initial_lr"] == 0.1


def test_a_hyperparameter_does_not_hide_a_column_of_the_frame(tmp_path):
    """An own method may call its coefficients lr, seed or round: the frame has them apart, and its own columns as they are."""

    @dataclasses.dataclass(frozen=True)
    class Own(FedAvg):
        lr: float = 0.5
        seed: float = 0.25
        round: float = 7.0
        pull: float = 2.0

    experiment = tiny(Own(), seed=3)
    frame = run(experiment, store=Store(tmp_path)).tidy()
    assert frame["seed"].unique() == 3 and frame["round"].tolist() == [*range(1, experiment.rounds + 1)]
    assert [frame[name].unique() for name in ("method_lr", "method_seed", "method_round", "pull")] == [0.5, 0.25, 7.0, 2.0]
    assert frame.initial_lr.unique() == experiment.lr and frame.lr.iloc[0] == experiment.lr
