"""Client noise and category noise."""

import math

import numpy as np
import pytest
import torch

from fedinit.data.noise import Noise, make_noise
from fedinit.errors import InputError

QUIET = {"clients": 4, "classes": 3, "client_std": 0.0, "category_std": 0.0, "seed": 0}


def test_no_noise_is_the_very_same_batch():
    noise = make_noise(**QUIET)
    x = torch.rand(2, 32, 32, 3)
    assert noise.gains is None and noise.shifts is None
    assert noise.apply(x, torch.tensor([0, 1]), 3) is x


def test_apply_by_hand():
    """Client 1 has gains (2, 0.5, 0), class 1 a shift of 0.25. A grey 0.4 of class 1: 0.8 + 0.25 → clamped to 1;
    0.2 + 0.25 = 0.45; 0 + 0.25. Of class 0, shifted by -0.3: 0.5; -0.1 → 0; -0.3 → 0."""
    noise = Noise(np.array([[1, 1, 1], [2, 0.5, 0]], np.float32), np.array([-0.3, 0.25], np.float32))
    x = torch.full((2, 5, 5, 3), 0.4)
    seen = noise.apply(x, torch.tensor([1, 0]), 1)
    assert seen.dtype == torch.float32 and seen.shape == x.shape
    torch.testing.assert_close(seen[0, 2, 3], torch.tensor([1.0, 0.45, 0.25]))
    torch.testing.assert_close(seen[1, 0, 4], torch.tensor([0.5, 0.0, 0.0]))
    assert (x == 0.4).all()


def test_shifts_of_a_client_and_category():
    noise = Noise(None, np.array([[0.0, 0.0], [0.1, 0.2]], np.float32))
    x = torch.full((1, 2, 2, 3), 0.5)
    assert noise.apply(x, torch.tensor([1]), 0).flatten()[0] == 0.5
    assert noise.apply(x, torch.tensor([1]), 1).flatten()[0] == pytest.approx(0.7)


def test_gains_and_shifts_have_the_asked_spread():
    """Gains 1 + 0.2 N(0, 1) over 30,000 numbers: mean 1 ± 0.0012, std 0.2 ± 0.0008; shifts likewise around 0."""
    noise = make_noise(clients=10_000, classes=10, client_std=0.2, category_std=0.1, category_scope="client", seed=7)
    assert noise.gains.shape == (10_000, 3) and noise.shifts.shape == (10_000, 10)
    assert noise.gains.dtype == noise.shifts.dtype == np.float32
    assert noise.gains.mean() == pytest.approx(1, abs=0.006) and noise.gains.std() == pytest.approx(0.2, abs=0.005)
    assert noise.shifts.mean() == pytest.approx(0, abs=0.002) and noise.shifts.std() == pytest.approx(0.1, abs=0.002)


def test_gains_are_never_negative():
    assert make_noise(**{**QUIET, "clients": 500, "client_std": 3.0}).gains.min() == 0


def test_scopes():
    assert make_noise(**{**QUIET, "category_std": 0.1}).shifts.shape == (3,)
    assert make_noise(**{**QUIET, "category_std": 0.1}, category_scope="client").shifts.shape == (4, 3)


def test_noise_depends_on_the_seed_alone_and_parts_are_independent():
    both = make_noise(**{**QUIET, "client_std": 0.1, "category_std": 0.1, "seed": 5})
    gains = make_noise(**{**QUIET, "client_std": 0.1, "seed": 5})
    twice = make_noise(**{**QUIET, "client_std": 0.2, "seed": 5})
    other = make_noise(**{**QUIET, "client_std": 0.1, "seed": 6})
    assert (both.gains == gains.gains).all() and (other.gains != gains.gains).all()
    np.testing.assert_allclose(twice.gains - 1, 2 * (gains.gains - 1), atol=1e-6)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"client_std": -0.1}, "client_std = -0.1"),
        ({"category_std": math.nan}, "category_std = nan"),
        ({"category_scope": "clients"}, "Did you mean 'client'"),
        ({"clients": 0}, "clients = 0"),
        ({"classes": 0}, "classes = 0"),
    ],
)
def test_bad_arguments_are_named(changed, says):
    with pytest.raises(InputError, match=says):
        make_noise(**{**QUIET, **changed})
