"""``WmAn`` inference with any model: weights to m bits, the inputs of linear layers to n, while a context is open."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from residlab.checks import check_one_of
from residlab.errors import ResidlabError
from residlab.precision.quantization import Quantizer

Rotation = Literal["none", "random", "hadamard"]
_NAME = re.compile(r"(?:W(?P<weights>\d+))?(?:A(?P<activations>\d+))?|FP8(?:-(?P<float>e4m3fn|e5m2))?")


@dataclass(frozen=True)
class Scheme:
    """What is rounded, and how.

    Attributes
    ----------
    weights, activations
        What rounds the weights of linear layers, and what rounds their inputs; None leaves them.
    rotation
        ``"none"``, or an orthogonal matrix R put between both: ``x W^T = (x R) (W R)^T``, and it is ``x R`` and ``W R``
        that are rounded. ``"random"`` is Haar-distributed over the whole width; ``"hadamard"`` has random signs, then
        Hadamard matrices of the largest power of two that divides the width, side by side, so that it mixes within
        blocks of that size (64 of width 576).
    seed
        Of the rotation; each width has its own.

    Examples
    --------
    >>> scheme = Scheme.named("W8A6 row")
    >>> scheme.weights, scheme.activations
    (Quantizer(kind=8, over='row', clip=1.0), Quantizer(kind=6, over='row', clip=1.0))
    """

    weights: Quantizer | None = None
    activations: Quantizer | None = None
    rotation: Rotation = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        check_one_of(self, "rotation", get_args(Rotation))

    @classmethod
    def named(cls, name: str) -> Scheme:
        """Return the scheme of a name, such as ``W8A6``, ``W4`` (weights only), ``A8 row``, ``FP8``, ``W4A4 hadamard``.

        The first word says the formats: bits of weights and activations, or ``FP8`` for e4m3fn in both (``FP8-e5m2``
        for the other one). Then ``row`` (a peak for each output row of a weight and each token), ``clip=0.999`` (the
        peak a quantile), ``random`` or ``hadamard`` (a rotation).

        Raises
        ------
        ResidlabError
            If the name is none of this grammar, or bits are outside 2 to 16.
        """
        formats, *options = name.split() or [""]
        match = _NAME.fullmatch(formats)
        if not formats or match is None:
            raise ResidlabError(f"a scheme is named like W8A6, W4, A8, FP8 or FP8-e5m2; got {name!r}")
        if formats.startswith("FP8"):
            quantizer = Quantizer("e5m2" if match["float"] == "e5m2" else "e4m3fn")
            scheme = cls(quantizer, quantizer)
        else:
            bits = (match["weights"], match["activations"])
            weights, activations = (None if each is None else Quantizer(int(each)) for each in bits)
            scheme = cls(weights, activations)
        for option in options:
            if option in get_args(Rotation):
                scheme = replace(scheme, rotation=cast(Rotation, option))
            elif option == "row":
                scheme = scheme._each(over="row")
            elif clip := re.fullmatch(r"clip=(\d*\.?\d+)", option):
                scheme = scheme._each(clip=float(clip[1]))
            else:
                allowed = "row, clip=SHARE, random, hadamard"
                raise ResidlabError(f"a scheme's options are {allowed}; got {option!r} in {name!r}")
        return scheme

    def _each(self, **changes: Any) -> Scheme:
        both = (self.weights, self.activations)
        weights, activations = (None if each is None else replace(each, **changes) for each in both)
        return replace(self, weights=weights, activations=activations)


def linear_layers(model: nn.Module, *, outside: bool = False) -> dict[str, nn.Module]:
    """Return the linear layers of a model's blocks by name: `torch.nn.Linear`, and GPT-2's ``Conv1D``.

    A block is what stands in an `nn.ModuleList`, as in our models and in transformers'. Embeddings are none of these,
    and the output layer stands outside of the blocks.

    Parameters
    ----------
    model
        Any module.
    outside
        Whether to take those outside of blocks too. An output layer that is only the embedding's weight, as in our
        models with tied embeddings, is no layer and cannot be taken.

    Raises
    ------
    ResidlabError
        If there are none.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.ModuleList([torch.nn.Linear(4, 4)]), torch.nn.Linear(4, 2))
    >>> list(linear_layers(model)), list(linear_layers(model, outside=True))
    (['0.0'], ['0.0', '1'])
    """
    lists = tuple(f"{name}." for name, module in model.named_modules() if name and isinstance(module, nn.ModuleList))
    found = {
        name: module
        for name, module in model.named_modules()
        if _is_linear(module) and (outside or name.startswith(lists))
    }
    if not found:
        raise ResidlabError(
            f"{type(model).__name__} has no linear layer {'at all' if outside else 'in a block (nn.ModuleList)'}"
        )
    return found


def _is_conv1d(module: nn.Module) -> bool:
    """Whether it is transformers' Conv1D, (in, out): not imported, since transformers may not be there."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or _is_conv1d(module)


