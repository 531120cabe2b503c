"""The models: ResNet-18 with GroupNorm, VGG-11 for 32×32 images, a small CNN; or a user's own factory.

Inputs are float images (B, 3, 32, 32); outputs are logits (B, classes). No model has buffers: averaging parameters would leave
BatchNorm's running statistics behind, so a model with buffers is refused.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from fedinit.errors import InputError


class Conv(nn.Conv2d):
    """A 3×3 convolution with padding 1 that is computed tap by tap, by matrix products, where its map is `small` enough for that to pay.

    `side` is the height and width of its input. `slot`, set by FlatModel on the CPU, is where the weight's gradient is to be written;
    while it is None this is torch's own convolution.
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1, *, side: int, bias: bool = False):
        super().__init__(inputs, outputs, 3, stride, 1, bias=bias)
        out = -(-side // stride)
        self.side = side
        self.small = out <= 2 or (out <= 4 and inputs >= 256)
        self.slot: torch.Tensor | None = None
        self.taken = False  # the slot, by an earlier use in the same forward pass

    def forward(self, x):
        training = torch.is_grad_enabled()
        if self.slot is None or (training and self.taken) or x.shape[2:] != (self.side, self.side):
            return super().forward(x)
        self.taken = training
        y = _Taps.apply(x, self.weight, self.slot, self.stride[0])
        return y if self.bias is None else y + self.bias[:, None, None]

    def unmet(self) -> list[torch.Tensor]:
        """The views of the slot, one a tap, that `_Taps` leaves as they are: of the taps that meet no data."""
        met = {tap for chosen, _, _ in _plan(self.side, self.side, self.stride[0], self.weight.dtype).groups for tap in range(9)[chosen]}
        taps = _pixels(self.slot)
        return [taps[tap] for tap in range(9) if tap not in met]


class Pointwise(nn.Conv2d):
    """A 1×1 convolution without bias, as a linear map of the pixels that its stride leaves."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        pixels = x[:, :, :: self.stride[0], :: self.stride[1]].permute(0, 2, 3, 1)
        return F.linear(pixels, self.weight.flatten(1)).permute(0, 3, 1, 2)


class _Taps(torch.autograd.Function):
    """A 3×3 convolution with padding 1 as one matrix product a tap, over just the pairs (output pixel, input pixel) that the tap joins.

    Exact up to the order of sums. Of the nine taps one meets data on a 1×1 map; on a 2×2 map there are 16 pairs, not 36. The weight's
    gradient is written into `slot`, which is returned; a tap that meets no data is not written, `slot` has zeros there from the start.
    """

    @staticmethod
    def forward(ctx, x, weight, slot, stride):
        plan, taps = _plan(*x.shape[2:], stride, x.dtype), _pixels(weight)
        inputs = _pixels(x).index_select(0, plan.inputs)
        outputs = x.new_empty(len(plan.outputs), len(x), len(weight))
        for chosen, rows, shape in plan.groups:
            torch.bmm(_rows(inputs, rows, shape), taps[chosen].transpose(1, 2), out=_rows(outputs, rows, shape))
        ctx.save_for_backward(inputs)
        ctx.rest = plan, weight, slot, x.shape[2:]
        return _image(outputs, plan.to_outputs, plan.size)

    @staticmethod
    def backward(ctx, gradient):
        (inputs,) = ctx.saved_tensors
        plan, weight, slot, size = ctx.rest
        taps, slots = _pixels(weight), _pixels(slot)
        outputs = _pixels(gradient).index_select(0, plan.outputs)
        back = torch.empty_like(inputs)
        for chosen, rows, shape in plan.groups:
            out = _rows(outputs, rows, shape)
            torch.bmm(out, taps[chosen], out=_rows(back, rows, shape))
            torch.bmm(out.transpose(1, 2), _rows(inputs, rows, shape), out=slots[chosen])
        return _image(back, plan.to_inputs, size), slot, None, None


@dataclass(frozen=True)
class _Plan:
    """Of one map size and stride: the output's size; the pairs (output pixel, input pixel), tap after tap; 0/1 matrices (pixels, pairs)
    that sum the pairs of each pixel; and the taps with equally many pairs, in groups of one product: (which taps, which pairs, (taps,
    pairs a tap))."""

    size: tuple[int, int]
    outputs: torch.Tensor
    inputs: torch.Tensor
    to_outputs: torch.Tensor
    to_inputs: torch.Tensor
    groups: list[tuple[slice, slice, tuple[int, int]]]


@functools.cache
def _plan(height: int, width: int, stride: int, dtype: torch.dtype) -> _Plan:
    size = -(-height // stride), -(-width // stride)
    pairs: dict[int, list[tuple[int, int]]] = {}
    for tap, (a, b) in enumerate(itertools.product(range(3), repeat=2)):
        for out, (i, j) in enumerate(itertools.product(*map(range, size))):
            row, column = stride * i + a - 1, stride * j + b - 1
            if 0 <= row < height and 0 <= column < width:
                pairs.setdefault(tap, []).append((out, row * width + column))
    groups, ordered = [], []
    for many in sorted({len(found) for found in pairs.values()}, reverse=True):
        left = [tap for tap, found in pairs.items() if len(found) == many]
        while left:  # taps at equal distances are one strided view
            step = left[1] - left[0] if len(left) > 1 else 1
            run = [tap for n, tap in enumerate(left) if tap == left[0] + n * step]
            left = left[len(run) :]
            groups.append((slice(run[0], run[-1] + 1, step), slice(len(ordered), len(ordered) + len(run) * many), (len(run), many)))
            ordered += [pair for tap in run for pair in pairs[tap]]
    outputs, inputs = (torch.tensor(pixels) for pixels in zip(*ordered, strict=True))
    to_outputs, to_inputs = (torch.eye(n, dtype=dtype)[:, of] for n, of in ((size[0] * size[1], outputs), (height * width, inputs)))
    return _Plan(size, outputs, inputs, to_outputs, to_inputs, groups)


def _pixels(x: torch.Tensor) -> torch.Tensor:
    """(B, C, H, W), or a weight (O, I, 3, 3), as a view (H · W, B, C): a matrix a pixel, or a tap."""
    return x.permute(2, 3, 0, 1).flatten(0, 1)


def _rows(pairs: torch.Tensor, rows: slice, shape: tuple[int, int]) -> torch.Tensor:
    """Of (pairs, B, C) those of one group, as (taps, pairs a tap · B, C)."""
    chosen = pairs[rows]
    return chosen.view(shape[0], shape[1] * chosen.shape[1], chosen.shape[2])


def _image(pairs: torch.Tensor, sums: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Of (pairs, B, C) the sums over the pairs of each pixel, as (B, C, *size) with channels last in memory."""
    pixels = (sums @ pairs.flatten(1)).view(*size, *pairs.shape[1:]) if len(pairs) > 1 else pairs[None]
    return pixels.permute(2, 0, 1, 3).contiguous().permute(0, 3, 1, 2)


class BasicBlock(nn.Module):
    """torchvision's BasicBlock with GroupNorm of 2 groups (names and arithmetic are the same; a test compares them)."""

    def __init__(self, inputs: int, planes: int, stride: int, side: int):
        super().__init__()
        self.conv1 = Conv(inputs, planes, stride, side=side)
        self.bn1 = nn.GroupNorm(2, planes)
        self.conv2 = Conv(planes, planes, side=side // stride)
        self.bn2 = nn.GroupNorm(2, planes)
        self.downsample = None
        if stride != 1 or inputs != planes:
            self.downsample = nn.Sequential(Pointwise(inputs, planes, stride), nn.GroupNorm(2, planes))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)), inplace=True)


