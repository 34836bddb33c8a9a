"""Norms computed in a format at given tokens, beside float64 and beside their bounds; tokens that attack the bounds.

Source: chapter 13; bounds in `residlab.theory.norm_errors`, algorithms in `residlab.precision.norms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from residlab.precision import norms
from residlab.precision.accumulation import PAIRWISE, Order
from residlab.precision.formats import Format
from residlab.precision.operations import Operations
from residlab.theory import conditioning, norm_errors
from residlab.theory.massive_outlier import MassiveOutlier
from residlab.theory.validation import FloatArray

NORMS: Mapping[str, str] = {
    "layer": "LayerNorm",
    "rms": "RMSNorm",
    "dyt": "DyT",
    "bhyt": "BHyT, mean-free",
    "star": "BHyT, centred",
}
ALPHA, LAM, KAPPA = 0.5, 2.0, 10.0
"""Of DyT and of BHyT: numbers of every format."""


@dataclass(frozen=True)
class NormErrors:
    """What a norm computed in a format is off by, at tokens of numbers of that format.

    Attributes
    ----------
    exact : array, shape (..., d)
        The norm in float64.
    error : array, shape (..., d)
        Absolute; NaN where the format gave none.
    bound : array, shape (..., d)
        Of the theorem, and what subnormal numbers add.
    covered : array of bool, shape (...)
        Whether the token meets the theorem's hypotheses: no square or sum overflows, no mean square underflows.
    """

    exact: FloatArray
    error: FloatArray
    bound: FloatArray
    covered: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

    @property
    def relative(self) -> FloatArray:
        """Error of each output over that output; 0 for an output that is zero and computed as zero."""
        size = np.abs(self.exact)
        return np.asarray(np.where(self.error == 0, 0, self.error / np.where(size == 0, np.nan, size)))

    @property
    def normwise(self) -> FloatArray:
        """Euclidean norm of the errors over that of the outputs, (...)."""
        return np.asarray(np.linalg.norm(self.error, axis=-1) / np.linalg.norm(self.exact, axis=-1))

    @property
    def violations(self) -> int:
        """How many outputs of covered tokens are off by more than the bound, or not finite."""
        # float64's own error of the reference, below 1e-12 of the token's scale, is given to it.
        within = self.error <= self.bound * (1 + 1e-9) + 1e-12
        return int((~within & self.covered[..., None]).sum())


def norm_errors_in(x: FloatArray, fmt: Format, order: Order = PAIRWISE, *, eps: float = 0.0) -> dict[str, NormErrors]:
    """Return the errors of the five norms, every operation in a format, at tokens that are rounded to it first.

    Parameters
    ----------
    x : array, shape (..., d)
        Finite; no token zero or constant once it is rounded.
    fmt : Format
        Its numbers are the tokens, and eps.
    order : Order
        Of sums.
    eps : float
        Of all norms but DyT.

    Returns
    -------
    dict of str to NormErrors
        By the keys of `NORMS`; `LAM`, `KAPPA` and `ALPHA` are the parameters.
    """
    ops = Operations(fmt, order)
    token = ops.store(torch.as_tensor(x))
    x = token.numpy()
    eps = float(ops.store(torch.tensor(eps, dtype=torch.float64)))
    depth, u, d = order.depth(x.shape[-1]), fmt.u, x.shape[-1]
    lam, alpha = torch.tensor(LAM, dtype=torch.float64), torch.tensor(ALPHA, dtype=torch.float64)
    computed = {
        "layer": norms.layer_norm(ops, token, None, None, eps),
        "rms": norms.rms_norm(ops, token, None, eps),
        "dyt": norms.dyt(ops, token, alpha, None, None),
        "bhyt": norms.bhyt_exact(ops, token, None, lam, KAPPA, eps, False)[0],
        "star": norms.bhyt_exact(ops, token, None, lam, KAPPA, eps, True)[0],
    }
    exact = {
        "layer": conditioning.layer_norm(x, eps),
        "rms": conditioning.rms_norm(x, eps),
        "dyt": conditioning.dyt(x, ALPHA),
        "bhyt": conditioning.bhyt(x, LAM, KAPPA, centred=False, eps=eps),
        "star": conditioning.bhyt(x, LAM, KAPPA, centred=True, eps=eps),
    }
    bounds = {
        "layer": norm_errors.layer_norm_error(x, u, depth, eps),
        "rms": norm_errors.rms_norm_error(u, depth, eps=eps > 0) * np.abs(exact["rms"]),
        "dyt": norm_errors.dyt_error(u) * np.abs(exact["dyt"]),
        "bhyt": norm_errors.bhyt_error(x, u, depth, LAM, KAPPA, centred=False, eps=eps),
        "star": norm_errors.bhyt_error(x, u, depth, LAM, KAPPA, centred=True, eps=eps),
    }
    raw, centred = np.mean(x**2, -1), np.var(x, axis=-1)
    energy = {"layer": centred, "rms": raw, "dyt": None, "bhyt": raw, "star": centred}
    mean_error = norm_errors.mean_error(x, u, depth)[..., 0]
    result = {}
    for name in NORMS:
        square, bound = energy[name], bounds[name]
        error = np.abs(computed[name].numpy() - exact[name])
        covered = np.ones(x.shape[:-1], dtype=bool)
        if square is not None:
            # The centred norms square x less the computed mean, and sum the entries themselves besides.
            most = square + (mean_error**2 if square is centred else 0)
            sums = d * most * (1 + norm_errors.growth(u, depth + 4))
            magnitudes = np.abs(x).sum(-1) * (1 + norm_errors.growth(u, depth)) if square is centred else 0
            covered = (np.maximum(sums, magnitudes) < fmt.largest) & (square > 4 * fmt.smallest_normal)
            share = fmt.smallest_subnormal / np.where(square > 0, square, np.inf)
            bound = bound + share[..., None] * (np.abs(exact[name]) + bound)
        bound = bound + 2 * fmt.smallest_subnormal
        result[name] = NormErrors(exact[name], np.where(np.isfinite(error), error, np.nan), bound, covered)
    return result


def attacking_tokens(count: int, d: int, seed: int) -> FloatArray:
    """Return tokens (count, d) that hurt: heavy tails, a common mean, all sizes, zeros."""
    rng = np.random.default_rng(seed)
    x = rng.standard_t(2, (count, d))
    kind = np.arange(count) % 4
    x[kind == 1] += rng.choice([-1.0, 1.0], (np.sum(kind == 1), 1)) * 10 ** rng.uniform(0, 2, (np.sum(kind == 1), 1))
    x[kind == 2, 0] = 10 ** rng.uniform(0, 4, np.sum(kind == 2))
    x[kind == 3] *= 2.0 ** rng.integers(-12, 6, (np.sum(kind == 3), d))
    return np.where(rng.random(x.shape) < 0.02, 0, np.clip(x, -6e4, 6e4))


def attacking_outliers(count: int, seed: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return componentwise numbers of tokens with one outlier, delta < 1: LayerNorm's, its bound, RMSNorm's.

    Each (count,). Widths, backgrounds and outliers are drawn; delta is uniform on (0, 1), so that many are close to 1.
    """
    rng = np.random.default_rng(seed)
    values: list[tuple[float, float, float]] = []
    while len(values) < count:
        d = int(rng.integers(3, 65))
        background = 10 ** rng.uniform(-2, 2) * rng.choice([-1.0, 0.0, 1.0]) + rng.choice(
            [rng.standard_normal(d - 1), rng.choice([-1.0, 1.0], d - 1), rng.standard_t(2, d - 1)]
        )
        spread = np.abs(background - background.mean()).max()
        outlier = background.mean() + rng.choice([-1, 1]) * d * spread / rng.uniform(1e-3, 1)
        token = MassiveOutlier(np.asarray(outlier), background)
        if spread > 0 and token.delta < 1:
            x = np.append(background, outlier)
            numbers = conditioning.layer_norm_entries(x).max(), conditioning.rms_norm_entries(x).max()
            values.append((float(numbers[0]), float(token.layer_norm_bound), float(numbers[1])))
    measured, bound, rms = np.array(values).T
    return measured, bound, rms
