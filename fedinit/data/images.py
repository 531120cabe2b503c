"""A data set by name or path → uint8 images and labels; and the identity by which a run's key knows it."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from ..errors import InputError
from . import cifar, files, synthetic

ALLOWED = f"{synthetic.FORM}, cifar10, cifar100, the path of a .npz file, or of a folder with train/ and test/"


@dataclass(frozen=True, eq=False)
class Images:
    """A training and a test set.

    x_train, x_test  uint8 (n, 32, 32, 3), height, width, RGB, C-contiguous
    y_train, y_test  int64 (n,), classes 0..K-1
    classes          the K class names
    name             for captions: "CIFAR-10", "synthetic (4000/1000)", "mine.npz (resized from 28×28)"
    identity         what a run's key knows it by, see `identity`
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...]
    name: str
    identity: str

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        # sums of integers: exact, so the same on every machine
        pixels = self.x_train[..., 0].size
        blocks = np.array_split(self.x_train, max(len(self.x_train) // 1000, 1))
        total = sum(block.sum((0, 1, 2), dtype=np.int64) for block in blocks)
        squares = sum(np.square(block, dtype=np.int64).sum((0, 1, 2)) for block in blocks)
        return total / pixels, squares / pixels

    @cached_property
    def mean(self) -> np.ndarray:
        """Mean of each channel of x_train / 255, float32 (3,)."""
        return (self._moments[0] / 255).astype(np.float32)

    @cached_property
    def std(self) -> np.ndarray:
        """Standard deviation of each channel of x_train / 255, float32 (3,), floored at 0.001 for constant channels."""
        mean, square = self._moments
        return np.maximum(np.sqrt(np.maximum(square - mean**2, 0)) / 255, 1e-3).astype(np.float32)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (64 hex digits) of the four arrays."""
        whole = hashlib.sha256()
        for array in (self.x_train, self.y_train, self.x_test, self.y_test):
            whole.update(f"{array.shape}".encode())
            whole.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")))
        return whole.hexdigest()


def identity(data: str | os.PathLike) -> str:
    """What of `data` enters a run's key, in canonical form; identity(identity(data)) == identity(data).

    "synthetic…" with its defaults written out ("synthetic:10000/2000@0"); "cifar10" and "cifar100" as they are; for a path
    "sha256:<64 hex digits>" of the file's bytes (of a folder's image names and bytes), wherever it lies; such a string
    as it is, for images that are known but not at hand. Raises InputError for anything else.
    """
    data = _text(data)
    if data in cifar.DATASETS or _is_digest(data):
        return data
    if synthetic.PATTERN.fullmatch(data):  # before any file of that name: a name means the same in every folder
        return str(synthetic.parse(data))
    path = os.path.expanduser(data)  # unlike pathlib's, os.path's answers do not raise on odd names
    if os.path.exists(path):
        try:
            return f"sha256:{files.digest(Path(path))}"
        except OSError as error:
            raise InputError(f"data = {data!r} cannot be read ({error.strerror}): check its permissions.") from error
    if re.match(r"synthetic\d*[:@]", data):
        return str(synthetic.parse(data))  # which says what is wrong with it
    if re.search(r"[/\\.~]", data):
        raise InputError(f"data = {data!r}: no such file or folder. Allowed: {ALLOWED}.")
    near = difflib.get_close_matches(data.lower(), ["synthetic", "synthetic100", *cifar.DATASETS], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise InputError(f"data = {data!r} is not known.{hint} Allowed: {ALLOWED}.")


def load_images(data: str | os.PathLike) -> Images:
    """The images named by `data`: see `identity` for the forms, `fedinit.data.files` for files and folders of one's own.

    The last two data sets stay in memory and are shared, so their arrays are read-only. CIFAR is downloaded at first use
    into $FEDINIT_DATA (default ~/.cache/fedinit/data), never with FEDINIT_OFFLINE=1.
    Raises InputError, one line, for unknown names and unusable files, and when a download fails.
    """
    data = _text(data)
    if _is_digest(data):
        raise InputError(
            f"data = {data!r}: the images with this digest are not at hand, only results of them; name them by --data: cifar10, or "
            "the path of the .npz file or folder."
        )
    return _load(data, identity(data))


@lru_cache(maxsize=2)
def _load(data: str, known_as: str) -> Images:
    if data in cifar.DATASETS:
        arrays, classes, name = cifar.read(data)
    elif known_as.startswith("sha256:"):
        arrays, classes, name = files.read(Path(os.path.expanduser(data)))
    else:
        recipe = synthetic.parse(data)
        arrays, classes, name = synthetic.make(*recipe), tuple(f"class {k}" for k in range(recipe.classes)), recipe.caption
    for array in arrays.values():
        array.setflags(write=False)
    return Images(**arrays, classes=classes, name=name, identity=known_as)


def _text(data: str | os.PathLike) -> str:
    if not isinstance(data, str | os.PathLike):
        raise InputError(f"data = {data!r} is of type {type(data).__name__}: a string is needed. Allowed: {ALLOWED}.")
    return os.fspath(data)


def _is_digest(data: str) -> bool:
    return re.fullmatch(r"sha256:[0-9a-f]{64}", data) is not None
