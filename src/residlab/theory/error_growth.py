r"""How rounding errors grow through pre-norm layers: the worst case, the mean square, and a factor on all branches.

A stream ``x_{l+1} = x_l + f_l(x_l)`` is computed as ``y_{l+1} = fl(y_l + g_l)``: g_l is the computed branch,
``|g_l - f_l(y_l)| <= epsilon_l``, and the sum is rounded with unit roundoff u. ``Lambda_l`` is the Lipschitz constant
of f_l between x_l and y_l. Sizes are 2-norms of one token, ``s_l = |x_l|``; *relative error* is ``e_l / s_l``.

Nothing here assumes that errors are small, unless it says so. Source: chapter 17 (ours, but for the form of the
recursion, which is that of arXiv 2503.10251).
"""

import numpy as np
from numpy.typing import ArrayLike

from residlab.theory.validation import FloatArray, checked, non_negative, positive

# --- The worst case


def error_bound(
    lipschitz: ArrayLike, branch_errors: ArrayLike, sizes: ArrayLike, u: float, initial: float = 0.0
) -> FloatArray:
    r"""Return ``e_0 ... e_L`` of ``e_{l+1} = (1 + u) ((1 + Lambda_l) e_l + epsilon_l) + u s_{l+1}``.

    No computed stream is further from the exact one, if each branch and each sum meets its bound. To first order in u
    the factor ``1 + u`` in front is left out; the bound without it can be exceeded.

    Parameters
    ----------
    lipschitz, branch_errors : array_like, shape (L,) or (), >= 0
    sizes : array_like, shape (L + 1,), >= 0
        Of the exact stream.
    u : float, in [0, 1)
        Unit roundoff of the sum.
    initial : float, >= 0
        Error of the embedding.

    Raises
    ------
    ValueError
        If a value leaves its range, or a shape does not fit.

    Source: chapter 17.

    Examples
    --------
    >>> error_bound(lipschitz=[1, 1], branch_errors=0.001, sizes=[1, 2, 3], u=2**-8).round(4)
    array([0.    , 0.0088, 0.0304])
    """
    s = _sizes(sizes, allow_zero=True)
    depth = (len(s) - 1,)
    growth = np.broadcast_to(checked("lipschitz", lipschitz, non_negative, "finite and >= 0"), depth)
    made = np.broadcast_to(checked("branch_errors", branch_errors, non_negative, "finite and >= 0"), depth)
    u = float(checked("u", u, lambda v: (v >= 0) & (v < 1), "in [0, 1)"))
    errors = [float(checked("initial", initial, non_negative, "finite and >= 0"))]
    for layer in range(len(s) - 1):
        errors.append(float((1 + u) * ((1 + growth[layer]) * errors[-1] + made[layer]) + u * s[layer + 1]))
    return np.array(errors)


def amplifications(lipschitz: ArrayLike) -> FloatArray:
    r"""Return ``prod_{j >= k} (1 + Lambda_j)`` for k = 0 ... L: what an error that enters in front of block k becomes.

    The solution of the recursion for u = 0 is ``e_L = A_0 e_0 + sum_k A_{k+1} epsilon_k``.

    Parameters
    ----------
    lipschitz : array_like, shape (L,), >= 0

    Returns
    -------
    ndarray, shape (L + 1,)

    Raises
    ------
    ValueError
        If a value leaves its range.

    Source: chapter 17.

    Examples
    --------
    >>> amplifications([1, 0.5, 0])
    array([3. , 1.5, 1. , 1. ])
    """
    factors = 1 + np.atleast_1d(checked("lipschitz", lipschitz, non_negative, "finite and >= 0"))
    return np.append(np.cumprod(factors[::-1])[::-1], 1.0)


