r"""What quantization does to a model: noise at the inputs of its linear layers, and its predictions' loss and accuracy.

For a tensor x and its rounded Q(x), over all entries,

.. math:: \mathrm{NMSE} = \frac{\sum (x - Q(x))^2}{\sum x^2}, \qquad \mathrm{SQNR} = -10 \log_{10} \mathrm{NMSE}
          \ \text{in dB}.

Source: chapter 11; the law that connects SQNR with the crest factor is in `residlab.theory.quantization`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from residlab.precision.quantization import Quantizer
from residlab.precision.quantized_models import Scheme, linear_layers, quantized, version
from residlab.probes.activations import observe_inputs
from residlab.probes.kurtosis import crest_factor, excess_kurtosis
from residlab.probes.stream import TOKEN_CLASSES


@dataclass(frozen=True)
class Noise:
    """One tensor under some quantizers.

    Attributes
    ----------
    crest_factor
        ``max |x| / RMS(x)``.
    excess_kurtosis
        Pooled over all entries.
    nmse
        By quantizer; NaN where all of x is zero, or not finite.
    """

    crest_factor: float
    excess_kurtosis: float
    nmse: Mapping[str, float]

    @property
    def sqnr(self) -> dict[str, float]:
        """In dB, by quantizer; infinite where nothing is lost."""
        return {name: math.inf if value == 0 else -10 * math.log10(value) for name, value in self.nmse.items()}


@torch.no_grad()
def noise(x: Tensor, quantizers: Mapping[str, Quantizer]) -> Noise:
    """Return what quantizers do to a tensor, (..., d); sums in float64. All NaN where x is not finite."""
    if not bool(x.isfinite().all()):
        return Noise(math.nan, math.nan, dict.fromkeys(quantizers, math.nan))
    exact = x.double()
    unit = float(exact.abs().max()) or 1.0  # squares of large and of tiny entries stay in range
    energy = float((exact / unit).square().sum())
    lost = {
        name: float(((quantizer(x).double() - exact) / unit).square().sum()) for name, quantizer in quantizers.items()
    }
    return Noise(
        float(crest_factor(x, "pooled")),
        float(excess_kurtosis(x, "pooled")),
        {name: value / energy if energy else math.nan for name, value in lost.items()},
    )


@torch.no_grad()
def input_noise(
    model: nn.Module,
    ids: Tensor,
    quantizers: Mapping[str, Quantizer],
    *,
    layers: Mapping[str, nn.Module] | None = None,
    classes: Mapping[str, slice] = TOKEN_CLASSES,
) -> dict[str, dict[str, Noise]]:
    """Return, for each tensor that linear layers read in one forward, the noise by class of tokens.

    A tensor that several layers read, such as the input of queries, keys and values, counts once, under the first
    layer's name. Each class of tokens has a peak of its own: what ``rest`` says is how it would be if the first token
    of each sequence were kept out.

    Parameters
    ----------
    model
        Token ids, (B, T), in.
    ids
        What it reads.
    quantizers
        By name.
    layers
        By default `residlab.precision.quantized_models.linear_layers`.
    classes
        Positions by name; by default ``all``, the ``first``, the ``rest``.
    """
    found: dict[str, dict[str, Noise]] = {}
    last: list[Tensor] = []

    def see(name: str, x: Tensor) -> None:
        if last and _same(last[0], x):
            return
        last[:] = [x]
        found[name] = {
            tokens: noise(x[..., positions, :], quantizers)
            for tokens, positions in classes.items()
            if x[..., positions, :].numel()
        }

    with observe_inputs(linear_layers(model) if layers is None else layers, see):
        model(ids)
    return found


def _same(x: Tensor, y: Tensor) -> bool:
    # The older one is kept alive, so that its memory is not another's by now.
    return x.data_ptr() == y.data_ptr() and x.shape == y.shape and x.stride() == y.stride() and version(x) == version(y)


@dataclass(frozen=True)
class Score:
    """How well next tokens were predicted.

    Attributes
    ----------
    loss
        Mean cross-entropy in nats.
    accuracy
        Share of predictions whose most probable token was the next one.
    tokens
        Predictions.
    """

    loss: float
    accuracy: float
    tokens: int


@torch.no_grad()
def next_token_score(model: nn.Module, windows: Sequence[Tensor]) -> Score:
    """Return the score of a model on windows of token ids, (B, T) each, one forward for each of them.

    Every token but the first of its row is predicted from those before it. Sums in float64, softmax in float32 at
    least. The model returns logits, (B, T, vocabulary), or something that has them as ``logits``, as transformers'
    models do.

    Raises
    ------
    ValueError
        If there is no token to predict.
    """
    loss, right, count = 0.0, 0, 0
    for ids in windows:
        output: Any = model(ids)
        logits = output if isinstance(output, Tensor) else output.logits
        logits, targets = logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
        precise = logits if logits.dtype == torch.float64 else logits.float()
        loss += float(nn.functional.cross_entropy(precise, targets, reduction="none").cpu().double().sum())
        right += int((logits.argmax(dim=-1) == targets).sum())
        count += len(targets)
    if not count:
        raise ValueError("there must be a window with two tokens or more")
    return Score(loss / count, right / count, count)


def scheme_scores(
    model: nn.Module,
    windows: Sequence[Tensor],
    schemes: Mapping[str, Scheme],
    *,
    layers: Mapping[str, nn.Module] | None = None,
) -> dict[str, Score]:
    """Return the score of a model under each scheme, by name; ``layers`` as for `residlab.precision`'s ``quantized``.

    A peak is taken over what one forward reads, so the windows' batches are part of the scheme.
    """
    found = {}
    for name, scheme in schemes.items():
        with quantized(model, scheme, layers=layers):
            found[name] = next_token_score(model, windows)
    return found
