"""Labels → one index list per client: the paper's Dirichlet split with replacement, and the usual alternatives."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import InputError, unknown
from ..streams import stream
from . import schemes

SCHEMES = ("dirichlet", "dirichlet-disjoint", "pathological", "iid")
PRIORS = ("uniform", "class")
DRAWS = ("iid", "cyclic")


@dataclass(frozen=True, eq=False)
class Partition:
    """Which training images each client holds, stored as one flat list cut into clients.

    order    int64 (total,)  image indices, client after client
    offsets  int64 (C+1,)    client i holds order[offsets[i]:offsets[i + 1]]

    `len(p)` is C, `p[i]` client i's indices (a view; IndexError outside 0..C-1), iteration goes over the clients.
    """

    order: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> np.ndarray:
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} of a partition over {len(self)} clients")
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[client] for client in range(len(self)))

    @cached_property
    def sizes(self) -> np.ndarray:
        """Samples of each client, duplicates counted: int64 (C,)."""
        return np.diff(self.offsets)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (64 hex digits) of who holds what; goes into a run's provenance."""
        return hashlib.sha256(self.offsets.astype("<i8").tobytes() + self.order.astype("<i8").tobytes()).hexdigest()

    @cached_property
    def _owner(self) -> np.ndarray:
        return np.repeat(np.arange(len(self)), self.sizes)

    @cached_property
    def _held(self) -> tuple[np.ndarray, np.ndarray]:
        """The distinct (client, image) pairs, as two int64 arrays."""
        span = int(self.order.max(initial=0)) + 1
        pairs = np.sort(self._owner * span + self.order)  # np.unique hashes integers: slow for millions
        return np.divmod(pairs[np.diff(pairs, prepend=-1) > 0], span)

    def histogram(self, labels: np.ndarray, classes: int) -> np.ndarray:
        """Samples of each class on each client: int64 (C, classes), rows summing to `sizes`. labels: int (n,)."""
        cells = self._owner * classes + np.asarray(labels)[self.order]
        return np.bincount(cells, minlength=len(self) * classes).reshape(len(self), classes)

    def label_entropy(self, labels: np.ndarray, classes: int) -> np.ndarray:
        """Entropy of each client's labels in nats, float64 (C,): 0 for one class only, log(classes) when balanced."""
        share = self.histogram(labels, classes) / np.maximum(self.sizes, 1)[:, None]
        # + 0.0 turns the -0.0 of a one-class client into 0.0
        return -(share * np.log(share, out=np.zeros_like(share), where=share > 0)).sum(axis=1) + 0.0

    def overlap(self) -> float:
        """The share of a client's distinct images that another client holds too, in [0, 1]: 0 if disjoint, 1 if equal.

        The mean over ordered pairs i ≠ j of |U_i ∩ U_j| / |U_i|, U_i being client i's distinct images. Dividing by
        |U_i| instead of the pair's smaller set lets the sum over j be taken first: image s, held by m_s clients,
        adds (m_s − 1) / |U_i|. So time and memory are linear in the number of samples, not quadratic in clients.
        """
        if len(self) < 2:
            return 0.0
        client, image = self._held
        others = np.bincount(image)[image] - 1
        distinct = np.bincount(client, minlength=len(self))
        return float((others / distinct[client]).sum() / (len(self) * (len(self) - 1)))

    @cached_property
    def repeated(self) -> float:
        """The share of all samples that repeat an image the same client already holds, in [0, 1)."""
        return 1.0 - len(self._held[0]) / max(len(self.order), 1)


