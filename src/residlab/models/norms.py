"""The norms as modules: each maps (..., width) to (..., width), statistics in float32 at least.

    LayerNorm  RMSNorm  DyT     tensor -> tensor
    BHyTStar                    tensor -> tensor, and on request the token statistic that it measured
    BHyT                        tensor, a block's first statistic and what the branch adds to it -> tensor

Layer-norm scaling is an `RMSNorm` whose ``scale`` is ``1/sqrt(layer)``, Peri-LN two RMSNorms around a sublayer. BHyT
keeps nothing between calls: who holds the block passes the statistic on. Scalars are parameters of shape (1,), as those
that shard parameters along their first axis ask for.
"""

from typing import Literal, overload

import torch
from torch import Tensor, nn

from residlab import kernels
from residlab.kernels import Backend, TokenStatistic
from residlab.kernels.reference import upcast
from residlab.models.config import (
    BHyTOptions,
    BHyTStarOptions,
    DyTOptions,
    LayerNormOptions,
    LNSOptions,
    ModelConfig,
    PeriLNOptions,
    RMSNormOptions,
)

Site = Literal["attention", "feedforward", "final"]


class LayerNorm(nn.Module):
    """``gamma (x - mean) / sqrt(var + eps) + beta`` (Ba et al. 2016), var the population variance of a token.

    Parameters
    ----------
    width
        Size of the last axis.
    eps
        Added to the variance.
    bias
        Whether there is a ``beta``.

    Examples
    --------
    >>> x = torch.tensor([1.0, 2, 3, 4])
    >>> LayerNorm(4)(x).detach()
    tensor([-1.3416, -0.4472,  0.4472,  1.3416])
    >>> torch.allclose(LayerNorm(4)(x), torch.nn.LayerNorm(4)(x))
    True
    """

    def __init__(self, width: int, *, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))
        self.beta = nn.Parameter(torch.zeros(width)) if bias else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each token."""
        upcast = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        beta = None if self.beta is None else self.beta.to(upcast.dtype)
        return nn.functional.layer_norm(upcast, self.gamma.shape, self.gamma.to(upcast.dtype), beta, self.eps).to(
            x.dtype
        )

    def extra_repr(self) -> str:
        """Name what the printed module shows."""
        return f"{len(self.gamma)}, eps={self.eps:g}, bias={self.beta is not None}"


class RMSNorm(nn.Module):
    """``scale gamma x / sqrt(mean(x**2) + eps)`` (Zhang & Sennrich 2019).

    Parameters
    ----------
    width
        Size of the last axis.
    eps
        Added to the mean square.
    scale
        A constant; ``1/sqrt(layer)`` makes it layer-norm scaling (Sun et al., arXiv 2502.05795).
    gain
        First value of ``gamma``.

    Examples
    --------
    >>> x = torch.tensor([3.0, 4, 0, 0])
    >>> RMSNorm(4, eps=0)(x).detach(), RMSNorm(4, eps=0, scale=0.5)(x).detach()  # the second in layer 4 of LNS
    (tensor([1.2000, 1.6000, 0.0000, 0.0000]), tensor([0.6000, 0.8000, 0.0000, 0.0000]))
    """

    def __init__(self, width: int, *, eps: float = 1e-5, scale: float = 1.0, gain: float = 1.0) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), float(gain)))
        self.eps, self.scale = eps, scale
        self.backend: Backend = "auto"

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each token."""
        gamma = self.gamma if self.scale == 1 else upcast(self.gamma) * self.scale  # rounded once, at the end
        return kernels.rms_norm(x, gamma, self.eps, backend=self.backend)

    def extra_repr(self) -> str:
        """Name what the printed module shows."""
        return f"{len(self.gamma)}, eps={self.eps:g}" + ("" if self.scale == 1 else f", scale={self.scale:.4g}")


class DyT(nn.Module):
    """``gamma tanh(alpha x) + beta``, ``alpha`` a learnt scalar (Zhu et al., arXiv 2503.10622). No statistic.

    Parameters
    ----------
    width
        Size of the last axis.
    alpha
        First value of the scalar.
    bias
        Whether there is a ``beta``.

    Examples
    --------
    >>> DyT(3, alpha=0.5)(torch.tensor([-100.0, 0, 1])).detach()
    tensor([-1.0000,  0.0000,  0.4621])
    """

    def __init__(self, width: int, *, alpha: float = 0.5, bias: bool = False) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor([float(alpha)]))
        self.gamma = nn.Parameter(torch.ones(width))
        self.beta = nn.Parameter(torch.zeros(width)) if bias else None
        self.backend: Backend = "auto"

    def forward(self, x: Tensor) -> Tensor:
        """Squash each entry."""
        return kernels.dyt(x, self.alpha.squeeze(), self.gamma, self.beta, backend=self.backend)

    def extra_repr(self) -> str:
        """Name what the printed module shows."""
        return f"{len(self.gamma)}, bias={self.beta is not None}"


