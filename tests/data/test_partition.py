"""Partitions: what each scheme promises, and values worked out by hand."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedinit.data.partition import Partition, make_partition
from fedinit.data.schemes import dirichlet_priors
from fedinit.errors import InputError

LABELS = np.arange(600) % 10
DISJOINT = ("dirichlet-disjoint", "pathological", "iid")
SCHEMES = ("dirichlet", *DISJOINT)


def by_hand(*clients):
    sizes = [len(client) for client in clients]
    return Partition(np.concatenate(clients), np.concatenate([[0], np.cumsum(sizes)]))


def test_clients_are_views_of_one_list():
    partition = by_hand([4, 2], [7], [0, 1, 3])
    assert len(partition) == 3 and partition.sizes.tolist() == [2, 1, 3]
    assert [client.tolist() for client in partition] == [[4, 2], [7], [0, 1, 3]]
    assert np.shares_memory(partition[2], partition.order)
    for outside in (-1, 3):
        with pytest.raises(IndexError, match="3 clients"):
            partition[outside]


def test_overlap_by_hand():
    """U_0 = {0, 1, 2}, U_1 = {1, 2, 3}, U_2 = {9}. Of the six ordered pairs (0, 1) and (1, 0) share 2 of 3, the others
    nothing: (2/3 + 2/3) / 6 = 2/9. A repeated 1 on client 0 changes no set."""
    assert by_hand([0, 1, 2, 1], [1, 2, 3], [9]).overlap() == pytest.approx(2 / 9)


def test_overlap_of_unequal_sets_by_hand():
    """U_0 = {0}, U_1 = {0, 1}: client 0 shares all of its images, client 1 half of them: (1 + 1/2) / 2 = 3/4."""
    assert by_hand([0], [0, 1]).overlap() == pytest.approx(0.75)


def test_overlap_ends():
    assert by_hand([0, 1], [2, 3]).overlap() == 0
    assert by_hand([0, 1], [1, 0], [0, 1, 1]).overlap() == 1
    assert by_hand([0, 1]).overlap() == 0


def test_repeated_by_hand():
    """Six samples, of which {0, 1} and {2} are distinct on their clients: 3 of 6 repeat. Sharing with others is no repeat."""
    assert by_hand([0, 0, 1], [2, 2, 2]).repeated == pytest.approx(0.5)
    assert by_hand([0, 1], [0, 1]).repeated == 0


def test_histogram_and_entropy_by_hand():
    """Labels of images 0..4 are 0 0 0 1 2. Shares (1, 0, 0): entropy 0. (1/2, 1/2, 0): log 2. (3/4, 1/4, 0):
    -(3/4) log(3/4) - (1/4) log(1/4) = 0.562335 nats. (1/3, 1/3, 1/3): log 3."""
    labels = np.array([0, 0, 0, 1, 2])
    partition = by_hand([0, 1], [0, 3], [0, 1, 2, 3], [2, 3, 4])
    assert partition.histogram(labels, 3).tolist() == [[2, 0, 0], [1, 1, 0], [3, 1, 0], [1, 1, 1]]
    expected = [0, math.log(2), 0.5623351446188083, math.log(3)]
    np.testing.assert_allclose(partition.label_entropy(labels, 3), expected, atol=1e-15)
    assert not np.signbit(partition.label_entropy(labels, 3)).any()


@settings(max_examples=80, deadline=None)
@given(
    scheme=st.sampled_from(SCHEMES),
    clients=st.integers(1, 40),
    exponent=st.floats(-6, 6),
    prior=st.sampled_from(["uniform", "class"]),
    draws=st.sampled_from(["iid", "cyclic"]),
    k=st.integers(1, 7),
    seed=st.integers(0, 2**40),
    counts=st.lists(st.integers(40, 90), min_size=7, max_size=7),
)
def test_every_scheme_keeps_its_promises(scheme, clients, exponent, prior, draws, k, seed, counts):
    labels = np.repeat(np.arange(7), counts)
    partition = make_partition(
        labels, clients=clients, scheme=scheme, dirichlet=10**exponent, prior=prior, draws=draws, classes_per_client=k, seed=seed
    )
    assert len(partition) == clients and len(set(partition.sizes.tolist())) == 1
    assert partition.order.dtype == partition.offsets.dtype == np.int64
    assert partition.order.min() >= 0 and partition.order.max() < len(labels)
    if scheme == "pathological":
        assert ((partition.histogram(labels, 7) > 0).sum(axis=1) == k).all()
        assert 0 < partition.sizes[0] <= len(labels) // clients
    else:
        assert partition.sizes[0] == len(labels) // clients
    if scheme in DISJOINT:
        assert len(np.unique(partition.order)) == len(partition.order)
        assert partition.overlap() == 0 and partition.repeated == 0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_digest_names_the_partition(scheme):
    def made(**changed):
        return make_partition(LABELS, **{"clients": 12, "scheme": scheme, "seed": 20, **changed})

    assert made().digest == made().digest
    np.random.seed(1)  # nor does the process's own random state matter
    assert made().digest == made().digest
    assert made(seed=21).digest != made().digest
    assert made(clients=13).digest != made().digest
    assert len(made().digest) == 64


def test_digest_sees_the_cuts():
    assert by_hand([0, 1], [2]).digest != by_hand([0], [1, 2]).digest


@pytest.mark.parametrize("scheme", ["dirichlet", "dirichlet-disjoint"])
@pytest.mark.parametrize("prior", ["uniform", "class"])
def test_entropy_grows_with_the_coefficient(scheme, prior):
    labels = np.arange(20_000) % 10
    mean = [
        make_partition(labels, clients=100, scheme=scheme, dirichlet=d, prior=prior).label_entropy(labels, 10).mean()
        for d in (1e-6, 1, 10, 1e6)
    ]
    assert (np.diff(mean) > 0.03).all()
    assert mean[0] < 0.4 and mean[-1] > 0.97 * math.log(10)


@pytest.mark.parametrize("strength", [1e-300, 1e-6, 1e-3, 0.1, 1, 1e6, 1e300])
def test_priors_are_finite_and_sum_to_one(strength):
    priors = dirichlet_priors(np.random.default_rng(0), strength, np.ones(100), 500)
    assert np.isfinite(priors).all() and (priors >= 0).all()
    np.testing.assert_allclose(priors.sum(axis=1), 1)


def test_moments_of_the_priors():
    """Dir(a_1..a_K) with sum A has mean a_k / A and variance m (1 - m) / (A + 1) with m = a_k / A.

    Uniform, D_r = 0.1, K = 10: A = 1, variance 0.1 · 0.9 / 2 = 0.045. Class prior q = (0.7, 0.2, 0.1), D_r = 0.5: A = 0.5,
    variances q (1 - q) / 1.5 = 0.14, 0.10667, 0.06. 40,000 draws give them to about 2 percent."""
    rng = np.random.default_rng(3)
    uniform = dirichlet_priors(rng, 0.1, np.ones(10), 40_000)
    np.testing.assert_allclose(uniform.mean(axis=0), 0.1, atol=0.005)
    np.testing.assert_allclose(uniform.var(axis=0), 0.045, rtol=0.04)
    skewed = dirichlet_priors(rng, 0.5, np.array([0.7, 0.2, 0.1]), 40_000)
    np.testing.assert_allclose(skewed.mean(axis=0), [0.7, 0.2, 0.1], atol=0.008)
    np.testing.assert_allclose(skewed.var(axis=0), [0.14, 0.32 / 3, 0.06], rtol=0.04)


def test_one_hot_priors_choose_each_class_equally_often():
    """At D_r = 1e-6 a prior is one-hot; of 20,000 each of 10 classes gets 2000 ± 42 (one standard deviation)."""
    chosen = dirichlet_priors(np.random.default_rng(5), 1e-6, np.ones(10), 20_000).argmax(axis=1)
    assert (np.abs(np.bincount(chosen, minlength=10) - 2000) < 200).all()


def test_prior_class_follows_the_class_sizes():
    """With classes of 900 and 100 images, clients hold the second in 10 % of their samples; with equal priors in 50 %."""
    labels = np.repeat([0, 1], [900, 100])
    share = {
        prior: make_partition(labels, clients=2000, samples=50, dirichlet=1.0, prior=prior).histogram(labels, 2)[:, 1].mean() / 50
        for prior in ("uniform", "class")
    }
    assert share["class"] == pytest.approx(0.1, abs=0.02)
    assert share["uniform"] == pytest.approx(0.5, abs=0.03)


def test_cyclic_pools_hand_images_out_in_turn():
    """One cursor a class: no image of a class is used twice before every other one was used once. i.i.d. draws do not."""
    spread = {}
    for draws in ("cyclic", "iid"):
        partition = make_partition(LABELS, clients=30, samples=100, dirichlet=0.3, draws=draws)
        used = np.bincount(partition.order, minlength=600)
        spread[draws] = max(np.ptp(used[label == LABELS]) for label in range(10))
    assert spread["cyclic"] <= 1 < spread["iid"]


def test_draws_share_the_priors():
    """Both kinds of draws start from the same client priors: the same clients are dominated by the same class."""
    iid, cyclic = (make_partition(LABELS, clients=50, samples=100, dirichlet=0.01, draws=draws) for draws in ("iid", "cyclic"))
    same = iid.histogram(LABELS, 10).argmax(axis=1) == cyclic.histogram(LABELS, 10).argmax(axis=1)
    assert same.mean() > 0.9


def test_samples_are_drawn_with_replacement():
    """100 draws from the 60 images of one class (one-hot prior) leave 60 (1 - 59/60)^… ≈ 48.8 distinct: 51 % repeat."""
    partition = make_partition(LABELS, clients=200, samples=100, dirichlet=1e-6)
    distinct = 60 * (1 - (59 / 60) ** 100)
    assert partition.repeated == pytest.approx(1 - distinct / 100, abs=0.01)


def test_disjoint_split_ends_when_classes_run_out():
    """At D_r = 1e-6 every client wants one class only, and all 600 images must go: late clients take what is left."""
    partition = make_partition(LABELS, clients=100, scheme="dirichlet-disjoint", dirichlet=1e-6)
    assert sorted(partition.order.tolist()) == list(range(600))


def test_disjoint_split_favours_no_client_number():
    """Clients are served in random order: the last ones, who get leftovers of many classes, are not the highest numbers."""
    labels = np.arange(20_000) % 10
    entropy = [
        make_partition(labels, clients=100, scheme="dirichlet-disjoint", dirichlet=0.01, seed=seed).label_entropy(labels, 10)
        for seed in range(8)
    ]
    halves = np.mean(entropy, axis=0)
    assert abs(halves[:50].mean() - halves[50:].mean()) < 0.15


def test_pathological_shards_are_even():
    """600 images, 10 classes, 20 clients of 2 classes: 40 shards of 15, four to each class, nothing left over."""
    partition = make_partition(LABELS, clients=20, scheme="pathological", classes_per_client=2)
    histogram = partition.histogram(LABELS, 10)
    assert set(histogram.ravel().tolist()) == {0, 15} and (histogram.sum(axis=0) == 60).all()


def test_leftover_images_stay_unassigned():
    """600 images for 7 clients: 85 each, 5 left over."""
    for scheme in ("dirichlet", "dirichlet-disjoint", "iid"):
        assert make_partition(LABELS, clients=7, scheme=scheme).sizes.tolist() == [85] * 7


def test_a_hundred_thousand_clients():
    """One dense (clients, images) array would hold 5e9 cells; the work here takes about a second."""
    began = time.perf_counter()
    labels = np.arange(50_000) % 10
    partition = make_partition(labels, clients=100_000, samples=20, dirichlet=0.1)
    assert len(partition) == 100_000 and partition.label_entropy(labels, 10).shape == (100_000,)
    assert 0 < partition.overlap() < 0.01
    assert time.perf_counter() - began < 20


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"clients": 0}, "clients = 0"),
        ({"samples": 0}, "samples = 0"),
        ({"dirichlet": 0}, "dirichlet = 0"),
        ({"dirichlet": -1.0}, "dirichlet = -1.0"),
        ({"dirichlet": math.nan}, "dirichlet = nan"),
        ({"dirichlet": math.inf}, "dirichlet = inf"),
        ({"clients": 601}, "601 is more than the 600 images"),
        ({"clients": 601, "scheme": "iid"}, "601 is more than the 600 images"),
        ({"samples": 61, "scheme": "iid"}, "at most 60"),
        ({"samples": 61, "scheme": "dirichlet-disjoint"}, "at most 60"),
        ({"scheme": "pathological", "classes_per_client": 0}, r"allowed are 1\.\.10"),
        ({"scheme": "pathological", "classes_per_client": 11}, r"allowed are 1\.\.10"),
        ({"scheme": "pathological", "clients": 500}, "more shards than a class has images"),
        ({"scheme": "pathological", "clients": 7, "samples": 80}, r"allowed are 2\.\.60"),
        ({"scheme": "dirchlet"}, "Did you mean 'dirichlet'"),
        ({"prior": "uniformly"}, "Did you mean 'uniform'"),
        ({"draws": "cycle"}, "Did you mean 'cyclic'"),
    ],
)
def test_bad_arguments_are_named_in_one_line(changed, says):
    with pytest.raises(InputError, match=says) as caught:
        make_partition(LABELS, **{"clients": 10, **changed})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("labels", [np.array([]), np.array([0.0, 1.0]), np.array([-1, 0]), np.array([[0, 1]]), np.array([0, 2])])
def test_bad_labels_are_refused(labels):
    with pytest.raises(InputError, match="labels"):
        make_partition(labels, clients=1)


def test_the_partition_cannot_be_changed():
    partition = make_partition(LABELS, clients=10)
    with pytest.raises(ValueError, match="read-only"):
        partition[0][0] = 1