def prenorm_lipschitz(constant: ArrayLike, rms: ArrayLike, relative_error: ArrayLike = 0.0) -> FloatArray:
    r"""Return ``C / ((1 - theta/2) RMS(x))``, the Lipschitz constant of ``B(RMSNorm(x))`` between x and y.

    C is that of B, and ``|y - x| <= theta |x|``. From ``|x/|x| - y/|y|| <= 2 |x - y| / (|x| + |y|)``, which cannot be
    improved; ``C / RMS(x)``, the norm of the derivative at x, is too small as soon as y is shorter than x.

    Parameters
    ----------
    constant : array_like, >= 0
    rms : array_like, > 0
    relative_error : array_like, in [0, 1)

    Raises
    ------
    ValueError
        If a value leaves its range.

    Source: chapter 17 (the inequality: Dunkl and Williams 1964).

    Examples
    --------
    >>> prenorm_lipschitz(constant=2, rms=[1, 10], relative_error=0.1).round(4)
    array([2.1053, 0.2105])
    """
    constant = checked("constant", constant, non_negative, "finite and >= 0")
    theta = checked("relative_error", relative_error, lambda v: (v >= 0) & (v < 1), "in [0, 1)")
    return np.asarray(constant / ((1 - theta / 2) * positive("rms", rms)))[()]


def root_stream_cap(c: ArrayLike, first: ArrayLike, last: ArrayLike) -> FloatArray:
    r"""Return ``exp(2 c (sqrt(last - 1) - sqrt(first - 1)))``, above ``prod_{j=first}^{last-1} (1 + c/sqrt(j))``.

    The amplification where the stream grows like ``sqrt(l)``. It has the right order: the logarithm of the product over
    ``2 c sqrt(last)`` tends to 1.

    Parameters
    ----------
    c : array_like, >= 0
    first, last : array_like, 1 <= first <= last

    Raises
    ------
    ValueError
        If a value leaves its range.

    Source: chapter 17.

    Examples
    --------
    >>> product = np.prod(1 + 0.5 / np.sqrt(np.arange(1, 100)))
    >>> round(float(product), 0), round(float(root_stream_cap(0.5, first=1, last=100)), 0)
    (5877.0, 20950.0)
    """
    c = checked("c", c, non_negative, "finite and >= 0")
    first = checked("first", first, lambda v: np.isfinite(v) & (v >= 1), "finite and >= 1")
    last = checked("last", last, lambda v: np.isfinite(v) & (v >= first), "finite and at least first")
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(2 * c * (np.sqrt(last - 1) - np.sqrt(first - 1))))[()]


def geometric_stream_cap(c: ArrayLike, ratio: ArrayLike) -> FloatArray:
    r"""Return ``exp(c / (1 - 1/ratio))``, above ``prod_{j >= 0} (1 + c ratio**-j)`` for every number of blocks.

    The amplification where the stream grows geometrically and branches do not. A branch that vanishes at zero cannot do
    that: `least_amplification`.

    Parameters
    ----------
    c : array_like, >= 0
    ratio : array_like, > 1

    Raises
    ------
    ValueError
        If a value leaves its range.

    Source: chapter 17.

    Examples
    --------
    >>> round(float(np.prod(1 + 0.5 * 0.5 ** np.arange(100))), 4), round(float(geometric_stream_cap(0.5, ratio=2)), 4)
    (2.3842, 2.7183)
    """
    c = checked("c", c, non_negative, "finite and >= 0")
    ratio = checked("ratio", ratio, lambda v: np.isfinite(v) & (v > 1), "finite and > 1")
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(c / (1 - 1 / ratio)))[()]


def least_amplification(sizes: ArrayLike) -> FloatArray:
    r"""Return ``s_L / s_k``, k = 0 ... L: no product of ``1 + Lambda_j`` is below it, if every B_j vanishes at zero.

    Because ``|f_j(x)| <= C_j sqrt(d)`` and ``Lambda_j >= C_j sqrt(d) / s_j``. So the worst case never promises that a
    *relative* error shrinks, and a stream that grows geometrically comes with an amplification that does.

    Parameters
    ----------
    sizes : array_like, shape (L + 1,), > 0

    Raises
    ------
    ValueError
        If a value leaves its range.

    Source: chapter 17.

    Examples
    --------
    >>> least_amplification([1, 2, 8])
    array([8., 4., 1.])
    """
    s = _sizes(sizes)
    return np.asarray(s[-1] / s)


