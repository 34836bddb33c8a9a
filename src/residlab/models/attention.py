"""Causal self-attention with grouped key-value heads, rotary positions and a cache."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from residlab.models.arithmetic import TORCH, Arithmetic
from residlab.models.config import ModelConfig


class KVCache:
    """Keys and values of the tokens that a model has seen, for each layer; filled by `Transformer.forward`.

    Parameters
    ----------
    config
        The model's.
    batch, capacity
        Sequences, and the most tokens of each: memory is taken at once,
        ``2 depth batch kv_heads capacity head_dim`` numbers.
    dtype, device
        Those of the model's activations.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.models.transformer import Transformer
    >>> config = ModelConfig(depth=2, width=32, heads=2, vocabulary=50, context=16)
    >>> model, tokens = Transformer(config, seed=0), torch.arange(6)[None]
    >>> cache = KVCache(config, batch=1, capacity=6)
    >>> steps = [model(tokens[:, t : t + 1], cache=cache) for t in range(6)]
    >>> torch.allclose(torch.cat(steps, 1), model(tokens), atol=1e-6)
    True
    """

    def __init__(
        self,
        config: ModelConfig,
        batch: int,
        capacity: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (config.depth, 2, batch, config.kv_heads, capacity, config.head_dim)
        self.store = torch.zeros(shape, dtype=dtype, device=device)
        self.length = 0

    @property
    def capacity(self) -> int:
        """The most tokens that fit."""
        return self.store.shape[4]

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append a layer's new keys and values, (B, kv_heads, T, head_dim), and return all of them."""
        end = self.length + keys.shape[2]
        stored = self.store[layer]
        stored[0, :, :, self.length : end] = keys
        stored[1, :, :, self.length : end] = values
        return stored[0, :, :, :end], stored[1, :, :, :end]


