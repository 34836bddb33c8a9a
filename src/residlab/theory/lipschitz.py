"""How far attention can stretch a perturbation: bounds in closed form, each with the norm that it is in (chapter 16).

One head without biases, ``f_i(X) = V sum_j P_ij x_j`` with ``P_i = softmax_j(x_i . A x_j)`` over the keys that query i
sees. Tokens have ``|x_j| <= R``; ``L = |A| R**2`` is the *logit radius*: no logit exceeds it. Matrices have the
spectral norm. Two norms of a change H of all tokens:

* the **token norm** ``max_j |h_j|`` (block infinity, 2-norms inside): `sharp_bound`, `local_bound`, `sink_bound`;
* the **Frobenius norm** ``sqrt(sum_j |h_j|**2)``: `frobenius_bound`, `castin_discrete`, `castin_mean_field`.

With ``m = sum_j P_ij x_j``, ``Sigma = Cov_{P_i}(x)`` and ``a = A.T x_i``, the Jacobian's row i is

    ``Df_i[H] = V sum_j P_ij (I + (x_j - m) a.T) h_j + V Sigma A.T h_i``.

Deviations ``x_j - m`` have mean zero under P_i. So the mean of ``|w + (w . (x_j - m)) a|**2``, what a unit vector w
sees of the sum's blocks, has no cross term: it is ``1 + |a|**2 w . Sigma w``, and by Cauchy and Schwarz

    ``|Df_i| <= |V| (sqrt(1 + |a|**2 |Sigma|) + |A| |Sigma|) <= |V| (sqrt(1 + L**2) + L) <= |V| (1 + 2 L)``.

Nothing in it depends on N, nor on which keys a mask hides. The middle constant is the supremum over all N (`family`
comes as close as one likes). It and the bounds in Frobenius norm are ours; arXiv 2503.10251 has bounds without N,
Castin et al. (ICML 2024) those that bear their name.
"""

import numpy as np
from numpy.typing import ArrayLike

from residlab.theory.validation import FloatArray, checked, non_negative

# --- The token norm


def _radius(logit_radius: ArrayLike) -> FloatArray:
    return checked("logit_radius", logit_radius, non_negative, "finite and >= 0")


def _factor(name: str, value: ArrayLike) -> FloatArray:
    return checked(name, value, non_negative, "finite and >= 0")


def _tokens(tokens: ArrayLike) -> FloatArray:
    return checked("tokens", tokens, lambda v: np.isfinite(v) & (v >= 1), "finite and >= 1")


def simple_bound(logit_radius: ArrayLike, value_norm: ArrayLike = 1.0) -> FloatArray:
    """Return ``|V| (1 + 2 L)``, a bound in the token norm; with ``L = alpha R**2`` it also holds for rotated keys.

    With RoPE the form is another for each pair of positions, ``A_ij``; alpha is the largest of their norms, at most
    ``|W_Q| |W_K|/sqrt(d_k)``. The deviations' cross term no longer vanishes, so that `sharp_bound` is not proved there.

    Examples
    --------
    >>> simple_bound([0, 1, 100])
    array([  1.,   3., 201.])
    """
    return _factor("value_norm", value_norm) * (1 + 2 * _radius(logit_radius))


def sharp_bound(logit_radius: ArrayLike, value_norm: ArrayLike = 1.0) -> FloatArray:
    """Return ``|V| (L + sqrt(1 + L**2)) = |V| exp(arsinh L)``: the supremum in the token norm, for one form A.

    No number of tokens and no mask exceeds it, and `family` comes arbitrarily near. Between 4/5 of `simple_bound` (at L
    = 3/4) and all of it (L = 0, and L to infinity).

    Parameters
    ----------
    logit_radius : array_like, >= 0
        ``L = |A| R**2``.
    value_norm : array_like, >= 0
        ``|V|``, or ``|W_O W_V|``.

    Examples
    --------
    >>> sharp_bound([0, 0.75, 100]).round(3)  # 4/5 of 1 + 2 L at L = 3/4
    array([  1.   ,   2.   , 200.005])
    """
    L = _radius(logit_radius)
    return _factor("value_norm", value_norm) * (L + np.hypot(1, L))


