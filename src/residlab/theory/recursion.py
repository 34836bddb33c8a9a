"""The variance of the residual stream, layer by layer: a recursion, its closed forms, where two curves cross.

Layer ``l`` adds a branch of variance ``b_l`` to a stream of variance ``v_{l-1}``, ``rho_l`` their correlation:

    ``v_l = v_{l-1} + b_l + 2 rho_l sqrt(v_{l-1} b_l)``, or, for ``u = sqrt(v)``,
    ``u_l = F(u_{l-1}, a_l)``, ``F(u, a) = sqrt(u**2 + 2 rho_l u a + a**2)``, ``a_l = sqrt(b_l)``.

``b_l = G_l(n_l)`` depends on the second moment ``n_l`` of the branch's normalised input: 1 under Pre-LN, ``1/l`` under
LayerNorm scaling (LNS, Sun et al., arXiv 2502.05795), at most ``(lam/kappa)**2`` under mean-free BHyT (Byun et al.,
arXiv 2601.09719). A linear branch has ``G_l(n) = g_l n``, a product of two linear maps ``g_l n**2``: every threshold
below takes ``G_l(n) = g_l n**power``.

For ``rho_l >= 0``, ``F`` increases in both arguments, so whoever has the smaller ``n`` at every layer keeps the smaller
``v`` at every layer (by induction, from equal ``v_0``): Theorem 3.5 of the paper, ``n = (lam/kappa)**2 < 1/L <= 1/l``.
For ``rho_l < 0`` it increases in neither and the theorem fails. Chapter 4 of the book carries the proofs.

Depth is the last axis, leading axes are vectorised with numpy broadcasting, in float64. Layers with two branches are
two entries of the last axis: ``numpy.repeat(second_moments("lns", L), 2)``.
"""

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from residlab.theory.validation import checked, non_negative

FloatArray = NDArray[np.float64]
Norm = Literal["pre-ln", "lns", "bhyt"]

BISECTIONS = 60  # from a bracket inside [0, max sqrt(n)] down to the spacing of floats

# --- Second moments of the normalised inputs, n_1 ... n_L


def second_moments(norm: Norm, depth: int, *, ratio: ArrayLike | None = None) -> FloatArray:
    """Return ``n_1 ... n_L``: 1 for Pre-LN, ``1/l`` for LNS, ``ratio**2`` for mean-free BHyT, ``ratio = lam/kappa``.

    For BHyT it is an upper bound (``tanh(ratio)**2`` is the sharp one), so its trajectory bounds the true one
    while no correlation is negative.

    Parameters
    ----------
    norm : {"pre-ln", "lns", "bhyt"}
    depth : int, >= 1
    ratio : array_like, shape (...), > 0
        For BHyT, and only for BHyT.

    Returns
    -------
    ndarray, shape (depth,), for BHyT (..., depth)

    Raises
    ------
    ValueError
        If ``norm`` is unknown, a parameter leaves its range, or ``ratio`` is missing or superfluous.

    Source: arXiv 2601.09719, Theorem 3.5; arXiv 2502.05795 (LNS); chapter 4.

    Examples
    --------
    >>> second_moments("lns", 4)
    array([1.        , 0.5       , 0.33333333, 0.25      ])
    >>> second_moments("bhyt", 4, ratio=0.2)
    array([0.04, 0.04, 0.04, 0.04])
    """
    if norm not in get_args(Norm):
        raise ValueError(f"norm must be one of {', '.join(map(repr, get_args(Norm)))}; got {norm!r}")
    if (ratio is not None) != (norm == "bhyt"):
        raise ValueError(f"ratio must be given for 'bhyt' and for no other norm; got ratio={ratio!r} for {norm!r}")
    if np.ndim(depth):
        raise ValueError(f"depth must be one integer; got {depth!r}")
    layers: FloatArray = np.arange(1, int(_depths(depth)) + 1, dtype=np.float64)
    if norm == "lns":
        return 1 / layers
    if ratio is None:
        return np.ones_like(layers)
    ratio = checked("ratio", ratio, lambda v: np.isfinite(v) & (v > 0), "finite and > 0")
    return ratio[..., None] ** 2 * np.ones_like(layers)


# --- Trajectories


