"""The embedded data set: CIFAR-shaped images made from a seed, without a download.

Every class owns a few *modes*, smooth random colour fields on a torus. An image is one mode of its class, shifted and
perhaps mirrored, blended with a weaker mode of some other class, under a random colour cast, contrast and noise. Shifts and
mirror images are part of the classes, so they survive the training's flips and crops.

All arithmetic is on integers and all randomness is taken as raw bits of the generator, so a seed gives the same bytes
on every machine. Difficulty was set on central training and FedAvg alone (CALIBRATION.md).
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..streams import stream

SIDE = 32
LIMIT = 200_000  # images: 600 MB
FORM = "synthetic[100][:TRAIN/TEST][@SEED]"
PATTERN = re.compile(r"synthetic(100)?(?::(\d{1,9})/(\d{1,9}))?(?:@(\d{1,18}))?", re.ASCII)


class Recipe(NamedTuple):
    """What a name such as "synthetic100:4000/1000@3" asks for; `str(recipe)` writes all of it out."""

    classes: int = 10
    train: int = 10_000
    test: int = 2_000
    seed: int = 0

    def __str__(self) -> str:
        return f"synthetic{self.classes if self.classes != 10 else ''}:{self.train}/{self.test}@{self.seed}"

    @property
    def caption(self) -> str:
        many, seed = "-100" * (self.classes == 100), f", seed {self.seed}" * (self.seed != 0)
        return f"synthetic{many} ({self.train}/{self.test}{seed})"


def parse(data: str) -> Recipe:
    """The recipe in a name of the form `FORM`; raises InputError for any other form or a size out of range."""
    found = PATTERN.fullmatch(data)
    if not found:
        raise InputError(f"data = {data!r} is not of the form {FORM}, such as synthetic:4000/1000@1.")
    recipe = Recipe(**{field: int(text) for field, text in zip(Recipe._fields, found.groups(), strict=True) if text})
    _check(recipe, f"data = {data!r}")
    return recipe


def _check(recipe: Recipe, what: str) -> None:
    if recipe.classes < 2:
        raise InputError(f"{what} asks for {recipe.classes} classes: at least 2 are needed.")
    for part, size in (("training", recipe.train), ("test", recipe.test)):
        if not recipe.classes <= size <= LIMIT:
            raise InputError(f"{what} asks for {size} {part} images: allowed are {recipe.classes} (one a class) to {LIMIT}.")


def make(classes: int = 10, train: int = 10_000, test: int = 2_000, seed: int = 0) -> dict[str, np.ndarray]:
    """Balanced arrays x_train, x_test: uint8 (n, 32, 32, 3); y_train, y_test: int64 (n,), classes 0..classes-1.

    Class sizes differ by one at most. Raises InputError for sizes outside classes..200000.
    """
    _check(Recipe(classes, train, test, seed), "synthetic.make")
    modes = _modes(classes, seed)
    arrays = {}
    for part, (name, size) in enumerate((("train", train), ("test", test))):
        labels = np.arange(size, dtype=np.int64) % classes
        blocks = [_images(modes, labels[i : i + BLOCK], _bits(seed, 1, part, i)) for i in range(0, size, BLOCK)]
        arrays[f"x_{name}"] = np.concatenate(blocks)
        arrays[f"y_{name}"] = labels
    return arrays


# What was calibrated, on central training and FedAvg
MODES = 2  # of a class
SHIFT = 4  # pixels, either way
COLOUR = 40  # weight of the class's colour in its modes, in 1/128
CELLS = (4, 8)  # a side, of the fields: blobs of 8 pixels and of 4
OWN = 90  # least weight of the image's own mode, in 1/128; the rest up to 128 is another class's mode
CONTRAST = 60  # least contrast, in 1/128
CAST = 32  # grey levels, either way, for each channel of an image
NOISE = 40  # grey levels, either way, triangular, for each pixel and channel

BLOCK = 500  # images made at once, to stay in the processor's cache


def _bits(seed: int, *ids: int):
    """A function n → n random bytes: the stream's raw output, which NumPy promises never to change."""
    source = stream(seed, "synthetic", *ids).bit_generator
    return lambda n: source.random_raw(-(-n // 8)).astype("<u8").view(np.uint8)[:n].astype(np.int16)


def _modes(classes: int, seed: int) -> np.ndarray:
    """Smooth colour fields in -128..127, int16 (classes · MODES · 2, 32, 32, 3), each followed by its mirror image."""
    bits, n = _bits(seed, 0), classes * MODES
    grids = [bits(n * cells * cells * 3).reshape(n, cells, cells, 3) - 128 for cells in CELLS]
    field = sum(_stretch(_stretch(grid, 1), 2) for grid in grids) // 2
    colour = np.repeat(bits(classes * 3).reshape(classes, 1, 1, 3) - 128, MODES, axis=0)
    field = (field * (128 - COLOUR) + colour * COLOUR) // 128
    return np.stack([field, field[:, :, ::-1]], axis=1).reshape(2 * n, SIDE, SIDE, 3)


def _stretch(grid: np.ndarray, axis: int) -> np.ndarray:
    """Linear interpolation to SIDE points along an axis, on a circle, in integers."""
    factor = SIDE // grid.shape[axis]
    after = np.roll(grid, -1, axis)
    steps = [((factor - i) * grid + i * after) // factor for i in range(factor)]
    return np.stack(steps, axis + 1).reshape(*grid.shape[:axis], SIDE, *grid.shape[axis + 1 :])


def _images(modes: np.ndarray, labels: np.ndarray, bits) -> np.ndarray:
    """One image for each label, uint8 (n, 32, 32, 3)."""
    n, classes = len(labels), len(modes) // (2 * MODES)

    def shown(label: np.ndarray) -> np.ndarray:
        """A mode of each class, mirrored or not, shifted on the torus."""
        which, dy, dx = bits(3 * n).reshape(3, n).astype(np.int64)
        y = (np.arange(SIDE) + (dy % (2 * SHIFT + 1) - SHIFT)[:, None]) % SIDE
        x = (np.arange(SIDE) + (dx % (2 * SHIFT + 1) - SHIFT)[:, None]) % SIDE
        first = (label * 2 * MODES + which % (2 * MODES)) * SIDE * SIDE
        pixels = first[:, None, None] + y[:, :, None] * SIDE + x[:, None, :]
        return np.take(modes.reshape(-1, 3), pixels, axis=0)

    def each(low: int, high: int, channels: int = 1) -> np.ndarray:
        """A random number in low..high for each image (and channel), to broadcast over its pixels."""
        return (low + bits(n * channels) % (high - low + 1)).reshape(n, 1, 1, channels)

    # no product leaves int16: a mode is within ±128, a weight within 128
    own = each(OWN, 128)
    other = (labels + 1 + bits(n) % (classes - 1)) % classes
    picture = (shown(labels) * own + shown(other) * (128 - own)) // 128
    picture = picture * each(CONTRAST, 128) // 128 + each(-CAST, CAST, 3)
    grain = (bits(picture.size) + bits(picture.size) - 255).reshape(picture.shape)  # in ±255, triangular
    return np.clip(128 + picture + grain * (NOISE // 2) // 128, 0, 255).astype(np.uint8)
