"""What a transformer is: one frozen object, checked when it is made.

>>> config = ModelConfig(depth=2, width=64, heads=4, vocabulary=256, norm=norm_options("bhyt", lam_attention=3.0))
>>> config.head_dim, config.norm.kappa
(16, 10.0)

A value that is unknown, out of range or contradicts another raises `ResidlabError`, which says what is allowed.
`ModelConfig.to_dict` and `ModelConfig.from_dict` go to JSON and back.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast, get_args

from residlab.checks import (
    check_booleans,
    check_counts,
    check_non_negative,
    check_one_of,
    check_positive,
    is_real,
    made,
)
from residlab.errors import ResidlabError

Feedforward = Literal["swiglu", "gelu", "gelu-tanh"]
Position = Literal["rope", "learned"]
Initialization = Literal["gpt2", "gpt2-scaled", "orthogonal", "orthogonal-shared-qk"]
Averaged = Literal["context", "position", "rows"]
Refresh = Literal["forward", "frozen", "construction"] | int

LATER = {"later": True}
"""Of a field that was added when configurations had been recorded: `to_dict` leaves it out at its default, so that no
hash changes because there is one more option."""

# --- Norms: one class of options for each kind


@dataclass(frozen=True, kw_only=True)
class LayerNormOptions:
    """LayerNorm (Ba et al. 2016): ``gamma (x - mean) / sqrt(var + eps) + beta``.

    Examples
    --------
    >>> LayerNormOptions(bias=False)
    LayerNormOptions(eps=1e-05, bias=False)
    """

    kind: ClassVar[str] = "layernorm"
    eps: float = 1e-5
    bias: bool = True

    def __post_init__(self) -> None:
        check_non_negative(self, "eps")
        check_booleans(self, "bias")


@dataclass(frozen=True, kw_only=True)
class RMSNormOptions:
    """RMSNorm (Zhang & Sennrich 2019): ``gamma x / sqrt(mean(x**2) + eps)``.

    ``gain_*`` are the first values of ``gamma`` in front of each sublayer. With ``lam/kappa`` there it is BHyT without
    the tanh, up to third order: the control of what bounding does.

    Examples
    --------
    >>> ModelConfig(depth=2, width=64, heads=4, vocabulary=256).norm == RMSNormOptions()  # the default
    True
    """

    kind: ClassVar[str] = "rmsnorm"
    eps: float = 1e-5
    gain_attention: float = field(default=1.0, metadata=LATER)
    gain_feedforward: float = field(default=1.0, metadata=LATER)

    def __post_init__(self) -> None:
        check_non_negative(self, "eps")
        check_positive(self, "gain_attention", "gain_feedforward")


@dataclass(frozen=True, kw_only=True)
class PeriLNOptions:
    """Peri-LN (Kim et al., arXiv 2502.02732): an RMSNorm in front of each sublayer and one behind it.

    ``embedding_norm`` normalises the embeddings too, which the paper leaves open.

    Examples
    --------
    >>> norm_options("peri-ln", embedding_norm=True)
    PeriLNOptions(eps=1e-05, embedding_norm=True)
    """

    kind: ClassVar[str] = "peri-ln"
    eps: float = 1e-5
    embedding_norm: bool = False

    def __post_init__(self) -> None:
        check_non_negative(self, "eps")
        check_booleans(self, "embedding_norm")


@dataclass(frozen=True, kw_only=True)
class LNSOptions:
    """Layer-norm scaling (Sun et al., arXiv 2502.05795): RMSNorm divided by ``sqrt(layer)``, layers from 1.

    The final norm is not scaled.

    Examples
    --------
    >>> LNSOptions.kind, LNSOptions().eps
    ('lns', 1e-05)
    """

    kind: ClassVar[str] = "lns"
    eps: float = 1e-5

    def __post_init__(self) -> None:
        check_non_negative(self, "eps")


@dataclass(frozen=True, kw_only=True)
class DyTOptions:
    """Dynamic tanh (Zhu et al., arXiv 2503.10622): ``gamma tanh(alpha x) + beta``, ``alpha`` a learnt scalar.

    ``alpha_*`` are its first values at the three sites; the paper's LLaMAs use larger ones in front of attention than
    elsewhere, and smaller ones the wider the model. ``embedding_scale`` multiplies the embeddings by a learnt scalar
    that starts at ``sqrt(width)``, as the paper's LLaMAs do.

    Examples
    --------
    >>> norm_options("dyt", alpha_attention=0.8).alpha_feedforward
    0.5
    """

    kind: ClassVar[str] = "dyt"
    alpha_attention: float = 0.5
    alpha_feedforward: float = 0.5
    alpha_final: float = 0.5
    bias: bool = False
    embedding_scale: bool = False

    def __post_init__(self) -> None:
        check_positive(self, "alpha_attention", "alpha_feedforward", "alpha_final")
        check_booleans(self, "bias", "embedding_scale")


@dataclass(frozen=True, kw_only=True)
class BHyTStarOptions:
    """BHyT* (Byun et al., arXiv 2601.09719): ``gamma tanh(lam x / (kappa s + |mu|))``, measured at both sites.

    Attributes
    ----------
    lam_attention, lam_feedforward
        The input bound in front of each sublayer: its first value, or its value for good.
    kappa
        Deviations within which Chebyshev's inequality holds the input. ``norm_options`` also takes ``p``, the
        probability ``1 - 1/kappa**2``.
    learn_lam
        Whether ``lam`` is a parameter; otherwise it is a constant without a gradient.
    centred
        The paper's formula, ``s`` the standard deviation and ``mu`` the mean of the token. Otherwise, as in the
        authors' code, ``s`` is the root mean square and ``mu`` zero.
    eps
        Added to ``s**2`` under the root.

    Examples
    --------
    >>> norm_options("bhyt*", p=0.75).kappa
    2.0
    """

    kind: ClassVar[str] = "bhyt*"
    lam_attention: float = 2.0
    lam_feedforward: float = 1.0
    kappa: float = 10.0
    learn_lam: bool = True
    centred: bool = False
    eps: float = 1e-6

    def __post_init__(self) -> None:
        check_positive(self, "lam_attention", "lam_feedforward", "kappa")
        check_non_negative(self, "eps")
        check_booleans(self, "learn_lam", "centred")


@dataclass(frozen=True, kw_only=True)
class BHyTOptions(BHyTStarOptions):
    """BHyT: as `BHyTStarOptions` in front of attention; in front of the feedforward the statistic is not measured.

    There, the token's variance is taken to be the first site's plus ``energy lam**2 / (kappa**2 width N)``, with
    ``energy = ||diag(gamma) W_V W_O||_F**2`` (chapter 3). No gradient flows through that constant, as in the authors'
    code.

    Attributes
    ----------
    averaged
        ``N``, how many tokens attention is taken to average: ``"context"``, a constant, as in the paper;
        ``"position"``, the number of tokens that a query sees; ``"rows"``, from its attention weights, head by head
        (needs the explicit path of attention, the slowest).
    tokens
        The constant of ``"context"``; by default the model's context.
    refresh
        When ``energy`` follows the weights: ``"forward"``, at every forward; ``"frozen"``, never after the first time;
        a number n, whenever ``Transformer.refresh(step)`` is called with a multiple of n; ``"construction"``, as in the
        authors' code, never, not even for the initial weights: it is that of the weights which torch gives its linear
        layers when they are made, uniform in ``+-1/sqrt(fan in)``, and which the initialization then replaces.

    Examples
    --------
    >>> options = norm_options("bhyt", lam_attention=3.0)
    >>> options.lam_attention, options.lam_feedforward, options.kappa, options.averaged, options.refresh
    (3.0, 1.0, 10.0, 'context', 'forward')
    """

    kind: ClassVar[str] = "bhyt"
    averaged: Averaged = "context"
    tokens: int | None = None
    refresh: Refresh = "forward"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of(self, "averaged", get_args(Averaged))
        if self.tokens is not None:
            check_counts(self, "tokens")
            if self.averaged != "context":
                raise ResidlabError(f'tokens = {self.tokens} belongs to averaged = "context"; got "{self.averaged}"')
        if self.refresh not in ("forward", "frozen", "construction"):
            if isinstance(self.refresh, str):
                raise ResidlabError(
                    f'refresh must be "forward", "frozen", "construction" or a number of steps; got "{self.refresh}"'
                )
            check_counts(self, "refresh")


NormOptions = (
    LayerNormOptions | RMSNormOptions | PeriLNOptions | LNSOptions | DyTOptions | BHyTStarOptions | BHyTOptions
)
NORMS: dict[str, type[NormOptions]] = {cls.kind: cls for cls in get_args(NormOptions)}


def norm_options(kind: str, **options: Any) -> NormOptions:
    """Return the options of a norm by its name.

    Parameters
    ----------
    kind
        A key of `NORMS`.
    options
        Fields of that norm's class. The two BHyT also take ``p`` in place of ``kappa``: ``kappa = 1/sqrt(1 - p)``.

    Raises
    ------
    ResidlabError
        If the kind or an option is unknown, a value is out of range, or ``p`` and ``kappa`` are both given.

    Examples
    --------
    >>> norm_options("lns", eps=1e-6)
    LNSOptions(eps=1e-06)
    >>> norm_options("bhyt", lam_attention=-1)
    Traceback (most recent call last):
        ...
    residlab.errors.ResidlabError: lam_attention must be a finite number > 0; got -1
    """
    if kind not in NORMS:
        raise ResidlabError(f"norm must be one of {', '.join(NORMS)}; got {kind!r}")
    cls = NORMS[kind]
    if "p" in options and issubclass(cls, BHyTStarOptions):
        p = options.pop("p")
        if "kappa" in options:
            raise ResidlabError(f"p = {p} and kappa = {options['kappa']} say the same thing: give one of them")
        if not is_real(p) or not 0 <= p < 1:
            raise ResidlabError(f"p must be in [0, 1); got {p!r}")
        options["kappa"] = 1 / math.sqrt(1 - p)
    return cast(NormOptions, made(cls, f"norm {kind}", options))


# --- The model


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer.

    Attributes
    ----------
    depth, width, vocabulary, context
        Blocks, size of the residual stream, number of token ids, longest sequence.
    heads, kv_heads, head_dim
        Query heads; key-value heads, which divide them (by default as many); their size (by default width / heads).
    norm
        A class of options (`norm_options`).
    residual
        Whether each sublayer adds to the stream. Without, its output is the stream (arXiv 2605.25880).
    feedforward, feedforward_width
        ``swiglu``, ``gelu`` (erf) or ``gelu-tanh``; by default 4 width, for swiglu 8/3 width rounded up to 8.
    position, rope_base
        Rotary embeddings (pairs of ``head_dim / 2``) with that base, or a learnt table.
    bias
        Whether linear layers have a bias.
    tied_embeddings
        Whether the output layer is the embedding's transpose.
    temperature_base
        beta: the attention logits of layer l, from 1, are divided by ``tau_l = beta**-l``. 1 turns it off.
    logit_scale
        Another factor of all attention logits.
    initialization, init_std
        See `residlab.models.init`; ``init_std`` is that of embeddings and of GPT-2's matrices.

    Examples
    --------
    >>> config = ModelConfig(depth=2, width=64, heads=4, vocabulary=256, norm=norm_options("bhyt"), kv_heads=2)
    >>> config.head_dim, config.feedforward_width
    (16, 176)
    >>> ModelConfig.from_dict(config.to_dict()) == config
    True
    """

    depth: int
    width: int
    heads: int
    vocabulary: int
    kv_heads: int = 0
    head_dim: int = 0
    context: int = 1024
    norm: NormOptions = RMSNormOptions()
    residual: bool = True
    feedforward: Feedforward = "swiglu"
    feedforward_width: int = 0
    position: Position = "rope"
    rope_base: float = 10_000.0
    bias: bool = False
    tied_embeddings: bool = True
    temperature_base: float = 1.0
    logit_scale: float = 1.0
    initialization: Initialization = "gpt2-scaled"
    init_std: float = 0.02

    def __post_init__(self) -> None:
        check_counts(self, "depth", "width", "heads", "vocabulary", "context")
        fill = object.__setattr__  # what was left out is filled in, so that a saved configuration is complete
        if not self.kv_heads:
            fill(self, "kv_heads", self.heads)
        if not self.head_dim:
            if self.width % self.heads:
                raise ResidlabError(f"heads must divide width = {self.width}, or head_dim be given; got {self.heads}")
            fill(self, "head_dim", self.width // self.heads)
        check_one_of(self, "feedforward", get_args(Feedforward))
        if not self.feedforward_width:
            wide = -(-8 * self.width // 24) * 8 if self.feedforward == "swiglu" else 4 * self.width
            fill(self, "feedforward_width", wide)
        check_counts(self, "kv_heads", "head_dim", "feedforward_width")
        if self.heads % self.kv_heads:
            raise ResidlabError(f"kv_heads must divide heads = {self.heads}; got {self.kv_heads}")
        check_one_of(self, "position", get_args(Position))
        if self.position == "rope" and self.head_dim % 2:
            raise ResidlabError(f'head_dim must be even for position = "rope"; got {self.head_dim}')
        check_one_of(self, "initialization", get_args(Initialization))
        check_positive(self, "rope_base", "temperature_base", "logit_scale", "init_std")
        if not isinstance(self.norm, get_args(NormOptions)):
            raise ResidlabError(f"norm must be made by norm_options(kind, ...); got {self.norm!r}")
        if self.initialization == "orthogonal-shared-qk" and self.heads != self.kv_heads:
            raise ResidlabError(
                "initialization orthogonal-shared-qk sets W_K = W_Q, so kv_heads must equal "
                f"heads = {self.heads}; got {self.kv_heads}"
            )
        check_booleans(self, "residual", "bias", "tied_embeddings")
        try:
            largest = self.attention_scale(self.depth)
        except OverflowError:
            largest = math.inf
        if not math.isfinite(largest):
            raise ResidlabError(
                f"logit_scale * temperature_base**depth must be a finite number; got {self.logit_scale:g} * "
                f"{self.temperature_base:g}**{self.depth}"
            )

    def attention_scale(self, layer: int) -> float:
        """Return the factor of ``q . k`` in a layer (from 1): ``logit_scale beta**layer / sqrt(head_dim)``."""
        return self.logit_scale * self.temperature_base**layer / math.sqrt(self.head_dim)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; the norm as ``{"kind": ..., ...}``."""
        values = dataclasses.asdict(self)
        left_out = {
            field.name
            for field in dataclasses.fields(self.norm)
            if field.metadata.get("later") and getattr(self.norm, field.name) == field.default
        }
        norm = {name: value for name, value in values["norm"].items() if name not in left_out}
        values["norm"] = {"kind": self.norm.kind, **norm}
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ModelConfig":
        """Return the configuration that `to_dict` wrote, or that a person wrote: ``norm`` may be a bare name.

        Raises
        ------
        ResidlabError
            If a name is unknown, one is missing, or a value is not allowed.
        """
        values = dict(values)
        norm = values.get("norm", "rmsnorm")
        if isinstance(norm, str):
            norm = {"kind": norm}
        if isinstance(norm, dict):
            options = dict(norm)
            values["norm"] = norm_options(str(options.pop("kind", None)), **options)
        return cast(ModelConfig, made(cls, "model", values))
