"""How far a block stretches a perturbation of its tokens: power iteration on products with its Jacobian, and attention.

A block maps tokens of shape (T, d) to tokens of shape (T, m). In the *Frobenius norm* of tokens the Jacobian's norm is
its largest singular value, and power iteration on ``J.T J`` goes to it. In the *token norm*, the largest 2-norm of a
token, it is ``max_i max_v sum_j |J_ij.T v|`` over unit vectors v. The iteration that belongs to it (Boyd 1974, for
p-norms) turns every token of the perturbation along what the transpose gives it; it never goes down, and what it
reaches is a *lower* bound, a local maximum. Both need only the products J h and J.T g: no Jacobian is formed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from residlab.probes.activations import modules_matching, observe_outputs
from residlab.theory.attention_jacobian import Head

Block = Callable[[Tensor], Tensor]
_TINY = 1e-300


def _products(block: Block, x: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Tensor]:
    """Return J h and J.T g at ``x``, and the block's output."""
    if x.ndim != 2:
        raise ValueError(f"tokens must have shape (T, d), one sequence; got {tuple(x.shape)}")
    with torch.enable_grad():
        place = x.detach().clone().requires_grad_()
        push, y = _pushed(block, place)

    def pull(g: Tensor) -> Tensor:
        return torch.autograd.grad(y, place, g, retain_graph=True)[0]

    return lambda h: push(h, False), pull, y.detach()


def _pushed(block: Block, x: Tensor) -> tuple[Callable[[Tensor, bool], Tensor], Tensor]:
    """Return J h by differentiating the backward pass, ``g -> J.T g``, which is linear; and the block's output.

    Forward mode would do as well, but the first use of it in a process costs seconds.
    """
    with sdpa_kernel(SDPBackend.MATH):  # others cannot be differentiated twice
        y = block(x)
    if y.ndim != 2 or y.shape[0] != x.shape[0]:
        raise ValueError(f"a block keeps the number of tokens: {tuple(x.shape)} became {tuple(y.shape)}")
    g = torch.zeros_like(y, requires_grad=True)
    (pulled,) = torch.autograd.grad(y, x, g, create_graph=True)

    def push(h: Tensor, differentiable: bool) -> Tensor:
        with torch.enable_grad():
            return torch.autograd.grad(pulled, g, h, retain_graph=True, create_graph=differentiable)[0]

    return push, y


def frobenius_norm(
    block: Block, x: Tensor, *, iterations: int = 100, generator: torch.Generator | None = None
) -> float:
    """Return the largest singular value of a block's Jacobian, from below: the norm for the Frobenius norm of tokens.

    Parameters
    ----------
    block : callable
        (T, d) to (T, m), twice differentiable.
    x : Tensor, shape (T, d)
        Where the Jacobian is taken; float64 if the last digits matter.
    iterations : int
        At most; it stops where one adds less than 1e-10 of the value.
    generator : torch.Generator, optional
        On the CPU, for a reproducible start.

    Raises
    ------
    ValueError
        If ``x`` is not one sequence or the block changes the number of tokens.

    Examples
    --------
    >>> A = torch.diag(torch.tensor([3.0, 1.0])).double()
    >>> round(frobenius_norm(lambda x: x @ A, torch.ones(2, 2).double()), 6)
    3.0
    """
    push, pull, _ = _products(block, x)
    h = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    value = 0.0
    for _ in range(iterations):
        h = pull(push(h / h.norm().clamp(min=_TINY)))
        before, value = value, float(h.norm().sqrt())
        if value - before <= 1e-10 * value:
            break
    return value


def token_norm(
    block: Block,
    x: Tensor,
    *,
    rows: Iterable[int] | None = None,
    iterations: int = 30,
    starts: int = 2,
    generator: torch.Generator | None = None,
) -> float:
    """Return a lower bound on a block's Jacobian in the token norm, ``max over |h_j| <= 1 of max_i |(J h)_i|``.

    Parameters
    ----------
    block, x, generator
        As in `frobenius_norm`.
    rows : iterable of int, optional
        The output tokens i to look at; all if not given.
    iterations : int
        At most, for each row and start; each costs a product with J and one with its transpose.
    starts : int
        Random perturbations to start from, for each row.

    Raises
    ------
    ValueError
        As `frobenius_norm`.

    Examples
    --------
    >>> mean = torch.tensor([[0.5, 0.5], [0, 1]]).double()  # row 0 averages both tokens
    >>> x = torch.ones(2, 3).double()
    >>> round(token_norm(lambda x: mean @ x, x), 6), round(frobenius_norm(lambda x: mean @ x, x), 4)
    (1.0, 1.1441)
    """
    push, pull, y = _products(block, x)
    best = 0.0
    for i in range(len(y)) if rows is None else rows:
        for _ in range(starts):
            h = _unit(torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device))
            value = 0.0
            for _ in range(iterations):
                stretched = push(h)[i]
                before, value = value, float(stretched.norm())
                if value - before <= 1e-10 * value:
                    break
                g = torch.zeros_like(y)
                g[i] = stretched / value
                h = _unit(pull(g), h)
            best = max(best, value)
    return best


