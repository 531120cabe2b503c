"""How each scheme of `make_partition` fills its clients.

Every function takes `pools`, the image indices grouped by class and shuffled inside each class, with `begins` and `counts`,
int (K,), saying where each class lies, and returns the indices client after client, int64 (C · samples,).
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..errors import InputError

BLOCK = 4096  # clients drawn at once: bounds the memory beside the result


def dirichlet_priors(rng: np.random.Generator, strength: float, concentration: np.ndarray, clients: int) -> np.ndarray:
    """`clients` draws from Dirichlet(strength · concentration), float64 (clients, K), every row finite and summing to 1.

    A Gamma(a) variate underflows to 0 in all classes when a is small, and 0 / 0 follows. In logarithms,
    log Gamma(a) = log Gamma(a + 1) + log(U) / a, and subtracting the row's maximum before exp leaves one 1 at least.
    Outside 1e-9..1e9 a draw is one-hot (uniform) to double precision already, so the strength is clipped there.
    """
    a = np.clip(strength, 1e-9, 1e9) * concentration
    logs = np.log(rng.standard_gamma(a + 1, size=(clients, len(a)))) - rng.standard_exponential((clients, len(a))) / a
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def draw_classes(rng: np.random.Generator, priors: np.ndarray, size: int) -> np.ndarray:
    """`size` classes for each row of priors (C, K), int16 (C, size), by inverting the row's cumulative sum.

    A class of prior 0 is never drawn, and memory is O(C · (size + K)): no rejection, no one-hot arrays.
    """
    steps = np.cumsum(priors, axis=1)
    steps /= steps[:, -1:]
    u = rng.random((len(priors), size))
    drawn = np.zeros(u.shape, dtype=np.int16)
    for step in steps.T[:-1]:
        drawn += u >= step[:, None]
    return drawn


def with_replacement(rng, pools, begins, counts, priors, size, draws) -> np.ndarray:
    """`size` images for each row of priors (C, K); images may repeat. draws: "iid" or "cyclic"."""
    if draws == "iid":
        chunks = np.empty((len(priors), size), dtype=np.int64)
        for i in range(0, len(priors), BLOCK):
            drawn = draw_classes(rng, priors[i : i + BLOCK], size)
            chunks[i : i + BLOCK] = pools[begins[drawn] + rng.integers(0, counts[drawn])]
        return chunks.ravel()
    drawn = draw_classes(rng, priors, size).ravel()
    served = rng.permutation(len(drawn))  # the order in which the samples, of whichever client, meet the cursors
    by_class = served[np.argsort(drawn[served], kind="stable")]
    asked = np.bincount(drawn, minlength=len(counts))
    turn = np.empty(len(drawn), dtype=np.int64)  # how often the sample's class was asked before
    turn[by_class] = np.arange(len(drawn)) - np.repeat(np.cumsum(asked) - asked, asked)
    return pools[begins[drawn] + turn % counts[drawn]]


def disjoint(rng, pools, begins, counts, priors, size) -> np.ndarray:
    """`size` images for each row of priors (C, K), no image twice. C · size must not exceed the number of images."""
    chunks = np.empty((len(priors), size), dtype=np.int64)
    used = np.zeros_like(counts)
    for client in rng.permutation(len(priors)):
        filled = 0
        while filled < size:  # a pass fills the client or empties a class, so at most K passes
            left = counts - used
            steps = (priors[client] * (left > 0)).cumsum()
            if steps[-1] == 0:  # every class this client wants is gone: what is left, in proportion
                steps = left.cumsum()
            # the first step above u, so a class of weight 0 is never drawn
            wanted = (steps / steps[-1]).searchsorted(rng.random(size - filled), side="right")
            for label, asked in Counter(wanted.tolist()).items():
                taken = min(asked, left[label])
                begin = begins[label] + used[label]
                chunks[client, filled : filled + taken] = pools[begin : begin + taken]
                filled += taken
                used[label] += taken
    return chunks.ravel()


def shards(rng, pools, begins, counts, clients, size, k, exact) -> tuple[int, np.ndarray]:
    """k shards of k different classes for each client; the client size and the indices. Not exact: smaller if need be."""
    hands = _deal(rng, clients, k, len(counts))
    owners = np.bincount(hands.ravel(), minlength=len(counts))  # clients of each class
    room = int(min(counts[owners > 0] // owners[owners > 0]))
    shard = size // k if exact else min(size // k, room)
    if room < 1:
        raise InputError(
            f"clients = {clients} with {k} classes each need more shards than a class has images: "
            f"take fewer clients or fewer classes_per_client."
        )
    if not 1 <= shard <= room:
        raise InputError(
            f"samples = {size} for {clients} clients of {k} classes each: allowed are {k}..{k * room} "
            f"(a class has room for shards of {room}), or None for what fits."
        )
    label = hands.ravel()
    turn = np.empty(len(label), dtype=np.int64)  # which shard of its class
    by_class = np.argsort(label, kind="stable")
    turn[by_class] = np.arange(len(label)) - np.repeat(np.cumsum(owners) - owners, owners)
    first = begins[label] + turn * shard
    return shard * k, pools[(first[:, None] + np.arange(shard)).ravel()]


def _deal(rng: np.random.Generator, clients: int, k: int, classes: int) -> np.ndarray:
    """k different classes for each client, int64 (clients, k), every class dealt equally often (± 1)."""
    hands, deck = [], []
    for _ in range(clients):
        hand, deck = deck[:k], deck[k:]
        if len(hand) < k:  # the deck ran out; of a fresh one, classes already in hand wait for the next client
            fresh = rng.permutation(classes).tolist()
            new = [label for label in fresh if label not in hand][: k - len(hand)]
            deck = [label for label in fresh if label not in new]
            hand = hand + new
        hands.append(hand)
    return np.array(hands)