# --- The mean square


def stored_error(u: ArrayLike) -> FloatArray:
    r"""Return ``u sqrt(2 ln(2) / 9)``, the root mean square relative error of rounding a vector to nearest.

    ``sum delta_i**2 / sum x_i**2`` for significands with the density ``1 / (m ln 2)`` on [1, 2): an entry's error is
    uniform on ``u 2**e (-1, 1)``, mean square ``u**2/3``, and ``E m**2 = 3 / (2 ln 2)``.

    Parameters
    ----------
    u : array_like, > 0
        Unit roundoff.

    Raises
    ------
    ValueError
        If u is not positive.

    Source: chapter 17.

    Examples
    --------
    >>> round(float(stored_error(2**-8) * 2**8), 3)
    0.392
    >>> from residlab.precision.formats import BF16, round_number
    >>> x = 2 ** np.random.default_rng(0).random(4000)  # significands as in Benford's law
    >>> error = np.array([round_number(entry, BF16) for entry in x]) - x
    >>> round(float(np.linalg.norm(error) / np.linalg.norm(x) * 2**8), 2)
    0.39
    """
    return np.asarray(positive("u", u) * np.sqrt(2 * np.log(2) / 9))[()]


def independent_sizes(initial: float, branches: ArrayLike) -> FloatArray:
    r"""Return ``s_l = sqrt(s_0**2 + v_0**2 + ... + v_{l-1}**2)``, the root mean square size with independent branches.

    Parameters
    ----------
    initial : float, > 0
    branches : array_like, shape (L,), >= 0
        ``v_l``, the size of what each block writes.

    Raises
    ------
    ValueError
        If a value leaves its range.

    Source: chapter 17.

    Examples
    --------
    >>> independent_sizes(3, branches=[4, 12])
    array([ 3.,  5., 13.])
    """
    written = np.atleast_1d(checked("branches", branches, non_negative, "finite and >= 0"))
    start = float(positive("initial", initial))
    return np.asarray(np.sqrt(start**2 + np.append(0.0, np.cumsum(written**2))))


def mean_square_errors(
    sizes: ArrayLike, branch: ArrayLike, storage: ArrayLike = 0.0, *, gain: ArrayLike = 1.0, initial: float = 0.0
) -> FloatArray:
    r"""Return relative errors ``r_0 ... r_L`` with independent branches and errors of mean zero.

    .. math:: m_{l+1} = \bigl(1 + \chi v_l^2/s_l^2\bigr) m_l + \beta^2 v_l^2 + \tau^2 s_{l+1}^2, \quad
              r_l = \sqrt{m_l}/s_l

    with ``v_l**2 = s_{l+1}**2 - s_l**2`` and ``s_l`` increasing. For ``chi = 1``, linear branches, the amplification is
    the stream's own growth and cancels: ``r_l**2 = r_0**2 + sum_k (beta**2 v_k**2 / s_{k+1}**2 + tau**2)``.

    Parameters
    ----------
    sizes : array_like, shape (L + 1,), > 0, not decreasing
    branch : array_like, shape () or (L,), >= 0
        ``beta``: error of a branch over its size.
    storage : array_like, shape () or (L,), >= 0
        ``tau``: error of storing the stream over its size.
    gain : array_like, shape () or (L,), >= 0
        ``chi``: mean square of a branch's change, over its size, in units of the stream's.
    initial : float, >= 0
        ``r_0``.

    Raises
    ------
    ValueError
        If a value leaves its range, or a shape does not fit.

    Source: chapter 17.

    Examples
    --------
    >>> mean_square_errors(sizes=np.sqrt([1, 2, 3, 4]), branch=0.01).round(4)
    array([0.    , 0.0071, 0.0091, 0.0104])
    >>> mean_square_errors(sizes=np.sqrt([1, 2, 3, 4]), branch=0.01, gain=0).round(4)
    array([0.    , 0.0071, 0.0082, 0.0087])
    """
    s = _sizes(sizes)
    checked("steps of sizes", np.diff(s), lambda v: v >= 0, ">= 0")
    depth = (len(s) - 1,)
    beta, tau, chi = (
        np.broadcast_to(checked(name, value, non_negative, "finite and >= 0"), depth)
        for name, value in (("branch", branch), ("storage", storage), ("gain", gain))
    )
    squares = [float(checked("initial", initial, non_negative, "finite and >= 0")) ** 2]
    for layer in range(len(s) - 1):
        kept = (s[layer] / s[layer + 1]) ** 2
        grown = (kept + chi[layer] * (1 - kept)) * squares[-1]
        squares.append(float(grown + beta[layer] ** 2 * (1 - kept) + tau[layer] ** 2))
    return np.sqrt(squares)


