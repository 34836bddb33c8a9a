"""Attention branches of a real model, and what its block-level approximations say of them, token by token.

A branch is what attention adds to the stream at its queries: linear in the normalised tokens once the rows of attention
are given. So it can be computed again with other tokens in, those of BHyT for instance, weights and rows as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from residlab.probes.activations import modules_matching, observe_inputs, observe_outputs
from residlab.theory import block_variance as theory
from residlab.theory.branch_moments import attention_variance_from_moments, expected_branch

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AttentionBranch:
    """One attention branch as a model ran it.

    Parameters
    ----------
    x : Tensor, shape (texts, tokens, d)
        The stream before the branch.
    attention : Tensor, shape (texts, heads, queries, keys)
        Its rows of attention.
    W_V : Tensor, shape (d, kv_heads * head_dim)
    W_O : Tensor, shape (heads * head_dim, d)
        Weights that act on rows, the transposes of torch's.
    gamma : Tensor, shape (d,)
        The gain of the norm in front.
    kv_heads : int

    Examples
    --------
    >>> x = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0)).double()
    >>> first = torch.tensor([1.0, 0, 0]).expand(1, 2, 3, 3).double()  # two heads, all queries read token 0
    >>> eye, gamma = torch.eye(4).double(), torch.ones(4).double()
    >>> branch = AttentionBranch(x, first, eye, eye, gamma, kv_heads=2)
    >>> torch.allclose(branch.output(x), x[:, :1].expand(1, 3, 4))
    True
    """

    x: Tensor
    attention: Tensor
    W_V: Tensor
    W_O: Tensor
    gamma: Tensor
    kv_heads: int

    def output(self, y: Tensor) -> Tensor:
        """Return the branch, float64, for normalised tokens ``y`` (before the gain) of the shape of ``x``."""
        heads = self.attention.shape[1]
        values = (y.double() * self.gamma.double()) @ self.W_V.double()
        values = values.reshape(*values.shape[:-1], self.kv_heads, -1).transpose(1, 2)
        values = values.repeat_interleave(heads // self.kv_heads, dim=1)
        attended = (self.attention.double() @ values).transpose(1, 2).flatten(-2)
        added: Tensor = attended @ self.W_O.double()
        return added

    def texts(self, part: slice) -> AttentionBranch:
        """Return the same branch on some of the texts."""
        return replace(self, x=self.x[part], attention=self.attention[part])

    @property
    def weights(self) -> dict[str, object]:
        """The weights as `residlab.theory.block_variance` takes them."""
        matrices = {"W_V": self.W_V, "W_O": self.W_O, "gamma": self.gamma}
        arrays = {name: w.detach().double().numpy(force=True) for name, w in matrices.items()}
        return {**arrays, "heads": self.attention.shape[1], "kv_heads": self.kv_heads}


def attention_branches(model: nn.Module, tokens: Tensor) -> list[AttentionBranch]:
    """Run a model on token ids and return its attention branches, first layer first.

    Parameters
    ----------
    model : nn.Module
        A Llama of transformers, or one whose decoder layers have the same names (``input_layernorm``,
        ``self_attn.v_proj``, ``self_attn.o_proj``, no biases), with an attention that returns its weights (*eager*).
    tokens : Tensor of int, shape (texts, tokens)

    Raises
    ------
    ValueError
        If there are no such layers, or their attention returns no weights.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaModel
    >>> sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    >>> model = LlamaModel(LlamaConfig(**sizes, vocab_size=32, attn_implementation="eager")).eval()
    >>> branches = attention_branches(model, torch.arange(8)[None])
    >>> len(branches), tuple(branches[0].attention.shape)
    (2, (1, 2, 8, 8))
    """
    norms = modules_matching(model, r"(.*\.)?layers\.\d+\.input_layernorm")
    attentions = modules_matching(model, r"(.*\.)?layers\.\d+\.self_attn")
    streams: list[Tensor] = []
    outputs: list[Tensor | None] = []
    with (
        torch.no_grad(),
        observe_inputs(norms, lambda _, x: streams.append(x)),
        observe_outputs(attentions, lambda _, output: outputs.append(output[1])),
    ):
        model(tokens, use_cache=False)
    branches = []
    for norm, module, x, rows in zip(norms.values(), attentions.values(), streams, outputs, strict=True):
        if rows is None:
            raise ValueError('the attention returns no weights: call model.set_attn_implementation("eager") first')
        names = ("v_proj.weight", "o_proj.weight")
        W_V, W_O = (module.get_parameter(name).detach() for name in names)
        gamma = norm.get_parameter("weight").detach()
        kv_heads = rows.shape[1] * W_V.shape[0] // W_O.shape[1]
        branches.append(AttentionBranch(x, rows.detach(), W_V.T, W_O.T, gamma, kv_heads))
    return branches


def rms_normalised(x: Tensor) -> Tensor:
    """Return ``x / r`` in float64, ``r`` each token's root mean square: second moment 1.

    Examples
    --------
    >>> rms_normalised(torch.tensor([3.0, 4, 0, 0]))
    tensor([1.2000, 1.6000, 0.0000, 0.0000], dtype=torch.float64)
    """
    x = x.double()
    return x / x.square().mean(-1, keepdim=True).sqrt()


def bhyt_normalised(x: Tensor, lam: float, kappa: float) -> Tensor:
    """Return mean-free BHyT without gain, ``tanh(lam x / (kappa r))``, in float64: second moment up to (lam/kappa)².

    Examples
    --------
    >>> bhyt_normalised(torch.tensor([3.0, 4, 0, 0]), lam=2, kappa=10)
    tensor([0.2355, 0.3095, 0.0000, 0.0000], dtype=torch.float64)
    """
    return torch.tanh(lam / kappa * rms_normalised(x))


@dataclass(frozen=True, eq=False)
class TokenMoments:
    """First and second moments of the normalised tokens of a site: token 0 by itself, the others pooled.

    Parameters
    ----------
    means : ndarray, shape (2, d)
        Of token 0, and of all others.
    covariances : ndarray, shape (2, d, d)
        Around those means.
    stream_mean : ndarray, shape (d,)
        Of the tokens ``x / r`` that are not token 0.
    cross : ndarray, shape (d, d)
        Covariance of entry ``f`` of ``x / r`` with entry ``g`` of ``y``, without token 0.
    shared : float
        Mean correlation of two different tokens of a text, token 0 left out: inner product over second moment.

    Examples
    --------
    >>> x = torch.randn(50, 8, 4, generator=torch.Generator().manual_seed(0)).double()
    >>> moments = TokenMoments.of(x, rms_normalised(x))
    >>> moments.covariances.shape, round(float(np.trace(moments.covariances[1])), 1)
    ((2, 4, 4), 4.0)
    """

    means: FloatArray
    covariances: FloatArray
    stream_mean: FloatArray
    cross: FloatArray
    shared: float

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> TokenMoments:
        """Measure them on streams ``x`` and normalised tokens ``y``, both of shape (texts, tokens >= 3, d)."""
        if x.shape != y.shape or x.ndim != 3 or x.shape[1] < 3:
            raise ValueError(f"x and y must have shape (texts, tokens >= 3, d), got {tuple(x.shape)}, {tuple(y.shape)}")
        groups = [y[:, :1].double().flatten(0, 1), y[:, 1:].double().flatten(0, 1)]
        means = torch.stack([group.mean(0) for group in groups])
        centred = [group - mean for group, mean in zip(groups, means, strict=True)]
        covariances = torch.stack([one.T @ one / len(one) for one in centred])
        stream = rms_normalised(x[:, 1:]).flatten(0, 1)
        cross = (stream - stream.mean(0)).T @ centred[1] / len(stream)
        others = y[:, 1:].double()
        own = others.square().sum()
        shared = (others.sum(1).square().sum() - own) / ((others.shape[1] - 1) * own)
        return cls(
            means=means.numpy(force=True),
            covariances=covariances.numpy(force=True),
            stream_mean=stream.mean(0).numpy(force=True),
            cross=cross.numpy(force=True),
            shared=float(shared),
        )


@dataclass(frozen=True, eq=False)
class BranchEstimates:
    """What each approximation says of a branch, at each token: arrays of shape (texts, tokens), all mean-free.

    Parameters
    ----------
    paper, causal : ndarray
        The paper's constant, with all T tokens, and with the t that a causal mask shows.
    rows : ndarray
        ``1/t`` replaced by the mean over heads of ``sum p**2``: the effective number of tokens.
    gram : ndarray
        Each head with its own row, `attention_variance_from_rows`.
    shared : ndarray
        The same with the tokens' measured mean correlation.
    moments : ndarray
        Measured means and covariances of channels, token 0 apart.
    trace, covariance : ndarray
        Twice the covariance of branch and stream: `stream_covariance`, and with measured moments.

    Examples
    --------
    >>> list(BranchEstimates.__dataclass_fields__)
    ['paper', 'causal', 'rows', 'gram', 'shared', 'moments', 'trace', 'covariance']
    """

    paper: FloatArray
    causal: FloatArray
    rows: FloatArray
    gram: FloatArray
    shared: FloatArray
    moments: FloatArray
    trace: FloatArray
    covariance: FloatArray


def branch_estimates(branch: AttentionBranch, second_moment: float, moments: TokenMoments) -> BranchEstimates:
    """Return the approximations of one branch.

    Parameters
    ----------
    branch : AttentionBranch
        Its weights, rows and streams; attention must be causal, a query for each key.
    second_moment : float
        Of the entries of a normalised token, before the gain: 1 for RMSNorm, (lam/kappa)² for BHyT.
    moments : TokenMoments
        Of the normalised tokens, best measured on other texts.

    Examples
    --------
    >>> x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).double()
    >>> rows = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]]).expand(2, 1, 3, 3).double()
    >>> eye = torch.eye(4).double()
    >>> branch = AttentionBranch(x, rows, eye, eye, torch.ones(4).double(), kv_heads=1)
    >>> estimates = branch_estimates(branch, 1.0, TokenMoments.of(x, rms_normalised(x)))
    >>> estimates.causal[0].round(4)  # what t uniform weights leave of a variance of 1
    array([1.    , 0.5   , 0.3333])
    """
    weights, d = branch.weights, branch.x.shape[-1]
    gram = theory.head_gram(**weights)  # type: ignore[arg-type]
    rows = branch.attention.double().transpose(1, 2).numpy(force=True)  # texts, queries, heads, keys
    tokens = rows.shape[-1]
    if rows.shape[1] != tokens:
        raise ValueError(f"attention must have a query for each key, got shape {tuple(branch.attention.shape)}")
    shape = rows.shape[:2]
    visible = np.broadcast_to(np.arange(1, tokens + 1), shape)
    energy = gram.sum()
    causal = theory.attention_variance(energy, second_moment, visible, d)

    classes = np.minimum(np.arange(tokens), 1)
    means = theory.head_means(moments.means, **weights)  # type: ignore[arg-type]
    grams = np.stack([theory.head_gram(**weights, covariance=c) for c in moments.covariances])  # type: ignore[arg-type]
    own = np.diagonal(rows, axis1=1, axis2=3).transpose(0, 2, 1)  # texts, queries, heads
    r = branch.x.double().square().mean(-1).sqrt().numpy(force=True)
    cross = theory.head_traces(**weights, covariance=moments.cross)  # type: ignore[arg-type]
    carried = expected_branch(means, rows, classes) @ moments.stream_mean
    traces = theory.head_traces(**weights)  # type: ignore[arg-type]
    scale = np.sqrt(second_moment) / r
    return BranchEstimates(
        paper=np.full(shape, theory.attention_variance(energy, second_moment, tokens, d)),
        causal=causal,
        rows=causal * visible * np.mean(np.sum(rows**2, axis=-1), axis=-1),
        gram=theory.attention_variance_from_rows(gram, rows, second_moment, d),
        shared=theory.attention_variance_from_rows(gram, rows, second_moment, d, shared=np.clip(moments.shared, 0, 1)),
        moments=attention_variance_from_moments(grams, means, rows, classes, d),
        trace=theory.stream_covariance(traces, own, scale[..., None], r[..., None], d).sum(-1),
        covariance=2 * r / d * (own @ cross + carried),
    )
