"""How tight bounds on attention's Jacobian are: on random heads, on the heads of a model, and for a search (ch. 16)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from residlab.probes.lipschitz import RotaryAttention, steepest_tokens, token_norm
from residlab.theory import attention_jacobian as aj
from residlab.theory.lipschitz import sharp_bound, simple_bound
from residlab.theory.token_norms import token_norms
from residlab.theory.validation import FloatArray

ROUNDING = 1e-9
"""A norm may be above its bound by this share: what float64 may do to the two."""


class Stretch(NamedTuple):
    """One head at one input, in the token norm but for the last three.

    Parameters
    ----------
    lower, upper : float
        The norm of the Jacobian lies between.
    matrices, local : float
        The local bound with matrices kept, and from norms alone.
    world : float
        The bound for all inputs in the ball: `sharp_bound`, `simple_bound` with ``|W_Q| |W_K|`` where keys rotate.
    top : float
        The mean over rows of the largest weight: how concentrated they are.
    frobenius, frobenius_local, column : float
        The norm in Frobenius norm, its local bound, and the largest column sum of the rows.
    """

    lower: float
    upper: float
    matrices: float
    local: float
    world: float
    top: float
    frobenius: float
    frobenius_local: float
    column: float

    @property
    def violations(self) -> int:
        """How many of the five bounds the norms exceed."""
        token = (self.upper, self.matrices, self.local, self.world)
        above = sum(self.lower > bound * (1 + ROUNDING) for bound in token)
        return above + int(self.frobenius > self.frobenius_local * (1 + ROUNDING))


def stretch(head: aj.Head, x: FloatArray, mask: aj.BoolArray | None = None, *, starts: int = 1) -> Stretch:
    """Measure one head at one input."""
    found = aj.analyse(head, x, mask, starts=starts)
    rows, bounds = aj.attention_rows(head, x, mask), found.bounds
    radius, value = float(np.linalg.norm(x, axis=1).max()), aj.spectral_norm(head.value)
    if head.rotation is None:
        world = float(sharp_bound(aj.spectral_norm(head.form()) * radius**2, value))
    else:
        world = float(simple_bound(head.product_norm * radius**2, value))
    lower, upper = found.norms.norm
    return Stretch(
        lower=lower,
        upper=upper,
        matrices=float(found.matrices.max()),
        local=float(bounds.rows.max()),
        world=world,
        top=float(rows.max(axis=1)[1:].mean()),
        frobenius=aj.frobenius_norm(head, x, mask, iterations=30),
        frobenius_local=bounds.frobenius,
        column=bounds.column_mass,
    )


def random_stretch(logit_radius: float, tokens: int, *, width: int = 8, seed: int = 0) -> Stretch:
    """Measure a head with a Gaussian form and an orthogonal V at random tokens of length 1, without a mask.

    Parameters
    ----------
    logit_radius : float
        ``|A| R**2``: the form is scaled to it.
    tokens, width, seed : int
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, width))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    form = rng.standard_normal((width, width))
    value = np.linalg.qr(rng.standard_normal((width, width)))[0]
    return stretch(aj.Head.of_form(logit_radius * form / aj.spectral_norm(form), value), x)


def form_attention(form: Tensor) -> Callable[[Tensor], Tensor]:
    """Return attention with the logits ``x_i . A x_j`` and V the identity, without a mask."""

    def block(x: Tensor) -> Tensor:
        return (x @ form @ x.T).softmax(-1) @ x

    return block


def attack(
    logit_radius: float, tokens: int, *, width: int = 3, steps: int = 150, seeds: Iterable[int] = (0,)
) -> list[float]:
    """Look for tokens of length up to 1 at which a form that swaps two axes stretches most; the best after each step.

    Gradient ascent from Gaussian tokens; of several seeds the one that ends highest.
    """
    form = torch.zeros(width, width, dtype=torch.float64)
    form[0, 1] = form[1, 0] = logit_radius
    runs = []
    for seed in seeds:
        start = torch.randn(tokens, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        runs.append(steepest_tokens(form_attention(form), start, 1.0, steps=steps))
    return max(runs, key=lambda run: run[-1])


class WithAndWithout(NamedTuple):
    """One head's local bounds, and its norms where measured, with token 0 and without it; queries after it."""

    layer: int
    head: int
    mass: float
    bound: float
    bound_without: float


def token_zero(layers: Sequence[RotaryAttention], chosen: Iterable[int]) -> list[WithAndWithout]:
    """Compare the local bounds of all heads of some layers with those of the same tokens without token 0.

    ``mass`` is the least that a query after token 0 gives to it.
    """
    found = []
    for index in chosen:
        layer = layers[index]
        x = layer.x.numpy(force=True)
        mask, rest = aj.causal_mask(len(x)), slice(1, None)
        for a in range(layer.heads):
            head = layer.head(a)
            rows = aj.attention_rows(head, x, mask)
            bound = aj.norm_bounds(head, x, mask, rest).rows.max()
            without = aj.norm_bounds(head.at(rest), x[1:], mask[1:, 1:]).rows.max()
            found.append(WithAndWithout(index, a, float(rows[1:, 0].min()), float(bound), float(without)))
    return found


def norms_without_token_zero(head: aj.Head, x: FloatArray) -> tuple[float, float]:
    """Return the norms of the rows after token 0, from below, with it and without it."""
    mask, rest = aj.causal_mask(len(x)), slice(1, None)
    whole = token_norms(aj.jacobian_rows(head, x, mask, rest), starts=1)
    without = token_norms(aj.jacobian_rows(head.at(rest), x[1:], mask[1:, 1:]), starts=1)
    return whole.norm[0], without.norm[0]


class LayerStretch(NamedTuple):
    """A layer of several heads: its norm from below, and the sums of its heads' norms and of their local bounds."""

    token: float
    heads: float
    local: float


def layer_stretch(layer: RotaryAttention, *, rows: int = 2, iterations: int = 5) -> LayerStretch:
    """Measure a whole attention layer at the tokens that it read, in the token norm.

    Only some rows are looked at from below: those at which the sum of the heads' norms is largest.
    """
    x = layer.x.numpy(force=True)
    mask = aj.causal_mask(len(x))
    each = [aj.analyse(layer.head(a), x, mask, starts=1) for a in range(layer.heads)]
    together = np.sum([one.norms.upper for one in each], axis=0)
    found = token_norm(
        layer,
        layer.x,
        rows=[int(i) for i in np.argsort(together)[-rows:]],
        iterations=iterations,
        starts=1,
        generator=torch.Generator().manual_seed(0),
    )
    local = np.sum([one.bounds.rows for one in each], axis=0)
    return LayerStretch(token=found, heads=float(together.max()), local=float(local.max()))