def errors_without_residual(
    gain: ArrayLike, branch: ArrayLike, storage: ArrayLike = 0.0, *, initial: float = 0.0, depth: int | None = None
) -> FloatArray:
    r"""Return relative errors ``r_0 ... r_L`` where each branch is all of the stream: ``w = 1`` in the mean square.

    .. math:: r_{l+1}^2 = \chi r_l^2 + \beta^2 + \tau^2, \qquad
              r_L^2 = \chi^L r_0^2 + (\beta^2 + \tau^2)\frac{\chi^L - 1}{\chi - 1}

    for a constant gain: ``log2(chi)/2`` bits are lost in every layer. To first order in the errors: nothing saturates.

    Parameters
    ----------
    gain : array_like, shape () or (L,), >= 0
        ``chi``: mean square of a branch's change, over its size, in units of its input's.
    branch, storage : array_like, shape () or (L,), >= 0
        ``beta``, ``tau``, as in `mean_square_errors`.
    initial : float, >= 0
        ``r_0``.
    depth : int, >= 1, optional
        L, where all of them are scalars.

    Raises
    ------
    ValueError
        If a value leaves its range, shapes do not fit, or nothing says how many layers there are.

    Source: chapter 18 (ours).

    Examples
    --------
    >>> errors_without_residual(gain=4, branch=0.001, depth=4).round(4)  # log2(4)/2 bits a layer
    array([0.    , 0.001 , 0.0022, 0.0046, 0.0092])
    """
    values = [
        checked(name, value, non_negative, "finite and >= 0")
        for name, value in (("gain", gain), ("branch", branch), ("storage", storage))
    ]
    shape = np.broadcast_shapes(*(value.shape for value in values), () if depth is None else (depth,))
    if len(shape) != 1 or not shape[0]:
        raise ValueError(f"gain, branch and storage must have the shape (depth,), or depth >= 1 be given; got {shape}")
    chi, beta, tau = (np.broadcast_to(value, shape) for value in values)
    squares = [float(checked("initial", initial, non_negative, "finite and >= 0")) ** 2]
    for layer in range(shape[0]):
        squares.append(float(chi[layer] * squares[-1] + beta[layer] ** 2 + tau[layer] ** 2))
    return np.sqrt(squares)