def family(logit_radius: float, tokens: int) -> tuple[FloatArray, FloatArray]:
    """Return tokens X of length 1 and the form A that nearly attain `sharp_bound`, with V the identity.

    Half of the tokens is ``(1, 0)``, half ``(-1, 0)``, and A swaps the axes: ``[[0, L], [L, 0]]``. All logits are 0, so
    that a causal mask would change rows; the value below is for none.

    Parameters
    ----------
    logit_radius : float, >= 0
    tokens : int, even, >= 2

    Returns
    -------
    X : ndarray, shape (tokens, 2)
    A : ndarray, shape (2, 2)

    Examples
    --------
    >>> x, form = family(0.75, tokens=4)
    >>> x, form
    (array([[ 1.,  0.],
           [-1.,  0.],
           [ 1.,  0.],
           [-1.,  0.]]), array([[0.  , 0.75],
           [0.75, 0.  ]]))
    """
    L = float(_radius(logit_radius))
    if tokens < 2 or tokens % 2:
        raise ValueError(f"tokens must be even and at least 2; got {tokens}")
    X = np.zeros((tokens, 2))
    X[:, 0] = np.where(np.arange(tokens) % 2, -1.0, 1.0)
    return X, np.array([[0.0, L], [L, 0.0]])


def family_value(logit_radius: ArrayLike, tokens: ArrayLike) -> FloatArray:
    """Return what a unit vector along the tokens shows of the Jacobian of `family`: a lower bound on its token norm.

    ``sqrt(1/N**2 + (1 + 1/N)**2 L**2) + (1 - 1/N) sqrt(1 + L**2)``, which tends to ``L + sqrt(1 + L**2)``.

    Examples
    --------
    >>> family_value(0.75, tokens=[2, 100, 10**6]).round(4)  # to sharp_bound(0.75) = 2
    array([1.8561, 1.9951, 2.    ])
    """
    L, N = _radius(logit_radius), _tokens(tokens)
    return np.hypot(1 / N, (1 + 1 / N) * L) + (1 - 1 / N) * np.hypot(1, L)


def local_bound(
    *,
    form_norm: ArrayLike,
    query_norm: ArrayLike,
    covariance_norm: ArrayLike,
    mean_distance: ArrayLike = np.inf,
    value_norm: ArrayLike = 1.0,
) -> FloatArray:
    """Return a bound on one row of the Jacobian at one input; the largest over rows bounds the token norm there.

    ``|V| (|A| |Sigma| + min(sqrt(1 + |a|**2 |Sigma|), 1 + |a| E|x - m|))``. The second of the minimum is the smaller
    one when nearly all mass is on one key: it vanishes like the rest of the mass, the first like its root.

    Parameters
    ----------
    form_norm, query_norm : array_like, >= 0
        ``|A|``, and ``|A.T x_i|``.
    covariance_norm : array_like, >= 0
        ``|Sigma_i|``, at most ``R**2``.
    mean_distance : array_like, >= 0
        ``sum_j P_ij |x_j - m|``; infinite if not known.
    value_norm : array_like, >= 0

    Examples
    --------
    >>> local_bound(form_norm=1, query_norm=1, covariance_norm=[1, 0.01]).round(4)
    array([2.4142, 1.015 ])
    """
    spread = _factor("covariance_norm", covariance_norm)
    a = _factor("query_norm", query_norm)
    distance = checked("mean_distance", mean_distance, lambda v: v >= 0, ">= 0")
    with np.errstate(invalid="ignore"):
        linear = np.where(a > 0, 1 + a * distance, 1.0)
    third = np.minimum(np.sqrt(1 + a**2 * spread), linear)
    return _factor("value_norm", value_norm) * (_factor("form_norm", form_norm) * spread + third)


