"""Batches: order, augmentation, normalisation, the untouched test set."""

import numpy as np
import pytest
import torch

from fedinit import Experiment, load_images
from fedinit.training.batches import PAD, Batches, augment


class Luck:
    """A generator whose draws a person chose: flips, crop coins, offsets, in the order in which `augment` asks."""

    def __init__(self, flips, coins, offsets):
        self.draws = iter((np.array(flips), np.array(coins)[:, None]))
        self.offsets = np.array(offsets)

    def random(self, size):
        return next(self.draws)

    def integers(self, low, high, size):
        assert (low, high) == (0, 2 * PAD + 1)
        return self.offsets


def test_flip_and_crop_are_those_of_a_plain_loop():
    """Four images: as it is; flipped; cropped at (0, 8), so the image moves 4 down and 4 left with zeros around; flipped, then cropped
    at (7, 1). The plain loop flips, pads 4 px of zeros, and cuts 32×32 at the offset."""
    x = torch.randn(4, 32, 32, 3)
    flips, coins, offsets = [0.9, 0.1, 0.9, 0.1], [0.9, 0.9, 0.1, 0.1], [[3, 3], [3, 3], [0, 8], [7, 1]]
    got = augment(x, Luck(flips, coins, offsets))
    for i in range(4):
        image = x[i].flip(1) if flips[i] < 0.5 else x[i]
        if coins[i] < 0.5:
            padded = torch.zeros(40, 40, 3)
            padded[4:36, 4:36] = image
            row, column = offsets[i]
            image = padded[row : row + 32, column : column + 32]
        assert torch.equal(got[i], image)


def batches(**changes) -> Batches:
    experiment = Experiment(data="synthetic:600/200", clients=10, cohort_size=2, batch_size=25, local_epochs=2, model="cnn", **changes)
    return Batches(experiment, load_images(experiment.data), torch.device("cpu"))


def test_a_client_sees_each_of_its_images_once_an_epoch_and_the_short_last_batch():
    """60 images in batches of 25: 25, 25, 10, twice; each epoch has the client's labels, as often as the partition has them."""
    b = batches(augment=False)
    labels = [y for _, y in b.train(3, 1)]
    assert [len(y) for y in labels] == [25, 25, 10] * 2
    expected = sorted(b._train[1][torch.from_numpy(b.partition[3].copy())].tolist())
    assert sorted(torch.cat(labels[:3]).tolist()) == sorted(torch.cat(labels[3:]).tolist()) == expected


def test_order_depends_on_seed_round_and_client_and_on_nothing_else():
    def order(seed, round, client):
        return torch.cat([x for x, _ in batches(seed=seed).train(client, round)])

    assert torch.equal(order(0, 1, 3), order(0, 1, 3))
    assert not torch.equal(order(0, 1, 3), order(0, 2, 3))
    b = batches()
    list(b.train(5, 1))  # another client first: no shared stream to advance
    assert torch.equal(torch.cat([x for x, _ in b.train(3, 1)]), order(0, 1, 3))


def test_seed_one_does_not_replay_seed_zero_a_round_later():
    """Seeding by seed + round would make (1, r) equal (0, r + 1)."""
    one, zero = batches(seed=1), batches(seed=0)
    zero.partition = one.partition
    assert not torch.equal(torch.cat([x for x, _ in one.train(3, 1)]), torch.cat([x for x, _ in zero.train(3, 2)]))


def test_test_images_are_normalised_and_otherwise_untouched():
    """(x / 255 − mean) / std of the training set, whatever noise and augmentation say."""
    noisy, images = batches(client_noise=0.5, category_noise=0.3), load_images("synthetic:600/200")
    x = torch.cat([x for x, _ in noisy.test(64)]).permute(0, 2, 3, 1)
    expected = (torch.tensor(images.x_test) / 255 - torch.tensor(images.mean)) / torch.tensor(images.std)
    torch.testing.assert_close(x, expected, rtol=0, atol=2e-6)
    assert torch.equal(torch.cat([y for _, y in noisy.test(64)]), torch.tensor(images.y_test))


@pytest.mark.parametrize("changes", [{}, {"augment": False}, {"client_noise": 0.3, "category_noise": 0.1}])
def test_images_made_ready_for_all_epochs_are_those_made_ready_batch_by_batch(changes, monkeypatch):
    together = list(batches(**changes).train(3, 1))
    monkeypatch.setattr("fedinit.training.batches.AT_ONCE", 0)
    apart = list(batches(**changes).train(3, 1))
    assert len(together) == len(apart) == 6
    assert all(torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(together, apart, strict=True))
