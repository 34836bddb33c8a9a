"""Trains the configuration of `test_sharding`, alone or as one of torchrun's processes; may stop early, as if ended.

FOLDER STRATEGY OPTIONS: where the run is, how processes share it, JSON options (``kind``, ``norm``, ``stop``, ``bad``).
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from residlab.models.config import ModelConfig, norm_options
from residlab.training.config import TrainConfig
from residlab.training.corpus import corpus_of
from residlab.training.optimizers import OptimizerConfig
from residlab.training.tokenizers import ByteTokenizer
from residlab.training.tokens import tokenized
from residlab.training.trainer import Trainer, default_fabric

DOCUMENTS = [f"Document {n} says: {n} times {n} is {n * n}, and then some more words follow. " * 3 for n in range(40)]


def configuration(kind: str, norm: dict[str, object]) -> TrainConfig:
    """Return the configuration of the tests: an odd width, so that parts are unequal, and clipping that bites."""
    model = ModelConfig(
        depth=2,
        width=15,
        heads=3,
        head_dim=4,
        vocabulary=257,
        context=16,
        norm=norm_options(**{"kind": "bhyt", **norm}),
        init_std=0.1,
    )
    return TrainConfig(
        model=model,
        steps=8,
        batch=4,
        accumulation=2,
        clip=0.3,
        evaluate_every=3,
        evaluation_tokens=150,
        checkpoint_every=2,
        probe_every=4,
        optimizer=OptimizerConfig(kind=kind, lr=1e-2 if kind == "adamw" else 1e-3, weight_decay=0.1),
    )


class EndedError(Exception):
    """Stands for the end of a process."""


class Ending(Trainer):
    """A trainer that ends behind a checkpoint, or spoils the loss of one update on one process only."""

    stop: int | None = None
    bad: int | None = None

    def _save(self, model, optimizer, step, losses, skipped):
        super()._save(model, optimizer, step, losses, skipped)
        if step == self.stop:
            raise EndedError

    def _update(self, model, plain, optimizer, ids):
        self.updates = getattr(self, "updates", 0) + 1
        if self.updates != self.bad or self.fabric.global_rank:
            return super()._update(model, plain, optimizer, ids)
        handle = model.register_forward_hook(lambda module, inputs, logits: logits * float("nan"))
        try:
            return super()._update(model, plain, optimizer, ids)
        finally:
            handle.remove()


def size(model, ids):
    """Look at a matrix as a whole, and at what the model makes of the first sequence."""
    return {"rows": len(model.embedding.weight), "rms": float(model(ids[:1]).square().mean().sqrt())}


def main(folder: Path, strategy: str, options: dict) -> None:
    """Train."""
    config = configuration(options.get("kind", "adamw"), options.get("norm", {}))
    texts = tokenized(corpus_of("numbers", DOCUMENTS), ByteTokenizer(), cache=folder / "cache")
    fabric = default_fabric(config, strategy)
    trainer = Ending(config, folder / "run", texts, fabric=fabric, probes={"size": size})
    trainer.stop, trainer.bad = options.get("stop"), options.get("bad")
    try:
        result = trainer.run()
        (folder / f"evaluation-{strategy}-{fabric.global_rank}.json").write_text(json.dumps(asdict(result.evaluation)))
    except EndedError:
        fabric.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