def rotated_local_bound(
    *,
    query_map_norm: ArrayLike,
    key_covariance_norm: ArrayLike,
    query_norm: ArrayLike,
    covariance_norm: ArrayLike,
    mean_distance: ArrayLike = np.inf,
    value_norm: ArrayLike = 1.0,
) -> FloatArray:
    """Return `local_bound` for keys that are rotated by position (RoPE).

    ``|V| (1 + |W_Q|/sqrt(d_k) sqrt(|Sigma| |Cov_{P_i}(k)|) + max_j |a_ij| min(sqrt|Sigma|, E|x - m|))``, ``k_j`` the
    rotated keys and ``a_ij = A_ij.T x_i``. Rotated keys differ where tokens do not, so that the covariance of tokens
    and keys is no longer ``Sigma A.T``; it is at most the root of the product.

    Parameters
    ----------
    query_map_norm : array_like, >= 0
        ``|W_Q|/sqrt(d_k)``.
    key_covariance_norm : array_like, >= 0
        ``|Cov_{P_i}(k)|``, at most ``|W_K|**2 R**2``.
    query_norm : array_like, >= 0
        ``max_j |A_ij.T x_i|``.
    covariance_norm, mean_distance, value_norm
        As in `local_bound`.

    Examples
    --------
    >>> norms = {"key_covariance_norm": 0.01, "covariance_norm": [1, 0.01]}
    >>> rotated_local_bound(query_map_norm=1, query_norm=1, **norms).round(3)
    array([2.1 , 1.11])
    """
    spread = np.sqrt(_factor("covariance_norm", covariance_norm))
    distance = checked("mean_distance", mean_distance, lambda v: v >= 0, ">= 0")
    keys = np.sqrt(_factor("key_covariance_norm", key_covariance_norm))
    second = _factor("query_map_norm", query_map_norm) * spread * keys
    third = _factor("query_norm", query_norm) * np.minimum(spread, distance)
    return _factor("value_norm", value_norm) * (1 + second + third)


def sink_bound(
    remaining_mass: ArrayLike,
    *,
    form_norm: ArrayLike,
    token_norm: ArrayLike,
    distance: ArrayLike,
    value_norm: ArrayLike = 1.0,
) -> FloatArray:
    """Return ``|V| (1 + |A| (D**2 + 2 |x_i| D) eps)``: a bound on a row that leaves eps to all keys but one.

    Parameters
    ----------
    remaining_mass : array_like, in [0, 1]
        ``eps = 1 - P_is``, s the sink.
    form_norm, token_norm, value_norm : array_like, >= 0
        ``|A|``, ``|x_i|`` of the query, ``|V|``.
    distance : array_like, >= 0
        ``D``, the largest ``|x_j - x_s|``.

    Notes
    -----
    ``Sigma`` is at most the second moment around the sink, ``eps D**2``, and ``E|x - m| <= 2 eps D``.

    Examples
    --------
    >>> sink_bound([0.5, 0.01, 0], form_norm=1, token_norm=1, distance=2).round(3)
    array([5.  , 1.08, 1.  ])
    """
    eps = checked("remaining_mass", remaining_mass, lambda v: (v >= 0) & (v <= 1), "in [0, 1]")
    D, x = _factor("distance", distance), _factor("token_norm", token_norm)
    return _factor("value_norm", value_norm) * (1 + _factor("form_norm", form_norm) * (D**2 + 2 * x * D) * eps)


def balanced_mass_bound(row: ArrayLike) -> FloatArray:
    """Return ``4 p (1 - p)`` if a weight p of the row is above 1/2, and 1 if none is, rows on the last axis.

    The factor ``theta = 4 max_S P(S) (1 - P(S))`` is the norm of softmax's Jacobian from the infinity norm to the
    1-norm (Emadi, arXiv 2602.18849). With a weight above 1/2 this is theta; with none theta lies in [8/9, 1], and to
    know it exactly is to solve a subset sum. In our norm it gives the row ``|V| (1 + 2 theta |A| R**2)``.

    Examples
    --------
    >>> balanced_mass_bound([[0.4, 0.3, 0.3], [0.9, 0.1, 0]]).round(4)
    array([1.  , 0.36])
    """
    P = checked("row", row, non_negative, "finite and >= 0")
    if not np.allclose(P.sum(axis=-1), 1, atol=1e-6):
        raise ValueError(f"a row of attention must add up to 1; got {float(P.sum(axis=-1).flat[0])!r}")
    p = np.minimum(P.max(axis=-1), 1)
    return np.where(p > 0.5, 4 * p * (1 - p), 1.0)


# --- The Frobenius norm