def variance_trajectory(branch: ArrayLike, *, correlation: ArrayLike = 0.0, initial: ArrayLike = 1.0) -> FloatArray:
    """Return the variances ``v_0 ... v_L`` of the stream.

    ``v_l = v_{l-1} + b_l + 2 rho_l sqrt(v_{l-1} b_l)``. Layers are a prefix: a shallower network is the start of it.

    Parameters
    ----------
    branch : array_like, shape (..., L), >= 0
        Variance of each branch, ``gain * moments`` for linear ones.
    correlation : array_like, in [-1, 1], broadcast with ``branch``
        One value for every layer and curve, or an axis of layers at the end: shape (curves, 1) is one for each curve.
    initial : array_like, >= 0, broadcast with the leading axes
        ``v_0``.

    Returns
    -------
    ndarray, shape (..., L + 1)

    Raises
    ------
    ValueError
        If an entry leaves its range, or there is no layer.

    Source: arXiv 2601.09719, proof of Theorem 3.5; chapter 4.

    Examples
    --------
    >>> variance_trajectory(second_moments("pre-ln", 3), correlation=0.5).round(3)
    array([1.   , 3.   , 5.732, 9.126])
    """
    correlation = checked("correlation", correlation, lambda v: (v >= -1) & (v <= 1), "in [-1, 1]")
    branch, initial = _branches(branch), _initial(initial)
    branch, correlation = np.broadcast_arrays(branch, correlation)
    v = np.empty((*np.broadcast_shapes(branch.shape[:-1], initial.shape), branch.shape[-1] + 1))
    v[..., 0] = initial
    for layer in range(branch.shape[-1]):
        b, rho = branch[..., layer], correlation[..., layer]
        # A square and a non-negative rest: exact at rho = +-1, and never below zero.
        v[..., layer + 1] = (np.sqrt(v[..., layer]) + rho * np.sqrt(b)) ** 2 + (1 - rho) * (1 + rho) * b
    return v


def uncorrelated_trajectory(branch: ArrayLike, *, initial: ArrayLike = 1.0) -> FloatArray:
    """Return `variance_trajectory` at ``rho = 0``, ``v_0 + b_1 + ... + b_l``: a lower bound for ``rho_l`` in [0, 1].

    Constant gain ``g``: ``v_0 + g l`` (Pre-LN), ``v_0 + g H_l`` (LNS), ``v_0 + g l (lam/kappa)**2`` (BHyT).
    Parameters, result and errors as in `variance_trajectory`.

    Examples
    --------
    >>> uncorrelated_trajectory(second_moments("lns", 4)).round(3)  # 1 and the harmonic numbers
    array([1.   , 2.   , 2.5  , 2.833, 3.083])
    """
    return _accumulated(_branches(branch), _initial(initial))


def aligned_trajectory(branch: ArrayLike, *, initial: ArrayLike = 1.0) -> FloatArray:
    """Return `variance_trajectory` at ``rho = 1``, ``(sqrt(v_0) + sum sqrt(b))**2``: an upper bound for all ``rho_l``.

    Constant gain ``g``: ``sum sqrt(b)`` is ``sqrt(g)`` times ``l`` (Pre-LN), ``1 + 1/sqrt(2) + ... + 1/sqrt(l)`` (LNS),
    ``l lam/kappa`` (BHyT). Parameters, result and errors as in `variance_trajectory`.

    Examples
    --------
    >>> aligned_trajectory(second_moments("pre-ln", 3))  # (1 + l)**2
    array([ 1.,  4.,  9., 16.])
    """
    return _accumulated(np.sqrt(_branches(branch)), np.sqrt(_initial(initial))) ** 2


def first_exceedance(candidate: ArrayLike, reference: ArrayLike) -> FloatArray:
    """Return the first layer ``l`` at which ``candidate_l > reference_l``; inf if there is none.

    Parameters
    ----------
    candidate, reference : array_like, shape (..., L + 1), broadcast together
        As `variance_trajectory` returns them.

    Returns
    -------
    ndarray, shape (...), float64: an integer or inf

    Raises
    ------
    ValueError
        If there is no layer, the depths differ, or an entry is not finite.

    Source: chapter 4.

    Examples
    --------
    >>> bhyt = uncorrelated_trajectory(second_moments("bhyt", 64, ratio=0.4))
    >>> lns = uncorrelated_trajectory(second_moments("lns", 64))
    >>> float(first_exceedance(bhyt, lns))
    24.0
    """
    candidate = checked("candidate", candidate, np.isfinite, "finite")
    reference = checked("reference", reference, np.isfinite, "finite")
    if candidate.ndim == 0 or reference.ndim == 0 or not candidate.shape[-1] == reference.shape[-1] >= 2:
        raise ValueError(
            f"candidate and reference must have shape (..., L + 1), L >= 1; got {candidate.shape} and {reference.shape}"
        )
    above = candidate > reference
    return np.where(above.any(axis=-1), above.argmax(axis=-1), np.inf)[()]


