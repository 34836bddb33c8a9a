"""The measurement: one pass for the stream, attention and quantization, one for the predictions, a few for rounding."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from residlab.errors import ResidlabError
from residlab.inspection.folder import Anatomy, Folder, anatomy
from residlab.inspection.rounding import Growth
from residlab.inspection.text import Reading
from residlab.precision.quantization import Quantizer
from residlab.probes.activations import observe_inputs, observe_outputs
from residlab.probes.attention import mass_on_key, uniform_mass_on_key
from residlab.probes.kurtosis import crest_factor, excess_kurtosis
from residlab.probes.quantization import next_token_score, observe_distinct_inputs, sqnr, token_energies
from residlab.probes.stream import TOKEN_CLASSES, StreamProbe

FORMATS: Mapping[str, Quantizer] = {
    "int8": Quantizer(8),
    "int8 per token": Quantizer(8, over="row"),
    "int4": Quantizer(4),
    "int4 per token": Quantizer(4, over="row"),
    "fp8 e4m3": Quantizer("e4m3fn"),
}
"""One scale for the whole tensor, unless it says otherwise."""
BASE = "int8"
"""The format for which keeping the first token out is tried."""
SINK = 0.5
"""A head is a sink if it puts more than this share of its attention on the first token."""
LARGE, TIMES = 100.0, 1000.0
"""A massive activation is over 100, and over 1,000 times the median magnitude of its layer (Sun et al. 2024)."""


@dataclass(frozen=True)
class Stream:
    """The stream in front of the first block and behind each: lists of depth + 1 numbers, by class of tokens.

    Attributes
    ----------
    rms, excess_kurtosis, crest_factor, largest : mapping of str to list of float
        By class: ``all``, the ``first`` token of each window, the ``rest``. Moments are pooled over entries and tokens.
    median : list of float
        Median magnitude of an entry, all tokens.
    """

    rms: Mapping[str, list[float]]
    excess_kurtosis: Mapping[str, list[float]]
    crest_factor: Mapping[str, list[float]]
    largest: Mapping[str, list[float]]
    median: list[float]


@dataclass(frozen=True)
class MassiveChannel:
    """A channel of the stream that holds massive activations.

    Attributes
    ----------
    channel : int
        Its number, from 0.
    value : float
        The largest of its entries, with its sign.
    layer : int
        Behind which block that is; 0 is in front of the first.
    ratio : float
        Its magnitude over the median of that layer.
    token : str
        The token that has it.
    begins, ends : int
        The first and the last layer with a massive entry there.
    entries : int
        Massive entries in all layers.
    first : float
        The share of them in a window's first token.
    """

    channel: int
    value: float
    layer: int
    ratio: float
    token: str
    begins: int
    ends: int
    entries: int
    first: float


@dataclass(frozen=True)
class Sinks:
    """Attention on the first token of each window.

    Attributes
    ----------
    mass : mapping of int to list of float
        By block from 1: the share of each head, averaged over windows and later queries.
    uniform : float
        What it would be if attention were spread evenly.
    """

    mass: Mapping[int, list[float]]
    uniform: float

    @property
    def heads(self) -> int:
        """Heads measured."""
        return sum(map(len, self.mass.values()))

    @property
    def count(self) -> int:
        """Heads that put more than half of their attention there."""
        return sum(value > SINK for values in self.mass.values() for value in values)


@dataclass(frozen=True)
class Input:
    """A tensor that linear layers of a block read.

    Attributes
    ----------
    name : str
        Of the first layer that reads it.
    block : int
        From 1.
    kind : str
        Its name inside of the block.
    entries : int
        Numbers in it.
    crest_factor, excess_kurtosis : mapping of str to float
        By class of tokens: ``all`` and the ``rest``, without each window's first.
    sqnr : mapping of str to mapping of str to float
        In dB, by class, then by format. ``all`` tokens; the ``rest`` of them under the same scales; and ``apart``, the
        rest where they have a scale of their own (`BASE` only).
    """

    name: str
    block: int
    kind: str
    entries: int
    crest_factor: Mapping[str, float]
    excess_kurtosis: Mapping[str, float]
    sqnr: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Inspection:
    """What was measured, in plain numbers.

    Attributes
    ----------
    model : mapping of str to object
        Name, architecture, parameters, shape, types, as the folder says.
    text : mapping of str to object
        Name, windows, tokens of each, the token that begins them.
    nats : float
        Loss on that text, nats per token.
    stream, massive, sinks, inputs, growth
        See their classes. ``sinks`` is None where no attention returned its weights.
    resources : mapping of str to object
        Seconds by stage, memory counted and taken, threads, versions.
    """

    model: Mapping[str, Any]
    text: Mapping[str, Any]
    nats: float
    stream: Stream
    massive: Sequence[MassiveChannel]
    sinks: Sinks | None
    inputs: Sequence[Input]
    growth: Growth
    resources: Mapping[str, Any]

    @property
    def depth(self) -> int:
        """Blocks."""
        return len(self.stream.median) - 1

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; null for what is not a finite number."""
        made = _plain(dataclasses.asdict(self))
        assert isinstance(made, dict)
        return made


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@torch.no_grad()
def check_causal(model: nn.Module, ids: Tensor) -> None:
    """Run a model on a few tokens, with two different last ones.

    Raises
    ------
    ResidlabError
        If it cannot be run, its logits are not finite, or an earlier prediction depends on the last token.
    """
    ids = ids[:1, :8]
    other = ids.clone()
    other[0, -1] = (other[0, -1] + 1) % 8
    try:
        before, after = (model(each).logits.double() for each in (ids, other))
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise ResidlabError(
            f"{type(model).__name__} is not supported: it cannot read plain token ids ({error})"
        ) from error
    if not bool(before.isfinite().all()):
        raise ResidlabError(f"the logits of this {type(model).__name__} are not finite: nothing can be measured")
    change = (before - after)[:, :-1].abs().max() / before.abs().max()
    if float(change) > 1e-3:
        raise ResidlabError(
            f"{type(model).__name__} is not causal as configured: a token's prediction changes with a later token"
        )


