"""What every method must hold: the contract, neutral values bit for bit, every hyperparameter alive, hand-worked rounds."""

import dataclasses
import linecache
import pickle
import subprocess
import sys
from dataclasses import dataclass

import cloudpickle
import pytest
import torch

from fedinit import InputError, RelaxedInit, Simulation, make
from fedinit.methods import SAM, FedAdam, FedAvg, FedAvgM, FedCM, FedDyn, FedProx, Lagged, Method, Scaffold, check, hyperparameters, label
from fedinit.methods.base import Cohort, reads
from fedinit.methods.registry import BASES, describe, rebuild
from tests.training.tiny import tiny

ALL = [*(name for name in BASES if name != "lagged"), "fedsam", "mofedsam", "fedgamma", "fedspeed"]


def final(method, rounds=3, **changes) -> torch.Tensor:
    """The global model after a few real rounds."""
    simulation = Simulation(tiny(method, **changes), device="cpu")
    for _ in range(rounds):
        simulation.step(evaluate=False)
    return simulation.w


@pytest.mark.parametrize("name", [*ALL, *(f"{name}+ri" for name in ALL), "scaffold+ri+sam"])
def test_contract(name):
    assert "RI with β = 0 changes nothing" in check(make(name))


@pytest.mark.parametrize("name", ["lagged", "lagged+sam"])
def test_contract_of_a_method_that_ri_does_not_go_over(name):
    assert "beta matters" in check(make(name)) and "RI with β = 0 changes nothing" not in check(make(name))


@pytest.mark.parametrize("name", ALL)
def test_beta_zero_is_bitwise_the_base_method(name):
    """Both readings of the server, both of the first participation: s_i = w + 0 · (w − last_i) = w (claim M1)."""
    base = final(make(name))
    for aggregate in ("end", "start"):
        for first in ("initial", "none"):
            assert torch.equal(final(RelaxedInit(make(name), beta=0.0, aggregate=aggregate, first=first)), base)


@pytest.mark.parametrize(
    ("neutral", "base"),
    [
        (FedProx(mu=0.0), FedAvg()),
        (SAM(rho=0.0), FedAvg()),
        (FedCM(alpha=1.0), FedAvg()),
        (FedAvgM(momentum=0.0), FedAvg()),
        (Lagged(beta=0.0), FedAvg()),
        (SAM(Scaffold(), rho=0.0), Scaffold()),
        (SAM(FedCM(), rho=0.0), FedCM()),
        (SAM(FedDyn(), rho=0.0), FedDyn()),
    ],
    ids=lambda m: repr(m),
)
def test_neutral_values_are_bitwise_neutral(neutral, base):
    assert torch.equal(final(neutral), final(base))


