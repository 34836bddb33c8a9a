"""The learning rate's factor as a pure function of the step.

With ``w`` warmup steps, ``n`` steps in all, ``f`` the final factor and ``d`` decaying steps, step ``t`` from 0:

    all          (t + 1) / w                               t < w
    constant     1                                         t >= w
    linear       1 - (1 - f) u                             u = (t - w) / (n - w), held at 1 from step n on
    cosine       f + (1 - f) (1 + cos(pi u)) / 2           the same u
    wsd          1, then 1 - (1 - f) (t - n + d) / d       warmup, stable, decay (arXiv 2404.06395), from step n - d on

The first step is never wasted on a factor of zero, and ``factor(n)`` is exactly ``f``.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from residlab.checks import check_counts, check_one_of, is_real, made
from residlab.errors import ResidlabError

ScheduleKind = Literal["constant", "cosine", "linear", "wsd"]


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """A schedule; `factor` says what it makes of a step.

    Attributes
    ----------
    kind
        ``constant``, ``cosine``, ``linear`` or ``wsd``.
    steps
        All steps of the run, warmup included.
    warmup
        Steps until the factor is 1, less than ``steps``.
    final
        The factor at step ``steps``, in [0, 1]; by default 0. ``constant`` has none (it is 1).
    decay
        Steps of the last phase of ``wsd``, by default a tenth of ``steps``; together with ``warmup`` at most ``steps``.

    Examples
    --------
    >>> schedule = ScheduleConfig(kind="wsd", steps=100, warmup=10, decay=20)
    >>> [round(schedule.factor(step), 3) for step in (0, 9, 50, 90, 100)]
    [0.1, 1.0, 1.0, 0.5, 0.0]
    """

    kind: ScheduleKind = "constant"
    steps: int
    warmup: int = 0
    final: float | None = None
    decay: int | None = None

    def __post_init__(self) -> None:
        check_one_of(self, "kind", get_args(ScheduleKind))
        check_counts(self, "steps")
        warmup = cast(object, self.warmup)
        if not isinstance(warmup, int) or isinstance(warmup, bool) or not 0 <= warmup < self.steps:
            raise ResidlabError(f"warmup must be a whole number in [0, steps = {self.steps}); got {warmup!r}")
        fill = object.__setattr__
        if self.kind == "constant":
            if self.final is not None and self.final != 1:
                raise ResidlabError(f'final belongs to cosine, linear and wsd; kind = "constant" got {self.final!r}')
            fill(self, "final", 1.0)
        elif self.final is None:
            fill(self, "final", 0.0)
        elif not is_real(self.final) or not 0 <= self.final <= 1:
            raise ResidlabError(f"final must be a number in [0, 1]; got {self.final!r}")
        if self.kind != "wsd":
            if self.decay is not None:
                raise ResidlabError(f'decay belongs to kind = "wsd"; got decay = {self.decay!r} for "{self.kind}"')
        else:
            if self.decay is None:
                fill(self, "decay", min(-(-self.steps // 10), self.steps - self.warmup))
            check_counts(self, "decay")
            assert self.decay is not None
            if self.warmup + self.decay > self.steps:
                raise ResidlabError(
                    f"warmup + decay must be at most steps = {self.steps}; got {self.warmup} + {self.decay}"
                )

    def factor(self, step: int) -> float:
        """Return the factor of the learning rate at a step, from 0; from ``steps`` on it stays what it is there.

        Raises
        ------
        ResidlabError
            If ``step`` is negative.
        """
        if step < 0:
            raise ResidlabError(f"step must be >= 0; got {step}")
        if step < self.warmup:
            return (step + 1) / self.warmup
        assert self.final is not None
        start = self.steps - self.decay if self.decay is not None else self.warmup
        if self.kind == "constant" or step < start:
            return 1.0
        if step >= self.steps:
            return float(self.final)
        u = (step - start) / (self.steps - start)
        if self.kind == "cosine":
            u = (1 - math.cos(math.pi * u)) / 2
        return 1 - (1 - self.final) * u

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ScheduleConfig":
        """Return the schedule that `to_dict` wrote.

        Raises
        ------
        ResidlabError
            If a name is unknown, one is missing, or a value is not allowed.
        """
        return cast(ScheduleConfig, made(cls, "schedule", values))