class _Bounded(nn.Module):
    """What both BHyT have: ``gamma``, ``lam`` learnt or fixed, and constants."""

    lam: Tensor

    def __init__(
        self,
        width: int,
        *,
        lam: float = 2.0,
        kappa: float = 10.0,
        learn_lam: bool = True,
        centred: bool = False,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))
        first = torch.tensor([float(lam)])
        if learn_lam:
            self.lam = nn.Parameter(first)
        else:
            self.register_buffer("lam", first)
        self.kappa, self.centred, self.eps = kappa, centred, eps
        self.backend: Backend = "auto"

    def extra_repr(self) -> str:
        """Name what the printed module shows."""
        learnt = "learnt" if isinstance(self.lam, nn.Parameter) else "fixed"
        form = "centred" if self.centred else "mean-free"
        return f"{len(self.gamma)}, lam {learnt}, kappa={self.kappa:g}, {form}, eps={self.eps:g}"


class BHyTStar(_Bounded):
    """BHyT*: ``gamma tanh(lam x / (kappa s + |mu|))``, bounded by its own token (Byun et al., arXiv 2601.09719).

    A drop-in for RMSNorm. Mean-free: ``s**2 = mean(x**2) + eps``, ``mu = 0``; centred: ``s**2 = var(x) + eps``, ``mu``
    the mean. At most ``ceil(width/kappa**2) - 1`` entries of a token leave ``[-lam, lam]`` inside the tanh (chapter 2).

    Parameters
    ----------
    width
        Size of the last axis.
    lam, learn_lam
        The input bound: its first value if it is learnt, else its value for good.
    kappa
        Deviations that the bound allows for, > 0.
    centred
        Which of the two formulas.
    eps
        Added to ``s**2``.

    Examples
    --------
    >>> norm = BHyTStar(4, lam=2.0, kappa=10.0)
    >>> norm(torch.tensor([300.0, 400, 0, 0])).detach()  # tanh(0.2 * 1.2), tanh(0.2 * 1.6)
    tensor([0.2355, 0.3095, 0.0000, 0.0000])
    >>> norm(torch.tensor([3.0, 4, 0, 0]), return_statistic=True)[1].spread.detach()
    tensor([6.2500])
    """

    @overload
    def forward(self, x: Tensor, return_statistic: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, x: Tensor, return_statistic: Literal[True]) -> tuple[Tensor, TokenStatistic]: ...

    def forward(self, x: Tensor, return_statistic: bool = False) -> Tensor | tuple[Tensor, TokenStatistic]:
        """Bound each token; with ``return_statistic`` also return its spread and mean, (..., 1) each."""
        y, statistic = kernels.bhyt_exact(
            x,
            self.gamma,
            self.lam.squeeze(),
            kappa=self.kappa,
            eps=self.eps,
            centred=self.centred,
            backend=self.backend,
        )
        return (y, statistic) if return_statistic else y


class BHyT(_Bounded):
    """The second site of BHyT: bounded by the first site's statistic and an increment, without measuring.

    ``gamma tanh(lam z / (kappa sqrt(spread + increment + eps) + |mu|))`` (Byun et al., arXiv 2601.09719, block-level
    variance approximation; chapter 3). Parameters as in `BHyTStar`.

    Examples
    --------
    >>> first, second = BHyTStar(4, lam=2.0), BHyT(4, lam=1.0)
    >>> x, branch = torch.tensor([[3.0, 4, 0, 0]]), torch.tensor([[0.0, 0, 1, -1]])
    >>> y, statistic = first(x, return_statistic=True)
    >>> second(x + branch, statistic, increment=torch.tensor(0.5)).detach()  # 0.5 is the mean square of the branch
    tensor([[ 0.1150,  0.1528,  0.0385, -0.0385]])
    """

    def forward(self, z: Tensor, statistic: TokenStatistic, increment: Tensor) -> Tensor:
        """Bound each token.

        Parameters
        ----------
        z : (..., width)
            The stream after attention.
        statistic
            What `BHyTStar` returned in front of attention, (..., 1).
        increment
            The variance that attention is taken to have added; broadcasts with (..., 1).
        """
        y, _ = kernels.bhyt_approximate(
            z,
            self.gamma,
            self.lam.squeeze(),
            statistic,
            increment,
            kappa=self.kappa,
            eps=self.eps,
            centred=self.centred,
            backend=self.backend,
        )
        return y