def test_feddyn_without_dual_term_trains_like_fedavg_and_then_adds_the_mean_movement():
    """λ = 0: local training is FedAvg's; after round 1, h = (N/C) · mean(moved), so w¹ = mean(end) + (2/4) (mean(end) − w⁰)."""
    simulation = Simulation(tiny(FedDyn(lamb=0.0)), device="cpu")
    initial = simulation.w.clone()
    simulation.step(evaluate=False)
    mean_end = final(FedAvg(), rounds=1)
    torch.testing.assert_close(simulation.w, mean_end + 0.5 * (mean_end - initial), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", [*ALL, "fedinit", "scaffold+ri", "fedcm+ri"])
def test_every_hyperparameter_changed_changes_the_result(name):
    """Trap: a correction on detached tensors or fresh ones never acts. Three real rounds, each number doubled (halved from 0.5)."""
    method, base = make(name), None
    base = final(method)
    for field, value in hyperparameters(method).items():
        if isinstance(value, float):
            other = value * 2 if value * 2 < 1 else value / 2
        else:
            other = {"end": "start", "initial": "none"}[value]
        assert not torch.equal(final(make(name, **{**hyperparameters(method), field: other})), base), field


def test_relaxed_start_by_hand():
    """w = (1, 2), last = (3, −1), β = 0.5: start = w + 0.5 (w − last) = (1 − 1, 2 + 1.5) = (0, 3.5)."""
    method = RelaxedInit(FedAvg(), beta=0.5)
    start = method.start(torch.tensor([1.0, 2.0]), {"last": torch.tensor([3.0, -1.0])})
    assert start.tolist() == [0.0, 3.5]


def test_server_readings_by_hand():
    """w = 0. Client A starts at 1, ends at 3; client B starts at 2, ends at 3. "end": mean(end) − w = 3. "start": mean(2, 1) = 1.5."""
    w = torch.zeros(1)
    cohort = Cohort(w, 1.0)
    cohort.add(torch.tensor([1.0]), torch.tensor([3.0]), 0.1, {}, {})
    cohort.add(torch.tensor([2.0]), torch.tensor([3.0]), 0.1, {}, {})
    assert RelaxedInit(aggregate="end").step(w, {}, cohort)[0].item() == 3.0
    assert RelaxedInit(aggregate="start").step(w, {}, cohort)[0].item() == 1.5


def test_three_clients_with_gradients_1_2_and_minus_1_average_to_a_third():
    """Trap of aliased buffers: W = 1, η = 1, one step each: ends 0, −1, 2, mean 1/3."""
    w = torch.ones(1, dtype=torch.float64)
    cohort = Cohort(w, 1.0)
    for gradient in (1.0, 2.0, -1.0):
        cohort.add(w, w - gradient, 1.0, {}, {})
    assert FedAvg().step(w, {}, cohort)[0].item() == pytest.approx(1 / 3, abs=1e-15)


def test_slope_weighs_each_client_by_its_own_steps():
    """Movements −1 over lr_sum 0.5 (slope 2), −3 over lr_sum 1 (slope 3), −1 over 0.25 (slope 4): mean slope 3, not (5/3)/(1.75/3)."""
    w = torch.zeros(1)
    cohort = Cohort(w, 1.0)
    for moved, lr_sum in ((-1.0, 0.5), (-3.0, 1.0), (-1.0, 0.25)):
        cohort.add(w, torch.tensor([moved]), lr_sum, {}, {})
    assert cohort.slope.item() == pytest.approx(3.0)


def test_fedadam_by_hand():
    """One round, D = 2, β1 = .9, β2 = .99, ε = .01, η_g = .1: m = .2, v = .04, √v = .2, w = 0 + .1 · .2 / .21."""
    method, w = FedAdam(), torch.zeros(1, dtype=torch.float64)
    cohort = Cohort(w, 1.0)
    cohort.add(w, torch.tensor([2.0], dtype=torch.float64), 0.1, {}, {})
    new, server = method.step(w, method.init_server(w), cohort)
    assert new.item() == pytest.approx(0.1 * 0.2 / 0.21, abs=1e-12)
    assert (server["m"].item(), server["v"].item()) == pytest.approx((0.2, 0.04))


def test_server_momentum_by_hand():
    """μ = 0.5 and movements 1, then 2: v = 1, w = 1; v = 0.5 + 2 = 2.5, w = 3.5."""
    w, server, method = torch.tensor([0.0]), {"v": torch.tensor([0.0])}, FedAvgM(momentum=0.5)
    for moved, expected in ((1.0, 1.0), (2.0, 3.5)):
        cohort = Cohort(w, 1.0)
        cohort.add(w, w + moved, 1.0, {}, {})
        w, server = method.step(w, server, cohort)
        assert w.item() == expected


def test_server_term_alone_by_hand():
    """w = 1, β = 0.5; two clients end at 2 and 4 and were last at 0 and 1: D = mean(1, 3) = 2, mean(w − last) = mean(1, 0) = 0.5,
    w ← 1 + 2 + 0.25. Local training begins at w itself, so this is FedInit's server step for the same ends."""
    w = torch.tensor([1.0])
    cohort = Cohort(w, 0.5, reads(Lagged(), torch.zeros(2)))
    for end, last in ((2.0, 0.0), (4.0, 1.0)):
        cohort.add(w, torch.tensor([end]), 1.0, {"last": torch.tensor([last])}, {"last": torch.tensor([end])})
    assert Lagged(beta=0.5).step(w, {}, cohort)[0].item() == 3.25
    assert Lagged().start(w, {"last": torch.tensor([0.0])}) is w


def test_scaffold_control_variates_average_to_the_servers():
    """Invariant: c = mean over all C clients of c_i; clients never active count with 0."""
    simulation = Simulation(tiny("scaffold", precision="float64"), device="cpu")
    for _ in range(4):
        simulation.step(evaluate=False)
        mine = [simulation.memory.get(i, simulation.device)["c_i"] for i in range(4) if i in simulation.memory]
        torch.testing.assert_close(simulation.server["c"], sum(mine) / 4, rtol=1e-12, atol=1e-14)


def test_scaffold_control_variate_is_the_paths_mean_direction_also_from_a_relaxed_start():
    """Without clip and decay, c_i⁺ = −moved_i / lr_sum_i − c + c_i = the mean mini-batch gradient along the path from the actual start."""
    method = make("scaffold+ri", beta=0.3)
    gradients = [torch.tensor([1.0]), torch.tensor([3.0])]
    received, mine = {"c": torch.tensor([0.5])}, {"c_i": torch.tensor([-1.0]), "last": torch.tensor([2.0])}
    start = method.start(torch.tensor([1.0]), mine)
    constants, y = method.constants(start, received, mine), start.clone()
    for g in gradients:
        y = y - 0.1 * method.direction(lambda v, g=g: g.clone(), y, constants)
    new = method.keep(received, mine, start, y, 0.2)
    assert new["c_i"].item() == pytest.approx(2.0, abs=1e-5)
    assert new["last"] is y


def test_feddyn_server_follows_the_mean_of_the_clients_duals():
    simulation = Simulation(tiny(make("feddyn+ri", beta=0.1), precision="float64"), device="cpu")
    for _ in range(4):
        simulation.step(evaluate=False)
        mine = [simulation.memory.get(i, simulation.device)["h_i"] for i in range(4) if i in simulation.memory]
        torch.testing.assert_close(simulation.server["h"], sum(mine) / 4, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "up", "down"),
    [
        ("fedavg", 1, 1),
        ("fedprox", 1, 1),
        ("fedadam", 1, 1),
        ("fedsam", 1, 1),
        ("scaffold", 2, 2),
        ("feddyn", 1, 1),
        ("fedcm", 1, 2),
        ("fedinit", 1, 1),
        ("fedadam+ri", 1, 1),
        ("scaffold+ri", 2, 2),
        ("feddyn+ri", 2, 1),
        ("fedcm+ri", 2, 2),
    ],
)
def test_what_is_sent_is_metered(name, up, down):
    """In vectors of d numbers a client and round. RI adds none to a base that needs only the final models (M2); FedDyn and FedCM need the
    movement from the relaxed start as well, which the server cannot tell from the final models."""
    simulation = Simulation(tiny(name), device="cpu")
    for _ in range(3):
        simulation.step(evaluate=False)
    assert len(simulation.sent) == up
    assert 1 + len(simulation.experiment.method.broadcast(simulation.server)) == down


