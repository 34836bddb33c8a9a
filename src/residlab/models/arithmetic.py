"""What a transformer computes with: torch's operations here, rounded ones in `residlab.models.rounded`.

A model says what is computed and in which order; an `Arithmetic` says how. There is one model, and an emulation of
other hardware is another arithmetic, handed to its forward.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


class Arithmetic:
    """Torch's own operations, in the dtypes of weights and activations. Shapes: batch B, tokens T.

    Examples
    --------
    >>> class Doubled(Arithmetic):
    ...     def add(self, x, branch):  # whatever a branch adds is added twice
    ...         return x + 2 * branch
    ...
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.models.transformer import Transformer
    >>> model, ids = Transformer(ModelConfig(depth=1, width=32, heads=2, vocabulary=50), seed=0), torch.arange(8)[None]
    >>> torch.equal(model(ids, arithmetic=Doubled()), model(ids))
    False
    """

    def stored(self, x: Tensor) -> Tensor:
        """Return the stream as it is kept: an embedding, or a branch where there is no residual connection."""
        return x

    def add(self, x: Tensor, branch: Tensor) -> Tensor:
        """Return the stream with a branch, or with the embeddings of positions, added."""
        return x + branch

    def scale(self, x: Tensor, factor: Tensor) -> Tensor:
        """Return the stream times a learnt scalar, (1,)."""
        return x * factor

    def norm(self, norm: nn.Module, x: Tensor, *args: Any, **options: Any) -> Any:
        """Return what a norm of `residlab.models.norms` makes of tokens; arguments and results are the module's."""
        return norm(x, *args, **options)

    def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """Return ``x W^T + b``."""
        return layer(x)  # type: ignore[no-any-return]

    def project(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return ``x W^T`` with a weight (out, in) that is no layer's: the embedding that is also the output."""
        return nn.functional.linear(x, weight)

    def rotate(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate entries i and i + head_dim/2 of each head together, x of shape (B, heads, T, head_dim)."""
        cos, sin = (part.unsqueeze(-3) for part in table)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, return_rows: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return ``softmax(scale q k^T) v``, and the weights if asked.

        Parameters
        ----------
        q : (B, heads, T, head_dim)
        k, v : (B, kv_heads, keys, head_dim)
            Query head a reads key-value head ``a // (heads / kv_heads)``.
        mask : (B or 1, 1, T, keys), bool, or None
            True where a query may look; None: it sees the keys up to its own, the last T being the queries'.
        scale
            Factor of the logits.
        return_rows
            Whether to take the explicit path, which makes the weights, (B, heads, T, keys).
        """
        heads, kv_heads = q.shape[1], k.shape[1]
        if not return_rows:
            y = nn.functional.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                is_causal=mask is None and q.shape[2] > 1,
                scale=scale,
                enable_gqa=heads != kv_heads,
            )
            return y, None
        k, v = of_all_heads(k, heads), of_all_heads(v, heads)
        logits = (q @ k.transpose(-1, -2)) * scale
        # Softmax in float32 at least: its sum has as many terms as there are keys.
        precise = logits if logits.dtype == torch.float64 else logits.float()
        rows = precise.masked_fill(~visible_keys(mask, logits), -math.inf).softmax(dim=-1)
        return rows.to(v.dtype) @ v, rows

    def gelu(self, x: Tensor, approximate: str) -> Tensor:
        """Return ``x Phi(x)``, with "tanh" GPT-2's approximation of it."""
        return nn.functional.gelu(x, approximate=approximate)

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return ``silu(gate) up``."""
        return nn.functional.silu(gate) * up


TORCH = Arithmetic()


def of_all_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat the heads of keys or values, (B, kv_heads, keys, head_dim), for the query heads that share them.

    Examples
    --------
    >>> keys = torch.tensor([1.0, 2.0]).view(1, 2, 1, 1)
    >>> of_all_heads(keys, heads=4).flatten()
    tensor([1., 1., 2., 2.])
    """
    group = heads // x.shape[1]
    return x.repeat_interleave(group, dim=1) if group > 1 else x


def visible_keys(mask: Tensor | None, logits: Tensor) -> Tensor:
    """Return a mask that is there: the one given, or who sees whom without one, (T, keys).

    Examples
    --------
    >>> visible_keys(None, torch.zeros(1, 1, 2, 2))
    tensor([[ True, False],
            [ True,  True]])
    """
    if mask is not None:
        return mask
    queries, keys = logits.shape[-2:]
    return torch.ones(queries, keys, dtype=torch.bool, device=logits.device).tril(keys - queries)
