"""What a linear layer does to kurtosis: as its weights and independent inputs would have it, and as it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from residlab.probes.kurtosis import excess_kurtosis
from residlab.theory.kurtosis import effective_channels, sum_excess_kurtosis


@dataclass(frozen=True, eq=False)
class MixingKurtosis:
    """Excess kurtosis of a linear layer's outputs over tokens, a value for each output channel, (m,), float64.

    Attributes
    ----------
    inputs
        Of each input channel, (d,); NaN where one does not vary.
    predicted
        ``sum_j W_ij**4 s_j**4 k_j / (sum_j W_ij**2 s_j**2)**2`` with the inputs' own variances and kurtoses: what
        independent inputs would give.
    measured
        As it is.
    shuffled
        Measured on inputs whose tokens were permuted, each channel by itself: the same laws, made independent. It
        tells what a finite sample does to the prediction from what dependence does.
    channels
        Over how many independent inputs each output would average, `residlab.theory.kurtosis.effective_channels`.
    variance_ratio
        Output variance over that of independent inputs: 1 without correlations.

    Source: chapter 8 (ours).

    Examples
    --------
    >>> list(MixingKurtosis.__dataclass_fields__)
    ['inputs', 'predicted', 'measured', 'shuffled', 'channels', 'variance_ratio']
    """

    inputs: Tensor
    predicted: Tensor
    measured: Tensor
    shuffled: Tensor
    channels: Tensor
    variance_ratio: Tensor


@torch.no_grad()
def mixing_kurtosis(x: Tensor, weight: Tensor, generator: torch.Generator | None = None) -> MixingKurtosis:
    """Return what ``x @ weight.T`` does to kurtosis.

    Parameters
    ----------
    x : Tensor, (..., d)
        Inputs, a token each.
    weight : Tensor, (m, d)
        As in ``nn.Linear.weight``. A bias would change nothing.
    generator
        Of the permutations, on the CPU; by default torch's global one.

    Raises
    ------
    ValueError
        If shapes do not fit, or there are fewer than 4 tokens.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(20_000, 16, generator=generator).double() ** 3  # heavy tails, independent
    >>> found = mixing_kurtosis(x, torch.ones(1, 16), generator)
    >>> bool((found.predicted / found.measured - 1).abs() < 0.3), found.channels.round().item()
    (True, 16.0)
    """
    if weight.ndim != 2 or x.ndim < 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"x (..., d) and weight (m, d) must fit; got {tuple(x.shape)} and {tuple(weight.shape)}")
    flat = x.detach().double().flatten(0, -2)
    n, d = flat.shape
    if n < 4:
        raise ValueError(f"kurtosis over tokens needs 4 of them or more; got {n}")
    order = torch.rand(d, n, generator=generator).argsort(dim=1).T.to(flat.device)
    variances, kurtoses = flat.var(dim=0, correction=0), excess_kurtosis(flat, "channel")
    moving = torch.where(kurtoses.isnan(), 0.0, kurtoses).clamp_min(-2).cpu().numpy()  # -2 is what rounding may cross
    spread = variances.cpu().numpy()
    rows = weight.detach().double().cpu().numpy()
    # Centred, products may be float32: they cost half, and no mean cancels.
    W = weight.detach().float()
    centred = (flat - flat.mean(dim=0)).float()
    y = centred @ W.T
    return MixingKurtosis(
        inputs=kurtoses,
        predicted=torch.as_tensor(sum_excess_kurtosis(rows, moving, spread)),
        measured=excess_kurtosis(y, "channel"),
        shuffled=excess_kurtosis(centred.gather(0, order) @ W.T, "channel"),
        channels=torch.as_tensor(effective_channels(rows, spread)),
        variance_ratio=y.double().var(dim=0, correction=0) / (W.double().square() @ variances),
    )
