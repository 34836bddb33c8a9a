"""Trains a configuration, JSON in the first argument, and prints by how many bytes the resident memory rose at most."""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from residlab.training.config import TrainConfig
from residlab.training.corpus import corpus_of
from residlab.training.tokenizers import ByteTokenizer
from residlab.training.tokens import tokenized
from residlab.training.trainer import Trainer


def resident(key: str) -> int:
    """Return a line of the kernel's account of this process, in bytes: VmRSS now, VmHWM at most."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)]
    return int(line.split()[1]) * 1024


def main(config: TrainConfig) -> None:
    """Measure, after a run so small that it brings in libraries only."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        documents = [f"Document {n} says {n * n}, and then some more words follow. " * 9 for n in range(100)]
        texts = tokenized(corpus_of("numbers", documents), ByteTokenizer(), cache=folder / "cache")
        small = replace(
            config.model, depth=1, width=16, heads=2, kv_heads=2, head_dim=8, feedforward_width=16, context=8
        )
        Trainer(replace(config, model=small), folder / "small", texts).run()
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the most so far is forgotten
        Trainer(config, folder / "run", texts).run()
        print(resident("VmHWM") - before)


if __name__ == "__main__":
    main(TrainConfig.from_dict(json.loads(sys.argv[1])))
