"""A transformer computed in rounded arithmetic: the model as it is, with every operation rounded by its role.

``model(tokens, arithmetic=Rounded("q=bf16 a=fp32 w=fp32 r=bf16"))`` gives the logits that hardware of these precisions
would give, to the last bit once the order of sums is said. ``Rounded("fp64")`` beside it is the reference: all in
float64, weights that the model holds in less converted a layer at a time. Weights are those of the model, in its dtype;
only what is computed from them is rounded, so that both start from the same numbers.

=================================================== ==============================================================
operation                                           rounding
=================================================== ==============================================================
linear layers, logits, ``q k^T``, ``p v``           factors to u_q, each addition to u_a; a bias is added in u_a
norms, softmax, rotary positions, SiLU and GELU,    inputs, parameters and each operation to u_w
the factor of the logits, the gate's product
stream: embedding, ``x + branch``                   the exact sum to u_r
=================================================== ==============================================================
"""

from __future__ import annotations

from functools import singledispatchmethod
from typing import Any

import torch
from torch import Tensor, nn

from residlab.errors import ResidlabError
from residlab.models.arithmetic import Arithmetic, of_all_heads, visible_keys
from residlab.models.norms import BHyT, BHyTStar, DyT, LayerNorm, RMSNorm
from residlab.precision import norms
from residlab.precision.formats import Mode
from residlab.precision.operations import Operations
from residlab.precision.roles import Roles, product
from residlab.precision.rounding import Backend, Seed
from residlab.precision.softmax import softmax


class Rounded(Arithmetic):
    """Arithmetic in four precisions. Activations are float64 tensors of the formats' numbers; there is no gradient.

    Parameters
    ----------
    roles : Roles or str
        The formats, or their name (`Roles.named`).
    mode : {"nearest", "stochastic"}
        How operations are rounded; operands of products always to nearest.
    seed
        Of stochastic rounding: each operation takes the next random numbers, so that an arithmetic used twice differs.
    backend
        As in `residlab.precision.rounding.rounded`.

    Raises
    ------
    ResidlabError
        If the roles' name is none, or an argument is not allowed.

    Examples
    --------
    >>> import torch
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.models.rounded import Rounded
    >>> from residlab.models.transformer import Transformer
    >>> model = Transformer(ModelConfig(depth=2, width=32, heads=2, vocabulary=50, context=16), seed=0)
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> exact = model(tokens, arithmetic=Rounded("fp64"))
    >>> [bool((model(tokens, arithmetic=Rounded(name)) - exact).abs().max() < 0.1) for name in ("fp32", "bf16")]
    [True, True]
    """

    def __init__(
        self, roles: Roles | str, *, mode: Mode = "nearest", seed: Seed = None, backend: Backend = "auto"
    ) -> None:
        roles = Roles.named(roles) if isinstance(roles, str) else roles
        if isinstance(seed, int) and mode == "stochastic":
            seed = torch.Generator().manual_seed(seed)
        self.roles, self.mode, self.seed, self.backend = roles, mode, seed, backend
        self._functions, self._stream, self._sums = (
            Operations(fmt, roles.order, mode, seed, backend=backend)
            for fmt in (roles.functions, roles.stream, roles.accumulator)
        )

    def stored(self, x: Tensor) -> Tensor:
        """Round to u_r."""
        return self._stream.store(x)

    def add(self, x: Tensor, branch: Tensor) -> Tensor:
        """Return the exact sum, rounded to u_r."""
        return self._stream.add(x, branch.detach().double())

    def scale(self, x: Tensor, factor: Tensor) -> Tensor:
        """Multiply in u_w, and round to u_r."""
        w = self._functions
        return self.stored(w.multiply(w.store(x), w.store(factor)))

    def norm(self, norm: nn.Module, x: Tensor, *args: Any, **options: Any) -> Any:
        """Compute a norm of ours in u_w, each operation rounded (`residlab.precision.norms`)."""
        return self._norm(norm, x, *args, **options)

    @singledispatchmethod
    def _norm(self, norm: nn.Module, x: Tensor, *args: Any, **options: Any) -> Any:
        raise ResidlabError(f"rounded arithmetic knows the norms of residlab.models; got {type(norm).__name__}")

    @_norm.register
    def _(self, norm: LayerNorm, x: Tensor) -> Tensor:
        return norms.layer_norm(self._functions, x, norm.gamma, norm.beta, norm.eps)

    @_norm.register
    def _(self, norm: RMSNorm, x: Tensor) -> Tensor:
        return norms.rms_norm(self._functions, x, norm.gamma, norm.eps, norm.scale)

    @_norm.register
    def _(self, norm: DyT, x: Tensor) -> Tensor:
        return norms.dyt(self._functions, x, norm.alpha, norm.gamma, norm.beta)

    @_norm.register
    def _(self, norm: BHyTStar, x: Tensor, return_statistic: bool = False) -> Any:
        w = self._functions
        y, statistic = norms.bhyt_exact(w, x, norm.gamma, norm.lam, norm.kappa, norm.eps, norm.centred)
        return (y, statistic) if return_statistic else y

    @_norm.register
    def _(self, norm: BHyT, x: Tensor, statistic: norms.Statistic, increment: Tensor) -> Tensor:
        w = self._functions
        return norms.bhyt_approximate(
            w, x, norm.gamma, norm.lam, statistic, increment, norm.kappa, norm.eps, norm.centred
        )

    def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """Multiply in (u_q, u_a); hooks of the layer are not called."""
        y = self.project(x, layer.weight)
        bias: Tensor | None = layer.bias
        return y if bias is None else self._sums.add(y, self._sums.store(bias))

    def project(self, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply in (u_q, u_a)."""
        return self._product(x, weight.T)

    def rotate(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate in u_w; cosines and sines are rounded to it too."""
        w = self._functions
        cos, sin = (w.store(part.unsqueeze(-3)) for part in table)
        first, second = w.store(x).chunk(2, dim=-1)
        return torch.cat(
            (
                w.subtract(w.multiply(first, cos), w.multiply(second, sin)),
                w.add(w.multiply(second, cos), w.multiply(first, sin)),
            ),
            dim=-1,
        )

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, return_rows: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Attend by the explicit path: products in (u_q, u_a), the logits' factor and softmax in u_w."""
        w, heads = self._functions, q.shape[1]
        k, v = of_all_heads(k, heads), of_all_heads(v, heads)
        logits = w.store(self._product(q, k.transpose(-1, -2)))
        logits = w.multiply(logits, w.constant(scale, logits))
        if not logits.numel():  # no tokens
            return self._product(logits, v), logits
        rows = softmax(
            logits,
            self.roles.functions,
            mask=visible_keys(mask, logits),
            order=self.roles.order,
            mode=self.mode,
            seed=self.seed,
            backend=self.backend,
        )
        return self._product(rows, v), rows

    def gelu(self, x: Tensor, approximate: str) -> Tensor:
        """Compute GELU in u_w as torch defines it, by erf or by tanh."""
        w = self._functions
        return (w.gelu_tanh if approximate == "tanh" else w.gelu)(w.store(x))

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        """Compute ``silu(gate) up`` in u_w."""
        w = self._functions
        return w.multiply(w.silu(w.store(gate)), w.store(up))

    def _product(self, x: Tensor, weight: Tensor) -> Tensor:
        return product(x, weight, self.roles, mode=self.mode, seed=self.seed, backend=self.backend)
