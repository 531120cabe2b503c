"""Models, flat vectors, the local loop, divergence, participation, divergence of a run, devices."""

import functools
import sys
import types

import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

from fedinit import Experiment, InputError, Simulation, make
from fedinit.training import local
from fedinit.training.flat import FlatModel
from fedinit.training.models import Conv, build
from fedinit.training.rounds import pick_device
from tests.training.tiny import tiny


def gradients(module, x, y):
    return torch.autograd.grad(F.cross_entropy(module(x), y), list(module.parameters()))


def test_resnet_is_torchvisions_with_group_norm():
    """Same names, same numbers forward and backward to rounding; the live-tap convolutions of the last stage included."""
    ours = build("resnet18-gn", 10, seed=1)
    theirs = torchvision.models.resnet18(norm_layer=lambda channels: nn.GroupNorm(2, channels), num_classes=10)
    assert [(n, p.shape) for n, p in ours.named_parameters()] == [(n, p.shape) for n, p in theirs.named_parameters()]
    theirs.load_state_dict(ours.state_dict())
    x, y = torch.randn(8, 32, 32, 3, generator=torch.manual_seed(0)).permute(0, 3, 1, 2), torch.arange(8)
    torch.testing.assert_close(ours(x), theirs(x.contiguous()), rtol=1e-4, atol=1e-5)
    for (name, _), a, b in zip(ours.named_parameters(), gradients(ours, x, y), gradients(theirs, x.contiguous(), y), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5 * float(b.abs().max() + 1), msg=name)


@pytest.mark.parametrize(
    ("name", "width", "count"),
    [
        # ResNet-18 has 11,689,512 parameters with 1000 classes and BatchNorm's affine pairs, as GroupNorm's: − 990 · 513 = 11,181,642
        ("resnet18-gn", 64, 11_181_642),
        # 3·64·9+64 + 64·128·9+128 + 128·256·9+256 + 256²·9+256 + 256·512·9+512 + 3·(512²·9+512) + 512²+512 + 5130
        ("vgg11", 64, 9_488_266),
        # 9·(3·8 + 8·16 + 16·32) + 2·(8 + 16 + 32) + 32·16·10 + 10
        ("cnn", 8, 11_218),
    ],
)
def test_models_have_the_number_of_parameters_that_a_person_counts(name, width, count):
    model = build(name, 10, width=width)
    assert sum(p.numel() for p in model.parameters()) == count
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert not list(model.buffers())


def test_the_cifar_stem_keeps_the_full_resolution():
    """3×3 stride 1 and no pooling: the first stage works on 32×32 maps."""
    model, seen = build("resnet18-gn", 10, width=4, stem="cifar"), []
    model.layer1.register_forward_hook(lambda module, args, out: seen.append(out.shape))
    model(torch.zeros(1, 3, 32, 32))
    assert seen == [(1, 4, 32, 32)]


def test_initial_weights_depend_on_the_seed_alone_and_leave_the_callers_stream():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    a, b, c = (build("cnn", 10, width=4, seed=s) for s in (5, 5, 6))
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(a.fc.weight, b.fc.weight)
    assert not torch.equal(a.fc.weight, c.fc.weight)


@pytest.fixture
def mine(monkeypatch):
    """An importable module with model factories of a user's own."""
    module = types.ModuleType("my_models")
    module.linear = lambda classes: nn.Sequential(nn.Flatten(), nn.Linear(3072, classes))
    module.batchnorm = lambda classes: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(3072), nn.Linear(3072, classes))
    module.dropout = lambda classes: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(3072, classes))
    module.nothing = lambda classes: "no module"
    module.unused = Unused
    monkeypatch.setitem(sys.modules, "my_models", module)


class Unused(nn.Module):
    """A parameter that the loss does not see."""

    def __init__(self, classes):
        super().__init__()
        self.spare = nn.Parameter(torch.ones(7))
        self.fc = nn.Linear(3072, classes)

    def forward(self, x):
        return self.fc(x.flatten(1))


def test_a_users_factory(mine):
    assert build("my_models:linear", 10)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "words"), [("batchnorm", "running_mean"), ("nothing", "returned str"), ("missing", "no callable 'missing'")]
)
def test_a_users_factory_that_cannot_work_is_refused_in_one_line(mine, name, words):
    """BatchNorm's running statistics would go stale when parameters are averaged."""
    with pytest.raises(InputError, match=words) as error:
        build(f"my_models:{name}", 10)
    assert "\n" not in str(error.value)


