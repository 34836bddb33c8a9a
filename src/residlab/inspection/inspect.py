"""All of it in order: look at the folder, count the memory, load, measure."""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from residlab.experiments.record import now, versions
from residlab.inspection import folder as folders
from residlab.inspection import measure, rounding
from residlab.inspection import text as texts
from residlab.inspection.memory import Memory, check_memory, memory_needed, parse_bytes


def inspect(
    path: Path,
    *,
    tokens: int = texts.TOKENS,
    text: Path | None = None,
    max_memory: str | None = None,
    tell_memory: Callable[[Memory], None] = lambda memory: None,
    advance: Callable[[str], None] = lambda what: None,
) -> measure.Inspection:
    """Inspect the model in a folder.

    Parameters
    ----------
    path
        The folder.
    tokens
        How many it reads.
    text
        A file with a text of one's own; by default the packaged one.
    max_memory
        What may be taken, as ``3GB``; by default three quarters of what is free.
    tell_memory
        Told what is needed, before anything is loaded.
    advance
        Told what happens now.

    Raises
    ------
    ResidlabError
        As `read_folder`, `check_memory`, `check_weights`, `load` and `observed`.
    """
    texts.check_tokens(tokens)
    if max_memory is not None:
        parse_bytes(max_memory)
    given = (texts.own_text(text), text.name) if text else None
    seconds: dict[str, float] = {}

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        advance(name)
        start = time.perf_counter()
        yield
        seconds[name] = round(time.perf_counter() - start, 2)

    with stage("reading the folder"):
        folder = folders.read_folder(path)
        shape = texts.window_shape(tokens, folder.context)
        rounded = rounding.rounded_tokens(folder.parameters, shape[1])
        needed = memory_needed(folder, shape, rounded)
    tell_memory(needed)
    check_memory(needed, max_memory)
    with stage("checking weights and text"):
        words, name = given or (texts.packaged_text(), "the packaged text")
        tokenizer = folders.load_tokenizer(folder)
        reading = texts.read(words, name, tokenizer, shape, int(folder.text_config.vocab_size))
        folders.check_weights(folder)
    with stage("loading"):
        model = folders.load(folder)
        measure.check_causal(model, reading.ids)
    with stage("stream, attention, quantization"):
        seen = measure.observed(model, folder, reading, lambda id: str(tokenizer.decode([id])))
    with stage("predictions"):
        nats = measure.loss(model, reading)
    with stage("rounding"):
        holder = [model]
        del model
        growth = rounding.growth(holder, folder, reading.ids[:1, :rounded], lambda what: advance(f"rounding: {what}"))
    return measure.Inspection(
        model=_facts(folder),
        text={
            "name": reading.name,
            "tokens": reading.tokens,
            "windows": reading.ids.shape[0],
            "window": reading.ids.shape[1],
            "begin": reading.begin,
            "asked": tokens,
        },
        nats=nats,
        growth=growth,
        resources={
            "seconds": seconds,
            "total_seconds": round(sum(seconds.values()), 2),
            "memory_counted": needed.peak,
            "memory_taken": memory_taken(),
            "threads": torch.get_num_threads(),
            "load": round(os.getloadavg()[0], 1),
            "time": now(),
            "versions": versions(),
        },
        **seen,
    )


def _facts(folder: folders.Folder) -> dict[str, Any]:
    config = folder.text_config
    return {
        "name": folder.name,
        "architecture": folder.architecture,
        "parameters": folder.parameters,
        "layers": int(config.num_hidden_layers),
        "width": int(config.hidden_size),
        "heads": getattr(config, "num_attention_heads", None),
        "vocabulary": int(config.vocab_size),
        "context": folder.context,
        "linear_share": folders.linear_share(folder),
        "dtypes": list(folder.dtypes),
        "uniform_nats": math.log(int(config.vocab_size)),
    }


def memory_taken() -> int:
    """Return the most bytes that this process has had resident."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