def _unit(h: Tensor, otherwise: Tensor | None = None) -> Tensor:
    """Return tokens of length 1, and ``otherwise`` where a token is zero."""
    sizes = h.norm(dim=1, keepdim=True)
    unit = h / sizes.clamp(min=_TINY)
    return unit if otherwise is None else torch.where(sizes > 0, unit, otherwise)


def steepest_tokens(block: Block, x: Tensor, radius: float, *, steps: int = 200, rate: float = 0.05) -> list[float]:
    """Look for tokens in a ball at which a block stretches most, by gradient ascent, and return the best value so far.

    Tokens and perturbation move together, by Adam, on ``max_i |(J h)_i|``, which is a lower bound on the Jacobian's
    token norm at every step. Tokens that leave the ball are put back on its surface.

    Parameters
    ----------
    block : callable
        As in `frobenius_norm`.
    x : Tensor, shape (T, d)
        Where to start.
    radius : float
        Of the ball, > 0.
    steps, rate : int, float
        Steps of Adam, and their rate relative to ``radius``.

    Returns
    -------
    list of float
        The largest value seen after each step, not decreasing.

    Raises
    ------
    ValueError
        As `frobenius_norm`, or if ``radius`` is not positive.

    Examples
    --------
    >>> found = steepest_tokens(lambda x: x**3 / 3, torch.full((2, 2), 0.1).double(), radius=1.0, steps=100)
    >>> found[0] < 0.2, found[-1] > 0.9  # the derivative is x**2, and at most 1 in the ball
    (True, True)
    """
    if not radius > 0:
        raise ValueError(f"radius must be > 0, got {radius!r}")
    _products(block, x)  # refuses what it should
    scaled = (x / radius).detach().clone().requires_grad_()
    h = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype).to(x.device).requires_grad_()
    ascent = torch.optim.Adam([scaled, h], lr=rate, maximize=True)
    best: list[float] = []
    for _ in range(steps):
        ascent.zero_grad()
        inside = radius * scaled / scaled.norm(dim=1, keepdim=True).clamp(min=1)
        value = _pushed(block, inside)[0](_unit(h), True).norm(dim=1).max()
        value.backward()
        best.append(max(float(value.detach()), best[-1] if best else 0.0))
        ascent.step()
    return best


# --- Attention of a Llama, as a function of its tokens