def test_names():
    assert label(make("fedavg+ri")) == label(make("fedinit")) == "fedinit"
    assert label(make("fedcm+sam")) == "mofedsam"
    assert label(make("scaffold+sam+ri")) == "fedgamma+ri"
    assert make("scaffold+ri", beta=0.05) == RelaxedInit(Scaffold(), beta=0.05)

    @dataclass(frozen=True)
    class ServerAdd(FedAvg):
        pass

    @dataclass(frozen=True)
    class Labelled(ServerAdd):
        label = "FedAvg-M"

    own = type("Scaffold", (FedAvg,), {})()
    assert label(ServerAdd()) == "ServerAdd" and label(RelaxedInit(Labelled())) == "FedAvg-M+ri"
    assert label(own) == "Scaffold (own)" and label(type("Heir", (Labelled,), {})()) == "Heir"
    assert hyperparameters(make("fedsam+ri")) == {"global_lr": 1.0, "rho": 0.1, "beta": 0.1, "aggregate": "end", "first": "initial"}


@pytest.mark.parametrize("name", [*ALL, "fedinit", "scaffold+sam+ri"])
def test_description_pickle_and_hash_keep_the_method(name):
    method = make(name)
    assert rebuild(describe(method)) == pickle.loads(pickle.dumps(method)) == method
    assert hash(method) == hash(make(name))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: make("scafold"), ("scafold", "Did you mean 'scaffold")),
        (lambda: make("scaffold+rl"), ("'rl'", "Allowed: ri, sam")),
        (lambda: make("fedavg", beta=0.1), ("beta", "global_lr")),
        (lambda: make("fedinit", beta="0,1"), ("beta = '0,1'", "number", "point")),
        (lambda: make("fedinit", beta=float("nan")), ("beta = nan", "finite")),
        (lambda: make("fedinit", beta=10**400), ("beta = 1000", "finite")),
        (lambda: make("fedinit", aggregate="mean"), ("aggregate = 'mean'", "end, start")),
        (lambda: make("fedcm", alpha=1.5), ("alpha = 1.5", "≤ 1")),
        (lambda: make("fedcm", alpha=0), ("alpha = 0", "> 0 and ≤ 1")),  # m would stay 0, and nothing move
        (lambda: make("fedadam", epsilon=0), ("epsilon = 0", "> 0")),
        (lambda: make("fedadam", beta1=1), ("beta1 = 1", "≥ 0 and < 1")),
        (lambda: make("fedadam", beta2=1.0), ("beta2 = 1.0", "< 1")),
        (lambda: make("fedavgm", momentum=1), ("momentum = 1", "< 1")),
        (lambda: make("scaffold", global_lr=0), ("Scaffold: global_lr = 0", "> 0")),
        (lambda: make("fedsam", rho=-0.1), ("rho = -0.1", "≥ 0")),
        (lambda: make("fedprox", mu=True), ("mu = True", "number")),
        (lambda: make(["fedavg"]), ("['fedavg']", "a name such as")),
        (lambda: SAM(base=3), ("base = 3", "FedAvg()")),
        (lambda: make("lagged+ri"), ("base = Lagged(", "has Lagged in it", "leave one out")),
        (lambda: make("fedinit+ri"), ("'fedinit+ri'", "'ri' twice", "fedavg+ri+ri", "once")),
        (lambda: make("scaffold+ri+sam+ri"), ("'ri' twice",)),
        (lambda: make("fedsam+sam", rho=0.1), ("'sam' twice", "fedavg+sam+sam")),
        (lambda: RelaxedInit(RelaxedInit(beta=0.2)), ("RelaxedInit: base = RelaxedInit(", "beta=0.2", "one of them")),
        (lambda: RelaxedInit(SAM(RelaxedInit())), ("RelaxedInit: base = SAM(", "has RelaxedInit in it")),
        (lambda: RelaxedInit(SAM(Lagged())), ("RelaxedInit: base = SAM(", "has Lagged in it")),
        (lambda: SAM(SAM()), ("SAM: base = SAM(", "has SAM in it")),
        (lambda: SAM(RelaxedInit(SAM())), ("SAM: base = RelaxedInit(", "has SAM in it")),
    ],
)
def test_bad_input_is_one_line_that_names_value_and_way_out(call, words):
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


