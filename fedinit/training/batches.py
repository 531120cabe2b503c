"""A client's images as mini-batches on the device: order, noise, normalisation, augmentation; and the test set's.

Images stay uint8 (n, 32, 32, 3) on the device; a client is an index list. Everything else happens on the batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from fedinit.data import Images, make_noise, make_partition
from fedinit.streams import stream

PAD = 4  # pixels of zero padding before a crop, in normalised units (released code)


class Batches:
    """The data side of a run: partition, noise and images on a device; yields (x, y) batches.

    x: float (B, 3, 32, 32); y: int64 (B,).
    """

    def __init__(self, experiment, images: Images, device: torch.device):
        e = self.experiment = experiment
        self.device, self.classes = device, len(images.classes)
        self.dtype = torch.float64 if e.precision == "float64" else torch.float32
        self.partition = make_partition(
            images.y_train,
            clients=e.clients,
            samples=e.samples,
            scheme=e.partition,
            dirichlet=e.dirichlet,
            prior=e.prior,
            draws=e.draws,
            classes_per_client=e.classes_per_client,
            seed=e.seed,
        )
        self.noise = make_noise(
            clients=e.clients,
            classes=self.classes,
            client_std=e.client_noise,
            category_std=e.category_noise,
            category_scope=e.category_scope,
            seed=e.seed,
        )
        self._train = torch.tensor(images.x_train, device=device), torch.tensor(images.y_train, device=device)
        self._test = torch.tensor(images.x_test, device=device), torch.tensor(images.y_test, device=device)
        std, mean = torch.from_numpy(images.std), torch.from_numpy(images.mean)
        pixels = images.x_train[0].size // 3  # of whole images, so that one operation goes over long rows
        self._scale, self._shift = (1 / std).repeat(pixels).to(device), (-mean / std).repeat(pixels).to(device)

    def train(self, client: int, round: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The client's batches of one round: `local_epochs` passes, each in a new order."""
        e, mine = self.experiment, self.partition[client]
        order = stream(e.seed, "batches", round, client)
        luck = stream(e.seed, "augmentation", round, client)
        x_all, y_all = self._train
        for _ in range(e.local_epochs):
            shuffled = torch.from_numpy(mine[order.permutation(len(mine))]).to(self.device)
            for chosen in shuffled.split(e.batch_size):
                y = y_all.index_select(0, chosen)
                x = self._normal(self.noise.apply(x_all.index_select(0, chosen).float().div_(255), y, client))
                yield self._shape(augment(x, luck) if e.augment else x), y

    def test(self, batch: int = 500) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The test set in order, untouched by noise and augmentation."""
        for x, y in zip(self._test[0].split(batch), self._test[1].split(batch), strict=True):
            yield self._shape(self._normal(x.float().div_(255))), y

    def _normal(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(self._shift, x.flatten(1), self._scale).view(x.shape)

    def _shape(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 3, 1, 2).to(self.dtype)


def augment(x: torch.Tensor, luck: np.random.Generator) -> torch.Tensor:
    """x (B, H, W, 3): flipped with p .5, then with p .5 a crop at a uniform offset from PAD px zero padding (released code)."""
    count, height, width, _ = x.shape
    flip = torch.from_numpy((luck.random(count) < 0.5).nonzero()[0]).to(x.device)
    offset = np.where(luck.random((count, 1)) < 0.5, luck.integers(0, 2 * PAD + 1, (count, 2)), PAD)
    x = x.index_copy(0, flip, x.index_select(0, flip).flip(2))
    padded = torch.nn.functional.pad(x, (0, 0, PAD, PAD, PAD, PAD))
    # a row of a crop is one stretch of memory that begins at some pixel of all the padded images
    rows = offset[:, :1] + np.arange(height) + padded.shape[1] * np.arange(count)[:, None]
    first = torch.from_numpy(rows * padded.shape[2] + offset[:, 1:]).to(x.device)
    stretches = padded.view(-1).as_strided((padded.numel() // 3 - width + 1, 3 * width), (3, 1))
    return stretches.index_select(0, first.view(-1)).view(x.shape)
