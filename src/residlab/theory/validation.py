"""What every closed form asks of its arguments, and the sentence that refuses them."""

from collections.abc import Callable
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


def checked(name: str, value: ArrayLike, valid: Callable[[FloatArray], ArrayLike], allowed: str) -> FloatArray:
    """Return ``value`` as float64, or raise ValueError: ``name`` must be ``allowed``, got the first bad entry."""
    array = np.asarray(value, dtype=np.float64)
    wrong = ~np.asarray(valid(array), dtype=bool)
    if wrong.any():
        raise ValueError(f"{name} must be {allowed}; got {float(array[wrong].flat[0])!r}")
    return array


def checked_choice(name: str, value: str, choices: object) -> str:
    """Return ``value`` if it is one of a ``Literal``'s, or raise ValueError with the list of them."""
    allowed = get_args(choices)
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}")
    return value


def strictly_positive(values: FloatArray) -> ArrayLike:
    """Whether each entry is finite and above zero."""
    return np.isfinite(values) & (values > 0)


def non_negative(values: FloatArray) -> ArrayLike:
    """Whether each entry is finite and not below zero."""
    return np.isfinite(values) & (values >= 0)


def positive(name: str, value: ArrayLike) -> FloatArray:
    """Return ``value`` as float64 if every entry is finite and above zero, else raise ValueError."""
    return checked(name, value, strictly_positive, "finite and > 0")
