"""The models: ResNet-18 with GroupNorm, VGG-11 for 32×32 images, a small CNN; or a user's own factory.

Inputs are float images (B, 3, 32, 32); outputs are logits (B, classes). No model has buffers: averaging parameters would leave
BatchNorm's running statistics behind, so a model with buffers is refused.
"""

from __future__ import annotations

import importlib
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from fedinit.errors import InputError


class Conv3x3(nn.Conv2d):
    """A 3×3 convolution with padding 1 and no bias that computes only with the taps that meet data on 1×1 and 2×2 maps.

    Exact: on a 1×1 map the other eight taps see padding only, and their gradient is 0; on a 2×2 map with stride 2 five do.
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__(inputs, outputs, 3, stride, padding=1, bias=False)

    def forward(self, x):
        size = x.shape[-2:]
        if size == (1, 1):
            return F.linear(x.flatten(1), self.weight[:, :, 1, 1])[:, :, None, None]
        if size == (2, 2) and self.stride == (2, 2):
            return F.linear(x.flatten(1), self.weight[:, :, 1:, 1:].flatten(1))[:, :, None, None]
        return super().forward(x)


class BasicBlock(nn.Module):
    """torchvision's BasicBlock with GroupNorm of 2 groups (names and arithmetic are the same; a test compares them)."""

    def __init__(self, inputs: int, planes: int, stride: int):
        super().__init__()
        self.conv1 = Conv3x3(inputs, planes, stride)
        self.bn1 = nn.GroupNorm(2, planes)
        self.conv2 = Conv3x3(planes, planes)
        self.bn2 = nn.GroupNorm(2, planes)
        self.downsample = None
        if stride != 1 or inputs != planes:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, planes, 1, stride, bias=False), nn.GroupNorm(2, planes))

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
        inputs = width
        for stage in range(4):
            planes, first = width * 2**stage, 1 if stage == 0 else 2
            setattr(self, f"layer{stage + 1}", nn.Sequential(BasicBlock(inputs, planes, first), BasicBlock(planes, planes, 1)))
            inputs = planes
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
        layers, inputs = [], 3
        for times in (1, "M", 2, "M", 4, 4, "M", 8, 8, "M", 8, 8, "M"):
            if times == "M":
                layers.append(nn.MaxPool2d(2))
                continue
            layers += [nn.Conv2d(inputs, times * width, 3, padding=1), nn.ReLU(inplace=True)]
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
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairwise(sizes))
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
    buffers = [key for key, _ in model.named_buffers()]
    if buffers:
        raise InputError(
            f"model = {name!r} has buffers ({', '.join(buffers[:3])}{', …' if len(buffers) > 3 else ''}) that averaging parameters would leave "
            "stale; allowed: models without buffers. Use GroupNorm in place of BatchNorm."
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
