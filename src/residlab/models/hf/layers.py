"""Decoder layers of transformers with something more to say to their norms than ``x``.

A layer of transformers calls each norm with the hidden state only, and has none behind its sublayers. Two of our norms
need more: BHyT hands the statistic of the first site to the second, and Peri-LN normalises what a sublayer returns.
Their layers are subclasses of transformers' (`layer_class`), so that all that looks for one still finds it. Nothing is
kept between the two sites of a forward but local variables.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from residlab.errors import ResidlabError
from residlab.models.attention import value_output_energy, value_output_gram
from residlab.models.config import BHyTOptions, NormOptions, PeriLNOptions
from residlab.models.hf.families import FAMILIES, Family
from residlab.models.norms import variance_increment


class PeriLNLayer:
    """``x + norm(f(norm(x)))``, twice."""

    def forward(self: Any, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        """Map (B, T, width) to the same; ``kwargs`` are those of attention."""
        h, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        x: Tensor = hidden_states + self.attention_output_norm(h)
        y: Tensor = self.feedforward_output_norm(self.mlp(self.post_attention_layernorm(x)))
        return x + y


class BHyTLayer:
    """Attention behind `BHyTStar`, the feedforward behind `BHyT`, which is told what the first one measured.

    The constant ``||diag(gamma) W_V W_O||_F**2`` follows the weights: measured in each forward, except in evaluation
    without gradients, where it would cost more than generating a token. There, the last one is taken while the same
    three tensors, unchanged and without gradients, stand in their places and no forward of training came between. A
    change is noticed by torch's version counter (an in-place operation, ``load_state_dict``), or because another
    tensor, dtype, device or memory stands there. Between two forwards of evaluation, writing through ``.data`` escapes
    the counter: let ``refresh_constants`` know.
    """

    options: BHyTOptions
    tokens: int
    variance_constant: Tensor | None
    _remembered: tuple[tuple[Any, ...], Tensor] | None

    def forward(self: Any, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        """Map (B, T, width) to the same; ``kwargs`` are those of attention."""
        attended, statistic = self.input_layernorm(hidden_states, return_statistic=True)
        h, rows = self.self_attn(hidden_states=attended, **kwargs)
        x: Tensor = hidden_states + h
        increment = variance_increment(
            self.options,
            self.input_layernorm.lam.squeeze(),
            x.shape[-1],
            self.current_constant(),
            tokens=self.tokens,
            visible=self._visible(kwargs.get("position_ids")),
            rows=self._checked_rows(rows),
        )
        y: Tensor = self.mlp(self.post_attention_layernorm(x, statistic, increment))
        return x + y

    def measured_constant(self: Any) -> Tensor:
        """Return the energy, for ``rows`` the heads' Gram matrix, of the weights now."""
        W_V, W_O, gamma = self._weights()
        measure = value_output_gram if self.options.averaged == "rows" else value_output_energy
        return measure(W_V, W_O, gamma, self.self_attn.head_dim)

    def current_constant(self: Any) -> Tensor:
        """Return the constant that this forward uses."""
        if self.options.refresh != "forward":
            # Kept divided by the width, which float16 can hold.
            kept: Tensor = self.variance_constant
            width: int = self.hidden_size
            return kept.to(torch.promote_types(kept.dtype, torch.float32)) * width
        key = None if self.training or torch.is_grad_enabled() else _identity(self._weights())
        if key is None:
            self.forget()
            return self.measured_constant()  # type: ignore[no-any-return]
        if self._remembered is None or not _same(self._remembered[0], key):
            self._remembered = (key, self.measured_constant())
        return self._remembered[1]  # type: ignore[no-any-return]

    def __getstate__(self: Any) -> dict[str, Any]:
        """Return what a copy or another process gets: what was remembered of these tensors is nothing to it."""
        return {**self.__dict__, "_remembered": None}

    def forget(self: Any) -> None:
        """Measure again in the next forward, whatever the version counters say."""
        if self._remembered is not None:
            self._remembered = None

    @torch.no_grad()
    def keep_constant(self: Any) -> None:
        """Bring the kept constant up to date with the weights."""
        measured = self.measured_constant() / self.hidden_size
        if self.variance_constant is None:
            self.variance_constant = measured.to(self.input_layernorm.gamma.dtype)
        else:
            self.variance_constant.copy_(measured)

    def _weights(self: Any) -> tuple[Tensor, Tensor, Tensor]:
        for name in ("v_proj", "o_proj"):
            linear = getattr(self.self_attn, name)
            if not isinstance(linear, nn.Linear):
                raise ResidlabError(
                    f"bhyt measures the weights of {name}, which must be a torch.nn.Linear; got "
                    f"{type(linear).__module__}.{type(linear).__name__}: merge adapters, or swap to bhyt*"
                )
        return self.self_attn.v_proj.weight, self.self_attn.o_proj.weight, self.input_layernorm.gamma

    def _visible(self: Any, position_ids: Tensor | None) -> Tensor | None:
        if self.options.averaged != "position":
            return None
        if position_ids is None:
            raise ResidlabError('averaged = "position" needs position_ids, which this layer was not given')
        seen = position_ids + 1
        window = sliding_window(self)
        return (seen if window is None else seen.clamp(max=window)).clamp_min(1)[..., None]

    def _checked_rows(self: Any, rows: Tensor | None) -> Tensor | None:
        if self.options.averaged != "rows":
            return None
        if rows is None:
            raise ResidlabError('averaged = "rows" needs the attention weights: attn_implementation must be "eager"')
        return rows