def weight_of(layer: nn.Module) -> Tensor:
    """Return a linear layer's weight as (out, in).

    Examples
    --------
    >>> weight_of(torch.nn.Linear(3, 2)).shape
    torch.Size([2, 3])
    """
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight.T if _is_conv1d(layer) else weight


@contextmanager
def quantized(
    model: nn.Module,
    scheme: str | Scheme,
    *,
    layers: Mapping[str, nn.Module] | None = None,
    keep: bool = True,
) -> Iterator[None]:
    """Let a model compute with rounded weights and inputs of its linear layers while the context is open.

    ``with quantized(model, "W8A6"): model(ids)``. The model is changed in place, and no weight is touched: each layer
    gets a forward that rounds, and has its own back at the end, also after an exception. Hooks of the layers see inputs
    before they are rounded. Products are computed in the model's dtype; biases, norms, attention, the residual stream,
    embeddings and the output layer stay as they are. What a model derives from the weights by itself (BHyT's variance
    constant) is that of the weights as they are.

    Gradients go straight through (`Quantizer`), so that training with rounding works too. Rotations are computed in the
    dtype of what they rotate, float32 at least, under autocast too.

    A layer whose weight the model reads without calling the layer is not rounded. Torch's own attention does that, and
    so does its encoder layer in evaluation: both are refused.

    Parameters
    ----------
    model
        Ours, or any other, on any device.
    scheme
        Or its name, see `Scheme.named`.
    layers
        Those to round, by name; by default `linear_layers` of the model.
    keep
        Whether rounded weights are kept from their first use on: as much memory as these layers' weights. Otherwise
        each forward rounds anew, a layer at a time. They are always rounded anew where a gradient is asked for or
        there is one (an optimizer's step may be next, and torch's fused ones count no changes), where the weight is a
        tensor of inference mode, or was changed in place, which torch's version counter tells. What escapes the counter
        is not seen: changes through ``.data``, or by another process.

    Raises
    ------
    ResidlabError
        If the scheme is none, there are no layers, one is not linear, or is wrapped already, as inside another such
        context, or belongs to an `nn.MultiheadAttention` or `nn.TransformerEncoderLayer`; when used, if an input or a
        weight has NaN or infinity.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.models.transformer import Transformer
    >>> model = Transformer(ModelConfig(depth=2, width=32, heads=2, vocabulary=64), seed=0)
    >>> ids = torch.arange(16)[None]
    >>> exact = model(ids)
    >>> with quantized(model, "W4A4"):
    ...     rounded = model(ids)
    ...
    >>> torch.equal(rounded, exact), torch.equal(model(ids), exact)
    (False, True)
    """
    scheme = Scheme.named(scheme) if isinstance(scheme, str) else scheme
    layers = linear_layers(model) if layers is None else layers
    shared = _Shared()
    _check_that_layers_are_called(model, layers)
    for name, layer in layers.items():
        known = _is_conv1d(layer) or (isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward)
        if not known or "forward" in vars(layer):
            raise ResidlabError(
                f"{name} must be a plain linear layer; it is {type(layer).__name__}"
                + (" with a forward of its own, as in another such context" if known else "")
            )
    with ExitStack() as stack:
        for name, layer in layers.items():
            stack.callback(vars(layer).pop, "forward")
            layer.forward = _rounding_forward(name, layer, scheme, shared, keep)
        yield


def _check_that_layers_are_called(model: nn.Module, layers: Mapping[str, nn.Module]) -> None:
    names = {id(layer): name for name, layer in layers.items()}
    for owner, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention | nn.TransformerEncoderLayer):
            own = [names[id(inner)] for inner in module.modules() if id(inner) in names]
            if own:
                raise ResidlabError(
                    f"{owner or 'the model'} is a {type(module).__name__}, which reads weights without calling the "
                    f"layers that have them ({', '.join(own)}): they would not be rounded; take attention made of "
                    "nn.Linear, or leave these out of layers="
                )


