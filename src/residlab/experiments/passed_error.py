"""What a model makes of an error that it is given: in float64, a small random change of the stream behind one block.

Nothing is rounded. Every token of the stream gets a change of its own in a random direction, the same share of its
length, and the record has what becomes of it:

================== =================================================================================================
metric             meaning
================== =================================================================================================
``passed``         by block, from where the change was made on: the change's 2-norm over the token's, mean over
                   tokens without token 0, over what it was at first (so the first number is 1)
``size``           mean 2-norm of these tokens at the same places
================== =================================================================================================

An error that branches take no notice of goes like one over the size; one that they pass on as a random matrix would
keeps its share (chapter 17).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from residlab.checks import check_counts, check_non_negative, check_positive
from residlab.errors import ResidlabError
from residlab.experiments.measurement import Measurement
from residlab.experiments.record import Record
from residlab.experiments.rounded_inference import DIGITS, REFERENCE, RoundedInference, inferred, subject
from residlab.models.rounded import Rounded


@dataclass(frozen=True)
class PassedError(Measurement):
    """One change of the stream.

    Attributes
    ----------
    source, model, tokens, text, seed
        Model and text, as in `RoundedInference`; ``seed`` is also that of the change.
    after
        The number of blocks behind which the change is made, at least one and fewer than there are.
    share
        Length of the change over that of the token.

    Raises
    ------
    ResidlabError
        If a value is not allowed.
    """

    source: str
    model: dict[str, Any] | None = None
    tokens: int = 128
    text: int = 0
    after: int = 1
    share: float = 1e-4
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(self, "after")
        check_positive(self, "share")
        check_non_negative(self, "seed")
        self._inference()

    def _inference(self) -> RoundedInference:
        return RoundedInference(REFERENCE, self.source, self.model, self.tokens, self.text, seed=self.seed)

    def about(self) -> str:
        """Return the model, and where the change is made."""
        return f"{self._inference().about()}  {self.share:g} behind block {self.after}"

    def score(self, metrics: Mapping[str, Any]) -> str:
        """Return what is left of the change behind the last block."""
        return f"{metrics['passed'][-1]:.3f} of it behind the last block"

    def perform(self, experiment: str, *, cache: Path | None = None) -> Record:
        """Infer twice, with the change and without, and return the record.

        Raises
        ------
        ResidlabError
            If the model or its text is not in the cache, or it has no block behind the change.
        """
        start = time.perf_counter()
        model, ids = subject(self._inference(), cache=cache)
        if self.after >= len(model.layers):
            raise ResidlabError(f"after must be < {len(model.layers)}, the number of blocks; got {self.after}")
        exact = inferred(model, ids, Rounded(REFERENCE)).stream[self.after :, 0, 1:]
        generator = torch.Generator().manual_seed(self.seed)

        def change(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            x = arguments[0]
            direction = torch.randn(x.shape, generator=generator, dtype=x.dtype)
            length = self.share * x.norm(dim=-1, keepdim=True)
            return (x + length * direction / direction.norm(dim=-1, keepdim=True), *arguments[1:])

        layers = list(model.layers)
        hook = layers[self.after].register_forward_pre_hook(change)
        try:
            changed = inferred(model, ids, Rounded(REFERENCE)).stream[self.after :, 0, 1:]
        finally:
            hook.remove()
        size = exact.norm(dim=-1)
        passed = ((changed - exact).norm(dim=-1) / size).mean(-1) / self.share
        passed[0] = 1.0  # the stream is looked at in front of the change
        metrics = {
            "passed": [float(f"{value:.{DIGITS}g}") for value in passed.tolist()],
            "size": [float(f"{value:.{DIGITS}g}") for value in size.mean(-1).tolist()],
            "total_seconds": round(time.perf_counter() - start, 3),
        }
        return Record(experiment=experiment, hash=self.hash, config=self.to_dict(), seed=self.seed, metrics=metrics)
