"""Memory and disk of a run, counted by hand."""

import pytest

from fedinit.runs.footprint import CUDA, PYTHON, estimate, footprint, vectors
from tests.training.tiny import tiny


def test_vectors_and_gradients_of_a_method():
    """SCAFFOLD+RI: c_i and the last local model on the client, c on the server. SAM: two gradients a step."""
    assert (vars(vectors(tiny("scaffold+ri").method))) == {"client": 2, "server": 1, "gradients": 1}
    assert vectors(tiny("fedsam").method).gradients == 2


@pytest.mark.parametrize(("memory", "held"), [("ram", 4), ("disk", 1)])
def test_bytes_of_a_run(memory, held):
    """1000 parameters of 4 bytes, 4 clients of 2 vectors, 12 working ones and c; 300 images twice. Disk: 4 × 2 + w, offset, c; 4 rounds."""
    taken, disk = footprint(tiny("scaffold+ri"), 1000, 300, memory)
    assert taken == (2 * held + 12 + 1) * 4000 + 2 * 300 * 3072 + PYTHON
    assert disk == (8 + 2 + 1) * 4000 + 4 * 200


def test_estimate_builds_the_model_and_counts_the_images():
    """A CNN of width 4: 4·3·9 + 8·4·9 + 16·8·9 weights, 2 (4 + 8 + 16) of the norms, 10 · 256 + 10 of the linear map."""
    parameters = 108 + 288 + 1152 + 56 + 2570
    assert estimate(tiny()) == footprint(tiny(), parameters, 300)[0]
    assert estimate(tiny(), device="cuda") == estimate(tiny()) + CUDA
