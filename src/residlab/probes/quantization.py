r"""What quantization does to a model: noise at the inputs of its linear layers, and its predictions' loss and accuracy.

For a tensor x and its rounded Q(x), over all entries,

.. math:: \mathrm{NMSE} = \frac{\sum (x - Q(x))^2}{\sum x^2}, \qquad \mathrm{SQNR} = -10 \log_{10} \mathrm{NMSE}
          \ \text{in dB}.

Source: chapter 11; the law that connects SQNR with the crest factor is in `residlab.theory.quantization`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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

    Examples
    --------
    >>> from residlab.precision.quantization import Quantizer
    >>> x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    >>> found = noise(x, {"8 bits": Quantizer(8)})
    >>> 20 < found.sqnr["8 bits"] < 50, float(round(-10 * np.log10(found.nmse["8 bits"]) - found.sqnr["8 bits"], 9))
    (True, 0.0)
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
    """Return what quantizers do to a tensor, (..., d); sums in float64. All NaN where x is not finite.

    Examples
    --------
    >>> from residlab.precision.quantization import Quantizer
    >>> x = torch.linspace(-1, 1, 10_001)
    >>> found = noise(x, {"8": Quantizer(8), "9": Quantizer(9)})
    >>> {name: round(value, 1) for name, value in found.sqnr.items()}  # 6 dB a bit
    {'8': 48.1, '9': 54.2}
    """
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

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.models.transformer import Transformer
    >>> from residlab.precision.quantization import Quantizer
    >>> model = Transformer(ModelConfig(depth=1, width=32, heads=2, vocabulary=64), seed=0)
    >>> found = input_noise(model, torch.arange(16)[None], {"8 bits": Quantizer(8)})
    >>> list(found)
    ['blocks.0.attention.W_Q', 'blocks.0.attention.W_O', 'blocks.0.feedforward.W_up', 'blocks.0.feedforward.W_down']
    >>> list(found["blocks.0.attention.W_O"])
    ['all', 'first', 'rest']
    """
    found: dict[str, dict[str, Noise]] = {}

    def see(name: str, x: Tensor) -> None:
        found[name] = {
            tokens: noise(x[..., positions, :], quantizers)
            for tokens, positions in classes.items()
            if x[..., positions, :].numel()
        }

    with observe_distinct_inputs(linear_layers(model) if layers is None else layers, see):
        model(ids)
    return found


@contextmanager
def observe_distinct_inputs(
    modules: Mapping[str, nn.Module], observer: Callable[[str, Tensor], None]
) -> Iterator[None]:
    """Observe as `observe_inputs`, a tensor that modules read one after the other only once, under the first's name.

    Examples
    --------
    >>> model, seen = nn.Sequential(nn.Identity(), nn.Identity(), nn.ReLU(), nn.Identity()), []
    >>> with observe_distinct_inputs(dict(model.named_children()), lambda name, x: seen.append(name)):
    ...     _ = model(torch.zeros(2))
    >>> seen
    ['0', '3']
    """
    last: list[tuple[Tensor, int]] = []

    def see(name: str, x: Tensor) -> None:
        # The version as it was: a tensor that is written to in between takes its older self's along.
        if not (last and _same(last[0][0], x) and last[0][1] == version(x)):
            last[:] = [(x, version(x))]
            observer(name, x)

    with observe_inputs(modules, see):
        yield


@torch.no_grad()
def token_energies(x: Tensor, quantizer: Quantizer) -> tuple[Tensor, Tensor]:
    """Return each token's energy ``sum x**2``, and that of what a quantizer loses, ``sum (Q(x) - x)**2``.

    Summed over some tokens, their quotient is the NMSE of these under the scale of all.

    Parameters
    ----------
    x : Tensor, shape (..., d)
        Finite.
    quantizer
        Applied to all of it at once.

    Returns
    -------
    tuple of Tensor, float64, shape (...)

    Examples
    --------
    The grid is that of the second token, and nothing is left of the first:

    >>> from residlab.precision.quantization import Quantizer
    >>> energy, lost = token_energies(torch.tensor([[1.0, 1.0], [60.0, 127.0]]), Quantizer(4))
    >>> energy.tolist(), lost.round().tolist()
    ([2.0, 19729.0], [2.0, 31.0])
    """
    exact = x.double()
    return exact.square().sum(-1), (quantizer(x).double() - exact).square().sum(-1)


def sqnr(energy: Tensor, lost: Tensor) -> float:
    """Return the SQNR in dB of tokens with these energies, see `token_energies`; infinite where nothing is lost.

    Examples
    --------
    >>> sqnr(torch.tensor([900.0, 100.0]), torch.tensor([9.0, 1.0]))
    20.0
    """
    signal, loss = float(energy.sum()), float(lost.sum())
    if not signal:
        return math.nan
    return math.inf if not loss else 10 * math.log10(signal / loss)


def _same(x: Tensor, y: Tensor) -> bool:
    # The older one is kept alive, so that its memory is not another's by now.
    return x.data_ptr() == y.data_ptr() and x.shape == y.shape and x.stride() == y.stride()


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

    Examples
    --------
    >>> Score(loss=2.0, accuracy=0.5, tokens=1000).loss
    2.0
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

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.models.transformer import Transformer
    >>> model = Transformer(ModelConfig(depth=1, width=32, heads=2, vocabulary=64), seed=0)
    >>> score = next_token_score(model, [torch.arange(16)[None]])
    >>> score.tokens, bool(abs(score.loss - np.log(64)) < 0.1)  # it knows nothing yet
    (15, True)
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

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.models.transformer import Transformer
    >>> from residlab.precision.quantized_models import Scheme
    >>> model = Transformer(ModelConfig(depth=1, width=32, heads=2, vocabulary=64), seed=0)
    >>> schemes = {"W4": Scheme.named("W4"), "W8A8": Scheme.named("W8A8")}
    >>> list(scheme_scores(model, [torch.arange(16)[None]], schemes))
    ['W4', 'W8A8']
    """
    found = {}
    for name, scheme in schemes.items():
        with quantized(model, scheme, layers=layers):
            found[name] = next_token_score(model, windows)
    return found