def make_partition(
    labels: np.ndarray,
    *,
    clients: int,
    samples: int | None = None,
    scheme: str = "dirichlet",
    dirichlet: float = 0.1,
    prior: str = "uniform",
    draws: str = "iid",
    classes_per_client: int = 2,
    seed: int = 0,
) -> Partition:
    """Give every client its images. The same arguments give the same partition; work is bounded for every D_r > 0.

    labels              int (n,), classes 0..K-1, each with at least one image
    clients, samples    C clients of `samples` images each (None: ⌊n / C⌋)
    scheme              "dirichlet": the paper's (section 5.1). Client i has its own class prior p_i ~ Dirichlet; its
                        samples are drawn with replacement, so clients overlap and may hold an image twice.
                        "dirichlet-disjoint": as above, but an image goes to one client at most. A class that has run
                        out is dropped from the priors of the clients still to be served (served in random order).
                        "pathological": `classes_per_client` classes k each, disjoint shards of one size (McMahan et
                        al. 2017). A client holds k·⌊samples / k⌋ images, fewer with samples=None if a class is short.
                        "iid": a shuffled, disjoint split.
    dirichlet, prior    "uniform": p_i ~ Dir(D_r, …, D_r) (the paper's released code); "class": p_i ~ Dir(D_r · q)
                        with q the classes' frequencies, so D_r is the total concentration (Hsu et al. 2019).
    draws               of scheme "dirichlet". "iid": a class by p_i, then an image of it, each independently.
                        "cyclic": the released code's pools. Each class's images are shuffled once and handed out in
                        that order by one cursor for all clients, starting anew at the end of the list; the samples of
                        all clients are served in random order. Images then repeat only when a class has been used up.
    seed                of `fedinit.streams.stream(seed, "partition", …)`

    Raises InputError for an argument out of range, an unknown name, or more images asked for than there are.
    """
    labels = np.asarray(labels)
    counts = _class_sizes(labels)
    for argument, value, known in (("scheme", scheme, SCHEMES), ("prior", prior, PRIORS), ("draws", draws, DRAWS)):
        if value not in known:
            raise unknown(argument, value, known)
    _check(len(labels), len(counts), clients, samples, scheme, dirichlet, classes_per_client)
    size = len(labels) // clients if samples is None else samples
    # every scheme starts from the images grouped by class, shuffled inside each class
    shuffled = stream(seed, "partition", 0).permutation(len(labels))
    pools = shuffled[np.argsort(labels[shuffled], kind="stable")]
    begins = np.cumsum(counts) - counts
    rng = stream(seed, "partition", 1)

    if scheme == "iid":
        chunks = shuffled[: clients * size]
    elif scheme == "pathological":
        size, chunks = schemes.shards(rng, pools, begins, counts, clients, size, classes_per_client, exact=samples is not None)
    else:
        concentration = np.ones(len(counts)) if prior == "uniform" else counts / len(labels)
        priors = schemes.dirichlet_priors(rng, dirichlet, concentration, clients)
        if scheme == "dirichlet-disjoint":
            chunks = schemes.disjoint(rng, pools, begins, counts, priors, size)
        else:
            chunks = schemes.with_replacement(rng, pools, begins, counts, priors, size, draws)

    order = np.ascontiguousarray(chunks, dtype=np.int64)
    offsets = np.arange(clients + 1, dtype=np.int64) * size
    order.setflags(write=False)
    offsets.setflags(write=False)
    return Partition(order, offsets)


def _class_sizes(labels: np.ndarray) -> np.ndarray:
    if labels.ndim != 1 or labels.size == 0 or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise InputError(
            f"labels of shape {labels.shape} and type {labels.dtype}: one integer 0..K-1 an image is needed, as load_images returns them."
        )
    counts = np.bincount(labels)
    if not counts.all():
        raise InputError(f"labels: class {int(np.argmin(counts))} of 0..{len(counts) - 1} has no image; renumber the classes without gaps.")
    return counts


def _check(images: int, classes: int, clients: int, samples: int | None, scheme: str, dirichlet: float, classes_per_client: int) -> None:
    if clients < 1:
        raise InputError(f"clients = {clients} is out of range: at least 1 client is needed.")
    if samples is not None and samples < 1:
        raise InputError(f"samples = {samples} is out of range: at least 1 image a client, or None for images / clients.")
    if samples is None and clients > images:
        raise InputError(
            f"clients = {clients} is more than the {images} images: take fewer clients, or set samples with scheme 'dirichlet'."
        )
    if scheme != "dirichlet" and samples is not None and clients * samples > images:
        raise InputError(
            f"samples = {samples} for {clients} clients is more than the {images} images of the disjoint scheme {scheme!r}: "
            f"at most {images // clients} is allowed; take fewer clients, or scheme 'dirichlet' (drawn with replacement)."
        )
    if not (dirichlet > 0 and math.isfinite(dirichlet)):
        raise InputError(f"dirichlet = {dirichlet} is out of range: a finite number > 0 is needed, such as 0.1 (skewed) or 100 (even).")
    if scheme == "pathological" and not 1 <= classes_per_client <= classes:
        raise InputError(f"classes_per_client = {classes_per_client} is out of range: allowed are 1..{classes}, the number of classes.")