def test_a_round_with_the_fast_paths_agrees_with_a_plain_one():
    """Same state, same batches: the global model after one round, float32, within 1e-5 of its norm; the other side has torch's own
    convolutions."""
    experiment = tiny("fedinit", model="resnet18-gn", width=8)
    fast, plain = Simulation(experiment, device="cpu"), Simulation(experiment, device="cpu")
    plain.model = FlatModel(plain.model.module, small_maps=False)
    fast.step(evaluate=False), plain.step(evaluate=False)
    moved = torch.linalg.vector_norm(fast.w - fast.initial)
    assert 0 < torch.linalg.vector_norm(fast.w - plain.w) < 1e-5 * torch.linalg.vector_norm(fast.w)
    assert moved > 1e-2 * torch.linalg.vector_norm(fast.w)


def test_an_unused_parameter_has_gradient_zero_and_still_decays(mine):
    model = FlatModel(build("my_models:unused", 10))
    x, y = torch.randn(4, 3, 32, 32), torch.arange(4)
    out = local.train(model, make("fedavg"), [(x, y)], model.initial, {}, {}, lr=0.1, weight_decay=0.5, clip=None)
    assert torch.allclose(out.end[:7], torch.full((7,), 0.95))  # 1 − 0.1 · 0.5


def test_dropout_draws_from_the_runs_own_stream(mine, monkeypatch):
    """A model that draws random numbers repeats all the same, whatever the caller's stream did before."""
    monkeypatch.setattr("fedinit.experiment._check_model", lambda model: None)

    def played():
        e = tiny("fedavg")
        object.__setattr__(e, "model", "my_models:dropout")
        simulation = Simulation(e, device="cpu")
        simulation.step(evaluate=False)
        return simulation.w

    first = played()
    torch.rand(5)
    assert torch.equal(played(), first)


def in_memory(tensors):
    """One vector of all tensors, each in the order of its memory."""
    return torch.cat([t.permute(sorted(range(t.dim()), key=t.stride, reverse=True)).flatten() for t in tensors])


def test_a_flat_vector_is_the_module():
    """The module computes at any vector it is bound to, and its gradient is autograd's, in the order of its parameters."""
    module = build("cnn", 10, width=4)
    x, y = torch.randn(6, 3, 32, 32), torch.arange(6)
    flat, losses = FlatModel(module), []
    gradient = flat.gradient_on(x, y, losses)
    assert torch.equal(flat.initial, in_memory(p.detach() for p in module.parameters()))
    found = gradient(flat.initial)
    for expected, view in zip(gradients(module, x, y), flat._views(found), strict=True):
        torch.testing.assert_close(view, expected, rtol=1e-5, atol=1e-7)
    elsewhere = torch.randn_like(flat.initial) * 0.1
    gradient(elsewhere)
    assert torch.equal(in_memory(p.detach() for p in module.parameters()), elsewhere)
    assert len(losses) == 1  # SAM's second gradient reports no loss


@pytest.mark.parametrize("name", ["resnet18-gn", "vgg11"])
def test_fast_convolutions_are_the_plain_ones_to_rounding(name):
    """Loss and gradient of the module with and without `small_maps`, in float64; and a gradient that a method has overwritten,
    padding-only taps included, leaves nothing behind."""
    x, y = torch.randn(5, 3, 32, 32, dtype=torch.float64), torch.arange(5)
    found = []
    for fast in (True, False):
        flat, losses = FlatModel(build(name, 10, width=4, seed=1).double(), small_maps=fast), []
        flat.gradient_on(x, y, [])(flat.initial).fill_(7.0)
        found.append((flat.gradient_on(x, y, losses)(flat.initial), *losses))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-14)
    assert (found[0][0] == 0).double().mean() > 0.3  # most weights of the last stage meet padding only


class Fixed:
    """A 'model' of two parameters whose gradient is given, to work a local round by hand."""

    def __init__(self, values):
        self.values = iter(values)

    def gradient_on(self, x, y, losses):
        losses.append(torch.tensor(1.0))
        g = torch.tensor(next(self.values), dtype=torch.float64)
        return lambda v: g.clone()


def test_local_steps_by_hand():
    """y = (1, 2); g = (3, 4), norm 5, clip 2.5: clip(g) = (1.5, 2) · 5 / (5 + 1e-6). η = 0.1, κ = 0.5:
    y ← y − 0.1 (clip(g) + 0.5 y) = 0.95 y − 0.1 clip(g) = (0.95 − 0.15, 1.9 − 0.2) = (0.8, 1.7) to 1e-7.
    Then g = (0.3, 0.4), norm 0.5 < 2.5, unclipped: (0.76 − 0.03, 1.615 − 0.04) = (0.73, 1.575)."""
    w = torch.tensor([1.0, 2.0], dtype=torch.float64)
    out = local.train(Fixed([[3, 4], [0.3, 0.4]]), make("fedavg"), [(0, 0), (0, 0)], w, {}, {}, lr=0.1, weight_decay=0.5, clip=2.5)
    torch.testing.assert_close(out.end, torch.tensor([0.73, 1.575], dtype=torch.float64), rtol=0, atol=1e-6)
    assert out.lr_sum == pytest.approx(0.2)
    assert out.start is w
    assert w.tolist() == [1.0, 2.0]


