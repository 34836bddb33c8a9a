"""Models of Hugging Face's transformers: into ours, out of ours, and with our norms in theirs.

========================= ===============================================================================
`from_hugging_face`       a Llama, Mistral or GPT-2 becomes a `residlab.models.transformer.Transformer`
`to_hugging_face`         and back, as a folder that transformers loads
`swap_norms`              puts our norms into a Llama, Mistral, Qwen or Gemma, which stays a transformers model
`load_swapped`            loads such a model again
`smollm2`                 real trained weights without a network
========================= ===============================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .callback import RefreshConstants
    from .gguf import converted_smollm2, smollm2
    from .swap import SwapReport, load_swapped, refresh_constants, swap_norms
    from .weights import from_hugging_face, to_hugging_face

_HOMES = {
    "RefreshConstants": "callback",
    "SwapReport": "swap",
    "converted_smollm2": "gguf",
    "from_hugging_face": "weights",
    "load_swapped": "swap",
    "refresh_constants": "swap",
    "smollm2": "gguf",
    "swap_norms": "swap",
    "to_hugging_face": "weights",
}
__all__ = [
    "RefreshConstants",
    "SwapReport",
    "converted_smollm2",
    "from_hugging_face",
    "load_swapped",
    "refresh_constants",
    "smollm2",
    "swap_norms",
    "to_hugging_face",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
