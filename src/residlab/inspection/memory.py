r"""What an inspection needs of memory, counted from the configuration; and what the machine has.

P parameters, V words, width d, h heads, L layers, f the widest input of a linear layer; B windows of T tokens are read,
g tokens are rounded:

    weights       4 P
    reading       B T (40 f + 72 d) + 40 B h T**2      quantization in float64; the stream; rows of attention
    predictions   16 T V                               logits of one window, their copy, their log-probabilities
    rounding      g (48 V + 24 (L + 1) d) + 20 V d     logits and stream of two inferences in float64, the output matrix

    peak = libraries + weights + max(reading, predictions, rounding)

The libraries (Python, torch, transformers) take about 0.4 GB. Pages of the mapped weight files, which the system takes
back when it needs them, are not counted.
"""

from __future__ import annotations

import math
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from residlab.errors import ResidlabError
from residlab.inspection.folder import Folder, anatomy
from residlab.precision.quantized_models import weight_of

LIBRARIES = 400_000_000
SHARE = 0.75
"""Of the memory that is free now, what an inspection may take by default."""
_UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


@dataclass(frozen=True)
class Memory:
    """The bytes of an inspection, by what they are for; see the top of this module."""

    weights: int
    reading: int
    predictions: int
    rounding: int

    @property
    def peak(self) -> int:
        """The most that is in use at once."""
        return LIBRARIES + self.weights + max(self.reading, self.predictions, self.rounding)

    def __str__(self) -> str:
        rest = max(self.reading, self.predictions, self.rounding)
        return (
            f"about {gigabytes(self.peak)} of memory (float32 weights {gigabytes(self.weights)}, "
            f"activations {gigabytes(rest)}, libraries {gigabytes(LIBRARIES)})"
        )


def memory_needed(folder: Folder, shape: tuple[int, int], rounded_tokens: int) -> Memory:
    """Return the memory of an inspection that reads ``shape`` windows and tokens, without loading anything."""
    config, (windows, length) = folder.text_config, shape
    parts = anatomy(folder.skeleton, folder.config)
    widest = max(weight_of(layer).shape[1] for layer in parts.linears.values())
    width, vocabulary, depth = int(config.hidden_size), int(config.vocab_size), len(parts.blocks)
    heads = int(getattr(config, "num_attention_heads", 0) or 0)
    tokens = windows * length
    return Memory(
        weights=4 * folder.parameters,
        reading=tokens * (40 * widest + 72 * width) + 40 * windows * heads * length**2,
        predictions=16 * length * vocabulary,
        rounding=rounded_tokens * (48 * vocabulary + 24 * (depth + 1) * width) + 20 * vocabulary * width,
    )


def parse_bytes(text: str) -> int:
    """Return the bytes that ``500MB``, ``3GB``, ``2.5GiB`` or a plain number of bytes stand for.

    Raises
    ------
    ResidlabError
        If it is none of these, 0, or too large for a number.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([KMGT]I?)?B?\s*", text.upper())
    size = float(match[1]) * _UNITS[match[2] or ""] if match else 0.0
    if not 1 <= size < math.inf:
        raise ResidlabError(f"--max-memory must be like 3GB, 500MB or 2GiB; got {text!r}")
    return int(size)


def gigabytes(size: float) -> str:
    """Write a number of bytes in units of 10**9 or 10**6."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def free_memory() -> int | None:
    """Return the bytes that are free on the machine, or what a container leaves of them; None if unknown."""
    found = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    if not found:
        with suppress(OSError, ValueError, AttributeError):
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError):  # "max" is no number: no limit
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{name}").read_text(encoding="ascii")) for name in ("max", "current"))
        found.append(max(0, limit - used))
    return min(found) if found else None


def check_memory(needed: Memory, given: str | None) -> None:
    """Refuse an inspection that needs more than it may take.

    Raises
    ------
    ResidlabError
        With what is needed, what is allowed, and what would change that.
    """
    if given is not None:
        allowed, source = parse_bytes(given), f"--max-memory {given}"
    else:
        free = free_memory()
        if free is None:
            return
        allowed, source = int(SHARE * free), f"{SHARE:.0%} of the {gigabytes(free)} that are free"
    if needed.peak > allowed:
        raise ResidlabError(
            f"the model needs {needed}, but {source} allows {gigabytes(allowed)}: nothing was loaded. "
            "Allow more with --max-memory, or read less with --tokens"
        )