@dataclass(frozen=True, eq=False)
class RotaryAttention:
    """Causal attention with rotary positions, in float64, for one sequence: call it on tokens of shape (T, d).

    Parameters
    ----------
    x : Tensor, shape (T, d)
        The tokens that a model gave it, behind the norm.
    W_Q, W_K, W_V : Tensor, shape (heads * k, d), (kv_heads * k, d) twice
    W_O : Tensor, shape (d, heads * k)
    cos, sin : Tensor, shape (T, k)
        Of the angles; entry n of a head is turned with entry n + k/2.
    heads, kv_heads : int
    scale : float
        Factor of the logits.

    Examples
    --------
    >>> W = torch.randn(4, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    >>> x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).double()
    >>> still = torch.ones(3, 2).double(), torch.zeros(3, 2).double()  # cosines and sines of no rotation
    >>> attention = RotaryAttention(x, *W, *still, heads=2, kv_heads=2, scale=1.0)
    >>> torch.allclose(attention(x)[0], x[0] @ W[2].T @ W[3].T)  # token 0 sees itself only
    True
    """

    x: Tensor
    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor
    cos: Tensor
    sin: Tensor
    heads: int
    kv_heads: int
    scale: float

    def __call__(self, x: Tensor) -> Tensor:
        """Return what attention adds to the stream."""
        T = x.shape[0]
        query, key, value = (
            (x @ W.T).reshape(T, -1, self.cos.shape[1]).transpose(0, 1) for W in (self.W_Q, self.W_K, self.W_V)
        )
        group = self.heads // self.kv_heads
        query, key = (self._turned(states) for states in (query, key))
        key, value = (states.repeat_interleave(group, dim=0) for states in (key, value))
        logits = self.scale * query @ key.transpose(1, 2)
        hidden = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        rows = logits.masked_fill(hidden, -torch.inf).softmax(-1)
        return (rows @ value).transpose(0, 1).reshape(T, -1) @ self.W_O.T

    def _turned(self, states: Tensor) -> Tensor:
        first, second = states.chunk(2, dim=-1)
        return states * self.cos + torch.cat([-second, first], dim=-1) * self.sin

    def head(self, index: int) -> Head:
        """Return one head for `residlab.theory.attention_jacobian`, its value map reduced to k rows."""
        if not 0 <= index < self.heads:
            raise ValueError(f"there are {self.heads} heads, counted from 0; got {index}")
        k, kv = self.cos.shape[1], index // (self.heads // self.kv_heads)
        own, shared = slice(index * k, (index + 1) * k), slice(kv * k, (kv + 1) * k)
        query, key, value = self.scale * self.W_Q[own], self.W_K[shared], self.W_V[shared]
        value = torch.linalg.qr(self.W_O[:, own]).R @ value
        eye = torch.eye(k, dtype=torch.float64, device=self.cos.device)
        first, second = eye.chunk(2, dim=0)
        rotation = eye * self.cos[..., None] + torch.cat([-second, first], dim=0) * self.sin[..., None]
        return Head(*(np.asarray(m.numpy(force=True)) for m in (query, key, value, rotation)))


def rotary_attentions(model: nn.Module, tokens: Tensor) -> list[RotaryAttention]:
    """Run a model on one text and return its attention layers with the tokens that they read, first layer first.

    Parameters
    ----------
    model : nn.Module
        A Llama of transformers, or one whose modules have the same names (``rotary_emb``, ``layers.N.input_layernorm``,
        ``layers.N.self_attn`` with ``q_proj``, ``k_proj``, ``v_proj``, ``o_proj``), without biases.
    tokens : Tensor of int, shape (1, T)

    Raises
    ------
    ValueError
        If there are no such modules, more than one text, or biases.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaModel
    >>> sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    >>> model = LlamaModel(LlamaConfig(**sizes, vocab_size=32)).eval()
    >>> layers = rotary_attentions(model, torch.arange(8)[None])
    >>> len(layers), layers[0].heads, tuple(layers[0](layers[0].x).shape)
    (2, 2, (8, 16))
    """
    if tokens.ndim != 2 or len(tokens) != 1:
        raise ValueError(f"one text, shape (1, T), is needed; got {tuple(tokens.shape)}")
    norms = modules_matching(model, r"(.*\.)?layers\.\d+\.input_layernorm")
    attentions = modules_matching(model, r"(.*\.)?layers\.\d+\.self_attn")
    rotary = modules_matching(model, r"(.*\.)?rotary_emb")
    biased = [name for name in dict(model.named_parameters()) if re.search(r"self_attn\.[qkvo]_proj\.bias$", name)]
    if biased:
        raise ValueError(f"attention with biases is not covered; the model has {biased[0]}")
    inputs: list[Tensor] = []
    angles: list[tuple[Tensor, Tensor]] = []
    with (
        torch.no_grad(),
        observe_outputs(norms, lambda _, y: inputs.append(y)),
        observe_outputs(rotary, lambda _, y: angles.append(y)),
    ):
        model(tokens, use_cache=False)
    cos, sin = (turned[0].double() for turned in angles[-1])
    layers = []
    for x, module in zip(inputs, attentions.values(), strict=True):
        names = (f"{letter}_proj.weight" for letter in "qkvo")
        W_Q, W_K, W_V, W_O = (module.get_parameter(name).detach().double() for name in names)
        k = cos.shape[-1]
        heads, kv_heads = len(W_Q) // k, len(W_K) // k
        layers.append(RotaryAttention(x[0].double(), W_Q, W_K, W_V, W_O, cos, sin, heads, kv_heads, k**-0.5))
    return layers
