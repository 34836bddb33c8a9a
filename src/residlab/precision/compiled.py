"""The emulator as C++ for CPU tensors, bit for bit what `residlab.precision.reference` computes.

``emulator.cpp`` is built on the first call and kept, see `residlab.kernels.building`; without a compiler one notice is
given, and the reference runs. Results do not depend on the number of threads.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from residlab.kernels import building
from residlab.precision.formats import Format, Mode
from residlab.precision.reference import MODES, Layout, layout

_HEADERS = ("algorithm", "bit", "cmath", "cstdint", "type_traits", "vector")
_SERIAL = 1 << 15  # roundings below which a second thread costs more than it saves
_NAMES = {torch.float32: "float32", torch.float64: "float64"}


class _Layout(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in Layout._fields)


class _Elementwise(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("count", "threads", "mode", "key")),
        ("layout", _Layout),
        *((name, ctypes.c_void_p) for name in ("a", "b", "y")),
    )


class _Product(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "inner", "columns", "threads", "mode", "key", "block", "native")),
        ("layout", _Layout),
        *((name, ctypes.c_void_p) for name in ("a", "b", "y")),
    )


def round_sum(a: Tensor, b: Tensor | None, fmt: Format, mode: Mode, key: int) -> Tensor:
    """Return ``a``, or ``a + b``, rounded: contiguous, without negative bit, of one shape, of a carrier's dtype."""
    y = torch.empty_like(a)
    call = _Elementwise(
        a.numel(), _threads(a.numel()), MODES.index(mode), key, _layout(fmt, a, mode), *_pointers(a, b, y)
    )
    getattr(library(), f"residlab_round_{_NAMES[a.dtype]}")(ctypes.byref(call))
    return y


def product(a: Tensor, b: Tensor, fmt: Format, mode: Mode, key: int, *, block: int, native: bool) -> Tensor:
    """Return ``a @ b`` for contiguous (m, k) and (k, n), k >= 1; ``block`` terms are summed first, 0 means pairwise.

    Neither has the negative bit. The mode is nearest or stochastic.
    """
    (rows, inner), columns = a.shape, b.shape[1]
    y = a.new_empty(rows, columns)
    sizes = (rows, inner, columns, _threads(rows * inner * columns), MODES.index(mode), key, block, native)
    call = _Product(*sizes, _layout(fmt, a, mode), *_pointers(a, b, y))
    getattr(library(), f"residlab_product_{_NAMES[a.dtype]}")(ctypes.byref(call))
    return y


@cache
def available() -> bool:
    """Return whether the emulator can be built here; if not, say once why eager torch runs instead."""
    return building.succeeds(library, "emulated arithmetic falls back to eager torch")


@cache
def library() -> ctypes.CDLL:
    """Load the built emulator, building it first where this machine has not done so.

    Raises
    ------
    BuildError
        If there is no C++ compiler, or it fails.
    """
    headers = "".join(f"#include <{header}>\n" for header in _HEADERS)
    source = headers + Path(__file__).with_name("emulator.cpp").read_text(encoding="utf-8")
    return building.load("emulator", source, ("-ffp-contract=off",))


def _layout(fmt: Format, x: Tensor, mode: Mode) -> _Layout:
    return _Layout(*layout(fmt, x.dtype, mode))


def _pointers(*tensors: Tensor | None) -> tuple[int | None, ...]:
    return tuple(None if tensor is None else tensor.data_ptr() for tensor in tensors)


def _threads(roundings: int) -> int:
    return 1 if roundings < _SERIAL else torch.get_num_threads()
