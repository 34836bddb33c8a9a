"""How a run that starts from another's weights departs from them: in what it can still say, and in weight space."""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from residlab.training.evaluation import evaluate
from residlab.training.tokens import TokenFile
from residlab.training.trainer import Probe

ROLES: tuple[tuple[str, str], ...] = (
    ("bound", r"\.lam$"),
    ("gain", r"norm\.(gamma|beta|alpha)$"),
    ("query-key", r"attention\.W_[QK]\."),
    ("value-output", r"attention\.W_[VO]\."),
    ("feedforward", r"feedforward\."),
    ("embedding", r"^(embedding|position_embedding|output)\."),
)
"""Role -> which parameters have it; the first that fits. What fits none is ``other``."""


def role(name: str) -> str:
    """Return the role of a parameter of our transformer."""
    return next((role for role, pattern in ROLES if re.search(pattern, name)), "other")


def movement(model: nn.Module, start: Mapping[str, Tensor]) -> dict[str, float]:
    """Return how far the parameters are from where they started, ``||W - W0|| / ||W0||``, by role and in all.

    Norms are Frobenius norms over all parameters of a role, in float64; a role without any parameter is left out.
    """
    squares: dict[str, list[float]] = {}
    for name, parameter in model.named_parameters():
        now, before = parameter.detach().double(), start[name].to(parameter.device).double()
        found = (float((now - before).square().sum()), float(before.square().sum()))
        for kind in (role(name), "all"):
            total = squares.setdefault(kind, [0.0, 0.0])
            total[0] += found[0]
            total[1] += found[1]
    return {kind: math.sqrt(moved / size) if size else math.nan for kind, (moved, size) in squares.items()}


def root_mean_squares(model: nn.Module) -> dict[str, float]:
    """Return the root mean square of the parameters of each role, and of all."""
    sums: dict[str, list[float]] = {}
    for name, parameter in model.named_parameters():
        for kind in (role(name), "all"):
            total = sums.setdefault(kind, [0.0, 0.0])
            total[0] += float(parameter.detach().double().square().sum())
            total[1] += parameter.numel()
    return {kind: math.sqrt(square / count) for kind, (square, count) in sums.items()}


def departure_probe(
    start: Mapping[str, Tensor], texts: Mapping[str, TokenFile], *, context: int, most: int, batch: int
) -> Probe:
    """Return a probe that evaluates a model on texts, and measures its `movement`.

    Its answer is ``{"bits_per_byte": {text: value}, "moved": {role: value}, "rms": {role: value}}``: a function of the
    weights alone, since it reads each text from the beginning, the same windows every time.

    Parameters
    ----------
    start
        The weights of the beginning, by name.
    texts
        What to evaluate on.
    context, most, batch
        As for `residlab.training.evaluation.evaluate`.
    """

    def look(model: nn.Module, ids: Tensor) -> dict[str, Any]:
        with torch.no_grad():
            found = {name: evaluate(model, text, context, most=most, batch=batch) for name, text in texts.items()}
        return {
            "bits_per_byte": {name: result.bits_per_byte for name, result in found.items()},
            "moved": movement(model, start),
            "rms": root_mean_squares(model),
        }

    return look
