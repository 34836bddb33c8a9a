"""Excess kurtosis of sums and of mixed vectors, from cumulants; what remains when a hypothesis fails.

The cumulants of a sum of independent numbers add, and ``kappa_n(w X) = w**n kappa_n(X)``; excess kurtosis is
``kappa_4 / kappa_2**2``. Hence, for ``y = sum_j w_j x_j`` with independent ``x_j`` of variance ``s_j**2`` and excess
kurtosis ``k_j``, whatever their means,

    ``Kurt(y) = sum_j w_j**4 s_j**4 k_j / (sum_j w_j**2 s_j**2)**2``,

and ``k IPR(w)`` where all ``s_j`` and all ``k_j`` are equal, ``IPR(w) = sum w**4 / (sum w**2)**2`` the inverse
participation ratio, in [1/d, 1]. *Per channel* is over the law of x with the matrix fixed; *pooled* counts all channels
as one sample. Everything is float64; the last axis is that of the inputs, d, leading axes broadcast. Depth has its
module, `residlab.theory.kurtosis_depth`. Sources: Ji et al., arXiv 2605.25880 (the 1/d contraction); chapter 8
(constants, pooled forms and counterexamples: ours).
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from residlab.theory.validation import FloatArray, checked, checked_choice, non_negative, positive

MatrixLaw = Literal["gaussian", "haar"]
Activation = Literal["relu", "gelu", "swiglu"]

_REACH, _NODES = 14.0, 600  # Gaussian moments of activations: an interval, and Gauss-Legendre nodes in it


# --- One row: what mixing independent inputs does


def participation(weights: ArrayLike) -> FloatArray:
    """Return the inverse participation ratio of each row, ``sum w**4 / (sum w**2)**2``, in [1/d, 1].

    It multiplies the excess kurtosis of independent inputs of equal variance. 1/d where all ``|w_j|`` are equal:
    nothing linear contracts more. 1 where one is not zero.

    Parameters
    ----------
    weights : array_like, shape (..., d), finite, no row all zero

    Raises
    ------
    ValueError
        If a row is all zero, or an entry is not finite.

    Source: chapter 8.

    Examples
    --------
    >>> participation([[1, 1, 1, 1], [1, 0, 0, 0], [3, 1, 1, 1]]).round(4)
    array([0.25  , 1.    , 0.5833])
    """
    return 1 / effective_channels(weights)


def effective_channels(weights: ArrayLike, variances: ArrayLike = 1.0) -> FloatArray:
    """Return over how many inputs each sum averages, ``N = (sum w**2 s**2)**2 / sum w**4 s**4``, in [1, d].

    ``Kurt(y) = k / N`` for independent inputs of one kurtosis k; ``N = 1 / IPR`` of the weights times the standard
    deviations. One loud input among d makes it 1, however flat the row.

    Parameters
    ----------
    weights : array_like, shape (..., d)
    variances : array_like, >= 0, broadcast with ``weights``

    Raises
    ------
    ValueError
        If an entry leaves its range, or a sum has no variance at all.

    Source: chapter 8 (ours).

    Examples
    --------
    >>> float(effective_channels(np.ones(64)))
    64.0
    >>> round(float(effective_channels(np.ones(64), variances=[1000, *[1] * 63])), 2)  # one loud input
    1.13
    """
    powers = _powers(weights, variances)
    return np.asarray(powers.sum(axis=-1) ** 2 / (powers**2).sum(axis=-1))[()]


def sum_excess_kurtosis(weights: ArrayLike, kurtoses: ArrayLike, variances: ArrayLike = 1.0) -> FloatArray:
    """Return the excess kurtosis of ``sum_j w_j x_j``, ``sum w**4 s**4 k / (sum w**2 s**2)**2``.

    For independent ``x_j``; their means do not matter. With ``p_j`` the share of the variance that comes from ``x_j``
    it is ``sum p_j**2 k_j``, so no sum of independent numbers exceeds ``max(0, max_j k_j)``.

    Parameters
    ----------
    weights : array_like, shape (..., d)
    kurtoses : array_like, >= -2, broadcast with ``weights``
    variances : array_like, >= 0, broadcast with ``weights``

    Raises
    ------
    ValueError
        If an entry leaves its range, or a sum has no variance.

    Source: chapter 8.

    Examples
    --------
    >>> float(sum_excess_kurtosis(np.ones(16), kurtoses=3))  # 3 / 16
    0.1875
    >>> round(float(sum_excess_kurtosis([3, 1], kurtoses=[0, 6])), 4)  # 0.1**2 * 6
    0.06
    """
    powers = _powers(weights, variances)
    share = powers / powers.sum(axis=-1, keepdims=True)
    return np.asarray((share**2 * _kurtoses(kurtoses)).sum(axis=-1))[()]


def participation_mean(d: ArrayLike) -> FloatArray:
    """Return ``E IPR = 3 / (d + 2)`` of a row uniform on the sphere: one of a Haar matrix, or of a Gaussian one.

    Squares of Gaussians over their sum are Dirichlet(1/2, ..., 1/2). A row with Gaussian entries in s of its places,
    zero elsewhere, has ``3 / (s + 2)``. Raises ValueError unless ``d >= 1``. Source: chapter 8.

    Examples
    --------
    >>> participation_mean([1, 4, 1024]).round(4)
    array([1.    , 0.5   , 0.0029])
    """
    return 3 / (_dimension(d) + 2)


def participation_variance(d: ArrayLike) -> FloatArray:
    """Return ``Var IPR = 24 (d - 1) / ((d + 2)**2 (d + 4) (d + 6))`` of a row uniform on the sphere.

    Relative to the mean it is ``sqrt(8/3) / sqrt(d)`` for large d. Raises ValueError unless ``d >= 1``.
    Source: chapter 8 (ours).

    Examples
    --------
    >>> spread = participation_variance([64, 4096]) ** 0.5 / participation_mean([64, 4096])
    >>> spread.round(4), (np.sqrt(8 / 3) / np.sqrt([64, 4096])).round(4)
    (array([0.1879, 0.0255]), array([0.2041, 0.0255]))
    """
    d = _dimension(d)
    return 24 * (d - 1) / ((d + 2) ** 2 * (d + 4) * (d + 6))


# --- Many rows, pooled


def pooled_excess_kurtosis(
    variances: ArrayLike, kurtoses: ArrayLike, means: ArrayLike = 0.0, skewnesses: ArrayLike = 0.0
) -> FloatArray:
    """Return the excess kurtosis of all channels counted as one sample, from each channel's own moments.

    With ``D_i = mean_i - mean of means``, averages over channels,
    ``avg(k s**4 + 3 s**4 + 4 g s**3 D + 6 s**2 D**2 + D**4) / avg(s**2 + D**2)**2 - 3``. With equal means it is
    ``avg(k s**4) / avg(s**2)**2 + 3 (avg(s**4) / avg(s**2)**2 - 1)``: channels that differ in size look heavy-tailed
    together, and all of them may be Gaussian.

    Parameters
    ----------
    variances : array_like, shape (..., m), >= 0
    kurtoses, means, skewnesses : array_like, broadcast with ``variances``

    Raises
    ------
    ValueError
        If an entry leaves its range, or nothing varies.

    Source: chapter 8 (ours).

    Examples
    --------
    >>> float(pooled_excess_kurtosis([1, 1, 1, 1], kurtoses=0))
    0.0
    >>> round(float(pooled_excess_kurtosis([1, 1, 1, 100], kurtoses=0)), 2)  # Gaussian channels, one of them large
    8.31
    """
    v, k = checked("variances", variances, non_negative, "finite and >= 0"), _kurtoses(kurtoses)
    m = checked("means", means, np.isfinite, "finite")
    g = checked("skewnesses", skewnesses, np.isfinite, "finite")
    v, k, m, g = np.broadcast_arrays(np.atleast_1d(v), k, m, g)
    offset = m - m.mean(axis=-1, keepdims=True)
    fourth = ((k + 3) * v**2 + 4 * g * v**1.5 * offset + 6 * v * offset**2 + offset**4).mean(axis=-1)
    second = positive("the pooled variance", (v + offset**2).mean(axis=-1))
    return np.asarray(fourth / second**2 - 3)[()]


def pooled_mean(m: ArrayLike, d: ArrayLike, kurtosis: ArrayLike, law: MatrixLaw) -> FloatArray:
    """Return the expected pooled excess kurtosis of ``y = W x``, W (m, d), x independent, mean 0, equal variances.

    Exact. Gaussian W: ``(3 m k + 6 (m - 1)) / (m d + 2)``; the second part is that rows differ in length, and stays for
    Gaussian x. Haar W, ``m <= d`` (orthonormal rows): ``3 k / (d + 2)``; ``m > d`` (orthonormal columns):
    ``(3 m k + 6 (m - d)) / (d (m + 2))``.

    Parameters
    ----------
    m, d : array_like of integers, >= 1
        Outputs and inputs.
    kurtosis : array_like, >= -2
        Of each input.
    law : {"gaussian", "haar"}

    Raises
    ------
    ValueError
        If a value leaves its range.

    Source: chapter 8 (ours).

    Examples
    --------
    >>> pooled_mean(64, 64, kurtosis=[0, 6], law="haar").round(4)
    array([0.    , 0.2727])
    >>> pooled_mean(64, 64, kurtosis=[0, 6], law="gaussian").round(4)  # rows differ in length
    array([0.0922, 0.3734])
    """
    m, d, k = _dimension(m, "m"), _dimension(d), _kurtoses(kurtosis)
    if checked_choice("law", law, MatrixLaw) == "gaussian":
        return np.asarray((3 * m * k + 6 * (m - 1)) / (m * d + 2))[()]
    long = np.maximum(m, d)  # of the square Haar matrix that W is cut from
    return np.asarray((3 * long * k + 6 * (long - d)) / (d * (long + 2)))[()]


# --- What breaks it


def rotated_excess_kurtosis(radius_ratio: ArrayLike, d: ArrayLike) -> FloatArray:
    """Return ``3 d/(d + 2) rho - 3``, ``rho = E|x|**4 / (E|x|**2)**2``: the kurtosis after a Haar rotation, for any x.

    Fourth over squared second moment of an entry of ``y = O x``, x of *any* law in R**d, dependent as it may be, O Haar
    and independent of x; expectations are over both. All that a random rotation leaves of x is its length. Independent
    entries have ``rho = 1 + (k + 2)/d``, which gives ``3 k / (d + 2)``; tokens of one length (RMSNorm) have
    ``rho = 1``, which gives ``-6 / (d + 2)``.

    Parameters
    ----------
    radius_ratio : array_like, >= 1
    d : array_like of integers, >= 1

    Raises
    ------
    ValueError
        If a value leaves its range.

    Source: chapter 8 (ours).

    Examples
    --------
    >>> round(float(rotated_excess_kurtosis(1 + (6 + 2) / 64, d=64)), 4)  # independent entries, k = 6: 3 * 6 / 66
    0.2727
    >>> round(float(rotated_excess_kurtosis(1, d=64)), 4)  # tokens of one length
    -0.0909
    """
    rho = checked("radius_ratio", radius_ratio, lambda v: np.isfinite(v) & (v >= 1), "finite and >= 1")
    d = _dimension(d)
    return 3 * d / (d + 2) * rho - 3


def common_radius_excess_kurtosis(radius_ratio: ArrayLike) -> FloatArray:
    """Return ``3 (rho - 1)``: the kurtosis of every ``w . x``, ``x = r u``, u standard Gaussian, r independent of it.

    ``rho = E r**4 / (E r**2)**2``. It does not depend on w: no mixing contracts it. Raises ValueError unless
    ``rho >= 1``. Source: chapter 8 (ours).

    Examples
    --------
    >>> float(common_radius_excess_kurtosis(student_radius_ratio(6)))  # 6 / (6 - 4), that of one entry
    3.0
    """
    return 3 * (checked("radius_ratio", radius_ratio, lambda v: np.isfinite(v) & (v >= 1), "finite and >= 1") - 1)


def student_radius_ratio(nu: ArrayLike) -> FloatArray:
    """Return ``E r**4 / (E r**2)**2 = (nu - 2) / (nu - 4)`` of a multivariate t with ``nu > 4`` degrees of freedom.

    Its entries are uncorrelated and have the excess kurtosis ``6 / (nu - 4)``, as has every linear form of them.
    Raises ValueError for ``nu <= 4``, where the fourth moment is infinite. Source: chapter 8.

    Examples
    --------
    >>> student_radius_ratio([5, 6, 100]).round(4)
    array([3.    , 2.    , 1.0208])
    """
    nu = checked("nu", nu, lambda v: np.isfinite(v) & (v > 4), "finite and > 4")
    return (nu - 2) / (nu - 4)


def raw_excess_kurtosis(
    kurtosis: ArrayLike, mean: ArrayLike, variance: ArrayLike = 1.0, skewness: ArrayLike = 0.0
) -> FloatArray:
    """Return ``E y**4 / (E y**2)**2 - 3``, moments about zero: what "kurtosis" becomes if the mean is not taken out.

    ``(k s**4 + 4 g s**3 mean - 2 mean**4) / (s**2 + mean**2)**2``, which tends to -2 as the mean grows, whatever k.

    Parameters
    ----------
    kurtosis, skewness : array_like
        Central and standardised.
    mean : array_like
    variance : array_like, > 0

    Raises
    ------
    ValueError
        If a value leaves its range.

    Source: chapter 8 (ours).

    Examples
    --------
    >>> raw_excess_kurtosis(kurtosis=6, mean=[0, 1, 10]).round(4)
    array([ 6.  ,  1.  , -1.96])
    """
    k, v = _kurtoses(kurtosis), positive("variance", variance)
    m = checked("mean", mean, np.isfinite, "finite")
    g = checked("skewness", skewness, np.isfinite, "finite")
    return np.asarray((k * v**2 + 4 * g * v**1.5 * m - 2 * m**4) / (v + m**2) ** 2)[()]


# --- What nonlinearities put in


def activation_excess_kurtosis(activation: Activation, scale: ArrayLike = 1.0) -> FloatArray:
    """Return the excess kurtosis, about its mean, of an activation of independent Gaussians N(0, s**2).

    ``relu`` and ``gelu`` (the erf form) of one, ``swiglu``: ``silu(g) u`` of two. By quadrature, to 10 digits for
    ``scale`` in [0.1, 10].

    Parameters
    ----------
    activation : {"relu", "gelu", "swiglu"}
    scale : array_like, > 0

    Raises
    ------
    ValueError
        If a value leaves its range.

    Source: chapter 8 (ours).

    Examples
    --------
    >>> round(float(activation_excess_kurtosis("relu")), 3), round(float(activation_excess_kurtosis("swiglu")), 3)
    (2.408, 18.785)
    """
    from scipy.special import expit, ndtr

    checked_choice("activation", activation, Activation)
    s = positive("scale", scale)[..., None]
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    z = _REACH * (nodes[None] + [[-1], [1]]) / 2  # two halves, since relu has a corner at 0
    weights = np.exp(-(z**2) / 2) * weights
    weights = (weights / weights.sum()).ravel()
    z = s * z.ravel()
    if activation == "swiglu":  # a product of independent factors, one of them symmetric: moments multiply
        silu = z * expit(z)
        return np.asarray(3 * (silu**4 @ weights) / (silu**2 @ weights) ** 2 - 3)[()]
    value = np.maximum(z, 0) if activation == "relu" else z * ndtr(z)
    value = value - (value @ weights)[..., None]
    return np.asarray((value**4 @ weights) / (value**2 @ weights) ** 2 - 3)[()]


# --- Validation


def _powers(weights: ArrayLike, variances: ArrayLike) -> FloatArray:
    """Return ``w**2 s**2`` up to a factor for each row, of which the largest is 1."""
    w = np.atleast_1d(checked("weights", weights, np.isfinite, "finite"))
    v = checked("variances", variances, non_negative, "finite and >= 0")
    size = np.abs(w) * np.sqrt(v)
    largest = size.max(axis=-1, keepdims=True) if size.shape[-1] else np.zeros(1)
    return (size / checked("the largest term of each sum", largest, lambda x: x > 0, "above zero")) ** 2


def _kurtoses(kurtosis: ArrayLike) -> FloatArray:
    return checked("excess kurtosis", kurtosis, lambda v: np.isfinite(v) & (v >= -2), "finite and >= -2")


def _dimension(d: ArrayLike, name: str = "d") -> FloatArray:
    return checked(name, d, lambda v: np.isfinite(v) & (v >= 1) & (v == np.floor(v)), "an integer >= 1")
