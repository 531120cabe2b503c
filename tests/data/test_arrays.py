"""A user's own arrays: converted where the meaning is plain, refused in one line elsewhere."""

import numpy as np
import pytest

from fedinit.data.arrays import to_labels, to_pixels
from fedinit.errors import InputError

RGB = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)


def pixels(train, test=None):
    return to_pixels(train, train[:2] if test is None else test, "data = 'mine.npz'")


def refused(train, test=None):
    with pytest.raises(InputError) as caught:
        pixels(train, test)
    message = str(caught.value)
    assert "\n" not in message and message.startswith("data = 'mine.npz'")
    return message


def test_bytes_pass_unchanged():
    train, test, note = pixels(RGB)
    assert (train == RGB).all() and (test == RGB[:2]).all() and note == ""
    assert train.dtype == np.uint8 and train.flags.c_contiguous


@pytest.mark.parametrize(
    "given",
    [
        RGB.transpose(0, 3, 1, 2),
        RGB.astype(np.int64),
        RGB.astype(np.float32),
        RGB / 255,
        (RGB / 255).astype(np.float32),
        (RGB / 255).astype(np.float16),
        np.concatenate([RGB, np.full_like(RGB[..., :1], 255)], axis=3),
        np.concatenate([RGB / 255, np.ones_like(RGB[..., :1])], axis=3),
    ],
    ids=["channels first", "int64", "whole floats", "float64 0..1", "float32 0..1", "float16 0..1", "opaque RGBA", "float RGBA"],
)
def test_the_same_images_in_other_clothes(given):
    train, test, note = pixels(given)
    assert train.dtype == np.uint8 and train.flags.c_contiguous and note == ""
    assert (train == RGB).all() and (test == RGB[:2]).all()


@pytest.mark.parametrize("shape", [(4, 32, 32), (4, 32, 32, 1), (4, 1, 32, 32)])
def test_grey_becomes_three_equal_channels(shape):
    train, _, _ = pixels(RGB[..., 0].reshape(shape))
    assert (train == RGB[..., :1]).all() and train.shape == RGB.shape


def test_squares_of_another_size_are_resized_and_the_note_says_so():
    """Halving 64 → 32 of an image white on the left, black on the right keeps both halves, and constants stay constant."""
    big = np.zeros((2, 64, 64, 3), np.uint8)
    big[:, :, :32] = 200
    train, _, note = pixels(big)
    assert note == " (resized from 64×64)" and train.shape == (2, 32, 32, 3)
    assert (train[:, :, :14] == 200).all() and (train[:, :, 18:] == 0).all()


def test_one_scale_for_both_sets():
    """A test set of whole floats 0 and 1 beside training pixels up to 255 is nearly black, not 0..1."""
    test = np.zeros((1, 32, 32, 3))
    test[0, 0, 0] = 1
    _, converted, _ = pixels(RGB.astype(float), test)
    assert converted.max() == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_pixels(value):
    bad = RGB / 255
    bad[1, 2, 3, 0] = value
    assert "NaN or infinity" in refused(bad)
    assert "NaN or infinity" in refused(RGB / 255, bad)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (RGB.astype(np.int64) * 257, "out of range"),
        (RGB.astype(np.int64) - 1, "out of range"),
        ((RGB / 255 - 0.5) / 0.25, "out of range"),
        (RGB + 0.25 - (RGB == 255), "not whole"),
        (RGB > 128, "type bool"),
        ((RGB > 128).astype(np.uint8), "ambiguous"),
        (RGB.astype(str), "type <U"),
        (RGB.astype(complex), "type complex128"),
        (RGB[:0], "empty"),
        (RGB[0], "square"),
        (RGB[:, :, :30], "square"),
        (RGB[..., :2], "square"),
        (RGB[:, :3, :3], "ambiguous"),
        (RGB.reshape(4, -1), "reshape"),
        (np.concatenate([RGB, np.full_like(RGB[..., :1], 254)], axis=3), "transparent"),
    ],
)
def test_refused_pixels(given, says):
    assert says in refused(given)


def test_one_set_in_bytes_and_one_in_floats():
    assert "one scale for both" in refused(RGB, RGB / 255)


def labels(train, test=None, names=None):
    return to_labels(np.asarray(train), np.asarray(train if test is None else test), names, "data = 'mine.npz'")


@pytest.mark.parametrize(
    ("given", "classes"),
    [
        ([0, 2, 1, 2], ("0", "1", "2")),
        ([1, 3, 2, 3], ("1", "2", "3")),
        ([-5, 900, 7, 900], ("-5", "7", "900")),
        ([1.0, 3.0, 2.0, 3.0], ("1", "2", "3")),
        ([[4], [6], [5], [6]], ("4", "5", "6")),
        (["ant", "cat", "bee", "cat"], ("ant", "bee", "cat")),
        ([b"ant", b"cat", b"bee", b"cat"], ("ant", "bee", "cat")),
        (np.array([200, 255, 201, 255], np.uint8), ("200", "201", "255")),
    ],
)
def test_labels_are_numbered_in_sorted_order(given, classes):
    train, test, names = labels(given)
    assert train.tolist() == test.tolist() == [0, 2, 1, 2] and train.dtype == np.int64 and names == classes


def test_test_labels_are_numbered_by_training():
    """The test set lacks class 10; its 30 must still be class 2."""
    assert labels([10, 20, 30], [30, 20])[1].tolist() == [2, 1]


def test_given_names():
    assert labels([1, 2, 2], names=np.array(["cat", "dog"]))[2] == ("cat", "dog")


@pytest.mark.parametrize(
    ("train", "test", "names", "says"),
    [
        ([1, 2], [1, 3], None, "test label '3' has no training image"),
        ([1, 1], [1], None, "at least 2"),
        ([0.5, 1], [1], None, "fractions"),
        ([np.nan, 1], [1], None, "NaN"),
        ([[1, 0], [0, 1]], [1], None, "argmax"),
        (["a", "b"], [1], None, "save both alike"),
        ([0, 1], [1], ["a", "b", "c"], "3 names for 2 distinct"),
        ([1j, 0], [1], None, "type complex128"),
    ],
)
def test_refused_labels(train, test, names, says):
    with pytest.raises(InputError, match=says) as caught:
        labels(train, test, names)
    assert "\n" not in str(caught.value)
