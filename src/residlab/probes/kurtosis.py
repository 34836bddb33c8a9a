"""Excess kurtosis and crest factor of activations, over what: pooled, per channel, per token. Two-pass float64."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

Over = Literal["pooled", "channel", "token"]
_AXES: dict[str, str] = {"pooled": "all entries", "channel": "tokens", "token": "channels"}


def excess_kurtosis(x: Tensor, over: Over) -> Tensor:
    """Return ``E (x - E x)**4 / Var(x)**2 - 3``, over all entries, for each channel, or for each token.

    Parameters
    ----------
    x : Tensor, shape (..., d)
        Activations of any floating-point dtype, upcast to float64.
    over
        ``"pooled"``: one number. ``"channel"``: each of the d channels over all tokens. ``"token"``: each token over
        its d channels.

    Returns
    -------
    Tensor, float64, shape (), (d,) or (...)
        NaN where all entries are equal.

    Raises
    ------
    ValueError
        If ``over`` is another word, or there are no entries.

    Examples
    --------
    >>> x = torch.tensor([[1.0, -1, 1, -1], [10, -10, 10, -10]])  # two tokens of one modulus each
    >>> excess_kurtosis(x, "token"), round(excess_kurtosis(x, "pooled").item(), 4)
    (tensor([-2., -2.], dtype=torch.float64), -1.0392)
    """
    flat = _grouped(x, over)
    centred = flat - flat.mean(dim=-1, keepdim=True)
    centred = centred - centred.mean(dim=-1, keepdim=True)
    centred = centred / centred.abs().amax(dim=-1, keepdim=True)  # fourth powers stay in range; 0/0 is the NaN
    square = centred.square()
    kurtosis = square.square().mean(dim=-1) / square.mean(dim=-1).square() - 3
    return kurtosis.reshape(x.shape[:-1]) if over == "token" else kurtosis


def crest_factor(x: Tensor, over: Over) -> Tensor:
    """Return ``max |x| / RMS(x)``; arguments as in `excess_kurtosis`. NaN where all entries are zero.

    20 log10 of it is the crest factor in dB, which a uniform quantizer's signal-to-noise ratio loses.

    Examples
    --------
    >>> crest_factor(torch.tensor([[3.0, 4, 0, 0], [1, 1, 1, 1]]), "token")
    tensor([1.6000, 1.0000], dtype=torch.float64)
    """
    flat = _grouped(x, over).abs()
    peak = flat.amax(dim=-1)
    crest = 1 / (flat / peak[..., None]).square().mean(dim=-1).sqrt()
    return crest.reshape(x.shape[:-1]) if over == "token" else crest


def _grouped(x: Tensor, over: Over) -> Tensor:
    if over not in _AXES:
        raise ValueError(f"over must be one of {', '.join(_AXES)}; got {over!r}")
    if x.ndim == 0 or not x.numel():
        raise ValueError(f"activations must have shape (..., d) and entries; got {tuple(x.shape)}")
    x = x.detach().double()
    if over == "pooled":
        return x.flatten()
    return x.flatten(0, -2).T if over == "channel" else x.flatten(0, -2) if x.ndim > 1 else x[None]
