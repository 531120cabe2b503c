"""A data set is known by its images and labels, not by its container or order."""

import numpy as np
import pytest
from PIL import Image

from fedinit.data import load_images
from fedinit.data.known import content

LUCK = np.random.default_rng(0)
X, Y = LUCK.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8), np.array([0, 0, 1, 1, 0, 1])
TEST_X, TEST_Y = LUCK.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8), np.array([0, 1])


@pytest.fixture
def digest(tmp_path):
    def of(x=X, y=Y, test_x=TEST_X, test_y=TEST_Y):
        path = tmp_path / f"{LUCK.integers(2**60)}.npz"
        np.savez(path, x_train=x, y_train=y, x_test=test_x, y_test=test_y)
        return content(load_images(path))

    return of


def test_neither_container_nor_order_counts(digest, tmp_path):
    order = np.array([3, 0, 5, 1, 4, 2])
    assert digest() == digest(X[order], Y[order])
    assert digest() == digest(X.transpose(0, 3, 1, 2), np.array(["ant", "bee"])[Y], TEST_X, np.array(["ant", "bee"])[TEST_Y])
    for part, x, y in (("train", X, Y), ("test", TEST_X, TEST_Y)):
        for i, (image, k) in enumerate(zip(x, y, strict=True)):
            folder = tmp_path / "pets" / part / "ab"[k]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{i}.png")
    assert digest() == content(load_images(tmp_path / "pets"))


def test_every_pixel_label_and_place_counts(digest):
    other, swapped = X.copy(), Y.copy()
    other[4, 31, 31, 2] ^= 1
    swapped[[0, 2]] = 1, 0
    twice = np.concatenate([X[:5], X[:1]])
    assert len({digest(), digest(other), digest(y=swapped), digest(twice, Y), digest(TEST_X, TEST_Y, X, Y)}) == 5
