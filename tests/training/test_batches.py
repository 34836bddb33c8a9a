"""Batches: each token once in an epoch, any step at once, ranks together as one process."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from residlab.errors import ResidlabError
from residlab.training.batches import Batches, _permuted, evaluation_windows
from residlab.training.tokenizers import ByteTokenizer
from residlab.training.tokens import TokenFile, token_file

SEEDS = st.integers(0, 2**64 - 1)


def places(count: int) -> TokenFile:
    """Return tokens that are their own places."""
    ids = np.arange(count, dtype=np.uint32)
    return TokenFile("places, train", ids, count, np.ones(count + 1, np.int64), 1, count, "")


def epoch_of(count, context, seed, epoch) -> np.ndarray:
    """Return the windows of an epoch, one at a time."""
    batches = Batches(places(count), context=context, batch=1, seed=seed)
    return np.concatenate([batches[epoch * batches.windows + i] for i in range(batches.windows)])


# --- The order


@given(count=st.integers(1, 700), seed=SEEDS)
def test_the_order_is_a_permutation(count, seed):
    keys = np.random.Philox(key=seed).random_raw(8)
    found = _permuted(np.arange(count), count, keys)
    assert sorted(found.tolist()) == list(range(count))
    some = np.arange(count)[:: max(1, count // 5)]
    np.testing.assert_array_equal(_permuted(some, count, keys), found[some])


def test_a_huge_order_costs_nothing():
    keys = np.random.Philox(key=3).random_raw(8)
    found = _permuted(np.arange(10**12, 10**12 + 1000), 3 * 10**12, keys)
    assert len(set(found.tolist())) == 1000
    assert 0 <= found.min() <= found.max() < 3 * 10**12
    assert found.mean() == pytest.approx(1.5e12, rel=0.1)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_every_order_is_as_likely(count):
    seen = Counter(
        tuple(_permuted(np.arange(count), count, np.random.Philox(key=seed).random_raw(8)).tolist())
        for seed in range(600)
    )
    assert chisquare([seen[order] for order in permutations(range(count))]).pvalue > 1e-3


def test_neighbours_are_parted():
    """The rank correlation of place and image, and the steps between neighbours, are those of a random order."""
    found = _permuted(np.arange(5000), 5000, np.random.Philox(key=1).random_raw(8))
    assert abs(np.corrcoef(np.arange(5000), found)[0, 1]) < 0.05
    assert np.abs(np.diff(found)).mean() == pytest.approx(5000 / 3, rel=0.05)


# --- An epoch


@given(count=st.integers(2, 200), data=st.data(), seed=SEEDS, epoch=st.integers(0, 5))
def test_in_an_epoch_each_token_is_an_input_and_a_target_at_most_once(count, data, seed, epoch):
    context = data.draw(st.integers(1, count - 1))
    windows = epoch_of(count, context, seed, epoch)
    assert windows.shape == (count // context, context + 1)
    assert windows.dtype == np.int64
    assert ((np.diff(windows, axis=1) - 1) % count == 0).all()  # neighbours in the ring
    for part in (windows[:, :-1], windows[:, 1:]):
        assert len(np.unique(part)) == part.size == count // context * context > count - context


def test_offsets_and_orders_differ_between_epochs_and_seeds():
    starts = [tuple(epoch_of(1003, 10, seed, epoch)[:, 0]) for seed in (0, 1, 2**63) for epoch in range(4)]
    assert len(set(starts)) == 12
    assert len({start[0] % 10 for start in starts}) > 3


def test_every_offset_is_as_likely():
    starts = Counter(epoch_of(7, 5, seed, 0)[0, 0] for seed in range(490))
    assert chisquare([starts[place] for place in range(7)]).pvalue > 1e-3


@given(
    count=st.integers(2, 60), context=st.integers(1, 9), batch=st.integers(1, 40), step=st.integers(0, 30), seed=SEEDS
)
def test_a_batch_is_the_next_windows_of_the_run(count, context, batch, step, seed):
    """Whether it lies in an epoch, across its end, or over several."""
    if count <= context:
        return
    found = Batches(places(count), context=context, batch=batch, seed=seed)[step]
    one = Batches(places(count), context=context, batch=1, seed=seed)
    np.testing.assert_array_equal(found, np.concatenate([one[step * batch + row] for row in range(batch)]))


@given(world=st.integers(1, 5), share=st.integers(1, 6), step=st.integers(0, 50), seed=SEEDS)
def test_ranks_together_are_one_process(world, share, step, seed):
    options = {"context": 7, "batch": world * share, "seed": seed}
    parts = [Batches(places(100), rank=rank, world=world, **options)[step] for rank in range(world)]
    assert all(part.shape == (share, 8) for part in parts)
    np.testing.assert_array_equal(np.concatenate(parts), Batches(places(100), **options)[step])


def test_a_step_does_not_depend_on_those_before():
    batches = Batches(places(500), context=8, batch=16, seed=5)
    forward = [batches[step] for step in range(20)]
    for step in (19, 3, 0, 11):
        np.testing.assert_array_equal(Batches(places(500), context=8, batch=16, seed=5)[step], forward[step])
        np.testing.assert_array_equal(batches[np.int64(step)], forward[step])
    assert Batches(places(500), context=8, batch=16, seed=5)[10**15].shape == (16, 9)


def test_the_batches_of_a_seed_are_the_same_on_every_machine():
    """Recorded once: a change here breaks the reproduction of every recorded run."""
    found = Batches(places(1000), context=3, batch=4, seed=2026)
    assert found[0][:, 0].tolist() == [903, 77, 651, 224]
    assert found[1000][:, 0].tolist() == [118, 895, 64, 670]


def start(count: int, context: int, seed: int, window: int) -> int:
    """Return where a window of the run begins, in whole numbers of any size."""
    windows = count // context
    epoch, number = divmod(window, windows)
    *keys, offset = map(int, np.random.Philox(key=seed, counter=epoch << 64).random_raw(9))
    half = max(2, -(-(windows - 1).bit_length() // 2))

    def mixed(value: int) -> int:
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            value = (value ^ value >> shift) * factor % 2**64
        return value ^ value >> 31

    while True:
        left, right = divmod(number, 2**half)
        for key in keys:
            left, right = right, left ^ mixed(right ^ key) % 2**half
        number = left * 2**half + right
        if number < windows:
            return (offset % count + number * context) % count


@given(count=st.integers(10, 5000), context=st.integers(1, 9), window=st.integers(0, 10**6), seed=SEEDS)
def test_windows_are_those_of_whole_numbers(count, context, window, seed):
    assert Batches(places(count), context=context, batch=1, seed=seed)[window][0, 0] == start(
        count, context, seed, window
    )


# --- Evaluation


@given(
    texts=st.lists(st.text(max_size=20), min_size=1, max_size=6), context=st.integers(1, 12), batch=st.integers(1, 4)
)
def test_evaluation_predicts_each_token_once_in_order(texts, context, batch):
    file = token_file("some", texts, ByteTokenizer())
    if len(file) <= context:
        return
    inputs, targets, sizes = [], [], []
    for one in evaluation_windows(file, context, batch):
        assert one.tokens.shape == (len(one.mask), context + 1)
        assert one.tokens.dtype == np.int64
        assert len(one.mask) <= batch
        assert (one.bytes[~one.mask] == 0).all()
        assert (one.tokens[:, 1:][~one.mask] == file.end).all()
        inputs.extend(one.tokens[:, :-1][one.mask].tolist())
        targets.extend(one.tokens[:, 1:][one.mask].tolist())
        sizes.extend(one.bytes[one.mask].tolist())
    assert targets == file.ids.tolist()
    assert inputs == [file.end, *file.ids.tolist()[:-1]]
    assert sum(sizes) == sum(len(text.encode()) for text in texts) == file.bytes
    assert [size == 0 for size in sizes] == [one == file.end for one in targets]


# --- What is refused


OPTIONS = {"context": 4, "batch": 6}
REFUSED = {
    r"places, train has 10 tokens, fewer than a window of context \+ 1 = 11": {"context": 10},
    "context must be a whole number >= 1; got 0": {"context": 0},
    "batch must be a whole number >= 1; got 2.5": {"batch": 2.5},
    "world must be a whole number >= 1; got True": {"world": True},
    "world must divide batch = 6; got 4": {"world": 4},
    r"rank must be in \[0, world = 2\); got 2": {"world": 2, "rank": 2},
    r"rank must be in \[0, world = 1\); got -1": {"rank": -1},
    r"seed must be a whole number in \[0, 2\*\*64\); got -3": {"seed": -3},
    r"seed must be a whole number in \[0, 2\*\*64\); got 1.0": {"seed": 1.0},
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_is_refused(said):
    with pytest.raises(ResidlabError, match=said):
        Batches(places(10), **{**OPTIONS, **REFUSED[said]})


@pytest.mark.parametrize("step", [-1, 1.0, None, slice(3)])
def test_a_step_that_cannot_be_is_refused(step):
    with pytest.raises(ResidlabError, match="step must be a whole number >= 0; got"):
        Batches(places(10), **OPTIONS)[step]


def test_evaluation_refuses_at_once():
    with pytest.raises(ResidlabError, match=r"places, train has 5 tokens, fewer than a window of context \+ 1 = 6"):
        evaluation_windows(places(5), 5)
    with pytest.raises(ResidlabError, match="batch must be a whole number >= 1; got 0"):
        evaluation_windows(places(5), 2, 0)