def rotary_table(positions: Tensor, head_dim: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the rotary angles ``position base**(-2i/head_dim)``, (..., T, head_dim/2) each.

    In float64 for a float64 model, otherwise in float32, whatever ``dtype``. Source: Su et al., arXiv 2104.09864.

    Examples
    --------
    >>> cos, sin = rotary_table(torch.arange(2), head_dim=4, base=100.0, dtype=torch.float32)
    >>> torch.atan2(sin, cos)  # position / 100**(2i/4)
    tensor([[0.0000, 0.0000],
            [1.0000, 0.1000]])
    """
    precise = torch.float64 if dtype == torch.float64 else torch.float32
    exponents = torch.arange(0, head_dim, 2, dtype=precise, device=positions.device) / head_dim
    angles = positions[..., None].to(precise) * (1.0 / base**exponents)
    return angles.cos(), angles.sin()


class Attention(nn.Module):
    """Multi-head causal attention: ``softmax(s Q K^T) V W_O``, ``s = logit_scale beta**layer / sqrt(head_dim)``.

    Query head a reads key-value head ``a // (heads / kv_heads)``.

    Parameters
    ----------
    config
        The model's.
    layer
        From 1.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> attention = Attention(ModelConfig(depth=2, width=32, heads=2, vocabulary=50), layer=1)
    >>> x = torch.randn(1, 5, 32)
    >>> y, rows = attention(x, return_rows=True)
    >>> y.shape, rows.sum(-1).allclose(torch.ones(1, 2, 5)), rows[0, 0, 0, 1:].abs().max().item()  # causal
    (torch.Size([1, 5, 32]), True, 0.0)
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.layer, self.scale = layer, config.attention_scale(layer)
        query, key_value = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.W_Q = nn.Linear(config.width, query, bias=config.bias)
        self.W_K = nn.Linear(config.width, key_value, bias=config.bias)
        self.W_V = nn.Linear(config.width, key_value, bias=config.bias)
        self.W_O = nn.Linear(query, config.width, bias=config.bias)

    def forward(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor] | None = None,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        return_rows: bool = False,
        arithmetic: Arithmetic = TORCH,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend.

        Parameters
        ----------
        x : (B, T, width)
        rotary
            `rotary_table` of the tokens' positions.
        mask : (B or 1, 1, T, keys), bool
            True where a query may look; by default causal over the T tokens.
        cache
            Holds earlier tokens; the new ones are added.
        return_rows
            Whether to take the explicit path, which makes the attention weights.
        arithmetic
            What computes.

        Returns
        -------
        output, (B, T, width), and the attention weights, (B, heads, T, keys), or None
        """
        B, T, _ = x.shape
        q = arithmetic.linear(self.W_Q, x).view(B, T, self.heads, self.head_dim).transpose(1, 2)
        k = arithmetic.linear(self.W_K, x).view(B, T, self.kv_heads, self.head_dim).transpose(1, 2)
        v = arithmetic.linear(self.W_V, x).view(B, T, self.kv_heads, self.head_dim).transpose(1, 2)
        if rotary is not None:
            q, k = arithmetic.rotate(q, rotary), arithmetic.rotate(k, rotary)
        if cache is not None:
            k, v = cache.extend(self.layer - 1, k, v)
        y, rows = arithmetic.attend(q, k, v, mask, self.scale, return_rows)
        return arithmetic.linear(self.W_O, y.transpose(1, 2).flatten(2)), rows

    def value_output_gram(self, gamma: Tensor) -> Tensor:
        """Return `value_output_gram` of this module's weights."""
        return value_output_gram(self.W_V.weight, self.W_O.weight, gamma, self.head_dim)

    def value_output_energy(self, gamma: Tensor) -> Tensor:
        """Return `value_output_energy` of this module's weights."""
        return value_output_energy(self.W_V.weight, self.W_O.weight, gamma, self.head_dim)


@torch.no_grad()
def value_output_gram(W_V: Tensor, W_O: Tensor, gamma: Tensor, head_dim: int) -> Tensor:
    """Return ``<W_a, W_b>_F`` of the heads' maps ``W_a = diag(gamma) W_V^a W_O^a``, (heads, heads), float32 or 64.

    The twin of `residlab.theory.block_variance.head_gram`, on the weights of a torch model.

    Parameters
    ----------
    W_V : (kv_heads head_dim, width)
    W_O : (width, heads head_dim)
        As `torch.nn.Linear` holds them.
    gamma : (width,)
        The gain in front of them.
    head_dim
        Size of a head.

    Examples
    --------
    >>> gram = value_output_gram(torch.eye(4), torch.eye(4), torch.ones(4), head_dim=2)
    >>> gram  # the maps of two heads are orthogonal
    tensor([[2., 0.],
            [0., 2.]])
    """
    precise = torch.promote_types(W_V.dtype, torch.float32)
    with _full_precision(W_V):
        V = (W_V.to(precise) * gamma.to(precise)).view(-1, head_dim, len(gamma))
        O = W_O.to(precise)  # noqa: E741
        heads = O.shape[1] // head_dim
        V = V.repeat_interleave(heads // len(V), dim=0).flatten(0, 1)
        product = (V @ V.T) * (O.T @ O)
        return product.view(heads, head_dim, heads, head_dim).sum(dim=(1, 3))


@torch.no_grad()
def value_output_energy(W_V: Tensor, W_O: Tensor, gamma: Tensor, head_dim: int) -> Tensor:
    """Return ``||diag(gamma) W_V W_O||_F**2``, the sum of `value_output_gram` at a fraction of its cost.

    Examples
    --------
    >>> value_output_energy(2 * torch.eye(4), torch.eye(4), torch.ones(4), head_dim=2).item()
    16.0
    """
    precise = torch.promote_types(W_V.dtype, torch.float32)
    with _full_precision(W_V):
        V = W_V.to(precise) * gamma.to(precise)  # (kv_heads head_dim, width)
        # Heads that share values add up: only the sum of their columns of W_O matters.
        O = W_O.to(precise)  # noqa: E741
        kv_heads, heads = len(V) // head_dim, O.shape[1] // head_dim
        O = O.view(-1, kv_heads, heads // kv_heads, head_dim).sum(dim=2).flatten(1)  # noqa: E741
        return ((V @ V.T) * (O.T @ O)).sum()


def _full_precision(tensor: Tensor) -> AbstractContextManager[object]:
    # Inside autocast a product of float32 matrices would be one of bfloat16.
    kind = tensor.device.type
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)
