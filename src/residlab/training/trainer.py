"""Training that survives: one loop for one process or many, which goes on bit for bit from where it was ended.

A run is a `TrainConfig` and a folder. The folder gets checkpoints and ``metrics.jsonl``; a run that finds checkpoints
of its own configuration there goes on from the newest. What a step does depends on the checkpoint and the step only:
the data are a function of the step, the random generators' states are saved, and lines of the metrics beyond the
checkpoint are taken back. Ctrl-C lets a single process end its step and save it, a second Ctrl-C does not.

Non-finite values: an update whose loss or gradient norm is not finite is skipped, parameters and optimizer untouched,
and written down; after ``bad_steps`` in a row training stops with an error. A spike, a loss more than 6 robust standard
deviations above the median of the last 50 and 0.5 nats above it, is written down and changes nothing.
"""

import json
import math
import os
import signal
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import torch
from torch import Tensor, nn

from residlab.checks import environment_count
from residlab.data.cache import write_atomic
from residlab.errors import ResidlabError, install
from residlab.models.transformer import Transformer
from residlab.training.batches import Batches, check_fits
from residlab.training.checkpoint import (
    Checkpoint,
    latest_checkpoint,
    random_state,
    save_checkpoint,
    set_random_state,
)
from residlab.training.config import TrainConfig
from residlab.training.evaluation import Evaluation, evaluate
from residlab.training.optimizers import TrainingOptimizer, clip, grad_norm, make_optimizer
from residlab.training.progress import training_bar
from residlab.training.sharding import Strategy, reshard, shard, whole, whole_model
from residlab.training.tokens import TokenizedCorpus

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.wrappers import _FabricModule

Probe = Callable[[nn.Module, Tensor], dict[str, Any]]
SPIKE_WINDOW = 50
FLUSH_EVERY = 100


@dataclass(frozen=True)
class TrainingResult:
    """What came out: the model (its parameters divided, if they were in training), its last evaluation, and the run.

    Examples
    --------
    >>> list(TrainingResult.__dataclass_fields__)
    ['model', 'evaluation', 'losses', 'skipped', 'seconds']
    """

    model: Transformer
    evaluation: Evaluation
    losses: tuple[float, ...]
    skipped: int
    seconds: float


