"""Kurtosis by depth in stacks of layers at initialization: linear, GELU, SwiGLU, with and without a residual.

``x <- a x + b f(x)``. A linear branch is ``f(x) = x W.T``, W Haar-distributed, without any norm, as the theorem has it.
The others are our feedforward sublayer behind RMSNorm, its matrices scaled semi-orthogonal (`residlab.models.init`),
its output divided by its root mean square over the batch, so that a and b mean what they say. Inputs have independent
Laplace entries of variance 1, excess kurtosis 3.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from residlab.checks import check_counts, check_non_negative, check_one_of
from residlab.models.config import Feedforward as FeedforwardKind
from residlab.models.config import ModelConfig
from residlab.models.feedforward import Feedforward
from residlab.models.init import scaled_orthogonal_
from residlab.probes.kurtosis import excess_kurtosis
from residlab.theory.kurtosis import activation_excess_kurtosis, participation_mean
from residlab.theory.kurtosis_depth import accumulated_excess_kurtosis, chain_participation

FloatArray = NDArray[np.float64]
Branch = Literal["linear", "gelu", "swiglu"]
INPUT_KURTOSIS = 3.0


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A stack: ``depth`` layers ``x <- a x + b f(x)`` of a width.

    Attributes
    ----------
    branch
        ``linear``, ``gelu``, ``swiglu``.
    depth, width
        Layers, entries of x. The hidden layer is four times as wide, for swiglu 8/3.
    a, b
        Weights of stream and branch; a = 0 has no residual, a = b = 1 is the usual one.
    """

    branch: Branch
    depth: int
    width: int
    a: float
    b: float

    def __post_init__(self) -> None:
        check_one_of(self, "branch", get_args(Branch))
        check_counts(self, "depth", "width")
        check_non_negative(self, "a", "b")

    @property
    def hidden(self) -> int:
        """Width of the hidden layer."""
        return _feedforward_config(self).feedforward_width if self.branch != "linear" else self.width


@dataclass(frozen=True, eq=False)
class KurtosisByDepth:
    """Excess kurtosis after 0, 1, ..., depth layers: pooled, and the means of each channel's and each token's."""

    channel: FloatArray
    pooled: FloatArray
    token: FloatArray


@torch.no_grad()
def run_stack(stack: Stack, *, tokens: int, seed: int) -> KurtosisByDepth:
    """Draw weights and inputs, and return the kurtosis at every depth, in float64."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(tokens, stack.width, generator=generator, dtype=torch.float64) - 0.5
    x = -uniform.sign() * torch.log1p(-2 * uniform.abs()) / 2**0.5
    seen = [_looked_at(x)]
    for _ in range(stack.depth):
        x = stack.a * x + stack.b * _branch(stack, x, generator)
        seen.append(_looked_at(x))
    channel, pooled, token = np.array(seen).T
    return KurtosisByDepth(channel, pooled, token)


def expected_kurtosis(stack: Stack) -> FloatArray:
    """Return what theory expects of a channel's kurtosis at every depth, (depth + 1,).

    Linear: exact for the mean over weights, `chain_participation`. The others: the closure that takes branches to be
    independent of the stream and hidden entries of each other, `accumulated_excess_kurtosis` with a branch of kurtosis
    ``k_phi 3 / (hidden + 2)``, ``k_phi`` that of the activation of a Gaussian.
    """
    if stack.branch == "linear":
        return INPUT_KURTOSIS * chain_participation(stack.width, stack.a, stack.b, stack.depth)
    branch = activation_excess_kurtosis(stack.branch) * participation_mean(stack.hidden)
    return accumulated_excess_kurtosis(INPUT_KURTOSIS, branch, stack.depth, a=stack.a, b=stack.b)


def _looked_at(x: Tensor) -> tuple[float, float, float]:
    over = [float(excess_kurtosis(x, how).mean()) for how in ("channel", "pooled", "token")]
    return over[0], over[1], over[2]


def _branch(stack: Stack, x: Tensor, generator: torch.Generator) -> Tensor:
    if stack.branch == "linear":
        return x @ scaled_orthogonal_(torch.empty(stack.width, stack.width, dtype=x.dtype), generator).T
    layer = Feedforward(_feedforward_config(stack)).double()
    for weight in layer.parameters():
        scaled_orthogonal_(weight, generator)
    out: Tensor = layer(x / x.square().mean(dim=-1, keepdim=True).sqrt())
    return out / out.square().mean().sqrt()


def _feedforward_config(stack: Stack) -> ModelConfig:
    kind: FeedforwardKind = "gelu" if stack.branch == "gelu" else "swiglu"
    return ModelConfig(depth=1, width=stack.width, heads=1, vocabulary=2, feedforward=kind, position="learned")