# --- Thresholds: how small must lam/kappa be?


def threshold_paper(depth: ArrayLike) -> FloatArray:
    """Return ``1/sqrt(depth)``: for ``lam/kappa`` below it BHyT stays under LNS at every layer (Theorem 3.5).

    For every ``rho_l`` in [0, 1], ``v_0 >= 0`` and increasing ``G_l``. No larger number serves all gains: if nearly all
    the gain is in the last layer, `threshold_uncorrelated` is as close to it as one likes.
    Raises ValueError if a depth is not a positive integer. Source: arXiv 2601.09719, Theorem 3.5; chapter 4.

    Examples
    --------
    >>> threshold_paper([4, 64])
    array([0.5  , 0.125])
    """
    return 1 / np.sqrt(_depths(depth))


def threshold_uncorrelated(reference: ArrayLike, gain: ArrayLike = 1.0, *, power: float = 1.0) -> FloatArray:
    """Return the ratio ``lam/kappa`` below which, and only below which, BHyT stays under the reference for ``rho = 0``.

    ``z_l**(2 power) = sum_{k<=l} g_k n_k**power / sum_{k<=l} g_k``, for each depth ``l``: the last entry is that of the
    whole network. LNS, constant gain: ``sqrt(H_L / L)``. It does not depend on ``v_0``.

    Parameters
    ----------
    reference : array_like, shape (..., L), > 0, not increasing along the layers
        Second moments ``n_l`` of the other norm, `second_moments` of LNS for instance.
    gain : array_like, > 0, broadcast with ``reference``
    power : float, > 0
        ``G_l(n) = g_l n**power``.

    Returns
    -------
    ndarray, shape (..., L)

    Raises
    ------
    ValueError
        If an entry leaves its range, or ``reference`` increases somewhere.

    Source: chapter 4 (ours).

    Examples
    --------
    >>> lns = second_moments("lns", 64)
    >>> round(float(threshold_uncorrelated(lns)[-1]), 4), float(threshold_paper(64))
    (0.2723, 0.125)
    """
    reference, gain, exponent = _threshold_inputs(reference, gain, power)
    return _running_mean(reference**exponent, gain) ** (0.5 / exponent)


def threshold_aligned(reference: ArrayLike, gain: ArrayLike = 1.0, *, power: float = 1.0) -> FloatArray:
    """Return the ratio ``lam/kappa`` below which, and only below which, BHyT stays under the reference for ``rho = 1``.

    ``z_l**power = sum_{k<=l} sqrt(g_k n_k**power) / sum_{k<=l} sqrt(g_k)``. LNS, constant gain:
    ``m_L = (1 + 1/sqrt(2) + ... + 1/sqrt(L)) / L``, about ``2/sqrt(L) - 1.46/L``. It does not depend on ``v_0``.

    **If neither gain nor correlation increases with depth, it suffices for every ``rho_l`` in [0, 1] and ``v_0 >= 0``**
    (at the threshold itself ``v_L`` may be equal, as it is for ``rho = 1``). Proof. ``F(u, a)`` is a norm of a linear
    image of ``(u, a)``, hence convex, and increasing, so ``u_L = U(a_1 ... a_L)`` is convex. At the candidate's
    ``a_k = sqrt(g_k) z**power``, which do not increase, neither do the derivatives ``D_k = dU/da_k``: with
    ``u = u_{k-1}``, ``w = u_k``, ``a >= b`` the two branches and ``r >= s`` the two correlations, ``D_k >= D_{k+1}`` is
    ``(a + r u)(w + s b) >= (b + s w) w``, whose sides differ by
    ``(a - b)(w - s (a + r u)) + u (r w - s u - r s a)``, and ``w >= a + r u``, ``w >= u + r a``. The reference's
    branches exceed the candidate's by ``sqrt(g_k) (n_k**(power/2) - z**power)``, first positive, then negative, of sum
    0 at the threshold; weighted by the ``D_k``, the sum is at least 0, and it is what ``U`` at the reference exceeds
    ``U`` here by, or less. The last layer decides (`critical_ratio`).

    A gain or a correlation that increases with depth breaks it.

    Parameters, result and errors as in `threshold_uncorrelated`. Source: chapter 4 (ours).

    Examples
    --------
    >>> lns = second_moments("lns", 64)
    >>> round(float(threshold_aligned(lns)[-1]), 4), float(threshold_paper(64))
    (0.2282, 0.125)
    """
    reference, gain, exponent = _threshold_inputs(reference, gain, power)
    return _running_mean(reference ** (exponent / 2), np.sqrt(gain)) ** (1 / exponent)