class _Extremes:
    """The median magnitude of each site, and its massive entries."""

    def __init__(self) -> None:
        self.median: list[float] = []
        self.massive: dict[int, list[tuple[int, int, int, float, float]]] = {}
        """By channel: layer, window, position, value, ratio."""

    def __call__(self, x: Tensor) -> None:
        layer = len(self.median)
        size = x.abs()
        median = float(size.flatten().median())
        self.median.append(median)
        for window, position, channel in ((size > LARGE) & (size > TIMES * median)).nonzero().tolist():
            value = float(x[window, position, channel])
            ratio = abs(value) / median if median else math.inf
            self.massive.setdefault(channel, []).append((layer, window, position, value, ratio))


def observed(model: nn.Module, folder: Folder, reading: Reading, word: Callable[[int], str]) -> dict[str, Any]:
    """Run a model once on all windows; return `Stream`, `MassiveChannel`, `Sinks` and `Input` of an `Inspection`.

    Raises
    ------
    ResidlabError
        If activations are not finite; the message says behind which block.
    """
    parts = anatomy(model, folder.config)
    probe, extremes = StreamProbe(), _Extremes()
    mass: dict[int, list[float]] = {}
    inputs: list[Input] = []

    def see(name: str, x: Tensor) -> None:
        try:
            probe(name, x)
        except ValueError as error:
            raise ResidlabError(f"behind block {len(extremes.median)} of {folder.name}: {error}") from error
        extremes(x)

    def end(_: str, output: Any) -> None:
        see("the end", output[0] if isinstance(output, tuple) else output)

    def attend(name: str, output: Any) -> None:
        block = parts.block_of(name)
        rows = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        if block in mass or not isinstance(rows, Tensor) or rows.ndim != 4 or rows.shape[-1] != rows.shape[-2]:
            return
        # A window at a time: rows are upcast to float64.
        mass[block] = torch.stack([mass_on_key(each) for each in rows]).mean(0).tolist()

    def read(name: str, x: Tensor) -> None:
        if x.ndim == 2 and len(x) == reading.tokens:
            x = x.reshape(*reading.ids.shape, -1)
        if x.shape[:2] == reading.ids.shape:  # experts see some tokens only
            inputs.append(_input(name, parts, x))

    inside = {
        name: module for name, module in model.named_modules() if name.startswith(tuple(f"{b}." for b in parts.blocks))
    }
    (last_name, last), body = list(parts.blocks.items())[-1], getattr(model, "base_model", model)
    with torch.no_grad(), ExitStack() as stack:
        stack.enter_context(observe_inputs(parts.blocks, see))
        stack.enter_context(observe_outputs(inside, attend))
        stack.enter_context(observe_outputs({last_name: last}, end))
        stack.enter_context(observe_distinct_inputs(parts.linears, read))
        body(reading.ids)
    if not inputs:
        raise ResidlabError(f"no linear layer of {folder.architecture} reads all tokens: nothing to quantize was found")
    uniform = uniform_mass_on_key(reading.ids.shape[1])
    return {
        "stream": _stream(probe, extremes),
        "massive": _massive(extremes, reading, word),
        "sinks": Sinks(dict(sorted(mass.items())), uniform) if mass else None,
        "inputs": inputs,
    }


