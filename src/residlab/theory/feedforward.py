r"""Feedforward blocks in rounded arithmetic: GELU and SiLU, how they are conditioned, and bounds on what comes out.

.. math::
    \text{SwiGLU:} \quad y = W_2 \bigl(\phi(W_1 x) \odot W_3 x\bigr), \qquad
    \text{GELU:} \quad y = W_2\, \phi(W_1 x) .

With :math:`\omega = 1 + u` and rounding to nearest, ``fl(a o b) = (a o b) omega**theta``, ``|theta| <= 1``. Three
algorithms of GELU and one of SiLU (`residlab.precision.operations`), for x of the format, have to first order the error

============ ================================= ====================================================================
form         formula                           bound
============ ================================= ====================================================================
``silu``     ``x / (1 + exp(-x))``             ``u (2 + s(-x)) |phi|``, s the logistic function
``erf``      ``x/2 (1 + erf(x / sqrt 2))``     ``u (2 |phi| + |x erf(x / sqrt 2)|/2 + 2 x**2 g(x))``, g Gauss's density
``erfc``     ``x/2 erfc(-x / sqrt 2)``         ``u (2 |phi| + 2 x**2 g(x))``
============ ================================= ====================================================================

`enclosure` bounds the same without neglecting anything, underflow and overflow included, and GPT-2's ``tanh`` too.

Sources: Hendrycks and Gimpel 2016 (GELU), Shazeer 2020 (SwiGLU), Budzinskiy et al. 2025 for the question; chapter 14.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from residlab.theory.validation import FloatArray, checked, checked_choice, non_negative, positive

Activation = Literal["silu", "gelu"]
Form = Literal["silu", "erf", "erfc", "tanh"]
Bounded = Literal["silu", "erf", "erfc"]
Interval: TypeAlias = tuple[FloatArray, FloatArray]
Rounding: TypeAlias = Callable[[ArrayLike, ArrayLike], Interval]

CURVATURE: Mapping[str, float] = {"silu": 0.5, "gelu": 2 / math.sqrt(2 * math.pi)}
"""The largest |phi''|, at 0."""
_CUBIC = 0.044715
_STEEPEST_ERF = 2 * math.exp(-0.5) / math.sqrt(2 * math.pi)  # largest z erf'(z), at 1/sqrt 2


def activation(x: ArrayLike, name: Activation) -> FloatArray:
    r"""Return SiLU, ``x / (1 + exp(-x))``, or GELU, ``x Phi(x)``, to full relative accuracy.

    Raises
    ------
    ValueError
        If the name is none of these, or an entry is not finite.

    Examples
    --------
    >>> activation([-1, 0, 1], "gelu").round(4), activation([-1, 0, 1], "silu").round(4)
    (array([-0.1587,  0.    ,  0.8413]), array([-0.2689,  0.    ,  0.7311]))
    >>> bool(np.isclose(activation(-30, "gelu"), -1.4720141781443724e-196, rtol=1e-14))  # to full relative accuracy
    True
    """
    from scipy.special import expit, ndtr

    x = _finite(x)
    return np.asarray(x * (expit(x) if checked_choice("name", name, Activation) == "silu" else ndtr(x)))


def derivative(x: ArrayLike, name: Activation) -> FloatArray:
    r"""Return phi': ``s(x)(1 + x s(-x))`` of SiLU, ``Phi(x) + x g(x)`` of GELU.

    Examples
    --------
    >>> derivative([-9, 0, 9], "silu").round(3)
    array([-1.000e-03,  5.000e-01,  1.001e+00])
    """
    from scipy.special import expit, ndtr

    x = _finite(x)
    if checked_choice("name", name, Activation) == "silu":
        return np.asarray(expit(x) * (1 + x * expit(-x)))
    return np.asarray(ndtr(x) + x * density(x))


def density(x: ArrayLike) -> FloatArray:
    """Return Gauss's density ``exp(-x**2/2) / sqrt(2 pi)``.

    Examples
    --------
    >>> density([0, 1]).round(4)
    array([0.3989, 0.242 ])
    """
    return np.asarray(np.exp(-(np.asarray(x, dtype=np.float64) ** 2) / 2) / math.sqrt(2 * math.pi))


def steepest(name: Activation) -> tuple[float, float]:
    r"""Return where ``|phi'|`` is largest, and that value, the Lipschitz constant Lambda.

    GELU: :math:`x = \sqrt 2`, where :math:`\phi'' = (2 - x^2) g(x)` is 0; 1.1289. SiLU: the root of
    :math:`\tanh(x/2) = 2/x`, 2.3994; 1.0998.

    Examples
    --------
    >>> where, slope = steepest("gelu")
    >>> round(where, 4), round(slope, 4)
    (1.4142, 1.1289)
    """
    if checked_choice("name", name, Activation) == "gelu":
        place = math.sqrt(2)
    else:
        from scipy.optimize import brentq

        place = float(brentq(lambda x: math.tanh(x / 2) - 2 / x, 2, 3, xtol=1e-15))
    return place, float(derivative(place, name))


def lipschitz_constant(name: Activation) -> float:
    """Return Lambda, the largest ``|phi'|``.

    Examples
    --------
    >>> round(lipschitz_constant("silu"), 4), round(lipschitz_constant("gelu"), 4)
    (1.0998, 1.1289)
    """
    return steepest(name)[1]


def relative_condition(x: ArrayLike, name: Activation) -> FloatArray:
    r"""Return :math:`|x \phi'(x) / \phi(x)|`, by how much phi magnifies a relative error; 1 at 0.

    SiLU: :math:`|1 + x s(-x)|`, which is like ``|x|`` for x to minus infinity. GELU: :math:`|1 + x g(x)/\Phi(x)|`, like
    :math:`x^2`: for x < 0 between :math:`x^2 - 1` and :math:`x^2`, since
    :math:`|x| < g/\Phi < |x| + 1/|x|`. Both have one zero, at the minimum of phi.

    Examples
    --------
    >>> relative_condition([-10, 0, 10], "silu").round(4), relative_condition([-10, 0, 10], "gelu").round(4)
    (array([8.9995, 1.    , 1.0005]), array([99.9809,  1.    ,  1.    ]))
    """
    from scipy.special import erfcx, expit

    x = _finite(x)
    if checked_choice("name", name, Activation) == "silu":
        return np.asarray(np.abs(1 + x * expit(-x)))
    # g/Phi by the scaled erfc, so that neither underflows.
    return np.asarray(np.abs(1 + x * math.sqrt(2 / math.pi) / erfcx(-x / math.sqrt(2))))


def evaluation_error(x: ArrayLike, form: Bounded, u: float) -> FloatArray:
    """Return the first-order bound on the absolute error of an algorithm, for x of the format: the table above.

    Examples
    --------
    >>> x = [-5.0, 1.0]
    >>> relative = evaluation_error(x, "erfc", 2**-24) / np.abs(activation(x, "gelu")) / 2**-24
    >>> relative.round(1)
    array([53.9,  2.6])
    >>> relative = evaluation_error(x, "erf", 2**-24) / np.abs(activation(x, "gelu")) / 2**-24
    >>> relative.round(-3)  # 1 + erf cancels where x < 0
    array([1744000.,       0.])
    """
    from scipy.special import erf, expit

    x, u = _finite(x), float(positive("u", u))
    if checked_choice("form", form, Bounded) == "silu":
        return np.asarray(u * (2 + expit(-x)) * np.abs(activation(x, "silu")))
    argument = 2 * np.abs(activation(x, "gelu")) + 2 * x**2 * density(x)
    return np.asarray(u * (argument + (np.abs(x * erf(x / math.sqrt(2))) / 2 if form == "erf" else 0)))


def exact_form(x: ArrayLike, form: Form) -> FloatArray:
    """Return what an algorithm computes in exact arithmetic: phi, or GPT-2's approximation of GELU.

    Examples
    --------
    >>> round(float(exact_form(-3, "erf")), 6), round(float(exact_form(-3, "tanh")), 6)  # GPT-2's is an approximation
    (-0.00405, -0.003637)
    """
    if checked_choice("form", form, Form) == "tanh":
        from scipy.special import expit

        x = _finite(x)
        # 1 + tanh t = 2 s(2t), which does not cancel.
        return np.asarray(x * expit(2 * math.sqrt(2 / math.pi) * (x + _CUBIC * x**3)))
    return activation(x, "silu" if form == "silu" else "gelu")


def enclosure(x: ArrayLike, form: Form, u: float, *, tiny: float = 0.0, largest: float = math.inf) -> Interval:
    r"""Return what the computed value lies between, for x of the format: every operation widens an interval.

    A result v is rounded to something within :math:`\max(\frac{u}{1+u}|v|, tiny)` of it, or, beyond ``largest``,
    perhaps to an infinity. exp, tanh, erf and erfc are monotone and correctly rounded. x occurs with its exact value.

    Parameters
    ----------
    x
        Numbers of the format.
    form : {"silu", "erf", "erfc", "tanh"}
    u, tiny, largest
        Unit roundoff, half the smallest subnormal number, largest number.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> low, high = enclosure([-5.0, 1.0], "erfc", 2**-24)
    >>> x = activation([-5.0, 1.0], "gelu")
    >>> bool(np.all((low <= x) & (x <= high))), ((high - low) / np.abs(x) / 2**-24).round(1)
    (True, array([107.7,   5.2]))
    """
    from scipy.special import erf, erfc

    checked_choice("form", form, Form)
    x, u = _finite(x), float(positive("u", u))
    tiny = float(checked("tiny", tiny, non_negative, "finite and >= 0"))

    def fl(low: ArrayLike, high: ArrayLike) -> Interval:
        low, high = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
        below = low - np.maximum(u / (1 + u) * np.abs(np.where(np.isfinite(low), low, 0)), tiny)
        above = high + np.maximum(u / (1 + u) * np.abs(np.where(np.isfinite(high), high, 0)), tiny)
        return np.where(below < -largest, -np.inf, below), np.where(above > largest, np.inf, above)

    with np.errstate(over="ignore", divide="ignore"):
        if form == "silu":
            low, high = fl(np.exp(-x), np.exp(-x))
            low, high = fl(1 + np.maximum(low, 0), 1 + high)
            ends = x / low, x / high
            return fl(np.minimum(*ends), np.maximum(*ends))
        half = x / 2 - tiny, x / 2 + tiny
        if form == "tanh":
            # cube and what follows have the sign of x: enclose their sizes.
            size = np.abs(x)
            square = fl(size * size, size * size)
            cube = fl(size * np.maximum(square[0], 0), size * square[1])
            part = _product(fl(_CUBIC, _CUBIC), cube, fl)
            total = fl(size + part[0], size + part[1])
            inner = _product(fl(math.sqrt(2 / math.pi), math.sqrt(2 / math.pi)), total, fl)
            low, high = fl(np.tanh(inner[0]), np.tanh(inner[1]))
        else:
            root = fl(math.sqrt(0.5), math.sqrt(0.5))
            low, high = _product(root, (np.abs(x), np.abs(x)), fl)
            if form == "erfc":
                ends = np.where(x < 0, low, -low), np.where(x < 0, high, -high)
                low, high = fl(erfc(np.maximum(*ends)), erfc(np.minimum(*ends)))
                return _signed(half, (np.maximum(low, 0), np.minimum(high, 2)), fl)
            low, high = fl(erf(low), erf(high))
        low, high = np.maximum(low, 0), np.minimum(high, 1)
        sign = np.where(x < 0, -1.0, 1.0)
        ends = 1 + sign * low, 1 + sign * high
        low, high = fl(np.minimum(*ends), np.maximum(*ends))
        return _signed(half, (np.maximum(low, 0), np.minimum(high, 2)), fl)


def _product(a: Interval, b: Interval, fl: Rounding) -> Interval:
    """Return the rounded product of intervals of numbers that are not negative."""
    low, high = fl(np.maximum(a[0], 0) * np.maximum(b[0], 0), a[1] * b[1])
    return np.maximum(low, 0), high


def _signed(half: Interval, factor: Interval, fl: Rounding) -> Interval:
    """Return the rounded product of an interval and one that is not negative."""
    ends = [one * other for one in half for other in factor]
    return fl(np.minimum.reduce(ends), np.maximum.reduce(ends))


# --- The block


@dataclass(frozen=True)
class Precision:
    """Unit roundoffs of a block, and what underflow may add.

    Attributes
    ----------
    operands, accumulator, functions, stream : float
        u_q, u_a, u_w and u_r; 0 for what is not rounded.
    tiny_operands, tiny_accumulator, tiny_functions, tiny_stream : float
        Half the smallest subnormal number of each.
    largest_functions : float
        The largest number of the functions' format: SiLU's exp(-x) overflows beyond its logarithm, and gives 0.

    Raises
    ------
    ValueError
        If another is negative or not finite.

    Examples
    --------
    >>> precision = Precision(operands=2**-8, accumulator=2**-24)  # bf16 with an fp32 accumulator
    >>> precision.functions, precision.stream  # not rounded
    (0.0, 0.0)
    """

    operands: float = 0.0
    accumulator: float = 0.0
    functions: float = 0.0
    stream: float = 0.0
    tiny_operands: float = 0.0
    tiny_accumulator: float = 0.0
    tiny_functions: float = 0.0
    tiny_stream: float = 0.0
    largest_functions: float = math.inf

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "largest_functions":
                checked(name, value, non_negative, "finite and >= 0")


@dataclass(frozen=True)
class Block:
    """Weights of a feedforward block without biases.

    Attributes
    ----------
    first : array, shape (m, d)
        W_1, of the activation's argument: W_gate of SwiGLU.
    second : array, shape (d', m)
        W_2, of the output: W_down.
    up : array, shape (m, d), or None
        W_3, of SwiGLU's other factor.
    name : {"silu", "gelu"}

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> W_gate, W_up, W_down = (rng.standard_normal(shape) for shape in ((16, 4), (16, 4), (4, 16)))
    >>> block = Block(first=W_gate, second=W_down, up=W_up)
    >>> x = rng.standard_normal(4)
    >>> bool(np.allclose(block.output(x), W_down @ (activation(W_gate @ x, "silu") * (W_up @ x))))
    True
    """

    first: FloatArray
    second: FloatArray
    up: FloatArray | None = None
    name: Activation = "silu"

    def hidden(self, x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return a = W_1 x, phi(a), and b = W_3 x (1 without a gate), each (..., m)."""
        a = x @ self.first.T
        return a, activation(a, self.name), np.ones_like(a) if self.up is None else x @ self.up.T

    def output(self, x: FloatArray) -> FloatArray:
        """Return y, (..., d'), in float64."""
        _, value, b = self.hidden(x)
        return np.asarray((value * b) @ self.second.T)


TERMS: Mapping[str, str] = {
    "input": "input products",
    "argument": "storing what functions read",
    "evaluation": "evaluating the activation",
    "gate": "gate's product",
    "output": "output product",
    "stored": "storing the output",
}
PRODUCTS = ("input", "output")
"""The terms that are of matrix products."""


def first_order_terms(block: Block, x: FloatArray, precision: Precision, form: Bounded) -> dict[str, FloatArray]:
    r"""Return the first-order bound on the error of each output, term by term, each (..., d').

    With :math:`P_n = 2u_q + n u_a`, :math:`s = \phi(a)`, and everything but storing pushed through :math:`|W_2|`:

    =============== ==================================================================
    ``input``       :math:`P_d\,(|\phi'(a)||b|\,|W_1||x| + |s|\,|W_3||x|)`
    ``argument``    :math:`u_w\,(|\phi'(a) a b| + |s b|)`
    ``evaluation``  `evaluation_error` at a, times \|b\|
    ``gate``        :math:`u_w |s b|`
    ``output``      :math:`P_m\,|W_2||s b|`
    ``stored``      :math:`u_r |y|`
    =============== ==================================================================

    Without a gate b = 1, and the second parts of ``input`` and ``argument``, and ``gate``, are 0.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> block = Block(rng.standard_normal((16, 4)), rng.standard_normal((4, 16)), rng.standard_normal((16, 4)))
    >>> precision = Precision(operands=2**-8, accumulator=2**-24, functions=2**-24)
    >>> terms = first_order_terms(block, np.ones(4), precision, "silu")
    >>> max(terms, key=lambda name: terms[name].max())  # products of bf16 operands
    'input'
    """
    a, value, b = block.hidden(x)
    slope, size, w = np.abs(derivative(a, block.name)), np.abs(value), precision.functions
    into = 2 * precision.operands + block.first.shape[1] * precision.accumulator
    out = 2 * precision.operands + block.second.shape[1] * precision.accumulator
    through = np.abs(block.second).T
    entering = slope * np.abs(b) * (np.abs(x) @ np.abs(block.first).T)
    argument = slope * np.abs(a * b)
    if block.up is not None:
        entering = entering + size * (np.abs(x) @ np.abs(block.up).T)
        argument = argument + size * np.abs(b)
    evaluated = evaluation_error(a, form, w) * np.abs(b) if w else np.zeros_like(a)
    product = size * np.abs(b)
    return {
        "input": into * entering @ through,
        "argument": w * argument @ through,
        "evaluation": evaluated @ through,
        "gate": (w if block.up is not None else 0) * product @ through,
        "output": out * product @ through,
        "stored": precision.stream * np.abs((value * b) @ block.second.T),
    }


def condition(block: Block, x: FloatArray) -> FloatArray:
    r"""Return kappa, (..., d'): to first order, each output changes by at most eps kappa if all data do by a share eps.

    Data are every weight and every input; :math:`2(|\phi'||b||W_1||x| + |s||W_3||x|) + |s b|`, through :math:`|W_2|`.

    Examples
    --------
    >>> block = Block(first=np.array([[2.0]]), second=np.array([[3.0]]), name="gelu")
    >>> condition(block, np.array([[1.0], [-4.0]])).round(3)
    array([[18.886],
           [ 0.   ]])
    """
    terms = first_order_terms(block, x, Precision(operands=0.5), "silu")
    return np.asarray(2 * terms["input"] + terms["output"])


def dominance(form: Bounded, u_w: float, inputs: float, outputs: float) -> float:
    r"""Return what the functions' terms are at most, as a multiple of the products', whatever weights and inputs.

    SwiGLU: :math:`u_w \max\bigl(1/P_d, 5/(P_d + P_m)\bigr)`. GELU by erfc: :math:`u_w \max(3/P_d, 4/P_m)`. GELU by erf:
    infinite. Because :math:`|a| \le |W_1||x|`, :math:`|b| \le |W_3||x|`, and :math:`x^2 g = x\phi' - \phi`.

    Examples
    --------
    >>> u = 2**-24
    >>> round(dominance("silu", u, inputs=100 * u, outputs=300 * u), 4)  # sums of hundreds of terms
    0.0125
    >>> dominance("erf", u, inputs=100 * u, outputs=300 * u)
    inf
    """
    into, out = float(positive("inputs", inputs)), float(positive("outputs", outputs))
    checked_choice("form", form, Bounded)
    if form == "erf":
        return math.inf
    return u_w * (max(1 / into, 5 / (into + out)) if form == "silu" else max(3 / into, 4 / out))


def rigorous_bound(block: Block, x: FloatArray, precision: Precision, form: Bounded) -> FloatArray:
    r"""Return a bound on the error of each output, (..., d'), that neglects nothing.

    Only matrix products, and what is stored, must not overflow.

    Errors are carried as sizes: of a product, :math:`(1 + nu_a)|W|^+ |x|^+ - |W||x|` with
    :math:`|x|^+ = (1+u_q)|x| + \eta`; of phi, :math:`\min(\Lambda e, |\phi'(a)|e + \frac12\max|\phi''|e^2)`, and the
    evaluation at what was computed. Nothing is assumed of nu_a, in any order of the sums.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> block = Block(rng.standard_normal((16, 4)), rng.standard_normal((4, 16)), rng.standard_normal((16, 4)))
    >>> fp32 = Precision(operands=2**-24, accumulator=2**-24, functions=2**-24)
    >>> bound = rigorous_bound(block, np.ones(4), fp32, "silu")
    >>> first_order = sum(first_order_terms(block, np.ones(4), fp32, "silu").values())
    >>> (bound / first_order).round(3)
    array([1.019, 1.019, 1.018, 1.018])
    """
    p, w, tiny = precision, precision.functions, precision.tiny_functions
    a, value, b = block.hidden(x)
    error = _matrix_error(block.first, np.abs(x), p)
    error = (1 + w) * error + w * np.abs(a) + tiny
    moved = np.minimum(
        lipschitz_constant(block.name) * error,
        np.abs(derivative(a, block.name)) * error + CURVATURE[block.name] / 2 * error**2,
    )
    sizes = np.abs(value) + moved
    by_argument, by_value = _evaluation_shares(form, w)
    if form == "silu" and math.isfinite(p.largest_functions):
        lost = error - a > math.log(p.largest_functions) - 0.01
        by_value = np.where(lost, 1.0, by_value)
    hidden = moved + by_argument * (np.abs(a) + error) + by_value * sizes + (6 + np.abs(a) + error) * tiny
    if block.up is not None:
        other = _matrix_error(block.up, np.abs(x), p)
        other = (1 + w) * other + w * np.abs(b) + tiny
        hidden = hidden * np.abs(b) + np.abs(value) * other + hidden * other
        hidden = (1 + w) * hidden + w * np.abs(value * b) + tiny
    h = value * b
    whole = _matrix_error(block.second, np.abs(h) + hidden, p) + hidden @ np.abs(block.second).T
    return np.asarray((1 + p.stream) * whole + p.stream * np.abs(h @ block.second.T) + p.tiny_stream)


def _matrix_error(weight: FloatArray, size: FloatArray, p: Precision) -> FloatArray:
    count = weight.shape[1]
    raised = [(1 + p.operands) * each + p.tiny_operands for each in (np.abs(weight), size)]
    growth = 1 + count * p.accumulator
    whole = growth * (raised[1] @ raised[0].T + count * p.tiny_accumulator)
    return np.asarray(whole - size @ np.abs(weight).T)


def _evaluation_shares(form: Bounded, u: float) -> tuple[float, float | FloatArray]:
    """Return A and B: the error of evaluating at x of the format is at most A|x| + B|phi(x)|, without underflow."""
    checked_choice("form", form, Bounded)
    if form == "silu":
        return 0.0, (1 + u) ** 3 - 1
    twice = (1 + u) ** 2
    moved = (twice - 1) * twice * _STEEPEST_ERF
    return twice * (moved + (u if form == "erf" else 0)) / 2, twice - 1


def _finite(x: ArrayLike) -> FloatArray:
    return checked("x", x, np.isfinite, "finite")