# ---- check() finds broken methods -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ChangesItsInput(FedAvg):
    def step(self, w, server, cohort):
        return w + cohort.moved, server

    def start(self, w, mine):
        return w.add_(1.0)


@dataclasses.dataclass(frozen=True)
class DeadHyperparameter(FedAvg):
    strength: float = 0.5


@dataclasses.dataclass(frozen=True)
class SharesABuffer(FedAvg):
    def init_server(self, initial):
        return {"shared": initial * 0}

    def broadcast(self, server):
        return server

    def keep(self, received, mine, start, end, lr_sum):
        return {"own": received["shared"]}


@dataclasses.dataclass(frozen=True)
class WrongShape(FedAvg):
    def constants(self, start, received, mine):
        return {"norm": start.norm()}


@dataclasses.dataclass
class Mutable(Method):
    def step(self, w, server, cohort):
        return w + cohort.moved, server


COUNTER = []


@dataclasses.dataclass(frozen=True)
class HidesState(FedAvg):
    def step(self, w, server, cohort):
        COUNTER.append(1)
        return w + cohort.moved / len(COUNTER), server


def broken(**hooks) -> Method:
    """FedAvg with some hooks replaced, each given as a function without self."""
    body = {name: (lambda self, *args, hook=hook: hook(*args)) for name, hook in hooks.items()} | {"__module__": "__main__"}
    return dataclass(frozen=True)(type("Broken", (FedAvg,), body))()


class Undecorated(FedAvg):
    mu: float = 0.1