def _stream(probe: StreamProbe, extremes: _Extremes) -> Stream:
    def each(of: Callable[[Any], float]) -> dict[str, list[float]]:
        return {name: [of(site[name]) for site in probe.moments.values()] for name in TOKEN_CLASSES}

    return Stream(
        rms=each(lambda m: m.rms),
        excess_kurtosis=each(lambda m: m.excess_kurtosis),
        crest_factor=each(lambda m: m.largest / m.rms if m.rms else math.nan),
        largest=each(lambda m: m.largest),
        median=extremes.median,
    )


def _massive(extremes: _Extremes, reading: Reading, word: Callable[[int], str]) -> list[MassiveChannel]:
    found = []
    for channel, entries in extremes.massive.items():
        layer, window, position, value, ratio = max(entries, key=lambda entry: abs(entry[3]))
        layers = [entry[0] for entry in entries]
        found.append(
            MassiveChannel(
                channel,
                value,
                layer,
                ratio,
                word(int(reading.ids[window, position])),
                min(layers),
                max(layers),
                len(entries),
                sum(entry[2] == 0 for entry in entries) / len(entries),
            )
        )
    return sorted(found, key=lambda each: -abs(each.value))


def _input(name: str, parts: Anatomy, x: Tensor) -> Input:
    block = parts.block_of(name)
    rest = x[:, 1:]
    levels: dict[str, dict[str, float]] = {"all": {}, "rest": {}, "apart": {}}
    for fmt, quantizer in FORMATS.items():
        energy, lost = token_energies(x, quantizer)
        levels["all"][fmt] = sqnr(energy, lost)
        levels["rest"][fmt] = sqnr(energy[:, 1:], lost[:, 1:])
    levels["apart"][BASE] = sqnr(*token_energies(rest, FORMATS[BASE]))
    return Input(
        name,
        block,
        name.removeprefix(f"{list(parts.blocks)[block - 1]}."),
        x.numel(),
        {"all": float(crest_factor(x, "pooled")), "rest": float(crest_factor(rest, "pooled"))},
        {"all": float(excess_kurtosis(x, "pooled")), "rest": float(excess_kurtosis(rest, "pooled"))},
        levels,
    )


def loss(model: nn.Module, reading: Reading) -> float:
    """Return the loss on all windows, nats per token."""
    return next_token_score(model, [row[None] for row in reading.ids]).loss