class Trainer:
    """One run.

    Parameters
    ----------
    config
        What to do.
    folder
        Where checkpoints and metrics go.
    texts
        The corpus, tokenized; its vocabulary must be the model's.
    fabric
        Lightning Fabric, for several processes or another device; by default one process on the best device here.
    probes
        Name -> a function of the model and the token ids of the step's batch, called every ``probe_every`` steps, after
        the update (those of ``config.probes_last`` only after the last one), without gradients unless it asks for
        them; what it returns goes into the metrics. Of several
        processes, the first one's part of the batch and answers count; where parameters are divided, only it calls
        them, with a whole copy of the model that its device must have room for.
    initial
        Weights to begin with, all of them, in place of those that the seed gives.

    Raises
    ------
    ResidlabError
        If the vocabulary does not fit, the validation text is shorter than a window, the processes do not divide the
        batch's parts, or lightning-fabric is missing.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.training.config import TrainConfig
    >>> from residlab.training.corpus import corpus_of
    >>> from residlab.training.tokenizers import ByteTokenizer
    >>> from residlab.training.tokens import tokenized
    >>> documents = [f"{n} times {n} is {n * n}. " * 5 for n in range(40)]
    >>> texts = tokenized(corpus_of("squares", documents), ByteTokenizer(), cache=Path("cache"))
    >>> model = ModelConfig(depth=1, width=16, heads=2, vocabulary=257, context=16)
    >>> config = TrainConfig(model=model, steps=30, batch=4, evaluation_tokens=200)
    >>> result = Trainer(config, Path("run"), texts).run()
    >>> result.losses[0] > 5, result.losses[-1] < result.losses[0], sorted(path.name for path in Path("run").iterdir())
    (True, True, ['metrics.jsonl', 'step-000030'])
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        texts: TokenizedCorpus,
        *,
        fabric: "Fabric | None" = None,
        probes: Mapping[str, Probe] | None = None,
        initial: Mapping[str, Tensor] | None = None,
    ) -> None:
        vocabulary = texts.tokenizer.vocabulary
        if vocabulary != config.model.vocabulary:
            raise ResidlabError(
                f"the tokenizer has {vocabulary} tokens, the model a vocabulary of {config.model.vocabulary}"
            )
        check_fits(texts.validation, config.model.context)  # now: it is read last, after all training
        self.config, self.folder, self.texts = config, folder, texts
        self.fabric = fabric or default_fabric(config)
        processes = self.fabric.world_size
        if config.batch % (config.accumulation * processes):
            raise ResidlabError(
                f"accumulation times processes must divide batch = {config.batch}; got {config.accumulation} times "
                f"{processes}"
            )
        looks = dict(probes or {})
        self.probes = {name: probe for name, probe in looks.items() if name not in config.probes_last}
        self.last_probes = {name: probe for name, probe in looks.items() if name in config.probes_last}
        self.initial = initial
        self.metrics = _Metrics(folder / "metrics.jsonl", write=self.fabric.is_global_zero)
        self.recent: deque[float] = deque(maxlen=SPIKE_WINDOW)  # the last losses that were not skipped

    def run(self) -> TrainingResult:
        """Train to the end, from the newest checkpoint if there is one.

        Raises
        ------
        ResidlabError
            If a checkpoint is damaged or of another configuration, its metrics are gone, the disk is full, or values
            stay non-finite.
        KeyboardInterrupt
            On Ctrl-C; of a single process after its step, which is saved.
        """
        config, fabric = self.config, self.fabric
        begin = time.perf_counter()
        found = self._found()
        resumed = found is not None
        torch.manual_seed(config.seed)
        plain = Transformer(config.model, seed=config.seed)
        if found is not None or self.initial is not None:
            plain.load_state_dict(found.model if found is not None else dict(self.initial or {}))
        compiled = cast(nn.Module, torch.compile(plain)) if config.compile else plain
        model = fabric.setup_module(compiled)
        optimizer = make_optimizer(plain, config.optimizer)  # on the device, and of what FSDP made of the parameters
        step, losses, skipped = 0, [], 0
        self.recent.clear()
        if found is not None:
            optimizer.load_state_dict(found.optimizer)
            step, losses, skipped = found.step, found.progress["losses"], found.progress["skipped"]
            # Earlier checkpoints lack it, and do not say which losses were skipped for their gradients alone.
            self.recent.extend(found.progress.get("recent", [loss for loss in losses if math.isfinite(loss)]))
            set_random_state(found.random)
            found = None  # its tensors were copied: let go of them
        evaluated = self.metrics.resume(step if resumed else -1)
        batches = Batches(
            self.texts.train,
            context=config.model.context,
            batch=config.batch,
            seed=config.seed,
            rank=fabric.global_rank,
            world=fabric.world_size,
        )
        bad, ids, saved = 0, None, step
        tokens = config.batch * config.model.context
        label = f"{config.model.norm.kind} {config.hash}"
        if not resumed and 0 in config.probe_at and self.probes:
            first = torch.from_numpy(batches[0]).to(fabric.device)
            self.metrics.write({"step": 0, "probes": self._probe(self.probes, plain, first)})
        with training_bar(label, config.steps, step) as advance, _held_interrupt(fabric.world_size == 1) as interrupted:
            while step < config.steps:
                tick = time.perf_counter()
                ids = torch.from_numpy(batches[step]).to(fabric.device)
                assert config.schedule is not None
                optimizer.set_lr(config.schedule.factor(step))
                loss, norm = self._update(model, plain, optimizer, ids)
                step += 1
                plain.refresh(step)
                losses.append(loss)
                line: dict[str, Any] = {"step": step, "loss": loss, "grad_norm": norm}
                if not (math.isfinite(loss) and math.isfinite(norm)):
                    skipped, bad = skipped + 1, bad + 1
                    line["skipped"] = True
                else:
                    bad = 0
                    if _is_spike(loss, self.recent):
                        line["spike"] = True
                    self.recent.append(loss)
                self.metrics.write(line)
                if bad > config.bad_steps:
                    self.metrics.flush()
                    raise ResidlabError(
                        f"step {step}: loss {loss} and gradient norm {norm}, the {bad}th update in a row that is not "
                        f"finite; the last checkpoint, if any, is in {self.folder}"
                    )
                looking = self._due(config.probe_every, step) or step in config.probe_at
                due = {**(self.probes if looking else {}), **(self.last_probes if step == config.steps else {})}
                if due:
                    self.metrics.write({"step": step, "probes": self._probe(due, plain, ids)})
                if self._due(config.evaluate_every, step) and step < config.steps:
                    self._evaluate(plain, step)
                if self._due(config.checkpoint_every, step) and step < config.steps:
                    self._save(plain, optimizer, step, losses, skipped)
                    saved = step
                advance(step, loss, tokens / (time.perf_counter() - tick))
                if interrupted():
                    break
            if saved < step:
                self._save(plain, optimizer, step, losses, skipped)
        evaluation = self._evaluate(plain, step, write=saved < step or not evaluated)
        self.metrics.flush()
        return TrainingResult(plain, evaluation, tuple(losses), skipped, time.perf_counter() - begin)

    def _found(self) -> Checkpoint | None:
        """Return the newest checkpoint, the same for all processes."""
        self.fabric.barrier()  # the first process may have waited for another run to finish this one
        found = latest_checkpoint(self.folder, self.config.to_dict())
        if found is not None and not {"losses", "skipped"} <= found.progress.keys():
            raise ResidlabError(
                f"the checkpoint of step {found.step} in {self.folder} is damaged: its progress must hold losses and "
                "skipped; remove it to use an earlier one"
            )
        step = 0 if found is None else found.step
        first = self.fabric.broadcast(step)
        if step != first:
            raise ResidlabError(
                f"process {self.fabric.global_rank} finds step {step} in {self.folder}, the first process step "
                f"{first}: processes of one run must share the cache folder"
            )
        return found

    def _update(
        self, model: "_FabricModule", plain: nn.Module, optimizer: TrainingOptimizer, ids: Tensor
    ) -> tuple[float, float]:
        """Take one step unless it would spoil the weights; return the loss and the gradient norm before clipping."""
        fabric, parts = self.fabric, self.config.accumulation
        total = torch.zeros((), device=ids.device)
        pieces = ids.chunk(parts)
        for index, part in enumerate(pieces):
            with fabric.no_backward_sync(model, enabled=index < len(pieces) - 1):
                logits = model(part[:, :-1])
                loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), part[:, 1:].flatten()) / parts
                fabric.backward(loss)
            total += loss.detach()
        if fabric.world_size > 1:
            total = fabric.all_reduce(total, reduce_op="mean")  # type: ignore[assignment]
        norm = grad_norm(plain) if self.config.clip is None else clip(plain, self.config.clip)
        loss_value, norm_value = torch.stack((total.double(), norm.double())).tolist()
        if math.isfinite(loss_value) and math.isfinite(norm_value):
            optimizer.step()
        optimizer.zero_grad()
        return loss_value, norm_value

    def _due(self, every: int, step: int) -> bool:
        return every > 0 and step % every == 0

    def _probe(self, probes: Mapping[str, Probe], model: Transformer, ids: Tensor) -> dict[str, Any]:
        seen = whole_model(model, keep=self.fabric.is_global_zero)
        if seen is None:
            return {}
        with torch.no_grad():
            return {name: probe(seen, ids[:, :-1]) for name, probe in probes.items()}

    def _evaluate(self, model: Transformer, step: int, write: bool = True) -> Evaluation:
        with self.fabric.autocast():
            result = evaluate(
                model,
                self.texts.validation,
                self.config.model.context,
                most=self.config.evaluation_tokens,
                batch=self.config.batch,
                fabric=self.fabric,
            )
        reshard(model)
        if write:
            self.metrics.write({"step": step, "evaluation": asdict(result)})
        return result

    def _save(self, model: nn.Module, optimizer: Any, step: int, losses: list[float], skipped: int) -> None:
        self.metrics.flush()
        first = self.fabric.is_global_zero
        weights, state = whole(dict(model.state_dict()), keep=first), whole(optimizer.state_dict(), keep=first)
        if first:
            progress = {"losses": losses, "skipped": skipped, "recent": list(self.recent)}
            save_checkpoint(
                self.folder, Checkpoint(step, self.config.to_dict(), weights, state, random_state(), progress)
            )
        self.fabric.barrier()


def default_fabric(config: TrainConfig, strategy: Strategy = "ddp") -> "Fabric":
    """Return Lightning Fabric on the best device of this machine: for one process, or for those of ``torchrun``.

    Parameters
    ----------
    config
        Says the precision.
    strategy
        How several processes train one model: ``ddp``, each holds all of it; ``fsdp``, each holds a part
        (`residlab.training.sharding`). The result does not depend on it, up to rounding.

    Raises
    ------
    ResidlabError
        If lightning-fabric is not installed, or there is no such strategy.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.training.config import TrainConfig
    >>> config = TrainConfig(model=ModelConfig(depth=1, width=16, heads=2, vocabulary=257), steps=1)
    >>> default_fabric(config).world_size
    1
    """
    if strategy not in get_args(Strategy):
        raise ResidlabError(f"strategy must be one of {', '.join(get_args(Strategy))}; got {strategy!r}")
    try:
        from lightning_fabric import Fabric
        from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
    except ImportError as error:
        raise ResidlabError(f"training needs lightning-fabric: {install('training')}") from error
    precision = "bf16-mixed" if config.precision == "bfloat16" else "32-true"
    accelerator = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    local, world = environment_count("LOCAL_WORLD_SIZE", 1), environment_count("WORLD_SIZE", 1)
    together = torch.distributed.is_torchelastic_launched() and world > 1
    sharded = ModelParallelStrategy(
        lambda model, mesh: shard(model, mesh["data_parallel"]), data_parallel_size=world, tensor_parallel_size=1
    )
    fabric = Fabric(
        accelerator=accelerator,
        strategy="auto" if not together else sharded if strategy == "fsdp" else "ddp",
        devices=local if together else 1,
        num_nodes=world // local if together else 1,
        precision=precision,  # type: ignore[arg-type]
    )
    if together:
        fabric.launch()
    return fabric


@contextmanager
def _held_interrupt(hold: bool) -> Iterator[Callable[[], bool]]:
    """Hold back the first signal that would raise KeyboardInterrupt, to the end; yield what says whether it came.

    The second one raises at once. Handlers of others, and other threads, are left alone.
    """
    received: list[int] = []

    def received_once(number: int, frame: Any) -> None:
        if received:
            signal.default_int_handler(number, frame)
        received.append(number)

    held = []
    if hold and threading.current_thread() is threading.main_thread():
        named = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        held = [number for number in named if signal.getsignal(number) is signal.default_int_handler]
    try:
        for number in held:
            signal.signal(number, received_once)
        yield lambda: bool(received)
    finally:
        for number in held:
            signal.signal(number, signal.default_int_handler)
    if received:
        raise KeyboardInterrupt


def _is_spike(loss: float, recent: deque[float]) -> bool:
    if len(recent) < SPIKE_WINDOW:
        return False
    middle = statistics.median(recent)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in recent)
    return loss > middle + max(6 * spread, 0.5)


def _finite(value: Any) -> Any:
    """Return JSON values, where what is not finite is its name."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class _Metrics:
    """A file of JSON lines, appended to; what lies beyond a checkpoint is taken back when training resumes."""

    def __init__(self, file: Path, *, write: bool) -> None:
        self.file, self.enabled = file, write
        self.pending: list[str] = []

    def resume(self, step: int) -> bool:
        """Take back what lies beyond a step; return whether its evaluation is written.

        Raises
        ------
        ResidlabError
            If the file does not reach the step: what is missing would be missing in the record, too.
        """
        if not self.enabled:
            return True
        self.file.parent.mkdir(parents=True, exist_ok=True)
        kept: list[str] = []
        last: dict[str, Any] = {}
        evaluated = False
        if self.file.exists():
            for line in self.file.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    values = json.loads(line)
                    if values["step"] > step:
                        break
                except (ValueError, KeyError, TypeError):  # the line that a crash cut short
                    break
                kept.append(line)
                last = values
                evaluated = evaluated or (values["step"] == step and "evaluation" in values)
        if step > last.get("step", 0):
            raise ResidlabError(
                f"{self.file} ends at step {last.get('step', 0)}, the checkpoint beside it is of step {step}: bring "
                f"back the file, or remove the folder {self.file.parent} to train again"
            )
        write_atomic(self.file, "".join(f"{line}\n" for line in kept).encode())
        return evaluated

    def write(self, line: dict[str, Any]) -> None:
        if self.enabled:
            self.pending.append(json.dumps(_finite(line), allow_nan=False))
            if len(self.pending) >= FLUSH_EVERY:
                self.flush()

    def flush(self) -> None:
        if self.enabled and self.pending:
            with self.file.open("a") as stream:
                stream.write("".join(f"{line}\n" for line in self.pending))
                stream.flush()
                os.fsync(stream.fileno())  # before the checkpoint, which counts on these lines
            self.pending.clear()
