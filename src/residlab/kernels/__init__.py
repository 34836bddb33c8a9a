"""The norms of this book as fused operators, forward and backward: one definition, three ways to run it.

``kernels.rms_norm``, ``add_rms_norm``, ``dyt``, ``bhyt_exact`` and ``bhyt_approximate`` take ``backend=``:

========== =============================================================================================
reference  eager torch formulas, any device and dtype: the definition (`residlab.kernels.reference`)
compiled   fused C++ for CPU tensors, built on the first call (`residlab.kernels.compiled`)
triton     fused Triton kernels for CUDA tensors of 16 and 32 bits (`residlab.kernels.triton`)
auto       triton for CUDA tensors that it takes where it is installed, else reference (the default)
========== =============================================================================================

On a CPU the default is the reference, because a build takes seconds; who trains there asks for ``compiled``. Inside a
model that torch.compile compiles every backend is the reference, which fuses with its neighbours. Only the reference
has double backward, forward mode and the transforms of `torch.func`; the others say so.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dispatch import BACKENDS, Backend, add_rms_norm, bhyt_approximate, bhyt_exact, dyt, rms_norm
    from .reference import TokenStatistic

__all__ = [
    "BACKENDS",
    "Backend",
    "TokenStatistic",
    "add_rms_norm",
    "bhyt_approximate",
    "bhyt_exact",
    "dyt",
    "rms_norm",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(".dispatch", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