class _Shared:
    """What the layers of one context have in common: rotations, and the last input, which several may read."""

    def __init__(self) -> None:
        self.rotations: dict[tuple[int, torch.device, torch.dtype], tuple[Tensor, ...]] = {}
        self.input: tuple[Tensor, int, bool] | None = None
        self.rounded: Tensor | None = None

    def rounded_input(self, x: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``make(x)``, made once for layers that read the same tensor one after the other.

        Changes to tensors of inference mode are not counted, so that theirs is always made.
        """
        if x.is_inference():
            return make(x)
        state = (x, version(x), torch.is_grad_enabled())
        if self.rounded is None or self.input is None or self.input[0] is not x or self.input[1:] != state[1:]:
            self.input, self.rounded = state, make(x)
        return self.rounded


def version(x: Tensor) -> int:
    """Return the number of times that a tensor was written to; 0 for one of inference mode, which nobody counts.

    Examples
    --------
    >>> x = torch.zeros(2)
    >>> before = version(x)
    >>> _ = x.add_(1)
    >>> before, version(x)
    (0, 1)
    """
    return 0 if x.is_inference() else x._version


def _rounding_forward(
    name: str, layer: nn.Module, scheme: Scheme, shared: _Shared, keep: bool
) -> Callable[[Tensor], Tensor]:
    kept: tuple[Tensor, tuple[int, int], Tensor] | None = None

    def rotated(x: Tensor) -> Tensor:
        if scheme.rotation == "none":
            return x
        precise = torch.promote_types(x.dtype, torch.float32)
        key = (x.shape[-1], x.device, precise)
        if key not in shared.rotations:
            factors = _factors(x.shape[-1], scheme.rotation, scheme.seed)
            shared.rotations[key] = tuple(each.to(device=x.device, dtype=precise) for each in factors)
        signs, block = shared.rotations[key]
        blocks = (x.to(precise) * signs).reshape(*x.shape[:-1], -1, len(block))
        with _full_precision(x):
            turned: Tensor = blocks @ block
        return turned.flatten(-2)

    def rounded(what: str, x: Tensor, quantizer: Quantizer | None) -> Tensor:
        y = rotated(x)
        if quantizer is not None:
            try:
                y = quantizer(y)
            except ResidlabError as error:
                raise ResidlabError(f"{what} of {name}: {error}") from error
        return y.to(x.dtype)

    def weight() -> Tensor:
        nonlocal kept
        own = layer.weight
        assert isinstance(own, Tensor)
        state = (own.data_ptr(), version(own))
        counted = not own.is_inference() and own.grad is None  # see `quantized`
        asked = torch.is_grad_enabled() and own.requires_grad
        if kept is not None and kept[0] is own and kept[1] == state and counted and not asked:
            return kept[2]
        made = rounded("the weight", weight_of(layer), scheme.weights)
        kept = (own, state, made) if keep and counted and not made.requires_grad else None
        return made

    def forward(x: Tensor) -> Tensor:
        bias = cast("Tensor | None", layer.bias)
        y = shared.rounded_input(x, lambda each: rounded("the input", each, scheme.activations))
        return nn.functional.linear(y, weight(), bias)

    def named_as_torch_does(input: Tensor) -> Tensor:
        return forward(input)

    return forward if _is_conv1d(layer) else named_as_torch_does


def _full_precision(x: Tensor) -> AbstractContextManager[object]:
    # Inside autocast a product of float32 matrices would be one of bfloat16.
    kind = x.device.type
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)


def rotation(width: int, kind: Rotation, seed: int = 0) -> Tensor:
    """Return the orthogonal matrix of a `Scheme`, (width, width), float64; the identity for ``"none"``.

    Raises
    ------
    ResidlabError
        If there is no such kind, or ``"hadamard"`` is asked of an odd width, whose blocks would have size 1.

    Examples
    --------
    >>> R = rotation(4, "hadamard")
    >>> R.abs(), torch.allclose(R @ R.T, torch.eye(4).double())
    (tensor([[0.5000, 0.5000, 0.5000, 0.5000],
            [0.5000, 0.5000, 0.5000, 0.5000],
            [0.5000, 0.5000, 0.5000, 0.5000],
            [0.5000, 0.5000, 0.5000, 0.5000]], dtype=torch.float64), True)
    """
    signs, block = _factors(width, kind, seed)
    return signs[:, None] * torch.kron(torch.eye(width // len(block), dtype=torch.float64), block)


def _factors(width: int, kind: Rotation, seed: int) -> tuple[Tensor, Tensor]:
    """Return signs, (width,), and an orthogonal block, of which the rotation has copies side by side."""
    named: str = kind
    if named not in get_args(Rotation):
        raise ResidlabError(f"rotation must be one of {', '.join(get_args(Rotation))}; got {kind!r}")
    ones = torch.ones(width, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    if kind == "none":
        return ones, torch.ones(1, 1, dtype=torch.float64)
    if kind == "random":
        Q, R = torch.linalg.qr(torch.randn((width, width), dtype=torch.float64, generator=generator))
        return ones, Q * R.diagonal().sign()  # without these signs the law is not Haar's
    size = width & -width
    if size == 1:
        raise ResidlabError(f"a Hadamard rotation needs an even width; got {width}: use random")
    H = torch.ones(1, 1, dtype=torch.float64)
    while len(H) < size:
        H = torch.cat((torch.cat((H, H), 1), torch.cat((H, -H), 1)))
    return torch.randint(0, 2, (width,), generator=generator).double() * 2 - 1, H / size**0.5
