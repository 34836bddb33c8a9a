"""Kurtosis through depth: residual layers, chains of them exactly, and the recursion that is only a closure.

A layer ``x -> (a I + b W) x`` has a residual connection, W Haar-distributed on the orthogonal matrices. The kurtosis
of a channel after a chain of layers is ``k IPR(row of the product)``. A row v of the product of one more layer is
``a v + b |v| u``, u uniform on the sphere and independent of v: its direction makes an isotropic random walk on the
sphere. Two facts follow, and both are exact. Write ``F = 3/(d + 2)``; ``sum_j v_j**4 - F |v|**4`` is a harmonic
polynomial H of degree 4.

* *Ratio of means.* Harmonic functions have the mean value property, ``E_u H(a v + b |v| u) = a**4 H(v)``, so
  ``E sum_j M_ij**4 = F ((a**2 + b**2)**2 + 4 a**2 b**2/d)**L + (1 - F) a**(4 L)``.
* *Mean of ratios.* An isotropic kernel multiplies every harmonic of degree 4 by ``lam = E P_4(c)`` (Funk, Hecke), c the
  cosine of a step and P_4 the Legendre polynomial of dimension d, so ``E IPR = F + (1 - F) lam**L``.

``lam = a**4 (1 - 4 b**2 (1 + 3 b**2)/d) + O(1/d**2)`` for ``a**2 + b**2 = 1``. Source: chapter 8 (ours; arXiv
2605.25880 has the residual's effect on one layer).
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from residlab.theory.kurtosis import participation_mean
from residlab.theory.validation import FloatArray, checked, checked_choice, non_negative

BranchLaw = Literal["haar", "gaussian"]

_NODES = 200
_REACH = 10.0  # standard deviations of a Gaussian beyond which the integrand is below rounding


def legendre_4(c: ArrayLike, d: ArrayLike) -> FloatArray:
    """Return ``P_4(c) = ((d+2)(d+4) c**4 - 6 (d+2) c**2 + 3) / (d**2 - 1)``, the zonal harmonic of degree 4.

    ``P_4(1) = 1``. For d = 3 the Legendre polynomial, for d = 2 ``cos(4 arccos c)``. Raises ValueError unless d is an
    integer >= 2. Source: chapter 8.

    Examples
    --------
    >>> legendre_4([1, 0.5], d=3), (35 * 0.5**4 - 30 * 0.5**2 + 3) / 8
    (array([ 1.       , -0.2890625]), -0.2890625)
    """
    c, d = np.asarray(c, dtype=np.float64), _dimension(d)
    return np.asarray(((d + 2) * (d + 4) * c**4 - 6 * (d + 2) * c**2 + 3) / (d**2 - 1))[()]


def layer_eigenvalue(d: int, a: ArrayLike, b: ArrayLike, law: BranchLaw = "haar") -> FloatArray:
    """Return ``lam = E P_4(c)``, by which a layer ``a I + b W`` shrinks the mean IPR's distance from its floor.

    ``c = (a + b r t) / sqrt(a**2 + b**2 r**2 + 2 a b r t)`` with t an entry of a vector uniform on the sphere; r = 1
    for Haar W, ``r**2`` a chi-square of d degrees over d for W with independent entries N(0, 1/d). By quadrature, to 12
    digits for Haar (fewer for d < 8 with a near b).

    Parameters
    ----------
    d : int, >= 2
    a, b : array_like, >= 0, not both zero
        Only their ratio matters; signs would not.
    law : {"haar", "gaussian"}

    Raises
    ------
    ValueError
        If a value leaves its range.

    Source: chapter 8 (ours).

    Examples
    --------
    >>> half = np.sqrt(0.5)
    >>> round(float(layer_eigenvalue(4096, a=half, b=half)), 4)  # a**4 = 1/4 for infinite width
    0.2497
    """
    checked_choice("law", law, BranchLaw)
    a, b = _weights(a, b)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    angle = min(np.pi / 2, _REACH / float(np.sqrt(_dimension(d)))) * nodes
    t, weight = np.sin(angle), np.cos(angle) ** (d - 2) * weights
    radius, mass = np.ones(1), np.ones(1)
    if law == "gaussian":
        low, high = max(0.0, 1 - _REACH / np.sqrt(2 * d)), 1 + _REACH / np.sqrt(2 * d)
        radius = (low + high) / 2 + nodes * (high - low) / 2
        mass = np.exp((d - 1) * np.log(radius) - d * (radius**2 - 1) / 2) * weights
    a, b = a[..., None, None], b[..., None, None] * radius[:, None]
    cosine = (a + b * t) / np.sqrt((a + b * t) ** 2 + b**2 * (1 - t) * (1 + t))
    joint = mass[:, None] * weight
    return np.asarray((legendre_4(cosine, d) * joint).sum(axis=(-2, -1)) / joint.sum())[()]


def residual_contraction(d: int, a: ArrayLike, b: ArrayLike, law: BranchLaw = "haar") -> FloatArray:
    """Return the mean factor of one layer, ``E IPR(row of a I + b W) = F + (1 - F) lam``, ``F = 3/(d + 2)``.

    ``Kurt(a x + b W x) = k`` times this, on average over W, for independent inputs of equal variance. It tends to
    ``(a**2 / (a**2 + b**2))**2``, not to 0, as d grows; to order 1/d, with ``a**2 + b**2 = 1``, it is
    ``a**4 + (3 (1 - a**4) - 4 a**4 b**2 (1 + 3 b**2)) / d``. Arguments and errors as in `layer_eigenvalue`.
    Source: chapter 8 (ours).

    Examples
    --------
    >>> residual_contraction(64, a=[0, 1], b=1).round(4)  # 3/66 without a residual; about 1/4 with one
    array([0.0455, 0.2656])
    """
    floor = participation_mean(_dimension(d))
    return np.asarray(floor + (1 - floor) * layer_eigenvalue(d, a, b, law))[()]


def chain_participation(d: int, a: ArrayLike, b: ArrayLike, depth: int, law: BranchLaw = "haar") -> FloatArray:
    """Return ``E IPR`` of the rows of a product of 0, 1, ..., depth independent layers: ``F + (1 - F) lam**l``. Exact.

    Without residual (a = 0) a Haar chain is at the floor F after one layer and stays there.

    Parameters
    ----------
    d : int, >= 2
    a, b : array_like, >= 0, shape () or (depth,)
        The same for all layers, or one for each.
    depth : int, >= 1
    law : {"haar", "gaussian"}

    Returns
    -------
    ndarray, shape (depth + 1,)

    Raises
    ------
    ValueError
        If a value leaves its range, or a shape does not fit.

    Source: chapter 8 (ours).

    Examples
    --------
    >>> chain_participation(64, a=0, b=1, depth=3).round(4)
    array([1.    , 0.0455, 0.0455, 0.0455])
    >>> chain_participation(64, a=1, b=1, depth=3).round(4)  # a residual only slows it down
    array([1.    , 0.2656, 0.0962, 0.0572])
    """
    shrunk = np.broadcast_to(layer_eigenvalue(d, a, b, law), (_depth(depth),))
    floor = participation_mean(_dimension(d))
    return np.asarray(floor + (1 - floor) * np.concatenate([[1.0], np.cumprod(shrunk)]))


def chain_participation_wide(d: int, a: ArrayLike, b: ArrayLike, depth: int) -> FloatArray:
    """Return `chain_participation` with ``lam`` as it is for infinite width, ``(a**2 / (a**2 + b**2))**2``.

    Too large by ``(1 - F) (lam_inf**l - lam**l)``, relatively about ``4 l b**2 (1 + 3 b**2)/d`` before the floor takes
    over. Arguments and errors as there. Source: chapter 8 (ours).

    Examples
    --------
    >>> exact, wide = chain_participation(64, 1, 1, depth=3), chain_participation_wide(64, 1, 1, depth=3)
    >>> (wide - exact).round(4)
    array([0.    , 0.0185, 0.0089, 0.0032])
    """
    a, b = _weights(a, b)
    shrunk = np.broadcast_to((a**2 / (a**2 + b**2)) ** 2, (_depth(depth),))
    floor = participation_mean(_dimension(d))
    return np.asarray(floor + (1 - floor) * np.concatenate([[1.0], np.cumprod(shrunk)]))


def chain_fourth_moment(d: int, a: ArrayLike, b: ArrayLike, depth: int) -> FloatArray:
    """Return ``E sum_j M_ij**4 / (E sum_j M_ij**2)**2`` of products of Haar layers: the ratio of means. Exact.

    ``F (1 + 4 a**2 b**2 / (d (a**2 + b**2)**2))**l + (1 - F) (a**2/(a**2 + b**2))**(2 l)``. Its floor rises with depth,
    because rows come to differ in length; the mean of ratios, `chain_participation`, has none of that. Arguments and
    errors as there. Source: chapter 8 (ours).

    Examples
    --------
    >>> chain_fourth_moment(64, 1, 1, depth=100)[[1, 10, 100]].round(3)  # its floor rises
    array([0.285, 0.053, 0.214])
    >>> chain_participation(64, 1, 1, depth=100)[[1, 10, 100]].round(3)
    array([0.266, 0.045, 0.045])
    """
    a, b = _weights(a, b)
    a, b = (np.broadcast_to(each, (_depth(depth),)) for each in (a, b))
    stream = a**2 / (a**2 + b**2)
    longer = np.cumprod(1 + 4 * stream * (1 - stream) / _dimension(d))
    floor = participation_mean(d)
    return np.concatenate([[1.0], floor * longer + (1 - floor) * np.cumprod(stream**2)])


def chain_pooled(d: int, a: ArrayLike, b: ArrayLike, depth: int, kurtosis: ArrayLike) -> FloatArray:
    """Return the pooled kurtosis of a Haar chain's output, from expected moments: ``k g_l + 3 (growth_l - 1)``.

    ``g`` as `chain_fourth_moment`, ``growth_l = (1 + 4 a**2 b**2 / (d (a**2 + b**2)**2))**l``: with a residual channels
    come to differ in variance, and pooled kurtosis grows with depth though each channel's falls, from Gaussian inputs
    too. Moments are expected ones, over inputs and weights, each by itself.

    Parameters
    ----------
    d, a, b, depth
        As in `chain_participation`.
    kurtosis : array_like, shape (), >= -2
        Of the inputs, independent, of mean 0 and equal variance.

    Source: chapter 8 (ours).

    Examples
    --------
    >>> chain_pooled(64, 1, 1, depth=64, kurtosis=0)[[0, 1, 64]].round(3)  # from Gaussian inputs
    array([0.   , 0.047, 5.092])
    """
    a, b = _weights(a, b)
    stream = np.broadcast_to(a**2 / (a**2 + b**2), (_depth(depth),))
    growth = np.concatenate([[1.0], np.cumprod(1 + 4 * stream * (1 - stream) / _dimension(d))])
    k = checked("kurtosis", kurtosis, lambda v: np.isfinite(v) & (v >= -2), "finite and >= -2")
    return np.asarray(k * chain_fourth_moment(d, a, b, depth) + 3 * (growth - 1))


# --- With something injected at every layer


def closure(factor: ArrayLike, injected: ArrayLike, initial: ArrayLike, depth: int) -> FloatArray:
    """Return ``k_0 ... k_depth`` of ``k_{l+1} = c_l k_l + q_l``: the mean-field closure.

    It takes the entries to be independent again after every layer. They are not: without residual it forgets what a
    chain keeps (`transported`).

    Parameters
    ----------
    factor, injected : array_like, shape () or (depth,)
        ``c_l >= 0`` and ``q_l``.
    initial : array_like, shape ()
    depth : int, >= 1

    Returns
    -------
    ndarray, shape (depth + 1,)

    Raises
    ------
    ValueError
        If a value leaves its range, or a shape does not fit.

    Source: chapter 8 (ours, after arXiv 2605.25880).

    Examples
    --------
    >>> closure(factor=0.5, injected=1, initial=0, depth=3)
    array([0.  , 1.  , 1.5 , 1.75])
    """
    c = np.broadcast_to(checked("factor", factor, non_negative, "finite and >= 0"), (_depth(depth),))
    q = np.broadcast_to(checked("injected", injected, np.isfinite, "finite"), (depth,))
    k = [float(checked("initial", initial, np.isfinite, "finite"))]
    for layer in range(depth):
        k.append(float(c[layer]) * k[-1] + float(q[layer]))
    return np.array(k)


def closure_fixed_point(factor: ArrayLike, injected: ArrayLike) -> FloatArray:
    """Return ``q / (1 - c)``, where the closure goes for ``0 <= c < 1``; infinite, with the sign of q, for c = 1.

    Raises ValueError for c outside [0, 1]. Source: chapter 8.

    Examples
    --------
    >>> float(closure_fixed_point(factor=0.5, injected=1)), float(closure(0.5, 1, 0, depth=60)[-1])
    (2.0, 2.0)
    """
    c = checked("factor", factor, lambda v: (v >= 0) & (v <= 1), "in [0, 1]")
    q = checked("injected", injected, np.isfinite, "finite")
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(q == 0, 0.0, q / (1 - c)))[()]


def transported(participations: ArrayLike, injected: ArrayLike, initial: ArrayLike) -> FloatArray:
    """Return ``k_l = k_0 g_l + q (g_0 + ... + g_{l-1})``, ``g`` as `chain_participation` gives it.

    What is injected at a layer is transported by the layers after it as the input is, and stays at its floor: without
    residual ``k_l = q (1 + (l - 1) F) + k_0 F``, where the closure ends at ``q / (1 - F)``. Each injection counts in
    units of the squared variance that arrives, which leaves out that rows differ in length (`chain_fourth_moment`).

    Parameters
    ----------
    participations : array_like, shape (..., depth + 1), in [0, 1]
    injected, initial : array_like, broadcast with the leading axes

    Raises
    ------
    ValueError
        If a value leaves its range.

    Source: chapter 8 (ours).

    Examples
    --------
    >>> g = chain_participation(64, a=0, b=1, depth=50)
    >>> round(float(transported(g, injected=1, initial=0)[-1]), 3)  # 1 + 49 F, F = 3/66
    3.227
    >>> round(float(closure(factor=g[1], injected=1, initial=0, depth=50)[-1]), 3)  # the closure forgets it
    1.048
    """
    g = np.atleast_1d(checked("participations", participations, lambda v: (v >= 0) & (v <= 1), "in [0, 1]"))
    q = checked("injected", injected, np.isfinite, "finite")[..., None]
    k = checked("initial", initial, np.isfinite, "finite")[..., None]
    before = np.cumsum(g, axis=-1) - g
    return np.asarray(k * g + q * before)


def accumulated_excess_kurtosis(
    initial: ArrayLike, branch: ArrayLike, depth: int, *, a: ArrayLike = 1.0, b: ArrayLike = 1.0
) -> FloatArray:
    """Return the kurtosis of a stream ``x <- a x + b f`` of independent f, unit variance, excess kurtosis ``branch``.

    ``v_{l+1} = a**2 v_l + b**2``, ``kappa_{l+1} = a**4 kappa_l + b**4 k_f``, ``k_l = kappa_l / v_l**2``: the closure
    with ``c_l = a**4 v_l**2 / v_{l+1}**2`` and ``q_l = b**4 k_f / v_{l+1}**2``, ``v_0 = 1``. For ``a = b = 1`` it is
    ``(k_0 + l k_f) / (1 + l)**2``; for ``a**2 + b**2 = 1`` it goes to ``k_f b**2 / (1 + a**2)``. Never above
    ``max(k_0, k_f, 0)``: independent branches accumulate, and do not amplify.

    Parameters
    ----------
    initial, branch : array_like, shape (), >= -2
    depth : int, >= 1
    a, b : array_like, >= 0, shape () or (depth,)

    Returns
    -------
    ndarray, shape (depth + 1,)

    Raises
    ------
    ValueError
        If a value leaves its range, or a shape does not fit.

    Source: chapter 8 (ours).

    Examples
    --------
    >>> accumulated_excess_kurtosis(initial=6, branch=6, depth=3)  # 6 / (1 + l)
    array([6. , 3. , 2. , 1.5])
    """
    a, b = _weights(a, b)
    a, b = (np.broadcast_to(each, (_depth(depth),)) for each in (a, b))
    k = float(checked("initial", initial, lambda v: np.isfinite(v) & (v >= -2), "finite and >= -2"))
    f = float(checked("branch", branch, lambda v: np.isfinite(v) & (v >= -2), "finite and >= -2"))
    kurtosis, v = [k], 1.0
    for stream, written in zip(a, b, strict=True):
        after = stream**2 * v + written**2
        kept = float(stream**2 * v / after)
        kurtosis.append(kept**2 * kurtosis[-1] + (1 - kept) ** 2 * f)
        v = float(after)
    return np.array(kurtosis)


# --- Validation


def _dimension(d: ArrayLike) -> FloatArray:
    return checked("d", d, lambda v: np.isfinite(v) & (v >= 2) & (v == np.floor(v)), "an integer >= 2")


def _depth(depth: int) -> int:
    return int(checked("depth", depth, lambda v: (v >= 1) & (v == np.floor(v)), "an integer >= 1"))


def _weights(a: ArrayLike, b: ArrayLike) -> tuple[FloatArray, FloatArray]:
    a, b = (checked(name, value, non_negative, "finite and >= 0") for name, value in (("a", a), ("b", b)))
    a, b = np.broadcast_arrays(a, b)
    checked("the larger of a and b", np.maximum(a, b), lambda v: v > 0, "above zero")
    return a, b
