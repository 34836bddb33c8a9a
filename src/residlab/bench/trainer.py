"""What the trainer costs beyond forward, backward and optimizer, and how long a run takes to begin and to go on."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from residlab.bench.report import duration
from residlab.data import cache as storage
from residlab.experiments.training_run import texts_of
from residlab.models.config import ModelConfig, norm_options
from residlab.models.transformer import Transformer
from residlab.training.batches import Batches
from residlab.training.config import TrainConfig
from residlab.training.optimizers import OptimizerConfig, clip, make_optimizer
from residlab.training.tokens import TokenizedCorpus
from residlab.training.trainer import Trainer

MODEL = ModelConfig(depth=4, width=128, heads=4, vocabulary=257, context=128, norm=norm_options("bhyt"))
CONFIG = TrainConfig(model=MODEL, steps=10, batch=16, evaluation_tokens=1, optimizer=OptimizerConfig(lr=1e-3))
DEEP = """
from dataclasses import replace
from pathlib import Path
import sys, torch
from residlab.bench.trainer import CONFIG, MODEL
from residlab.experiments.training_run import train
torch.set_num_threads(int(sys.argv[2]))
train("cold", replace(CONFIG, model=replace(MODEL, depth=24), steps=20, batch=4), cache=Path(sys.argv[1]))
"""


@dataclass(frozen=True)
class TrainerCosts:
    """Seconds: a step by hand and by the trainer, a run from nothing, and going on from a checkpoint."""

    bare_step: float
    trainer_step: float
    cold_run: float
    resume: float

    @property
    def overhead(self) -> float:
        """The trainer's step over the one by hand, minus 1."""
        return self.trainer_step / self.bare_step - 1


def trainer_costs(rounds: int = 3, *, advance: Callable[[str], None] = lambda name: None) -> TrainerCosts:
    """Measure.

    A trainer's step is the difference of two runs, of 10 and of 50 steps, over 40, so that what a run costs once does
    not count; the same steps by hand take turns with them; the median of ``rounds``. The run from nothing trains 24
    layers of width 128 for 20 steps in a process and a cache of its own: Wikipedia summaries, read as bytes, tokenized.
    """
    texts = texts_of(CONFIG)
    bare, ours = [], []
    for _ in range(rounds):
        bare.append((_bare(50, texts) - _bare(10, texts)) / 40)
        advance("by hand")
        ours.append((_trained(50, texts) - _trained(10, texts)) / 40)
        advance("trainer")
    middle = rounds // 2
    advance("from nothing")
    cold = _cold()
    with tempfile.TemporaryDirectory() as folder:
        Trainer(CONFIG, Path(folder) / "run", texts).run()
        advance("going on")
        begin = time.perf_counter()
        Trainer(CONFIG, Path(folder) / "run", texts).run()
        resume = time.perf_counter() - begin
    return TrainerCosts(sorted(bare)[middle], sorted(ours)[middle], cold, resume)


def show(costs: TrainerCosts, console: Console) -> None:
    """Print the costs."""
    console.print(f"Trainer: depth {MODEL.depth}, width {MODEL.width}, {CONFIG.batch} x {MODEL.context} tokens")
    console.print(f"  a step by hand       {duration(costs.bare_step)}")
    console.print(f"  a step of Trainer    {duration(costs.trainer_step)}, {costs.overhead:+.1%}")
    console.print(f"  24 layers, 20 steps, from nothing, text and imports included   {duration(costs.cold_run)}")
    console.print(f"  going on from a checkpoint   {duration(costs.resume)}\n")


def _bare(steps: int, texts: TokenizedCorpus) -> float:
    model = Transformer(MODEL, seed=0)
    optimizer = make_optimizer(model, CONFIG.optimizer)
    batches = Batches(texts.train, context=MODEL.context, batch=CONFIG.batch, seed=0)
    begin = time.perf_counter()
    for step in range(steps):
        ids = torch.from_numpy(batches[step])
        logits = model(ids[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        clip(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - begin


def _trained(steps: int, texts: TokenizedCorpus) -> float:
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(replace(CONFIG, steps=steps), Path(folder) / "run", texts)
        begin = time.perf_counter()
        trainer.run()
        return time.perf_counter() - begin


def _cold() -> float:
    """Return the seconds of a whole run in a process of its own, with fetched texts and no tokens yet."""
    with tempfile.TemporaryDirectory() as folder:
        for fetched in storage.cache_dir().glob("wikipedia-*"):
            (Path(folder) / fetched.name).symlink_to(fetched)
        begin = time.perf_counter()
        command = [sys.executable, "-c", DEEP, folder, str(torch.get_num_threads())]
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - begin