class ResNet18GN(nn.Module):
    """ResNet-18 (He et al. 2016) as in torchvision, BatchNorm replaced by GroupNorm (Hsieh et al. 2020) of 2 groups (released code).

    width: channels of the first stage (64 in the paper; stages have 1, 2, 4, 8 times as many). stem: "imagenet" keeps torchvision's 7×7
    stride-2 convolution and max-pool, as released; "cifar" is a 3×3 convolution without pooling.
    """

    def __init__(self, classes: int, width: int = 64, stem: str = "imagenet"):
        super().__init__()
        kernel, stride, padding = (7, 2, 3) if stem == "imagenet" else (3, 1, 1)
        self.conv1 = nn.Conv2d(3, width, kernel, stride, padding, bias=False)
        self.bn1 = nn.GroupNorm(2, width)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if stem == "imagenet" else nn.Identity()
        inputs, side = width, 8 if stem == "imagenet" else 32
        for stage in range(4):
            planes, first = width * 2**stage, 1 if stage == 0 else 2
            blocks = BasicBlock(inputs, planes, first, side), BasicBlock(planes, planes, 1, side // first)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
            inputs, side = planes, side // first
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class VGG11(nn.Module):
    """VGG-11 (Simonyan & Zisserman 2014, configuration A) for 32×32 images: no BatchNorm, no dropout, one hidden layer of 8·width units."""

    def __init__(self, classes: int, width: int = 64):
        super().__init__()
        layers, inputs, side = [], 3, 32
        for times in (1, "M", 2, "M", 4, 4, "M", 8, 8, "M", 8, 8, "M"):
            if times == "M":
                layers.append(nn.MaxPool2d(2))
                side //= 2
                continue
            layers += [Conv(inputs, times * width, side=side, bias=True), nn.ReLU(inplace=True)]
            inputs = times * width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Linear(inputs, inputs), nn.ReLU(inplace=True), nn.Linear(inputs, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(module.bias)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class SmallCNN(nn.Module):
    """Three 3×3 convolutions (width, 2·width, 4·width channels), each with GroupNorm of 2 groups and 2×2 max-pooling; one linear layer."""

    def __init__(self, classes: int, width: int = 16):
        super().__init__()
        sizes = (3, width, 2 * width, 4 * width)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(nn.GroupNorm(2, b) for b in sizes[1:])
        self.fc = nn.Linear(sizes[-1] * 16, classes)

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(F.max_pool2d(conv(x), 2)), inplace=True)
        return self.fc(x.flatten(1))


def build(name: str, classes: int, *, width: int = 64, stem: str = "imagenet", seed: int = 0) -> nn.Module:
    """A model with initial weights drawn from `seed` alone (the caller's random state is left as it was).

    name: "resnet18-gn", "vgg11", "cnn", or "module:factory", a callable (classes) → nn.Module. Raises InputError for a
    factory that is missing, does not return a module, or returns one with buffers.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == "resnet18-gn":
            model = ResNet18GN(classes, width, stem)
        elif name == "vgg11":
            model = VGG11(classes, width)
        elif name == "cnn":
            model = SmallCNN(classes, width)
        else:
            model = _own(name, classes)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):  # the memory format that its convolution is fastest in: taps first, or channels last
            order = (2, 3, 0, 1) if getattr(module, "small", False) else (0, 2, 3, 1)
            back = tuple(order.index(axis) for axis in range(4))
            module.weight.data = module.weight.data.permute(order).contiguous().permute(back)
    buffers = [key for key, _ in model.named_buffers()]
    if buffers:
        raise InputError(
            f"model = {name!r} has buffers ({', '.join(buffers[:3])}{', …' if len(buffers) > 3 else ''}) that averaging parameters "
            "would leave stale; allowed: models without buffers. Use GroupNorm in place of BatchNorm."
        )
    return model


def _own(name: str, classes: int) -> nn.Module:
    module, _, factory = name.partition(":")
    make = getattr(importlib.import_module(module), factory, None)
    if not callable(make):
        raise InputError(f"model = {name!r}: module {module!r} has no callable {factory!r}; allowed: a function (classes) → nn.Module.")
    model = make(classes)
    if not isinstance(model, nn.Module):
        raise InputError(f"model = {name!r} returned {type(model).__name__}; allowed: a function (classes) → nn.Module.")
    return model