@dataclass(frozen=True)
class HoldsAList(FedAvg):
    rates: tuple = ()

    def __post_init__(self):
        object.__setattr__(self, "rates", [0.1])


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (broken(step=lambda w, server, cohort: (w.add_(cohort.moved), server)), "step changed a vector"),
        (broken(step=lambda w, server, cohort: w + cohort.moved), "step must return .w, server vectors., not Tensor"),
        (broken(step=lambda w, server, cohort: None), "step must return .w, server vectors., not NoneType"),
        (broken(step=lambda w, server, cohort: (w + cohort.moved, {"v": cohort.moved[:2]})), "step returned v that is not a flat"),
        (broken(step=lambda w, server, cohort: (w + server["v"], server)), "step raised KeyError: 'v'"),
        (broken(step=lambda w, server, cohort: (w * float("nan"), server)), "results are not finite"),
        (broken(direction=lambda gradient, y, constants: gradient(y)[:1]), "direction returned"),
        (broken(direction=lambda gradient, y, constants: 1.0), "direction must return a flat vector, not float"),
        (broken(direction=lambda gradient, y, constants: gradient(y.mul_(2))), "direction changed y"),
        (broken(direction=lambda gradient, y, constants: gradient(y) * float("nan")), "results are not finite"),
        (broken(keep=lambda *_: None), "keep must return a dict"),
        (broken(start=lambda w, mine: w + mine["gone"]), "start raised KeyError: 'gone'"),
        (Undecorated(), "frozen"),
        (HoldsAList(), "cannot be hashed"),
        (ChangesItsInput(), "start changed a vector"),
        (DeadHyperparameter(), "strength changes nothing"),
        (SharesABuffer(), "share one buffer"),
        (WrongShape(), "not a flat vector"),
        (Mutable(), "frozen"),
        (HidesState(), "state hides"),
    ],
)
def test_check_names_the_broken_rule(method, words):
    with pytest.raises(AssertionError, match=words):
        check(method)


def own(body: str) -> dict:
    """What enters the key of a method whose class has this body, as if it stood in a notebook's cell."""
    text = f"@dataclass(frozen=True)\nclass Own(FedAvg):\n{body}\n    def start(self, w, mine):\n        return w * self.mu\n"
    cell = f"<cell {body}>"
    linecache.cache[cell] = (len(text), None, text.splitlines(True), cell)
    names = {"__name__": "__main__", "dataclass": dataclass, "FedAvg": FedAvg}
    exec(compile(text, cell, "exec"), names)
    return describe(names["Own"]())


def test_whatever_is_edited_in_a_class_makes_another_method():
    """A constant of the body, a property, a field's value under any name; the label, which tables print, does not."""
    bodies = ["    mu = 0.1", "    mu = 0.9", "    _mu = 0.1\n    mu = 0.1", "    mu: float = 0.1", "    mu: float = 0.9"]
    bodies += [f"    {name}: float = {value}\n    mu = 0.1" for name in ("base", "code", "name", "fields") for value in (0.5, 0.9)]
    bodies += [f"    @property\n    def mu(self):\n        return {value}" for value in (0.1, 0.9)]
    described = [str(own(body)) for body in bodies]
    assert len(set(described)) == len(bodies)
    assert own("    mu = 0.1\n    label = 'mine'") == own("    mu = 0.1\n    label = 'yours'")


def test_a_whole_number_is_the_same_decimal():
    assert describe(make("fedinit", beta=0)) == describe(make("fedinit", beta=0.0)) != describe(make("fedinit", beta=0.1))


def test_reads_finds_what_a_step_looks_at():
    vector = torch.zeros(2)
    assert reads(Scaffold(), vector) == {"c_i"}
    assert reads(make("scaffold+ri"), vector) == {"c_i"}
    assert reads(make("feddyn+ri"), vector) == frozenset()


def test_a_class_of_a_notebook_cell_has_one_fingerprint_in_every_process():
    """Trap: a worker gets the class by value but not the text of the cell, and must come to the same key."""
    text = "@dataclass(frozen=True)\nclass Own(FedAvg):\n    def step(self, w, server, cohort):\n        return w + cohort.moved, server\n"
    linecache.cache["<cell>"] = (len(text), None, text.splitlines(True), "<cell>")
    names = {"__name__": "__main__", "dataclass": dataclass, "FedAvg": FedAvg}
    exec(compile(text, "<cell>", "exec"), names)
    method = names["Own"]()
    described = describe(method)
    program = "import pickle, sys; from fedinit.methods.registry import describe; print(describe(pickle.load(sys.stdin.buffer)))"
    worker = subprocess.run([sys.executable, "-c", program], input=cloudpickle.dumps(method), capture_output=True, check=True)
    assert worker.stdout.decode().strip() == str(described)
