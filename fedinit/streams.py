"""Independent random streams: one generator per (seed, purpose, round, client, …).

No stream is ever shared or advanced by another part, so neither the order of clients, nor the number of workers,
nor what ran before in the same process can change a number; and a method and its +RI twin see the same partition,
cohorts, batches and initial weights.
"""

from __future__ import annotations

import numpy as np

PURPOSES = ("partition", "noise", "initial weights", "cohort", "batches", "augmentation", "synthetic", "bootstrap")


def stream(seed: int, purpose: str, *ids: int) -> np.random.Generator:
    """A generator that depends on all of (seed, purpose, *ids) and on nothing else.

    NumPy's SeedSequence hashes the whole tuple, so seed 1 in round 0 and seed 0 in round 1 are unrelated streams
    (adding them up, seed + round, would replay one as the other).

    Parameters: seed, ids ≥ 0; purpose is one of `PURPOSES`. Raises ValueError for another purpose.
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, PURPOSES.index(purpose), *ids])))
