"""A user's own images on disk: a .npz file of arrays, or a folder train/<class>/*.png and test/<class>/*.png."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from ..errors import InputError
from .arrays import SIDE, resized, to_labels, to_pixels

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff"}
LAYOUT = "train/<class>/*.png and test/<class>/*.png (also jpg, bmp, webp, ppm, pgm, tif)"

_known: dict[tuple, str] = {}


def digest(path: Path) -> str:
    """SHA-256 (64 hex digits) of a file's bytes, or of a folder's image names and bytes; remembered until they change."""
    if path.is_dir():
        files = [(file.relative_to(path).as_posix(), file) for _, _, file in _listing(path)]
    else:
        files = [("", path)]
    stats = tuple((name, file.stat().st_mtime_ns, file.stat().st_size) for name, file in files)
    key = (str(path.resolve()), stats)
    if key not in _known:
        whole = hashlib.sha256()
        for (name, file), (_, _, size) in zip(files, stats, strict=True):
            if name:  # names and lengths keep two folders apart whose bytes run together alike
                whole.update(f"{name}\0{size}\0".encode())
            with file.open("rb") as stream:
                while chunk := stream.read(1 << 20):
                    whole.update(chunk)
        _known[key] = whole.hexdigest()
    return _known[key]


def read(path: Path) -> tuple[dict[str, np.ndarray], tuple[str, ...], str]:
    """Arrays x_train, y_train, x_test, y_test as `Images` holds them, class names and a caption. Raises InputError."""
    if path.is_dir():
        return _read_folder(path)
    if path.suffix.lower() != ".npz":
        raise InputError(
            f"data = {str(path)!r} is a file that is not .npz: "
            f"allowed are a .npz with {', '.join(ARRAYS)}[, classes], or a folder with {LAYOUT}."
        )
    return _read_npz(path)


def _read_npz(path: Path) -> tuple[dict[str, np.ndarray], tuple[str, ...], str]:
    what = f"data = {str(path)!r}"
    if not zipfile.is_zipfile(path):
        raise InputError(f"{what} is damaged or not a .npz archive: save it again with numpy.savez.")
    found, name = {}, "the archive"
    try:
        with np.load(path, allow_pickle=False) as stored:
            for name in (*ARRAYS, "classes"):
                if name in stored.files:
                    found[name] = stored[name]
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, MemoryError, RuntimeError) as error:
        if "Object arrays" in str(error):
            raise InputError(
                f"{what}: {name} holds Python objects, which are never loaded; save plain numbers or strings of one shape."
            ) from error
        raise InputError(f"{what}: {name} cannot be read ({_line(error)}): the file is damaged, save it again with numpy.savez.") from error
    if missing := [name for name in ARRAYS if name not in found]:
        raise InputError(
            f"{what} lacks {', '.join(missing)} (it holds {', '.join(found) or 'none of them'}): save all of {', '.join(ARRAYS)}."
        )
    for part in ("train", "test"):
        x, y = found[f"x_{part}"], found[f"y_{part}"]
        if x.ndim and y.ndim and len(x) != len(y):
            raise InputError(f"{what}: x_{part} has {len(x)} images, y_{part} {len(y)} labels: one label an image is needed.")
    x_train, x_test, note = to_pixels(found["x_train"], found["x_test"], what)
    y_train, y_test, classes = to_labels(found["y_train"], found["y_test"], found.get("classes"), what)
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}, classes, path.name + note


def _read_folder(path: Path) -> tuple[dict[str, np.ndarray], tuple[str, ...], str]:
    what = f"data = {str(path)!r}"
    for part in ("train", "test"):
        if not (path / part).is_dir():
            raise InputError(f"{what} has no folder {part}/: needed are {LAYOUT}.")
    images: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    labels: dict[str, list[str]] = {"train": [], "test": []}
    sizes: dict[str, set[int]] = {"train": set(), "test": set()}
    for part, label, file in _listing(path):
        image = _read_image(file, what)
        sizes[part].add(len(image))
        images[part].append(image if len(image) == SIDE else resized(image))
        labels[part].append(label)
    for part, found in images.items():
        if not found:
            raise InputError(f"{what}: no images in {part}/; needed are {LAYOUT}.")
    for folder in sorted((path / "train").iterdir()):
        if folder.is_dir() and not folder.name.startswith(".") and folder.name not in labels["train"]:
            raise InputError(f"{what}: class folder train/{folder.name} has no images: add some or remove the folder.")
    y_train, y_test, classes = to_labels(np.array(labels["train"]), np.array(labels["test"]), None, what)
    if not sizes["train"] & sizes["test"] and 1 in map(len, sizes.values()):  # of one size each, or one of them: not just odd images
        found = [f"{part}/ is {', '.join(f'{size}×{size}' for size in sorted(sizes[part])[:3])}" for part in images]
        raise InputError(f"{what}: {found[0]} pixels, {found[1]}: one size for both is needed; resize one of them.")
    other = sorted({*sizes["train"], *sizes["test"]} - {SIDE})
    note = f" (resized from {f'{other[0]}×{other[0]}' if len(other) == 1 else 'several sizes'})" if other else ""
    return (
        {"x_train": np.stack(images["train"]), "y_train": y_train, "x_test": np.stack(images["test"]), "y_test": y_test},
        classes,
        path.resolve().name + note,
    )


def _listing(path: Path) -> Iterator[tuple[str, str, Path]]:
    """(part, class, file) of every image, in an order that no operating system changes."""
    files = [file for part in ("train", "test") for file in path.glob(f"{part}/*/*") if file.suffix.lower() in SUFFIXES]
    for file in sorted(files, key=lambda file: file.relative_to(path).parts):
        if not any(name.startswith(".") for name in file.relative_to(path).parts):
            yield file.parts[-3], file.parts[-2], file


def _read_image(file: Path, what: str) -> np.ndarray:
    """uint8 (h, h, 3); grey becomes three equal channels. Raises InputError unless 8-bit, opaque and square."""
    name = "/".join(file.parts[-3:])
    try:
        with Image.open(file) as opened:
            mode, image = opened.mode, np.asarray(opened.convert("RGBA"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{what}: {name} is not a readable image ({_line(error)}): replace or remove it.") from error
    if mode.startswith(("I", "F")):
        raise InputError(f"{what}: {name} has more than 8 bits a channel (mode {mode}): save it as an 8-bit image.")
    if image.shape[0] != image.shape[1]:
        raise InputError(f"{what}: {name} is {image.shape[1]}×{image.shape[0]} pixels: square images are needed; crop or pad it.")
    if (image[..., 3] != 255).any():
        raise InputError(f"{what}: {name} has transparent pixels: put it on a background of your choice first, then save RGB.")
    return image[..., :3]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
