"""A decoder-only transformer, top to bottom.

* norms in front of each sublayer: LayerNorm, RMSNorm, Peri-LN, layer-norm scaling, DyT, BHyT*, BHyT
* with or without the residual stream
* grouped key-value heads, rotary or learnt positions, a logit temperature that changes with depth
* SwiGLU or GELU, tied embeddings, a key-value cache, padded batches

A model is its `ModelConfig` and its weights; nothing else decides what it computes. Shapes: batch B, tokens T.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from residlab.errors import ResidlabError
from residlab.kernels import Backend
from residlab.models.arithmetic import TORCH, Arithmetic
from residlab.models.attention import Attention, KVCache, rotary_table
from residlab.models.config import BHyTOptions, DyTOptions, ModelConfig, PeriLNOptions
from residlab.models.feedforward import Feedforward
from residlab.models.init import initialize
from residlab.models.norms import BHyT, BHyTStar, DyT, RMSNorm, make_norm, make_output_norm, variance_increment


@dataclass(frozen=True)
class _Surroundings:
    """What a forward hands to each of its blocks, the same for all."""

    rotary: tuple[Tensor, Tensor] | None
    mask: Tensor | None
    cache: KVCache | None
    visible: Tensor  # (B or 1, T, 1), the tokens that each query sees
    return_rows: bool
    arithmetic: Arithmetic = TORCH


class Block(nn.Module):
    """Attention, then feedforward, each behind its norm: ``x + f(norm(x))``, or ``f(norm(x))`` without a residual.

    Parameters
    ----------
    config
        The model's.
    layer
        From 1.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> config = ModelConfig(depth=2, width=32, heads=2, vocabulary=50, context=16)
    >>> block = Transformer(config, seed=0).blocks[0]
    >>> [name for name, _ in block.named_children()]
    ['attention_norm', 'attention', 'feedforward_norm', 'feedforward']
    """

    variance_constant: Tensor | None

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.residual, self.width = config.residual, config.width
        self.attention_norm = make_norm(config, "attention", layer)
        self.attention = Attention(config, layer)
        self.attention_output_norm = make_output_norm(config)
        self.feedforward_norm = make_norm(config, "feedforward", layer)
        self.feedforward = Feedforward(config)
        self.feedforward_output_norm = make_output_norm(config)
        self.approximation = config.norm if isinstance(config.norm, BHyTOptions) else None
        self.tokens = config.context
        if self.approximation is not None:
            self.tokens = self.approximation.tokens or config.context
            kept = self.approximation.refresh != "forward"
            self.register_buffer("variance_constant", self.measured_constant() / self.width if kept else None)

    def measured_constant(self) -> Tensor:
        """Return the energy of ``diag(gamma) W_V W_O``, for ``rows`` its heads' Gram matrix, of the weights now."""
        assert self.approximation is not None
        gamma = self._first_site.gamma
        rows = self.approximation.averaged == "rows"
        return self.attention.value_output_gram(gamma) if rows else self.attention.value_output_energy(gamma)

    @property
    def _first_site(self) -> BHyTStar:
        assert isinstance(self.attention_norm, BHyTStar)
        return self.attention_norm

    def current_constant(self) -> Tensor:
        """Return the constant that this forward uses: measured now, or the one kept, as ``refresh`` says."""
        assert self.approximation is not None
        if self.approximation.refresh == "forward":
            return self.measured_constant()
        assert self.variance_constant is not None
        # Kept divided by the width, which keeps it in float16's range.
        precise = torch.promote_types(self.variance_constant.dtype, torch.float32)
        return self.variance_constant.to(precise) * self.width

    def forward(self, x: Tensor, around: _Surroundings, constant: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Map (B, T, width) to the same; also return the attention weights if asked."""
        statistic, arithmetic = None, around.arithmetic
        if self.approximation is None:
            y = arithmetic.norm(self.attention_norm, x)
        else:
            y, statistic = arithmetic.norm(self._first_site, x, return_statistic=True)
        rows_needed = around.return_rows or (self.approximation is not None and self.approximation.averaged == "rows")
        h, rows = self.attention(y, around.rotary, around.mask, around.cache, rows_needed, arithmetic)
        if self.attention_output_norm is not None:
            h = arithmetic.norm(self.attention_output_norm, h)
        x = arithmetic.add(x, h) if self.residual else arithmetic.stored(h)
        if statistic is None:
            y = arithmetic.norm(self.feedforward_norm, x)
        else:
            if not self.residual:  # the stream is the branch: only what attention makes is left
                statistic = statistic._replace(spread=torch.zeros_like(statistic.spread))
            increment = self._increment(self.current_constant() if constant is None else constant, around, rows)
            y = arithmetic.norm(self.feedforward_norm, x, statistic, increment)
        h = self.feedforward(y, arithmetic)
        if self.feedforward_output_norm is not None:
            h = arithmetic.norm(self.feedforward_output_norm, h)
        return (arithmetic.add(x, h) if self.residual else arithmetic.stored(h)), rows

    def _increment(self, constant: Tensor, around: _Surroundings, rows: Tensor | None) -> Tensor:
        assert self.approximation is not None
        return variance_increment(
            self.approximation,
            self._first_site.lam.squeeze(),
            self.width,
            constant,
            tokens=self.tokens,
            visible=around.visible,
            rows=rows,
        )


class Transformer(nn.Module):
    """Token ids in, logits of the next token out.

    Parameters
    ----------
    config
        What it is.
    seed
        Of the initial weights; by default torch's global generator.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> model = Transformer(ModelConfig(depth=2, width=32, heads=2, vocabulary=50, context=16), seed=0)
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 50])
    """

    def __init__(self, config: ModelConfig, seed: int | None = None) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[], enabled=seed is not None):  # a seed leaves torch's generator alone
            self._make_layers(config, seed)
        initialize(self, seed)
        self.refresh()

    def _make_layers(self, config: ModelConfig, seed: int | None) -> None:
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        learned = config.position == "learned"
        self.position_embedding = nn.Embedding(config.context, config.width) if learned else None
        scaled = isinstance(config.norm, DyTOptions) and config.norm.embedding_scale
        self.embedding_scale = nn.Parameter(torch.tensor([float(config.width) ** 0.5])) if scaled else None
        peri = isinstance(config.norm, PeriLNOptions) and config.norm.embedding_norm
        self.embedding_norm = RMSNorm(config.width, eps=config.norm.eps) if peri else None  # type: ignore[union-attr]
        if seed is not None:  # what the layers are made with matters to refresh = "construction"
            torch.manual_seed(seed)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(1, config.depth + 1))
        self.final_norm = make_norm(config, "final")
        self.output = None if config.tied_embeddings else nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        constants: list[Tensor] | None = None,
        arithmetic: Arithmetic = TORCH,
    ) -> Tensor:
        """Return logits, (B, T, vocabulary).

        Parameters
        ----------
        tokens : (B, T), int64
            T may be 0, and 0 tokens give 0 logits.
        mask : (B, tokens so far), bool
            False at padding, which no token sees and which takes no position; by default nothing is padding.
        cache
            Keys and values of earlier tokens; those of ``tokens`` are appended.
        constants
            `variance_constants`, to save measuring them in each of many forwards between which weights stay.
        arithmetic
            What computes: torch, or `residlab.models.rounded.Rounded`, which takes no cache.

        Raises
        ------
        ResidlabError
            If shapes do not fit, a token id is outside the vocabulary, or the sequence is longer than the context.
        """
        return self._run(tokens, mask, cache, constants, False, arithmetic)[0]

    def forward_with_rows(
        self, tokens: Tensor, *, mask: Tensor | None = None, arithmetic: Arithmetic = TORCH
    ) -> tuple[Tensor, list[Tensor]]:
        """Return logits and each layer's attention weights, (B, heads, T, T), by the explicit path."""
        logits, rows = self._run(tokens, mask, None, None, True, arithmetic)
        return logits, rows

    def _run(
        self,
        tokens: Tensor,
        mask: Tensor | None,
        cache: KVCache | None,
        constants: list[Tensor] | None,
        return_rows: bool,
        arithmetic: Arithmetic,
    ) -> tuple[Tensor, list[Tensor]]:
        if cache is not None and arithmetic is not TORCH:
            raise ResidlabError("only torch's own arithmetic takes a cache, which has a dtype of its own")
        start = 0 if cache is None else cache.length
        self._check(tokens, mask, cache, start)
        T = tokens.shape[1]
        if mask is None:
            positions = torch.arange(start, start + T, device=tokens.device)[None]
        else:
            positions = (mask.cumsum(dim=1) - 1).clamp_min(0)[:, start:]
        x = arithmetic.stored(self.embedding(tokens))
        if self.position_embedding is not None:
            x = arithmetic.add(x, self.position_embedding(positions))
        if self.embedding_scale is not None:
            x = arithmetic.scale(x, self.embedding_scale)
        if self.embedding_norm is not None:
            x = arithmetic.stored(arithmetic.norm(self.embedding_norm, x))
        rope = self.config.position == "rope"
        around = _Surroundings(
            rotary=rotary_table(positions, self.config.head_dim, self.config.rope_base, x.dtype) if rope else None,
            mask=_attention_mask(mask, start, T, tokens.device),
            cache=cache,
            visible=positions[..., None] + 1,
            return_rows=return_rows,
            arithmetic=arithmetic,
        )
        all_rows = []
        for index, block in enumerate(self.blocks):
            x, rows = block(x, around, None if constants is None else constants[index])
            if return_rows and rows is not None:
                all_rows.append(rows)
        if cache is not None:
            cache.length += T
        x = arithmetic.norm(self.final_norm, x)
        if self.output is None:
            return arithmetic.project(x, self.embedding.weight), all_rows
        return arithmetic.linear(self.output, x), all_rows

    @property
    def layers(self) -> list[Block]:
        """The blocks, typed."""
        return cast("list[Block]", list(self.blocks))

    def use_kernels(self, backend: Backend) -> None:
        """Let all norms run on that backend (`residlab.kernels`); LayerNorm has torch's only."""
        for module in self.modules():
            if isinstance(module, RMSNorm | DyT | BHyTStar | BHyT):
                module.backend = backend

    # --- The block-level approximation

    def variance_constants(self) -> list[Tensor] | None:
        """Return what each block's variance approximation takes from the weights; None for norms other than BHyT."""
        if not isinstance(self.config.norm, BHyTOptions):
            return None
        return [block.current_constant() for block in self.layers]

    def refresh(self, step: int | None = None) -> None:
        """Bring the constants that blocks keep up to date with the weights.

        With ``step``, only where ``refresh = n`` divides it: a trainer calls it after every step. Without, always.
        Blocks that measure at every forward keep nothing, and ``"construction"`` keeps its constant for good: nothing
        happens.
        """
        policy = self.config.norm.refresh if isinstance(self.config.norm, BHyTOptions) else "forward"
        if policy in ("forward", "construction") or (step is not None and (policy == "frozen" or step % int(policy))):
            return
        for block in self.layers:
            assert block.variance_constant is not None
            block.variance_constant.copy_(block.measured_constant() / self.config.width)

    # --- The door

    def _check(self, tokens: Tensor, mask: Tensor | None, cache: KVCache | None, start: int) -> None:
        if tokens.ndim != 2 or tokens.dtype not in (torch.int64, torch.int32):
            raise ResidlabError(
                f"tokens must be integers of shape (batch, tokens); got {tokens.dtype} of shape {tuple(tokens.shape)}"
            )
        B, T = tokens.shape
        total = start + T
        if total > self.config.context:
            raise ResidlabError(f"the model's context is {self.config.context} tokens; got {total}")
        if cache is not None and (cache.store.shape[2] != B or total > cache.capacity):
            raise ResidlabError(
                f"the cache holds {cache.store.shape[2]} sequences of at most {cache.capacity} tokens; "
                f"got {B} of {total}"
            )
        if mask is not None and (mask.shape != (B, total) or mask.dtype != torch.bool):
            raise ResidlabError(
                f"mask must be booleans of shape {(B, total)}; got {mask.dtype} of shape {tuple(mask.shape)}"
            )
        if torch.compiler.is_compiling() or not tokens.numel() or tokens.device.type == "meta":
            return
        if tokens.device.type == "cpu":
            low, high = (int(end) for end in tokens.aminmax())
            if low < 0 or high >= self.config.vocabulary:
                wrong = low if low < 0 else high
                raise ResidlabError(f"token ids must be in [0, {self.config.vocabulary}); got {wrong}")


def _attention_mask(mask: Tensor | None, start: int, T: int, device: torch.device) -> Tensor | None:
    """Return who sees whom, (B or 1, 1, T, keys), or None where plain causality (or one query) says it all."""
    if mask is None and (start == 0 or T == 1):
        return None
    queries = torch.arange(start, start + T, device=device)[:, None]
    keys = torch.arange(start + T, device=device)[None, :]
    causal = (keys <= queries)[None, None]
    if mask is None:
        return causal
    # Padding sees itself, since a row that sees nothing is not a number.
    return (causal & mask[:, None, None, :]) | (keys == queries)


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the mean cross-entropy, in nats, of each token given those before it; float32 at least.

    Parameters
    ----------
    logits : (B, T, vocabulary)
    tokens : (B, T), T >= 2
        The tokens that the logits were computed from.

    Examples
    --------
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> round(next_token_loss(torch.zeros(1, 3, 50), tokens).item(), 4)  # ln 50, of a model that knows nothing
    3.912
    """
    precise = logits if logits.dtype == torch.float64 else logits.float()
    return nn.functional.cross_entropy(precise[:, :-1].flatten(0, 1), tokens[:, 1:].flatten().long())
