"""A user's own arrays → uint8 images 32 × 32 × 3 and labels 0..K-1, wherever their meaning is plain; else one clear line."""

from __future__ import annotations

import numpy as np
from PIL import Image

from ..errors import InputError

SIDE = 32
SHAPES = "(n, 32, 32, 3), (n, 3, 32, 32), (n, 32, 32), (n, 32, 32, 1) or opaque (n, 32, 32, 4)"


def to_pixels(train: np.ndarray, test: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray, str]:
    """Training and test images as C-contiguous uint8 (n, 32, 32, 3), and a note for captions ("" or " (resized from …)").

    Accepts grey images (three equal channels), RGB, opaque RGBA, channels first or last, one square size (resized with
    Pillow's antialiased bilinear filter); integers 0..255, floats 0..1 or whole floats 0..255 (both sets judged together).
    `what` begins the message of the InputError raised for everything else.
    """
    sets = [_channels_last(np.asarray(x), f"{what}: {name}") for name, x in (("x_train", train), ("x_test", test))]
    sets = _to_bytes(sets, what)
    sets = [_three_channels(x, f"{what}: {name}") for name, x in zip(("x_train", "x_test"), sets, strict=True)]
    size, other = (x.shape[1] for x in sets)
    if size != other:
        raise InputError(
            f"{what}: x_train is {size}×{size} pixels, x_test {other}×{other}: one size for both is needed; resize one of them."
        )
    note = f" (resized from {size}×{size})" if size != SIDE else ""
    train, test = (np.ascontiguousarray(x if x.shape[1] == SIDE else np.stack([resized(image) for image in x])) for x in sets)
    return train, test, note


def resized(image: np.ndarray) -> np.ndarray:
    """A square uint8 image (h, h, 3) as (32, 32, 3), antialiased."""
    return np.asarray(Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def _channels_last(x: np.ndarray, what: str) -> np.ndarray:
    if x.dtype.kind not in "uif":
        raise InputError(f"{what} has type {x.dtype}: numbers are needed, integers 0..255 or floats 0..1; convert with astype.")
    if x.ndim == 3:
        x = x[..., None]
    if x.ndim != 4:
        raise InputError(f"{what} has shape {x.shape}: allowed are {SHAPES}; reshape it.")
    if 0 in x.shape:
        raise InputError(f"{what} is empty (shape {x.shape}): at least one image is needed.")
    last = x.shape[3] in (1, 3, 4) and x.shape[1] == x.shape[2]
    first = x.shape[1] in (1, 3, 4) and x.shape[2] == x.shape[3]
    if last and first:
        raise InputError(f"{what} has shape {x.shape}: which axis holds the channels is ambiguous; enlarge the images.")
    if not (last or first):
        raise InputError(f"{what} has shape {x.shape}: square images are needed, {SHAPES}, of any side; crop or pad them.")
    return x if last else x.transpose(0, 2, 3, 1)


def _to_bytes(sets: list[np.ndarray], what: str) -> list[np.ndarray]:
    # one scale for both sets: a dark test set of 0..255 must not be taken for 0..1
    if not all(np.isfinite(x).all() for x in sets):
        raise InputError(f"{what}: the images contain NaN or infinity; remove those images or repair them.")
    low, high = min(x.min() for x in sets), max(x.max() for x in sets)
    if low < 0 or high > 255:
        raise InputError(
            f"{what}: pixel values {low:g}..{high:g} are out of range: allowed are integers 0..255 or floats 0..1; rescale them."
        )
    kinds = {x.dtype.kind == "f" for x in sets}
    if len(kinds) == 2:
        raise InputError(
            f"{what}: x_train has type {sets[0].dtype}, x_test {sets[1].dtype}: one scale for both is needed; save both as uint8."
        )
    whole = all((x == np.rint(x)).all() for x in sets) if kinds == {True} else True
    if kinds == {True} and high <= 1:
        return [np.rint(x * 255.0).astype(np.uint8) for x in sets]
    if not whole:
        raise InputError(
            f"{what}: floats in {low:g}..{high:g} that are not whole: allowed are floats 0..1 or whole 0..255; divide by 255, or round."
        )
    if high <= 1:
        raise InputError(f"{what}: integer pixels of only 0 and 1 are ambiguous: multiply by 255, or save them as floats 0..1.")
    return [x.astype(np.uint8) for x in sets]


def _three_channels(x: np.ndarray, what: str) -> np.ndarray:
    if x.shape[3] == 1:
        return np.repeat(x, 3, axis=3)
    if x.shape[3] == 4 and (x[..., 3] != 255).any():
        raise InputError(f"{what} has transparent pixels: put the images on a background of your choice first, then save RGB.")
    return x[..., :3]


def to_labels(train: np.ndarray, test: np.ndarray, names: np.ndarray | None, what: str) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Labels as int64 (n,) in 0..K-1, by the sorted order of the training labels, and the K class names.

    Accepts whole numbers of any range or strings, (n,) or (n, 1). `names`, if given, names the sorted training labels.
    Raises InputError for NaN, other shapes or types, a test label that training lacks, fewer than 2 classes.
    """
    train, test = (_column(np.asarray(y), f"{what}: {name}") for name, y in (("y_train", train), ("y_test", test)))
    if (train.dtype.kind == "U") != (test.dtype.kind == "U"):
        raise InputError(
            f"{what}: y_train has type {train.dtype}, y_test {test.dtype}: the same labels are needed in both; save both alike."
        )
    kinds = np.unique(train)
    strange = np.setdiff1d(test, kinds)
    if len(strange):
        raise InputError(f"{what}: test label {str(strange[0])!r} has no training image; add some, or drop that label from the test set.")
    if len(kinds) < 2:
        raise InputError(f"{what}: the training labels name only {len(kinds)} class: at least 2 are needed.")
    if names is None:
        names = kinds
    else:
        names = _column(np.asarray(names), f"{what}: classes")
        if len(names) != len(kinds):
            raise InputError(
                f"{what}: classes has {len(names)} names for {len(kinds)} distinct training labels: "
                f"one name a label, each with a training image."
            )
    return (
        np.searchsorted(kinds, train).astype(np.int64),
        np.searchsorted(kinds, test).astype(np.int64),
        tuple(str(name) for name in names),
    )


def _column(y: np.ndarray, what: str) -> np.ndarray:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y.ravel()
    if y.ndim != 1:
        raise InputError(f"{what} has shape {y.shape}: allowed are (n,) or (n, 1); for one-hot rows take argmax(axis=1).")
    if y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8", "replace")
    if y.dtype.kind == "f":
        if not (np.isfinite(y).all() and (y == np.rint(y)).all()):
            raise InputError(f"{what} contains NaN, infinity or fractions: allowed are whole numbers or strings.")
        y = y.astype(np.int64)
    if y.dtype.kind not in "uibU":
        raise InputError(f"{what} has type {y.dtype}: allowed are whole numbers or strings; convert with astype.")
    return y
