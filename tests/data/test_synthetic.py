"""The embedded data set: same bytes everywhere, balanced, learnable, classes that survive flips and shifts."""

import hashlib

import numpy as np
import pytest

from fedinit.data import calibrate, synthetic
from fedinit.errors import InputError


def sha(arrays):
    return hashlib.sha256(b"".join(arrays[name].tobytes() for name in sorted(arrays))).hexdigest()


def test_the_bytes_of_a_seed_never_change():
    """Stored runs are known by the name "synthetic:…" alone, so another generator needs another name."""
    assert sha(synthetic.make(10, 600, 100, 0)) == "5ff66b7ae0d23bd78e9a57eea6cf54483ff7e86cc9c164e53bdb2f0098ea90ab"
    assert sha(synthetic.make(100, 600, 100, 5)) == "e93ed2478df5905f333813d538a264e7a8718813dd8149bf70ac14951bfd6575"


@pytest.mark.parametrize("classes", [10, 100])
def test_shapes_and_balance(classes):
    arrays = synthetic.make(classes, 1205, 310, 2)
    assert arrays["x_train"].shape == (1205, 32, 32, 3) and arrays["x_test"].shape == (310, 32, 32, 3)
    assert arrays["x_train"].dtype == np.uint8 and arrays["x_train"].flags.c_contiguous
    for part in ("train", "test"):
        counts = np.bincount(arrays[f"y_{part}"], minlength=classes)
        assert arrays[f"y_{part}"].dtype == np.int64 and len(counts) == classes and np.ptp(counts) <= 1


def test_seeds_and_parts_are_different_images():
    arrays, other = synthetic.make(10, 500, 500, 0), synthetic.make(10, 500, 500, 1)
    assert (arrays["x_train"] != other["x_train"]).mean() > 0.9
    assert (arrays["x_train"] != arrays["x_test"]).mean() > 0.9
    assert len(np.unique(arrays["x_train"].reshape(500, -1), axis=0)) == 500


def test_the_contrast_is_used_without_saturating():
    x = synthetic.make(10, 500, 10, 0)["x_train"]
    assert x.std() > 20 and ((x == 0) | (x == 255)).mean() < 0.02


def test_every_mode_has_its_mirror_image():
    modes = synthetic._modes(10, 3)
    assert (modes[1::2] == modes[0::2, :, ::-1]).all()
    assert modes.min() >= -128 and modes.max() <= 127


def test_a_field_is_interpolated_on_a_circle():
    """Grid values 0 and 64 on a circle, 16 points apart: 0, 4, 8, … 60, 64, 60, … 4."""
    field = synthetic._stretch(np.array([[0, 64]], np.int16), 1)[0]
    assert field.tolist() == [*range(0, 64, 4), *range(64, 0, -4)]


def test_a_small_network_learns_it():
    """Central training on 1000 images for 6 epochs is far above the 10 % of guessing (calibrated: above 60 %)."""
    assert calibrate.central(synthetic.make(10, 1000, 300, 0), epochs=6, seed=0) > 0.45


def test_the_calibration_script_prints_its_table(monkeypatch, capsys):
    options = "--data synthetic:100/50 --seeds 1 --epochs 1 --rounds 1 --clients 4 --active 2 --local-epochs 1"
    monkeypatch.setattr("sys.argv", ["calibrate", *options.split()])
    calibrate.main()
    header, *rows = (line for line in capsys.readouterr().out.splitlines() if line.startswith("|"))
    assert header == "| seed | central | iid | Dir-0.6 | Dir-0.1 |" and len(rows[1].strip("|").split("|")) == 5


@pytest.mark.parametrize(
    ("data", "canonical"),
    [
        ("synthetic", "synthetic:10000/2000@0"),
        ("synthetic:4000/1000", "synthetic:4000/1000@0"),
        ("synthetic:04000/1000@007", "synthetic:4000/1000@7"),
        ("synthetic100@3", "synthetic100:10000/2000@3"),
    ],
)
def test_names_are_written_out(data, canonical):
    assert str(synthetic.parse(data)) == canonical == str(synthetic.parse(canonical))


@pytest.mark.parametrize(
    "data", ["synthetic10", "synthetic:4000", "synthetic:4000/", "synthetic@-1", "synthetic:1e3/10", "synthetic @1", "synthetic:٤٠٠/١٠٠"]
)
def test_other_forms_are_refused(data):
    with pytest.raises(InputError, match="not of the form"):
        synthetic.parse(data)


def test_one_class_is_refused():
    with pytest.raises(InputError, match="at least 2"):
        synthetic.make(1, 10, 10)


@pytest.mark.parametrize("data", ["synthetic:9/10", "synthetic:10/9", "synthetic100:99/100", "synthetic:200001/10"])
def test_sizes_out_of_range_are_refused(data):
    with pytest.raises(InputError, match=r"allowed are 100? "):
        synthetic.parse(data)