def test_steps_are_counted_per_client():
    """25 images in batches of 10 are 3 steps an epoch (10, 10, 5), not ⌊25 / 10⌋ = 2: lr_sum = 2 epochs · 3 · η."""
    simulation = Simulation(tiny("scaffold", local_epochs=2), device="cpu")
    seen, add = [], simulation._keep
    simulation._keep = lambda client, result: (seen.append(result.lr_sum), add(client, result))
    simulation.step(evaluate=False)
    assert seen == pytest.approx([0.6, 0.6])


@pytest.mark.parametrize("method", ["fedavg", "fedinit", "scaffold+ri"])
def test_divergence_followed_is_divergence_recomputed(method):
    """Δ over all clients by its definition: never-active ones count with w^0; over active ones: the round's cohort."""
    simulation = Simulation(tiny(method, clients=6, cohort_size=2, samples=20), device="cpu")
    for _ in range(6):
        record = simulation.step(evaluate=False)
        last = [simulation.memory.get(i, "cpu")["last"] if i in simulation.memory else simulation.initial for i in range(6)]
        squares = [float((v - simulation.w).double().square().sum()) for v in last]
        active = [squares[int(i)] for i in record["active"].split(";")]
        assert record["divergence_all"] == pytest.approx(sum(squares) / 6, rel=1e-4)
        assert record["divergence_active"] == pytest.approx(sum(active) / len(active), rel=1e-4)


def test_exactly_n_clients_and_coins():
    exact = Simulation(tiny(clients=8, cohort_size=3, samples=10), device="cpu")
    coins = Simulation(tiny(clients=8, cohort_size=3, samples=10, participation="coin"), device="cpu")
    drawn = [exact.cohort(r) for r in range(1, 200)]
    assert {len(set(c)) for c in drawn} == {3}
    counts = np.bincount(np.concatenate(drawn), minlength=8)
    assert counts.min() > 45  # 199 · 3 / 8 = 75 expected, standard deviation √(199 · 3/8 · 5/8) = 6.8: 45 is 4.4 of them away
    sizes = [len(coins.cohort(r)) for r in range(1, 400)]
    assert min(sizes) >= 1
    assert len(set(sizes)) > 3
    assert np.mean(sizes) == pytest.approx(3, abs=0.35)  # standard error √(8 · 3/8 · 5/8 / 399) = 0.07, plus the rule of at least one


def test_newcomers_start_by_the_named_reading():
    """A first participation after round 1 starts at w + β (w − w^0) with first="initial", at w with "none"."""
    starts = {}
    for first in ("initial", "none"):
        simulation = Simulation(tiny(make("fedinit", beta=0.5, first=first)), device="cpu")
        for _ in range(8):
            w, known = simulation.w, set(simulation.memory.rounds)
            seen, keep = {}, simulation._keep
            simulation._keep = lambda client, result, seen=seen, keep=keep: (seen.__setitem__(client, result.start), keep(client, result))
            simulation.step(evaluate=False)
            simulation._keep = keep
            new = [c for c in seen if c not in known]
            if known and new:
                starts[first] = seen[new[0]], w, simulation.initial
                break
    start, w, initial = starts["initial"]
    torch.testing.assert_close(start, w + 0.5 * (w - initial))
    start, w, _ = starts["none"]
    assert torch.equal(start, w)


def test_a_run_stops_where_it_diverges():
    simulation = Simulation(tiny(lr=1e20, clip=None), device="cpu")
    records = []
    while not simulation.diverged and len(records) < 10:
        records.append(simulation.step())
    assert records[-1]["diverged"] == 1
    assert np.isnan(records[-1]["test_accuracy"])
    with pytest.raises(RuntimeError, match="diverged"):
        simulation.step()


def test_a_reserved_client_vector_is_refused():
    from dataclasses import dataclass

    from fedinit import FedAvg

    @dataclass(frozen=True)
    class Own(FedAvg):
        def keep(self, received, mine, start, end, lr_sum):
            return {"last": start * 2}

    with pytest.raises(InputError, match="'last' is reserved"):
        Simulation(tiny(Own()), device="cpu").step()


def test_bf16_and_float64_run():
    for precision, dtype in (("bf16", torch.float32), ("float64", torch.float64)):
        simulation = Simulation(tiny("fedinit", precision=precision), device="cpu")
        record = simulation.step()
        assert simulation.w.dtype == dtype
        assert np.isfinite(record["test_loss"])