def make_norm(config: ModelConfig, site: Site, layer: int = 1) -> nn.Module:
    """Return a model's norm at a site; ``layer`` counts from 1.

    The final norm of LNS, Peri-LN and both BHyT is a plain RMSNorm, that of DyT a DyT, as in their papers.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig, norm_options
    >>> config = ModelConfig(depth=2, width=64, heads=4, vocabulary=256, norm=norm_options("bhyt"))
    >>> [type(make_norm(config, site)).__name__ for site in ("attention", "feedforward", "final")]
    ['BHyTStar', 'BHyT', 'RMSNorm']
    """
    norm, width = config.norm, config.width
    match norm:
        case LayerNormOptions():
            return LayerNorm(width, eps=norm.eps, bias=norm.bias)
        case DyTOptions():
            return DyT(width, alpha=getattr(norm, f"alpha_{site}"), bias=norm.bias)
        case LNSOptions() if site != "final":
            return RMSNorm(width, eps=norm.eps, scale=layer**-0.5)
        case BHyTStarOptions() if site != "final":
            measured = site == "attention" or not isinstance(norm, BHyTOptions)
            return (BHyTStar if measured else BHyT)(
                width,
                lam=getattr(norm, f"lam_{site}"),
                kappa=norm.kappa,
                learn_lam=norm.learn_lam,
                centred=norm.centred,
                eps=norm.eps,
            )
        case RMSNormOptions() if site != "final":
            return RMSNorm(width, eps=norm.eps, gain=getattr(norm, f"gain_{site}"))
        case _:
            return RMSNorm(width, eps=norm.eps)


def make_output_norm(config: ModelConfig) -> nn.Module | None:
    """Return the norm behind a sublayer, which only Peri-LN has.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig, norm_options
    >>> sizes = {"depth": 2, "width": 64, "heads": 4, "vocabulary": 256}
    >>> make_output_norm(ModelConfig(**sizes)) is None
    True
    >>> make_output_norm(ModelConfig(**sizes, norm=norm_options("peri-ln"))).gamma.shape
    torch.Size([64])
    """
    return RMSNorm(config.width, eps=config.norm.eps) if isinstance(config.norm, PeriLNOptions) else None


def variance_increment(
    options: BHyTOptions,
    lam: Tensor,
    width: int,
    constant: Tensor,
    *,
    tokens: int,
    visible: Tensor | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    """Return the variance that attention is taken to add to a token, () or (B or 1, T, 1), without a gradient.

    ``constant lam**2 / (kappa**2 width N)``, N as ``options.averaged`` says (Byun et al., arXiv 2601.09719; chapter 3).

    Parameters
    ----------
    options, lam, width
        Of the norm in front of attention.
    constant
        `residlab.models.attention.value_output_energy`, for ``averaged = "rows"`` its Gram matrix.
    tokens
        N of ``averaged = "context"``.
    visible : (B or 1, T, 1)
        How many tokens each query sees, N of ``averaged = "position"``.
    rows : (B, heads, T, keys)
        Attention weights, for ``averaged = "rows"``.

    Examples
    --------
    >>> from residlab.models.config import norm_options
    >>> options = norm_options("bhyt", kappa=10.0)
    >>> energy, lam = torch.tensor(64.0), torch.tensor([2.0])
    >>> round(variance_increment(options, lam, 64, energy, tokens=10).item(), 6)  # 64 * 2**2 / (10**2 * 64 * 10)
    0.004
    """
    second_moment = (lam.detach().to(constant.dtype) / options.kappa) ** 2
    if options.averaged == "rows":
        assert rows is not None
        p = rows.detach().transpose(1, 2).to(constant.dtype)  # (B, T, heads, keys)
        with torch.autocast(p.device.type, enabled=False):  # it would make a product of float32 one of bfloat16
            share = ((p @ p.transpose(-1, -2)) * constant).sum(dim=(-1, -2))[..., None].clamp_min(0)
    elif options.averaged == "position":
        assert visible is not None
        share = constant / visible
    else:
        share = constant / tokens
    return share * second_moment / width