def sliding_window(layer: Any) -> int | None:
    """Return how many tokens a layer's attention sees at most; None for all."""
    attention = layer.self_attn
    if hasattr(attention, "sliding_window"):  # Qwen, Gemma: some layers only
        return attention.sliding_window  # type: ignore[no-any-return]
    return getattr(attention.config, "sliding_window", None)


def _identity(weights: tuple[Tensor, ...]) -> tuple[Any, ...] | None:
    """Return what tells these weights, unchanged, from others; None where torch keeps no account."""
    if torch.compiler.is_compiling() or (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None  # sharded weights are gathered into the same memory without a new version
    if any(weight.is_inference() or weight.device.type == "meta" for weight in weights):
        return None
    if any(weight.device.type == "cpu" and weight.untyped_storage().is_shared() for weight in weights):
        return None  # another process may write there, and counts its versions by itself
    if any(weight.grad is not None for weight in weights):
        return None  # an optimizer's step may be next, and torch's fused ones change weights without a new version
    return tuple((weight, weight._version, weight.data_ptr(), weight.dtype, weight.device) for weight in weights)


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(a[0] is b[0] and a[1:] == b[1:] for a, b in zip(one, other, strict=True))


@cache
def layer_class(family: Family, mixin: type) -> type[nn.Module]:
    """Return the family's decoder layer with that mixin's forward."""
    _, layer, _ = family.classes()
    name = f"{mixin.__name__.removesuffix('Layer')}{layer.__name__}"
    return type(name, (mixin, layer), {"__module__": __name__, "__doc__": mixin.__doc__})


def __getattr__(name: str) -> Any:
    """Find a class that `layer_class` makes by its name, as pickle does, in a process that has not made it too."""
    for family, mixin in itertools.product(FAMILIES, (BHyTLayer, PeriLNLayer)):
        if name == f"{mixin.__name__.removesuffix('Layer')}{family.name}DecoderLayer":
            return layer_class(family, mixin)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def mixin_for(options: NormOptions) -> type | None:
    """Return what a norm needs of its layer; None if transformers' own will do."""
    if isinstance(options, BHyTOptions):
        return BHyTLayer
    return PeriLNLayer if isinstance(options, PeriLNOptions) else None