def test_devices():
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type in ("cpu", "cuda", "mps")
    with pytest.raises(InputError, match=r"device = 'tpu'.*allowed: auto, cpu"):
        pick_device("tpu")
    for wrong in ("cpu:x", "cpu:-1", "cpu:3", "cpu:", "cuda:99"):
        with pytest.raises(InputError, match=f"device = '{wrong}'.*allowed: auto, cpu"):
            pick_device(wrong)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU, none is here")
def test_cuda_follows_the_cpu():
    cpu, gpu = (Simulation(tiny("scaffold+ri"), device=d) for d in ("cpu", "cuda"))
    for _ in range(3):
        cpu.step(), gpu.step()
    torch.testing.assert_close(gpu.w.cpu(), cpu.w, rtol=1e-2, atol=1e-3)


def test_noise_zero_is_bitwise_no_noise_and_noise_changes_training_only():
    clean, noisy = (Simulation(tiny(client_noise=n, category_noise=n), device="cpu") for n in (0.0, 0.4))
    assert clean.batches.noise.gains is None
    a, b = next(clean.batches.train(0, 1)), next(noisy.batches.train(0, 1))
    assert not torch.equal(a[0], b[0])
    assert torch.equal(a[1], b[1])
    assert all(torch.equal(x, y) for (x, _), (y, _) in zip(clean.batches.test(), noisy.batches.test(), strict=True))


def test_defaults_name_the_paper_model():
    assert Experiment().model == "resnet18-gn"


def test_a_compiled_step_is_the_same_to_rounding(monkeypatch):
    """The gradient of eight images through torch.compile (traced, but run without its code generator, which takes a minute) and without."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    plain, compiled = (Simulation(tiny("fedinit"), device="cpu", compiled=c) for c in (False, True))
    x, y = torch.randn(8, 3, 32, 32), torch.arange(8)
    gradients = [s.model.gradient_on(x, y, [])(s.initial).clone() for s in (plain, compiled)]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)
    assert compiled.model._forward is not compiled.model.module


def frozen(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(("layer4", "fc")))
    return model


def one_weight(model):
    model.layer4[1].conv2.weight = model.layer4[1].conv1.weight
    return model


def one_module(model):
    model.layer4[1].conv2 = model.layer4[1].conv1
    return model


@pytest.mark.parametrize("change", [frozen, one_weight, one_module], ids=lambda f: f.__name__)
def test_fast_convolutions_in_altered_models(change):
    """A model of which a part is frozen, a weight shared by two convolutions, a convolution used twice: the gradient is torch's."""
    x, y = torch.randn(5, 3, 32, 32, dtype=torch.float64), torch.arange(5)
    found = []
    for fast in (True, False):
        flat = FlatModel(change(build("resnet18-gn", 10, width=4, seed=1)).double(), small_maps=fast)
        flat.gradient_on(x, y, [])(flat.initial)
        found.append(flat.gradient_on(x, y, [])(flat.initial).clone())
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-14)


def test_a_fast_convolution_left_out_of_a_step_has_no_gradient_in_it():
    model = build("resnet18-gn", 10, width=4).double()
    flat = FlatModel(model)
    x, y = torch.randn(5, 3, 32, 32, dtype=torch.float64), torch.arange(5)
    flat.gradient_on(x, y, [])(flat.initial)
    weight, block = model.layer4[1].conv1.weight, model.layer4[1]
    slot = dict(zip(flat.parameters, flat._slots, strict=True))[weight]
    assert slot.abs().sum() > 0
    model.layer4[1] = nn.Identity()
    flat.gradient_on(x, y, [])(flat.initial)
    assert slot.abs().sum() == 0
    model.layer4[1] = block


@pytest.mark.parametrize(("side", "stride"), [(1, 1), (2, 1), (2, 2), (3, 2), (4, 1), (4, 2), (8, 2)])
def test_a_convolution_tap_by_tap_is_torchs(side, stride):
    """Output, gradient of the input and of the weight on every map that a model computes tap by tap, 4×4 ones of many channels included."""
    conv = Conv(256, 3, stride, side=side).double()
    assert conv.small
    x = torch.randn(2, 256, side, side, dtype=torch.float64, requires_grad=True)
    plain = nn.Conv2d.forward(conv, x)
    cotangent = torch.randn_like(plain)
    expected = torch.autograd.grad(plain, (x, conv.weight), cotangent)
    conv.slot = torch.zeros_like(conv.weight)
    found = conv(x)
    torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(found, (x, conv.weight), cotangent), expected, rtol=1e-12, atol=1e-12)
