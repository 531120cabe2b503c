"""Data sets by name or path: identities, files, folders, and statistics of the images."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedinit.data
from fedinit.data import Images, files, identity, load_images
from fedinit.errors import InputError

RNG = np.random.default_rng(0)
ARRAYS = {
    "x_train": RNG.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8),
    "y_train": np.array([3, 3, 5, 5, 9, 9]),
    "x_test": RNG.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8),
    "y_test": np.array([9, 5, 3]),
}


@pytest.fixture
def npz(tmp_path):
    def save(**changed):
        path = tmp_path / "mine.npz"
        np.savez(path, **{name: value for name, value in {**ARRAYS, **changed}.items() if value is not None})
        return path

    return save


@pytest.fixture
def folder(tmp_path):
    for part in ("train", "test"):
        for label in ("cat", "ant"):
            (tmp_path / "pets" / part / label).mkdir(parents=True)
            for i in range(2):
                save_image(tmp_path / "pets" / part / label / f"{i}.png", ARRAYS["x_train"][i])
    return tmp_path / "pets"


def save_image(path, array):
    Image.fromarray(array).save(path)


def refused(data):
    with pytest.raises(InputError) as caught:
        load_images(data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def images(x, **changed):
    return Images(**{**ARRAYS, "x_train": x, "classes": ("a", "b"), "name": "n", "identity": "i", **changed})


def test_statistics_by_hand():
    """Red is 0 and 255 half and half: mean 0.5, std 0.5. Green is 51 everywhere: mean 0.2, std floored at 0.001.
    Blue is 102 in one quarter, else 0: mean 0.1, std sqrt(0.25 · 0.16 - 0.01) = 0.1732."""
    x = np.zeros((4, 32, 32, 3), np.uint8)
    x[:2, ..., 0], x[..., 1], x[0, ..., 2] = 255, 51, 102
    made = images(x)
    np.testing.assert_allclose(made.mean, [0.5, 0.2, 0.1], rtol=1e-6)
    np.testing.assert_allclose(made.std, [0.5, 0.001, np.sqrt(0.03)], rtol=1e-6)
    assert made.mean.dtype == made.std.dtype == np.float32 and made.mean.shape == (3,)


def test_digest_covers_every_array():
    digests = {images(ARRAYS["x_train"]).digest}
    for name in ARRAYS:
        changed = ARRAYS[name].copy()
        changed.flat[0] ^= 1
        digests.add(images(**{"x": ARRAYS["x_train"], name: changed}).digest if name != "x_train" else images(changed).digest)
    assert len(digests) == 5 and all(len(digest) == 64 for digest in digests)


def test_synthetic_by_name():
    made = load_images("synthetic:60/20@4")
    assert made.x_train.shape == (60, 32, 32, 3) and made.name == "synthetic (60/20, seed 4)" and len(made.classes) == 10
    assert made.identity == identity("synthetic:60/20@4") == "synthetic:60/20@4"
    assert load_images("synthetic:60/20@4") is made
    assert load_images("synthetic100:100/100").name == "synthetic-100 (100/100)"


def test_a_folder_called_synthetic_does_not_hide_the_name(tmp_path, monkeypatch):
    (tmp_path / "synthetic").mkdir()
    monkeypatch.chdir(tmp_path)
    assert identity("synthetic") == "synthetic:10000/2000@0"
    assert "has no folder train/" in refused("./synthetic")


def test_names_are_checked_without_importing_torch():
    """A misspelt name on the command line is answered at once; torch alone takes seconds to import."""
    script = (
        "import sys, types; package = types.ModuleType('fedinit'); package.__path__ = [sys.argv[1]]; sys.modules['fedinit'] = package;"
        "from fedinit.data import identity; print(identity('synthetic'), 'torch' in sys.modules)"
    )
    package = str(Path(fedinit.data.__file__).parents[1])
    answer = subprocess.run([sys.executable, "-c", script, package], capture_output=True, text=True, check=True).stdout
    assert answer == "synthetic:10000/2000@0 False\n"


def test_loaded_arrays_are_read_only():
    """They are shared between runs; neither the training nor the official test set may be perturbed."""
    made = load_images("synthetic:20/20")
    for name in ARRAYS:
        with pytest.raises(ValueError, match="read-only"):
            getattr(made, name)[0] = 0


def test_npz(npz):
    made = load_images(npz(classes=np.array(["cat", "dog", "ox"])))
    assert (made.x_train == ARRAYS["x_train"]).all() and made.y_test.tolist() == [2, 1, 0]
    assert made.name == "mine.npz" and made.classes == ("cat", "dog", "ox") and made.identity.startswith("sha256:")
    assert load_images(str(npz(x_train=np.zeros((6, 16, 16)), x_test=np.zeros((3, 16, 16))))).name == "mine.npz (resized from 16×16)"


def test_identity_of_a_file_is_its_content(npz, tmp_path):
    path = npz()
    first = identity(str(path))
    assert first == identity(path) == identity(first)
    copy = tmp_path / "elsewhere.npz"
    copy.write_bytes(path.read_bytes())
    assert identity(copy) == first
    before = load_images(path)
    npz(y_train=np.array([3, 5, 5, 5, 9, 9]))
    assert identity(path) != first and load_images(path).y_train[1] != before.y_train[1]


def test_identity_is_hashed_once(npz, monkeypatch):
    path = npz()
    first = identity(path)
    monkeypatch.setattr(files.hashlib, "sha256", lambda: pytest.fail("hashed again"))
    assert identity(path) == first


def test_identity_of_a_folder_is_names_and_contents(folder):
    first = identity(folder)
    moved = folder.with_name("moved")
    folder.rename(moved)
    assert identity(moved) == first
    (moved / "train" / ".DS_Store").write_text("no image")
    assert identity(moved) == first
    os.rename(moved / "train" / "cat" / "1.png", moved / "train" / "ant" / "9.png")
    assert identity(moved) != first


def test_identities_of_names():
    digest = "sha256:" + "0a" * 32
    assert [identity(data) for data in ("cifar10", "cifar100", "synthetic", digest)] == [
        "cifar10",
        "cifar100",
        "synthetic:10000/2000@0",
        digest,
    ]
    assert "not at hand" in refused(digest)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("cifra10", "Did you mean 'cifar10'"),
        ("CIFAR100", "Did you mean 'cifar100'"),
        ("syntetic", "Did you mean 'synthetic'"),
        ("synthetic10", "Did you mean 'synthetic100'"),
        ("synthetic:4000", "not of the form synthetic[100]"),
        ("mnist", "is not known. Allowed: synthetic"),
        ("", "is not known"),
        ("sha256:12", "is not known"),
        ("nowhere/mine.npz", "no such file or folder"),
        ("~nobody-of-that-name/mine.npz", "no such file or folder"),
        ("x" * 5000, "is not known"),
        ("a\0b", "is not known"),
        (10, "is of type int"),
        (None, "is of type NoneType"),
    ],
)
def test_unknown_names(data, says):
    assert says in refused(data)
    with pytest.raises(InputError):
        identity(data)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"y_test": None}, "lacks y_test"),
        ({"y_train": np.array([3, 5, 9])}, "6 images, y_train 3 labels"),
        ({"y_train": np.array([3, "x", None] * 2, dtype=object)}, "y_train holds Python objects"),
        ({"x_train": ARRAYS["x_train"][:0], "y_train": np.array([], int)}, "empty"),
        ({"x_test": ARRAYS["x_test"][:0], "y_test": np.array([], int)}, "empty"),
        ({"y_test": np.array([9, 5, 4])}, "test label '4'"),
        ({"classes": np.array(["a", "b", "c", "d"])}, "each with a training image"),
        ({"x_train": np.float64(3)}, "reshape"),
        ({"x_test": np.zeros((3, 28, 28), np.uint8)}, "x_train is 32×32 pixels, x_test 28×28: one size"),
    ],
)
def test_unusable_npz(npz, changed, says):
    assert says in refused(npz(**changed))


def test_damaged_npz(npz):
    path = npz()
    whole = path.read_bytes()
    for cut in (whole[: len(whole) // 2], b"", b"<html>", whole[:2000] + bytes(500) + whole[2500:]):
        path.write_bytes(cut)
        assert "damaged" in refused(path)


def test_another_kind_of_file(tmp_path):
    (tmp_path / "mine.csv").write_text("1,2")
    assert "not .npz" in refused(tmp_path / "mine.csv")


def test_folder(folder):
    made = load_images(folder)
    assert made.classes == ("ant", "cat") and made.name == "pets" and made.y_train.tolist() == [0, 0, 1, 1]
    assert (made.x_train == ARRAYS["x_train"][[0, 1, 0, 1]]).all() and made.x_train.flags.c_contiguous


def test_folder_of_grey_and_larger_squares(folder):
    save_image(folder / "train" / "ant" / "0.png", ARRAYS["x_train"][0][..., 0])
    save_image(folder / "train" / "ant" / "1.png", np.full((48, 48, 3), 90, np.uint8))
    made = load_images(folder)
    assert (made.x_train[0] == ARRAYS["x_train"][0][..., :1]).all() and (made.x_train[1] == 90).all()
    assert made.name == "pets (resized from 48×48)"


def test_folder_of_several_sizes(folder):
    for i, size in enumerate((48, 64)):
        save_image(folder / "train" / "ant" / f"{i}.png", np.full((size, size, 3), 90, np.uint8))
    assert load_images(folder).name == "pets (resized from several sizes)"


def test_folder_whose_test_set_has_another_size(folder):
    for file in folder.glob("test/*/*"):
        save_image(file, np.full((28, 28, 3), 90, np.uint8))
    assert "train/ is 32×32 pixels, test/ is 28×28: one size for both" in refused(folder)
    save_image(folder / "train" / "ant" / "0.png", np.full((64, 64, 3), 90, np.uint8))
    assert "train/ is 32×32, 64×64 pixels, test/ is 28×28" in refused(folder)
    save_image(folder / "test" / "ant" / "0.png", np.full((64, 64, 3), 90, np.uint8))
    assert load_images(folder).name == "pets (resized from several sizes)"


@pytest.mark.parametrize(
    ("name", "array", "says"),
    [
        ("train/ant/0.png", np.zeros((32, 40, 3), np.uint8), "train/ant/0.png is 40×32 pixels"),
        ("test/cat/1.png", np.full((32, 32, 4), 100, np.uint8), "test/cat/1.png has transparent pixels"),
        ("test/cat/1.png", np.zeros((32, 32), np.uint16), "more than 8 bits"),
    ],
)
def test_unusable_images(folder, name, array, says):
    save_image(folder / name, array)
    assert says in refused(folder)


def test_unusable_folders(folder):
    path = folder / "train" / "cat" / "0.png"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "train/cat/0.png is not a readable image" in refused(folder)
    path.write_bytes(whole)
    (folder / "train" / "dog").mkdir()
    assert "train/dog has no images" in refused(folder)
    (folder / "train" / "dog").rmdir()
    (folder / "test" / "dog").mkdir()
    save_image(folder / "test" / "dog" / "0.png", ARRAYS["x_train"][0])
    assert "test label 'dog'" in refused(folder)
    (folder / "test").rename(folder / "validation")
    assert "has no folder test/" in refused(folder)
    (folder / "test").mkdir()
    assert "no images in test/" in refused(folder)
