"""What an optimizer is: one frozen object, checked when it is made."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from residlab.checks import check_counts, check_non_negative, check_one_of, check_positive, is_real, made
from residlab.errors import ResidlabError

Kind = Literal["adamw", "signgd", "muon", "soap", "shampoo", "kl-shampoo"]
MuonScale = Literal["original", "match_rms_adamw"]

# What each kind can be told, and what it takes when it is not.
SETTINGS: dict[str, dict[str, Any]] = {
    "adamw": {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8},
    "signgd": {"lr": 3e-4, "momentum": 0.9},
    "muon": {"lr": 0.02, "momentum": 0.95, "eps": 1e-7, "scale": "original"},
    "soap": {"lr": 3e-3, "betas": (0.95, 0.95), "factor_beta": 0.95, "eps": 1e-8, "frequency": 10},
    "shampoo": {"lr": 0.03, "eps": 1e-6, "frequency": 1},
    "kl-shampoo": {"lr": 3e-3, "momentum": 0.9, "factor_beta": 0.95, "eps": 1e-8, "frequency": 2},
}
OPTIONAL = ("betas", "momentum", "eps", "scale", "factor_beta", "frequency")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """An optimizer; what is left out is filled in from `SETTINGS`, what its kind does not know is refused.

    Attributes
    ----------
    kind
        A key of `SETTINGS`.
    lr
        On matrices, before the schedule's factor.
    weight_decay
        On matrices.
    betas
        Averaging of the gradient and of its square, for ``adamw`` and ``soap``.
    momentum
        Averaging of the gradient, for ``signgd`` (0: its sign alone), ``muon`` (Nesterov's) and ``kl-shampoo`` (not
        corrected for its start at zero).
    eps
        Added to the denominator (``adamw``, ``soap``), smallest norm (``muon``), multiple of the identity that L and R
        start from (``shampoo``), smallest eigenvalue (``kl-shampoo``).
    scale
        Factor of Muon's step on a (rows, columns) matrix: ``original`` sqrt(max(1, rows / columns)),
        ``match_rms_adamw`` 0.2 sqrt(max(rows, columns)).
    factor_beta, frequency
        Averaging of the two Kronecker factors, and steps between updates of their eigenbasis; for ``shampoo``, whose
        sums change fastest at first, of their roots, which are also taken after 1, 2, 4, ... steps until then.
    max_dimension
        The longest side of a matrix that ``soap``, ``shampoo`` and ``kl-shampoo`` accept, their cost being cubic.
    rest_lr, rest_betas, rest_eps
        Of AdamW on the rest; for ``adamw`` by default those of matrices, else 1e-3, (0.9, 0.95), 1e-8.

    Examples
    --------
    >>> OptimizerConfig(kind="muon").scale, OptimizerConfig(kind="muon").rest_lr
    ('original', 0.001)
    >>> OptimizerConfig(kind="muon", betas=(0.9, 0.95))
    Traceback (most recent call last):
        ...
    residlab.errors.ResidlabError: betas belongs to adamw, soap; got betas = (0.9, 0.95) for "muon"
    """

    kind: Kind = "adamw"
    lr: float | None = None
    weight_decay: float = 0.0
    betas: tuple[float, float] | None = None
    momentum: float | None = None
    eps: float | None = None
    scale: MuonScale | None = None
    factor_beta: float | None = None
    frequency: int | None = None
    max_dimension: int = 8192
    rest_lr: float | None = None
    rest_betas: tuple[float, float] | None = None
    rest_eps: float | None = None

    def __post_init__(self) -> None:
        check_one_of(self, "kind", get_args(Kind))
        fill, known = object.__setattr__, SETTINGS[self.kind]
        for name in OPTIONAL:
            if getattr(self, name) is not None and name not in known:
                kinds = ", ".join(kind for kind, settings in SETTINGS.items() if name in settings)
                raise ResidlabError(
                    f'{name} belongs to {kinds}; got {name} = {getattr(self, name)!r} for "{self.kind}"'
                )
        for name, value in known.items():
            if getattr(self, name) is None:
                fill(self, name, value)
        rest = known if self.kind == "adamw" else SETTINGS["adamw"]
        for name in ("lr", "betas", "eps"):
            if getattr(self, f"rest_{name}") is None:
                fill(self, f"rest_{name}", getattr(self, name) if rest is known else rest[name])
        self._check()

    def _check(self) -> None:
        check_non_negative(self, "lr", "rest_lr", "weight_decay")
        check_positive(self, "rest_eps", *(["eps"] if self.eps is not None else []))
        check_counts(self, "max_dimension", *(["frequency"] if self.frequency is not None else []))
        if self.scale is not None:
            check_one_of(self, "scale", get_args(MuonScale))
        for name in ("betas", "rest_betas"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, tuple | list) or len(value) != 2 or not all(map(_is_fraction, value)):
                raise ResidlabError(f"{name} must be two numbers in [0, 1); got {value!r}")
            object.__setattr__(self, name, tuple(value))  # JSON has lists only
        for name in ("momentum", "factor_beta"):
            value = getattr(self, name)
            if value is not None and not _is_fraction(value):
                raise ResidlabError(f"{name} must be in [0, 1); got {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        values = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "OptimizerConfig":
        """Return the configuration that `to_dict` wrote.

        Raises
        ------
        ResidlabError
            If a name is unknown or a value is not allowed.
        """
        return cast(OptimizerConfig, made(cls, "optimizer", values))


def _is_fraction(value: object) -> bool:
    return is_real(value) and 0 <= cast(float, value) < 1
