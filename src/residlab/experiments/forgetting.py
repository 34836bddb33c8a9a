"""What does a norm forget? The main models of ``bhyt-depth``, fine-tuned on Shakespeare (chapter 7).

The plan, with what it costs on one core (a run of 12 layers, 200 steps: about 80 seconds, and its looks 45):

    main    4 norms x 3 seeds x 3 learning rates, from the weights of bhyt-depth's stage main    36 runs

Every run of ``bhyt-depth``'s stage ``main`` is the start of three, one for each learning rate: AdamW with fresh moments
and without weight decay, which would move the weights for a reason of its own; ten steps of warmup, and then a rate
that stays the same. So the first n steps of a run are the run of n steps: a look after n steps is what a run of that
length would have come to, and one run stands for a column of rate x steps. A look evaluates held-out Shakespeare
(``own``) and held-out Wikipedia (``former``), the same windows every time, and how far the weights have moved.

The seed of a run is that of its start: all norms see the same Shakespeare in the same order.
"""

from dataclasses import dataclass

from residlab.errors import ResidlabError
from residlab.experiments.plans import Found, Stage
from residlab.experiments.record import Record
from residlab.models.config import ModelConfig
from residlab.training.config import TrainConfig
from residlab.training.optimizer_config import OptimizerConfig
from residlab.training.schedules import ScheduleConfig

BASE = "bhyt-depth"
CORPUS = "shakespeare"
RATES = (3e-4, 1e-3, 3e-3)


@dataclass(frozen=True)
class Size:
    """How long a profile trains, and after which steps it looks; the model and the batch are those of its start."""

    looks: tuple[int, ...]
    warmup: int
    evaluation_tokens: int

    @property
    def steps(self) -> int:
        """The last look."""
        return self.looks[-1]


PROFILES: dict[str, Size] = {
    "smoke": Size(looks=(0, 1, 2, 4, 8), warmup=1, evaluation_tokens=512),
    "cpu": Size(looks=(0, 25, 50, 100, 200), warmup=10, evaluation_tokens=32_768),
    "gpu": Size(looks=(0, 125, 250, 500, 1000), warmup=50, evaluation_tokens=262_144),
}


def config(profile: str, start: Record, lr: float) -> TrainConfig:
    """Return the fine-tuning of a recorded run at a learning rate.

    Raises
    ------
    ResidlabError
        If there is no such profile.
    """
    if profile not in PROFILES:
        raise ResidlabError(f"profile must be one of {', '.join(PROFILES)}; got {profile!r}")
    size, before = PROFILES[profile], start.config
    return TrainConfig(
        model=ModelConfig.from_dict(before["model"]),
        corpus=CORPUS,
        tokenizer=before["tokenizer"],
        steps=size.steps,
        batch=before["batch"],
        seed=start.seed,
        optimizer=OptimizerConfig(kind="adamw", lr=lr),
        schedule=ScheduleConfig(kind="constant", steps=size.steps, warmup=size.warmup),
        precision=before["precision"],
        evaluation_tokens=size.evaluation_tokens,
        checkpoint_every=max(1, size.steps // 2),
        probe_at=size.looks,
        start=start.hash,
    )


def _main(profile: str, found: Found) -> list[TrainConfig]:
    base = found.beside(BASE, profile)
    starts, file = base.stage("main"), base.records.file
    if not starts:
        raise ResidlabError(
            f"{file} has no record of {BASE}/main, whose models are fine-tuned: "
            f"first residlab run {BASE} --profile {profile} --stage tuning --stage main --results {file}"
        )
    return [config(profile, start, rate) for start in starts for rate in RATES]


STAGES = (Stage("main", "every main model, fine-tuned at three learning rates", _main),)