def column_mass_bound(logit_radius: ArrayLike, tokens: ArrayLike) -> FloatArray:
    """Return ``N/(1 + (N - 1) exp(-2 L))``, the most that a key can get from all rows together; no mask.

    Logits of a row differ by at most 2 L. The value is below ``min(N, exp(2 L))``.

    Examples
    --------
    >>> column_mass_bound(logit_radius=1, tokens=[2, 1000]).round(3), round(float(np.exp(2)), 3)
    (array([1.762, 7.342]), 7.389)
    """
    L, N = _radius(logit_radius), _tokens(tokens)
    return N / (1 + (N - 1) * np.exp(-2 * L))


def frobenius_bound(
    column_mass: ArrayLike, *, third: ArrayLike, second: ArrayLike = 0.0, value_norm: ArrayLike = 1.0
) -> FloatArray:
    """Return ``|V| (sqrt(c) b + e)``, a bound on the Jacobian's spectral norm (Frobenius norm of tokens).

    Parameters
    ----------
    column_mass : array_like, > 0
        ``c``, the largest column sum of P: between 1 and N.
    third, second : array_like, >= 0
        ``b = max_i sqrt(1 + |a_i|**2 |Sigma_i|)`` and ``e = |A| max_i |Sigma_i|``; for all inputs ``sqrt(1 + L**2)``
        and ``L``.

    Notes
    -----
    Row i of the first part is at most ``|V| b sqrt(sum_j P_ij |h_j|**2)``; the squares add up to ``c |H|**2`` at most.

    Examples
    --------
    >>> frobenius_bound(column_mass=[1, 100], third=1)  # one key that all rows attend to
    array([ 1., 10.])
    """
    c = checked("column_mass", column_mass, lambda v: v > 0, "> 0")
    return _factor("value_norm", value_norm) * (np.sqrt(c) * _factor("third", third) + _factor("second", second))


def global_frobenius_bound(
    logit_radius: ArrayLike, tokens: ArrayLike = np.inf, value_norm: ArrayLike = 1.0
) -> FloatArray:
    """Return `frobenius_bound` for all inputs without a mask: ``|V| (sqrt(c) sqrt(1 + L**2) + L)``.

    ``c`` is `column_mass_bound`, and ``exp(2 L)`` for ``tokens`` infinite: without N, as the mean-field figure is.
    Below `castin_discrete` and below `castin_mean_field`, everywhere.

    Examples
    --------
    >>> global_frobenius_bound(1, tokens=[2, 1000, np.inf]).round(2)
    array([2.88, 4.83, 4.84])
    """
    L = _radius(logit_radius)
    N = checked("tokens", tokens, lambda v: v >= 1, ">= 1")
    finite = np.where(np.isfinite(N), N, 1.0)
    with np.errstate(over="ignore"):  # infinite is a bound, too
        c = np.where(np.isfinite(N), column_mass_bound(L, finite), np.exp(2 * L))
    return frobenius_bound(c, third=np.hypot(1, L), second=L, value_norm=value_norm)


def castin_discrete(logit_radius: ArrayLike, tokens: ArrayLike, value_norm: ArrayLike = 1.0) -> FloatArray:
    """Return ``sqrt(3) |V| sqrt(L**2 (4 N + 1) + N)``, Frobenius norm, no mask (Castin, Ablin and Peyré 2024).

    Examples
    --------
    >>> castin_discrete(1, tokens=[2, 1000]).round(2), global_frobenius_bound(1, tokens=[2, 1000]).round(2)
    (array([  5.74, 122.49]), array([2.88, 4.83]))
    """
    L, N = _radius(logit_radius), _tokens(tokens)
    return _factor("value_norm", value_norm) * np.sqrt(3 * (L**2 * (4 * N + 1) + N))


def castin_mean_field(logit_radius: ArrayLike, value_norm: ArrayLike = 1.0) -> FloatArray:
    """Return ``|V| (1 + 3 L) exp(2 L)``, in the Wasserstein distance W2 (Castin, Ablin and Peyré 2024).

    Between clouds of N equally weighted tokens that differ little, W2 is the Frobenius norm over ``sqrt(N)``: the
    figure is one for the Frobenius norm, too, without a mask.

    Examples
    --------
    >>> round(float(castin_mean_field(1)), 2), round(float(global_frobenius_bound(1)), 2)
    (29.56, 4.84)
    """
    L = _radius(logit_radius)
    return _factor("value_norm", value_norm) * (1 + 3 * L) * np.exp(2 * L)
