"""What a training run is: one frozen object, checked when it is made, with a hash that names its results."""

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from residlab.checks import check_booleans, is_real
from residlab.errors import ResidlabError
from residlab.models.config import ModelConfig
from residlab.training.optimizers import OptimizerConfig
from residlab.training.schedules import ScheduleConfig

Precision = Literal["float32", "bfloat16"]
TokenizerName = Literal["bytes", "bpe-4096"]
_LATER = ("probe_at", "start", "probes_last")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A model, a text, and how one is fitted to the other.

    Attributes
    ----------
    model
        What is trained. Its vocabulary must be the tokenizer's: 257 for bytes, for bpe-4096 as many (a small text
        yields fewer).
    corpus, tokenizer
        See `residlab.training.corpus` and `residlab.training.tokenizers`.
    steps, batch, accumulation
        Updates; sequences of ``model.context`` tokens in each; into how many equal parts a batch is cut to save memory.
    seed
        Of the initial weights, the order of the data, and whatever else draws.
    optimizer, schedule, clip
        The update, its rate over the steps, and the largest gradient norm (None: no limit).
    precision
        ``bfloat16`` computes forwards under autocast, with float32 weights.
    compile
        Whether torch.compile compiles the model.
    evaluate_every, evaluation_tokens
        Steps between evaluations on the validation split (also at the end; 0: only there), and on how many tokens.
    checkpoint_every
        Steps between checkpoints (also at the end; 0: only there).
    probes, probe_every
        Names of what looks at the model while it trains (`residlab.experiments.probes`), and steps between looks.
    probe_at
        Steps after which probes look as well; 0 is before the first.
    probes_last
        Names of what looks once, after the last step.
    bad_steps
        How many updates in a row may be skipped because loss or gradient is not finite, before training stops.
    start
        The sixteen digits that name a finished run (`residlab.experiments.training_run.run_hash`), whose last weights
        this one begins with; by default its own, from the seed. Only weights are taken over: the optimizer, the
        schedule and the order of the data begin anew.

    ``probe_at``, ``probes_last`` and ``start`` are left out of `to_dict` where they say nothing, so that the hashes of
    runs without them are what they were before there were such options.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from residlab.models.config import ModelConfig
    >>> config = TrainConfig(model=ModelConfig(depth=2, width=32, heads=2, vocabulary=257, context=64), steps=100)
    >>> TrainConfig.from_dict(config.to_dict()).hash == config.hash
    True
    >>> replace(config, seed=1).hash == config.hash
    False
    """

    model: ModelConfig
    steps: int
    corpus: str = "wikipedia"
    tokenizer: TokenizerName = "bytes"
    batch: int = 16
    accumulation: int = 1
    seed: int = 0
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig | None = None
    clip: float | None = 1.0
    precision: Precision = "float32"
    compile: bool = False
    evaluate_every: int = 0
    evaluation_tokens: int = 65_536
    checkpoint_every: int = 0
    probes: tuple[str, ...] = ()
    probe_every: int = 0
    bad_steps: int = 10
    probe_at: tuple[int, ...] = ()
    start: str | None = None
    probes_last: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (
            ("steps", 1),
            ("batch", 1),
            ("accumulation", 1),
            ("seed", 0),
            ("evaluate_every", 0),
            ("evaluation_tokens", 1),
            ("checkpoint_every", 0),
            ("probe_every", 0),
            ("bad_steps", 0),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
                raise ResidlabError(f"{name} must be a whole number >= {least}; got {value!r}")
        named: object = self.corpus
        if not isinstance(named, str) or not named:
            raise ResidlabError(f"corpus must be a name or a path; got {self.corpus!r}")
        check_booleans(self, "compile")
        if not isinstance(self.model, ModelConfig):
            raise ResidlabError(f"model must be the options of a model, such as depth and width; got {self.model!r}")
        if not isinstance(self.optimizer, OptimizerConfig):
            raise ResidlabError(f"optimizer must be a name or options; got {self.optimizer!r}")
        if not isinstance(self.schedule, ScheduleConfig | None):
            raise ResidlabError(f"schedule must be a name or options; got {self.schedule!r}")
        if self.batch % self.accumulation:
            raise ResidlabError(f"accumulation must divide batch = {self.batch}; got {self.accumulation}")
        for name, allowed in (("precision", get_args(Precision)), ("tokenizer", get_args(TokenizerName))):
            if getattr(self, name) not in allowed:
                raise ResidlabError(f"{name} must be one of {', '.join(allowed)}; got {getattr(self, name)!r}")
        if self.clip is not None and (not is_real(self.clip) or self.clip <= 0):
            raise ResidlabError(f"clip must be a finite number > 0, or null for no limit; got {self.clip!r}")
        for field in ("probes", "probes_last"):
            looks: object = getattr(self, field)  # from a file it may be anything
            if not isinstance(looks, list | tuple) or not all(isinstance(name, str) for name in looks):
                raise ResidlabError(f"{field} must be a list of names; got {looks!r}")
            object.__setattr__(self, field, tuple(looks))
        twice = sorted(set(self.probes) & set(self.probes_last))
        if twice:
            raise ResidlabError(f"probes look after the last step anyway; probes_last repeats {', '.join(twice)}")
        self._check_steps()
        if self.probes and not self.probe_every and not self.probe_at:
            raise ResidlabError(f"probes {', '.join(self.probes)} need probe_every, the steps between looks")
        begun: object = self.start
        if begun is not None and not (isinstance(begun, str) and re.fullmatch("[0-9a-f]{16}", begun)):
            raise ResidlabError(f"start must be the sixteen hexadecimal digits that name a run; got {begun!r}")
        if self.schedule is None:
            warmup = min(self.steps // 10, 200)
            object.__setattr__(self, "schedule", ScheduleConfig(kind="cosine", steps=self.steps, warmup=warmup))

    def _check_steps(self) -> None:
        steps: object = self.probe_at
        good = isinstance(steps, list | tuple) and all(
            isinstance(step, int) and not isinstance(step, bool) and 0 <= step <= self.steps for step in steps
        )
        if not good or sorted(set(self.probe_at)) != list(self.probe_at):
            raise ResidlabError(
                f"probe_at must be increasing whole numbers in [0, steps = {self.steps}]; got {steps!r}"
            )
        object.__setattr__(self, "probe_at", tuple(self.probe_at))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in ("model", "optimizer", "schedule"):
            values[name] = values[name].to_dict()
        for name in ("probes", "probe_at", "probes_last"):
            values[name] = list(values[name])
        return {name: value for name, value in values.items() if name not in _LATER or value}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrainConfig":
        """Return the configuration that `to_dict` wrote, or that a person wrote.

        Raises
        ------
        ResidlabError
            If a name is unknown, one is missing, or a value is not allowed.
        """
        values = dict(values)
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(str(name) for name in set(values) - set(names))
        if unknown:
            raise ResidlabError(f"a training run has no option {', '.join(unknown)}; it has {', '.join(names)}")
        missing = [name for name in ("model", "steps") if name not in values]
        if missing:
            raise ResidlabError(f"a training run needs {', '.join(missing)}")
        parts: dict[str, Any] = {"model": ModelConfig, "optimizer": OptimizerConfig, "schedule": ScheduleConfig}
        if isinstance(values.get("optimizer"), str):
            values["optimizer"] = {"kind": values["optimizer"]}
        if isinstance(values.get("schedule"), str):
            values["schedule"] = {"kind": values["schedule"], "steps": values["steps"]}
        for name, part in parts.items():
            if isinstance(values.get(name), dict):
                values[name] = part.from_dict(values[name])
        return cls(**values)

    @property
    def hash(self) -> str:
        """Sixteen hexadecimal digits that two configurations share only if they are equal."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]
