"""Batches for training, a pure function of the seed and the step; windows for evaluation, each token predicted once.

Neither masks attention between the documents of a window: ``end`` stands between them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from residlab.errors import ResidlabError
from residlab.training.tokens import TokenFile

_ROUNDS = 8
_U64 = np.uint64


class Batches:
    """``batches[step]``: int64 ``(batch / world, context + 1)``, inputs and, one further, targets.

    In an epoch the tokens are a ring, which an offset of the epoch cuts into ``windows = tokens // context`` windows of
    ``context`` inputs, taken in a random order. So no token is an input, or a target, twice in an epoch, and at most
    ``context - 1`` of them are left out. The epochs follow each other without a gap: row r of the global batch of
    a step is window ``step batch + r`` of the run. Nothing is stored but the seed: offset and order come from Philox
    and a Feistel network over the numbers of the windows, so that any step is reached at once.
    """

    def __init__(
        self, tokens: TokenFile, *, context: int, batch: int, seed: int = 0, rank: int = 0, world: int = 1
    ) -> None:
        """Take what to read and how.

        Parameters
        ----------
        tokens
            Of a split.
        context
            Inputs of a window.
        batch
            Windows a step, over all ranks.
        seed
            In [0, 2**64).
        rank, world
            This process and how many there are, which share a batch: the arrays of all ranks, one under the other, are
            the batch of one process.

        Raises
        ------
        ResidlabError
            If the text is shorter than a window, or a number is out of range.
        """
        _counts(context=context, batch=batch, world=world)
        check_fits(tokens, context)
        if batch % world:
            raise ResidlabError(f"world must divide batch = {batch}; got {world}")
        if not _is_whole(rank) or not 0 <= rank < world:
            raise ResidlabError(f"rank must be in [0, world = {world}); got {rank!r}")
        if not _is_whole(seed) or not 0 <= seed < 2**64:
            raise ResidlabError(f"seed must be a whole number in [0, 2**64); got {seed!r}")
        self.tokens = tokens
        self.context = context
        self.batch = batch
        self.seed = seed
        self.rank = rank
        self.world = world
        self.windows = len(tokens) // context

    def __getitem__(self, step: int) -> NDArray[np.int64]:
        """Return the batch of a step, from 0 and without an end.

        Raises
        ------
        ResidlabError
            If the step is not a whole number >= 0.
        """
        if not _is_whole(step) or step < 0:
            raise ResidlabError(f"step must be a whole number >= 0; got {step!r}")
        share = self.batch // self.world
        first = step * self.batch + self.rank * share
        starts = np.concatenate(
            [
                self._starts(epoch, max(first - epoch * self.windows, 0), first + share - epoch * self.windows)
                for epoch in range(first // self.windows, (first + share - 1) // self.windows + 1)
            ]
        )
        places = (starts[:, None] + np.arange(self.context + 1)) % len(self.tokens)
        return np.asarray(self.tokens.ids[places], dtype=np.int64)

    def _starts(self, epoch: int, low: int, high: int) -> NDArray[np.int64]:
        """Return where the windows low, ..., high - 1 of an epoch begin, or low, ..., the last one."""
        drawn = np.random.Philox(key=self.seed, counter=epoch << 64).random_raw(_ROUNDS + 1)
        window = _permuted(np.arange(low, min(high, self.windows)), self.windows, drawn[:_ROUNDS])
        return int(drawn[_ROUNDS]) % len(self.tokens) + window * self.context


def _permuted(numbers: NDArray[np.int64], count: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the images of numbers under the permutation of 0, ..., count - 1 that the keys choose.

    A Feistel network permutes the numbers of ``2 half`` bits; what falls outside is sent through it again until it
    falls inside (cycle walking: Black & Rogaway, Ciphers with arbitrary finite domains, 2002).
    """
    half = max(2, -(-(count - 1).bit_length() // 2))
    mask, shift = _U64((1 << half) - 1), _U64(half)
    found = numbers.astype(np.uint64)
    outside = np.ones(len(found), dtype=bool)
    while outside.any():
        left, right = found[outside] >> shift, found[outside] & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        found[outside] = left << shift | right
        outside = found >= count
    return found.astype(np.int64)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix 64 bits as SplitMix64 does (Steele, Lea & Flood 2014)."""
    values = (values ^ values >> _U64(30)) * _U64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> _U64(27)) * _U64(0x94D049BB133111EB)
    return values ^ values >> _U64(31)


@dataclass(frozen=True, eq=False)
class EvaluationBatch:
    """Windows in order.

    Attributes
    ----------
    tokens
        int64 ``(rows, context + 1)``: inputs and, one further, targets; behind the text, ``end``.
    mask
        bool ``(rows, context)``: which targets are predictions that count.
    bytes
        int64 ``(rows, context)``: the bytes each target stands for; 0 for ``end`` and where the mask is false.
    """

    tokens: NDArray[np.int64]
    mask: NDArray[np.bool_]
    bytes: NDArray[np.int64]


def evaluation_windows(tokens: TokenFile, context: int, batch: int = 1) -> Iterator[EvaluationBatch]:
    """Yield every token of a split as a target exactly once, in order, ``batch`` windows at a time.

    The first token is predicted from an ``end`` in front of the text, so that the bytes sum to those of the text. The
    windows do not overlap: a target has between 1 and ``context`` tokens in front of it.

    Raises
    ------
    ResidlabError
        If the text is shorter than a window, or a number is out of range.
    """
    _counts(context=context, batch=batch)
    check_fits(tokens, context)
    return _evaluation_windows(tokens, context, batch)


def _evaluation_windows(tokens: TokenFile, context: int, batch: int) -> Iterator[EvaluationBatch]:
    for low in range(0, len(tokens), batch * context):
        targets = np.asarray(tokens.ids[low : low + batch * context], dtype=np.int64)
        rows = -(-len(targets) // context)
        padded = np.full(rows * context + 1, tokens.end, dtype=np.int64)
        padded[0] = tokens.ids[low - 1] if low else tokens.end
        padded[1 : len(targets) + 1] = targets
        mask = (np.arange(rows * context) < len(targets)).reshape(rows, context)
        windows = padded[np.arange(rows)[:, None] * context + np.arange(context + 1)]
        yield EvaluationBatch(windows, mask, tokens.byte_lengths[windows[:, 1:]])


def check_fits(tokens: TokenFile, context: int) -> None:
    """Raise ResidlabError if a text is shorter than a window."""
    if len(tokens) < context + 1:
        raise ResidlabError(
            f"{tokens.name} has {len(tokens)} tokens, fewer than a window of context + 1 = {context + 1}: "
            "give more text, or a shorter context"
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _counts(**values: object) -> None:
    for name, value in values.items():
        if not _is_whole(value) or value < 1:  # type: ignore[operator]
            raise ResidlabError(f"{name} must be a whole number >= 1; got {value!r}")
