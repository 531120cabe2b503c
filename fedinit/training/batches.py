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
AT_ONCE = 2_000  # images of a client that are made ready once a round, for all local epochs; of a client with more, a batch at a time


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
        ready = None
        if e.local_epochs > 1 and len(mine) <= AT_ONCE:
            x, y_all = self._seen(mine, client)
            ready = framed(x, x.flip(2)) if e.augment else x
        for _ in range(e.local_epochs):
            shuffled = order.permutation(len(mine))
            for begin in range(0, len(mine), e.batch_size):
                chosen = shuffled[begin : begin + e.batch_size]
                if ready is None:
                    x, y = self._seen(mine[chosen], client)
                    yield self._shape(augment(x, luck) if e.augment else x), y
                    continue
                there = torch.from_numpy(chosen).to(self.device)
                if e.augment:
                    mirrored, offset = draw(len(chosen), luck)
                    x = cut(ready, chosen + len(mine) * mirrored, offset)
                else:
                    x = ready.index_select(0, there)
                yield self._shape(x), y_all.index_select(0, there)

    def _seen(self, indices: np.ndarray, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(x, y) of some images as the client sees them, (n, H, W, 3): what is the same in every epoch."""
        at = torch.tensor(indices, device=self.device)
        y = self._train[1].index_select(0, at)
        return self._normal(self.noise.apply(self._train[0].index_select(0, at).float().div_(255), y, client)), y

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
    mirrored, offset = draw(len(x), luck)
    flip = torch.from_numpy(mirrored.nonzero()[0]).to(x.device)
    x = x.index_copy(0, flip, x.index_select(0, flip).flip(2))
    return cut(framed(x), np.arange(len(x)), offset)


def draw(count: int, luck: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(whether each image is mirrored, where its crop begins in the padded image, as row and column)."""
    mirrored = luck.random(count) < 0.5
    return mirrored, np.where(luck.random((count, 1)) < 0.5, luck.integers(0, 2 * PAD + 1, (count, 2)), PAD)


def framed(*parts: torch.Tensor) -> torch.Tensor:
    """Images (n, H, W, 3) in PAD px of zeros, one part after the other."""
    _, height, width, channels = parts[0].shape
    frames = parts[0].new_zeros((sum(map(len, parts)), height + 2 * PAD, width + 2 * PAD, channels))
    torch.cat(parts, out=frames[:, PAD:-PAD, PAD:-PAD])
    return frames


def cut(frames: torch.Tensor, chosen: np.ndarray, offset: np.ndarray) -> torch.Tensor:
    """The crops (B, H, W, 3) of the chosen frames, that begin at `offset` (B, 2)."""
    _, height, width, _ = frames.shape
    # a row of a crop is one stretch of memory that begins at some pixel of all the frames
    rows = offset[:, :1] + np.arange(height - 2 * PAD) + height * chosen[:, None]
    first = torch.from_numpy(rows * width + offset[:, 1:]).to(frames.device)
    length = width - 2 * PAD
    stretches = frames.view(-1).as_strided((frames.numel() // 3 - length + 1, 3 * length), (3, 1))
    return stretches.index_select(0, first.view(-1)).view(len(chosen), height - 2 * PAD, length, 3)