def layers_until_noise(gain: ArrayLike, branch: ArrayLike, initial: ArrayLike = 0.0) -> FloatArray:
    r"""Return the L at which ``r_L = 1`` by `errors_without_residual`: deeper, nothing is left.

    .. math:: L = \frac{1}{\ln\chi}
              \ln\Bigl(1 + \frac{(\chi - 1)(1 - r_0^2)}{\beta^2 + (\chi - 1) r_0^2}\Bigr)

    and ``(1 - r_0**2)/beta**2`` where ``chi = 1``; infinite where ``beta**2 + chi <= 1``: errors never come to 1 then.

    Parameters
    ----------
    gain : array_like, >= 0
        ``chi`` of a layer.
    branch : array_like, > 0
        ``beta``, the relative error that a layer makes.
    initial : array_like, in [0, 1)
        ``r_0``.

    Raises
    ------
    ValueError
        If a value leaves its range.

    Source: chapter 18 (ours).

    Examples
    --------
    >>> layers_until_noise(gain=[4, 2], branch=2**-8).round(2)
    array([ 8.79, 16.  ])
    """
    chi = checked("gain", gain, non_negative, "finite and >= 0")
    made = positive("branch", branch) ** 2
    first = checked("initial", initial, lambda v: (v >= 0) & (v < 1), "in [0, 1)") ** 2
    growth = chi - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        layers = np.log1p(growth * (1 - first) / (made + growth * first)) / np.log1p(growth)
    layers = np.where(growth == 0, (1 - first) / made, layers)
    return np.asarray(np.where(made + chi <= 1, np.inf, layers))[()]


def mean_square_amplification_cap(sizes: ArrayLike, gain: ArrayLike) -> FloatArray:
    r"""Return ``(s_L/s_0)**(chi - 1)``: what a relative error of 1 at the embedding becomes at most, if ``chi >= 1``.

    At least, if ``chi <= 1``: Bernoulli's inequality, block by block. Polynomial in the depth for a stream like
    ``sqrt(l)``: ``l**((chi - 1)/2)``.

    Parameters
    ----------
    sizes : array_like, shape (L + 1,), > 0
    gain : array_like, >= 0

    Raises
    ------
    ValueError
        If a value leaves its range.

    Source: chapter 17.

    Examples
    --------
    >>> mean_square_amplification_cap(sizes=[1, 2, 4], gain=[1, 1.5])
    array([1., 2.])
    """
    s = _sizes(sizes)
    chi = checked("gain", gain, non_negative, "finite and >= 0")
    return np.asarray((s[-1] / s[0]) ** (chi - 1))[()]


# --- A factor on what writes to the stream


def factor_distance_cap(factor: ArrayLike, embedding: ArrayLike, lipschitz: ArrayLike) -> FloatArray:
    r"""Return ``|1 - 1/xi| s_0 prod_{j >= 1} (1 + Lambda_j)``, which ``|x_L(xi)/xi - x_L(1)|`` does not exceed.

    Branches are multiplied by xi and read a norm that no scale changes (epsilon = 0), so ``x_l(xi)/xi`` is the stream
    with xi = 1 and the embedding divided by xi. The first branch does not notice; ``Lambda_j`` of the others is the
    Lipschitz constant between the two streams.

    Parameters
    ----------
    factor : array_like, > 0
    embedding : array_like, >= 0
        Size of the embedding, ``s_0``.
    lipschitz : array_like, shape (L - 1,), >= 0
        Of all blocks but the first.

    Raises
    ------
    ValueError
        If a value leaves its range.

    Source: chapter 17.

    Examples
    --------
    >>> factor_distance_cap(factor=[1, 2, 10], embedding=1, lipschitz=[0.5, 0.5])
    array([0.   , 1.125, 2.025])
    """
    xi = positive("factor", factor)
    start = checked("embedding", embedding, non_negative, "finite and >= 0")
    return np.asarray(np.abs(1 - 1 / xi) * start * amplifications(lipschitz)[0])[()]


def _sizes(sizes: ArrayLike, *, allow_zero: bool = False) -> FloatArray:
    s = checked("sizes", sizes, non_negative, "finite and >= 0") if allow_zero else positive("sizes", sizes)
    if s.ndim != 1 or len(s) < 2:
        raise ValueError(f"sizes must have the shape (depth + 1,), depth >= 1; got {s.shape}")
    return s
