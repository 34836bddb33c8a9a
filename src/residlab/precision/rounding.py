"""Numbers and sums rounded to any format, in float32 or float64 tensors that go on holding them.

======================== ===================================================================================
mode                     rounds to
======================== ===================================================================================
nearest                  the nearest number of the format; of two, the one whose last bit is 0
toward_zero, up, down    the next number in that direction, or the number itself
stochastic               one of the two neighbours, the nearer with the greater probability: unbiased
======================== ===================================================================================

``backend="auto"``, the default, runs C++ on CPU tensors where there is a compiler (`residlab.precision.compiled`) and
eager torch otherwise (`residlab.precision.reference`), on any device: the bits are the same, the speed is not. There is
no gradient: the derivative of rounding is 0 almost everywhere, and results require none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from residlab.errors import ResidlabError
from residlab.precision import reference
from residlab.precision.formats import Format, Mode
from residlab.precision.reference import CARRIERS, MODES

Backend = Literal["auto", "reference", "compiled"]
Seed = int | torch.Generator | None
Array = TypeVar("Array", Tensor, NDArray[np.float32], NDArray[np.float64], np.float32, np.float64)
_ARRAYS = (np.dtype(np.float32), np.dtype(np.float64))


def rounded(x: Array, fmt: Format, mode: Mode = "nearest", *, seed: Seed = None, backend: Backend = "auto") -> Array:
    """Round to a format: each entry exactly once, as `residlab.precision.formats.round_number` rounds one.

    Signed zeros and NaN, its payload included, are kept. Where the exponent is unbounded the carrier bounds it: numbers
    round to infinity above its largest, and below its smallest normal number d stays as it is, so that in float32 the
    unbounded format of 8 bits *is* `BF16`.

    Stochastic rounding, between neighbours ``a <= |x| < b``, goes to b with the probability ``(|x| - a) / (b - a)``:
    exactly, except below 2^-10 of the smallest subnormal number, where the probability is truncated to 63 bits. What
    entry i becomes depends on x_i, the seed and i only.

    Parameters
    ----------
    x : Tensor or ndarray
        float32 or float64, of any shape: the carrier. A number of numpy counts as an array of shape ().
    fmt : Format
        The format, which the carrier must hold: t <= 24 in float32, t <= 53 in float64, and no wider in exponent.
    mode : {"nearest", "toward_zero", "up", "down", "stochastic"}
        See above.
    seed : int or torch.Generator
        Of stochastic rounding: a whole number from 0 to 2^63 - 1, or a generator that gives one and moves on.
    backend : {"auto", "reference", "compiled"}
        See above.

    Returns
    -------
    Tensor or ndarray, shape and dtype of ``x``

    Raises
    ------
    ResidlabError
        If an argument is not allowed; the message says what is.

    Examples
    --------
    >>> import torch
    >>> from residlab.precision.formats import BF16, E4M3FN
    >>> from residlab.precision.rounding import rounded
    >>> rounded(torch.tensor([0.1, 1 + 2**-8, -1e9]), BF16, backend="reference").tolist()
    [0.10009765625, 1.0, -998244352.0]
    >>> rounded(torch.tensor([0.1, 1 + 2**-8, -1e9]), E4M3FN, "down", backend="reference").tolist()
    [0.09375, 1.0, -448.0]
    """
    if isinstance(x, np.generic):
        array: Any = rounded(np.asarray(x), fmt, mode, seed=seed, backend=backend)
        number: Array = array[()]
        return number
    if isinstance(x, np.ndarray):
        given: Any = np.asarray(x)
        if given.dtype not in _ARRAYS:
            order = "" if given.dtype.isnative else ", of foreign byte order"
            raise ResidlabError(f"x must be of dtype float32 or float64; got {given.dtype}{order}")
        tensor = torch.from_numpy(np.ascontiguousarray(given))
        return rounded(tensor, fmt, mode, seed=seed, backend=backend).numpy().reshape(given.shape)
    check_carrier("x", x.dtype, fmt)
    key = key_of(mode, seed)
    return _rounded_sum(x.detach().resolve_neg().contiguous(), None, fmt, mode, key, backend)


def added(
    a: Tensor, b: Tensor, fmt: Format, mode: Mode = "nearest", *, seed: Seed = None, backend: Backend = "auto"
) -> Tensor:
    """Return fl(a + b): the exact sum, rounded once.

    Adding in the carrier and rounding its sum would round twice: what the carrier rounds to a tie of the format, or to
    one of its numbers, was perhaps none. So the carrier's sum is rounded to odd (Boldo and Melquiond, 2008), which
    decides as the exact sum would whenever the carrier has two bits more than the format. Where it overflows, directed
    modes take the carrier's largest number instead, so that they stop at that of the format; stochastic rounding then
    gives infinity.

    Parameters
    ----------
    a, b : Tensor
        float32 or float64, of one dtype, of shapes that broadcast; any numbers, not only those of the format.
    fmt : Format
        Held by the carrier, and t <= 22 in float32, t <= 51 in float64; or the carrier's own, in mode nearest.
    mode, seed, backend
        As in `rounded`. Stochastic rounding here is biased by at most one unit of the carrier's last place.

    Raises
    ------
    ResidlabError
        If an argument is not allowed; the message says what is.

    Examples
    --------
    >>> import torch
    >>> from residlab.precision.formats import BF16
    >>> from residlab.precision.rounding import added, rounded
    >>> a, b = torch.tensor(1 + 2**-8), torch.tensor(2.0**-40)  # a little more than a tie
    >>> added(a, b, BF16, backend="reference").item(), rounded(a + b, BF16, backend="reference").item()
    (1.0078125, 1.0)
    """
    if a.dtype != b.dtype:
        raise ResidlabError(f"a and b must be of one dtype; got {a.dtype} and {b.dtype}")
    check_carrier("a", a.dtype, fmt)
    native = is_native(fmt, a.dtype, mode)
    if not native and not sums_in(fmt, a.dtype):
        raise ResidlabError(
            f"sums in {fmt.name} (t = {fmt.t}, mode {mode}) need a carrier of t + 2 bits; "
            f"{_name(a.dtype)} has {CARRIERS[a.dtype].format.t}"
        )
    key = key_of(mode, seed)
    shape = np.broadcast_shapes(a.shape, b.shape)
    a, b = a.detach().expand(shape), b.detach().expand(shape)
    if native:
        return a + b
    return _rounded_sum(a.resolve_neg().contiguous(), b.resolve_neg().contiguous(), fmt, mode, key, backend)


def check_carrier(name: str, dtype: torch.dtype, fmt: Format) -> None:
    """Raise ResidlabError unless a dtype is a carrier that holds a format.

    Examples
    --------
    >>> from residlab.precision.formats import BF16
    >>> check_carrier("x", torch.float32, BF16)
    >>> check_carrier("x", torch.float16, BF16)
    Traceback (most recent call last):
        ...
    residlab.errors.ResidlabError: x must be of dtype float32 or float64; got float16
    """
    if dtype not in CARRIERS:
        raise ResidlabError(f"{name} must be of dtype float32 or float64; got {_name(dtype)}")
    if not fmt.within(CARRIERS[dtype].format):
        raise ResidlabError(
            f"{_name(dtype)} does not hold every number of {fmt.name} ({fmt}), the normal ones as normal; use float64"
        )


def is_native(fmt: Format, dtype: torch.dtype, mode: Mode) -> bool:
    """Return whether a carrier's own arithmetic is that of the format.

    Examples
    --------
    >>> from residlab.precision.formats import FP32
    >>> is_native(FP32, torch.float32, "nearest"), is_native(FP32, torch.float32, "up")
    (True, False)
    """
    own = CARRIERS[dtype].format
    return mode == "nearest" and fmt.t == own.t and (not fmt.bounded or replace(fmt, name=own.name) == own)


def sums_in(fmt: Format, dtype: torch.dtype) -> bool:
    """Return whether sums rounded to odd in a carrier decide for the format: it has two bits more.

    Examples
    --------
    >>> from residlab.precision.formats import BF16, FP32
    >>> sums_in(BF16, torch.float32), sums_in(FP32, torch.float32)
    (True, False)
    """
    return fmt.t + 2 <= CARRIERS[dtype].format.t


def key_of(mode: Mode, seed: Seed) -> int:
    """Return what random bits start from, 0 in deterministic modes.

    Raises
    ------
    ResidlabError
        If the mode is unknown, a seed is missing or not allowed, or a deterministic mode is given one.

    Examples
    --------
    >>> key_of("nearest", None), key_of("stochastic", 0) != key_of("stochastic", 1)
    (0, True)
    >>> key_of("stochastic", None)
    Traceback (most recent call last):
        ...
    residlab.errors.ResidlabError: stochastic rounding needs a seed, a whole number from 0 to 2**63 - 1; got None
    """
    if mode not in MODES:
        raise ResidlabError(f"mode must be one of {', '.join(MODES)}; got {mode!r}")
    if mode != "stochastic":
        if seed is not None:
            raise ResidlabError(f"mode {mode!r} takes no seed; only 'stochastic' does")
        return 0
    if isinstance(seed, torch.Generator):
        seed = int(torch.randint(2**63 - 1, (), generator=seed, device=seed.device))
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise ResidlabError(f"stochastic rounding needs a seed, a whole number from 0 to 2**63 - 1; got {seed!r}")
    return reference.key_of(seed)


def uses_compiled(backend: Backend, device: torch.device) -> bool:
    """Return whether C++ runs; raise ResidlabError for an unknown backend, or for 'compiled' not on a CPU.

    Examples
    --------
    >>> uses_compiled("reference", torch.device("cpu"))
    False
    """
    if backend not in get_args(Backend):
        raise ResidlabError(f"backend must be one of {', '.join(get_args(Backend))}; got {backend!r}")
    if backend == "compiled" and device.type != "cpu":
        raise ResidlabError(f"backend 'compiled' runs on CPU tensors; got one on {device}; use 'auto'")
    if backend == "reference" or device.type != "cpu":
        return False
    from residlab.precision import compiled

    return compiled.available()


def _rounded_sum(a: Tensor, b: Tensor | None, fmt: Format, mode: Mode, key: int, backend: Backend) -> Tensor:
    if uses_compiled(backend, a.device):
        from residlab.precision import compiled

        return compiled.round_sum(a, b, fmt, mode, key)
    total = a if b is None else reference.odd_sum(a, b, mode)
    return reference.rounded(total, fmt, mode, _random(total, key) if mode == "stochastic" else None)


def _random(x: Tensor, key: int) -> Tensor:
    return reference.random_bits(key, torch.arange(x.numel(), device=x.device).reshape(x.shape))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