def critical_ratio(
    reference: ArrayLike,
    gain: ArrayLike = 1.0,
    *,
    correlation: ArrayLike = 0.0,
    initial: ArrayLike = 1.0,
    power: ArrayLike = 1.0,
) -> FloatArray:
    """Return the ratio ``lam/kappa`` below which, and only below which, BHyT stays under the reference at every layer.

    For any gains, correlations in [0, 1] and ``v_0``: the one ``z`` with ``v_L(z) = v_L(reference)``, by bisection.

    The last layer decides. The layers with ``n_l > z**2`` come first, since the reference does not increase, and there
    the candidate is below, by induction. From then on its branches are no smaller, so once not below it stays so.
    Hence below at ``L`` is below throughout, and two trajectories cross at most once.

    Parameters
    ----------
    reference : array_like, shape (..., L), > 0, not increasing along the layers
    gain, power : array_like, > 0, broadcast with ``reference``
        ``G_l(n) = g_l n**power_l``: attention and gated feedforward may alternate.
    correlation : array_like, in [0, 1], broadcast with ``reference``
    initial : array_like, >= 0, broadcast with the leading axes

    Returns
    -------
    ndarray, shape (...)

    Raises
    ------
    ValueError
        If an entry leaves its range, or ``reference`` increases somewhere.

    Source: chapter 4 (ours).

    Examples
    --------
    >>> lns = second_moments("lns", 64)
    >>> round(float(critical_ratio(lns)), 4), round(float(critical_ratio(lns, correlation=1.0)), 4)
    (0.2723, 0.2282)
    >>> round(float(threshold_uncorrelated(lns)[-1]), 4), round(float(threshold_aligned(lns)[-1]), 4)
    (0.2723, 0.2282)
    """
    reference, gain, power = _threshold_inputs(reference, gain, power)
    correlation = checked("correlation", correlation, lambda v: (v >= 0) & (v <= 1), "in [0, 1]")

    def last(moments: FloatArray) -> FloatArray:
        return variance_trajectory(gain * moments**power, correlation=correlation, initial=initial)[..., -1]

    target = last(reference)
    low = np.broadcast_to(np.sqrt(reference[..., -1]), target.shape)
    high = np.broadcast_to(np.sqrt(reference[..., 0]), target.shape)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        below = last(middle[..., None] ** 2 * np.ones(reference.shape[-1])) < target
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray((low + high) / 2)[()]


def _accumulated(steps: FloatArray, initial: FloatArray) -> FloatArray:
    start = np.broadcast_to(initial[..., None], (*np.broadcast_shapes(steps.shape[:-1], initial.shape), 1))
    steps = np.broadcast_to(steps, (*start.shape[:-1], steps.shape[-1]))
    sums: FloatArray = np.cumsum(np.concatenate([start, steps], axis=-1), axis=-1)
    return sums


def _running_mean(values: FloatArray, weights: FloatArray) -> FloatArray:
    values, weights = np.broadcast_arrays(values, weights)
    means: FloatArray = np.cumsum(weights * values, axis=-1) / np.cumsum(weights, axis=-1)
    return means


# --- Validation


def _depths(depth: ArrayLike) -> NDArray[np.int64]:
    depth = np.asarray(depth)
    if depth.dtype.kind not in "iu" or np.any(depth < 1):
        raise ValueError(f"depth must be an integer >= 1, the number of layers; got {depth.tolist()!r}")
    return depth.astype(np.int64)


def _with_layers(name: str, values: FloatArray) -> FloatArray:
    if values.ndim == 0 or values.shape[-1] == 0:
        raise ValueError(f"{name} must have shape (..., L) with L >= 1 layers; got shape {values.shape}")
    return values


def _branches(branch: ArrayLike) -> FloatArray:
    return _with_layers("branch", checked("branch", branch, non_negative, "finite and >= 0"))


def _initial(initial: ArrayLike) -> FloatArray:
    return checked("initial", initial, non_negative, "finite and >= 0")


def _threshold_inputs(
    reference: ArrayLike, gain: ArrayLike, power: ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    def positive(name: str, value: ArrayLike) -> FloatArray:
        return checked(name, value, lambda v: np.isfinite(v) & (v > 0), "finite and > 0")

    reference, gain, power = positive("reference", reference), positive("gain", gain), positive("power", power)
    steps = np.diff(_with_layers("reference", reference), axis=-1)
    checked("each step of reference along the layers", steps, lambda v: v <= 0, "<= 0")
    return reference, gain, power
