"""Whole models side by side: a training step and cached generation, beside transformers' Llama."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from residlab.bench.operations import matrix_parameters, matrix_peak, read_bandwidth, training_operations
from residlab.bench.report import Report, rows
from residlab.bench.timing import race
from residlab.errors import ResidlabError, install
from residlab.kernels import Backend
from residlab.models.config import NORMS, ModelConfig, norm_options
from residlab.models.generation import generate
from residlab.models.transformer import Transformer, next_token_loss

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

STANDARD = ModelConfig(
    depth=8, width=256, heads=8, kv_heads=4, feedforward_width=768, vocabulary=4096, context=1024, init_std=0.02
)
REFERENCE = "transformers Llama"


def training_step(
    config: ModelConfig = STANDARD,
    *,
    batch: int = 8,
    tokens: int = 256,
    repeats: int = 7,
    compiled: bool = True,
    norms: tuple[str, ...] = tuple(NORMS),
    advance: Callable[[str], None] = lambda name: None,
) -> Report:
    """Time forward, backward and AdamW, for transformers' Llama and for ours with each norm.

    The floor is the operations of the matrix products, `training_operations`, at the peak that this run measures.
    """
    data = torch.randint(0, config.vocabulary, (batch, tokens))
    contenders: dict[str, Callable[[], object]] = {}

    def add(name: str, model: torch.nn.Module, loss: Callable[[torch.nn.Module], torch.Tensor]) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def step() -> None:
            value = loss(model)
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()

        contenders[name] = step

    def theirs(model: torch.nn.Module) -> torch.Tensor:
        return model(input_ids=data, labels=data, use_cache=False).loss  # type: ignore[no-any-return]

    def ours(model: torch.nn.Module) -> torch.Tensor:
        return next_token_loss(model(data), data)

    def made(kind: str, backend: Backend = "auto") -> Transformer:
        model = Transformer(replace(config, norm=norm_options(kind)), seed=0)
        model.use_kernels(backend)
        return model

    add(REFERENCE, llama(config), theirs)
    for kind in norms:
        add(kind, made(kind), ours)
        if compiled and kind != "layernorm":  # which is torch's own
            add(f"{kind}, fused norms", made(kind, "compiled"), ours)
    if compiled:
        add(f"{REFERENCE}, torch.compile", torch.compile(llama(config)), theirs)  # type: ignore[arg-type]
        for kind in sorted({"rmsnorm", "bhyt"} & set(norms)):
            add(f"{kind}, torch.compile", torch.compile(made(kind)), ours)  # type: ignore[arg-type]
    timings = race(contenders, repeats, advance=advance)
    peak = matrix_peak()
    work = training_operations(config, batch, tokens)
    floor = work / peak
    return Report(
        title=f"Training step: depth {config.depth}, width {config.width}, {batch} x {tokens} tokens",
        reference=REFERENCE,
        rows=rows(timings, REFERENCE, dict.fromkeys(timings, floor)),
        settings={"config": config.to_dict(), "batch": batch, "tokens": tokens, "operations": work, "peak": peak},
        notes=(f"floor: {work / 1e9:.0f} GFLOP of matrix products at the {peak / 1e9:.0f} GFLOP/s measured here",),
    )


def cached_generation(
    config: ModelConfig = STANDARD,
    *,
    prompt: int = 16,
    new_tokens: int = 64,
    repeats: int = 5,
    norms: tuple[str, ...] = tuple(NORMS),
    advance: Callable[[str], None] = lambda name: None,
) -> Report:
    """Time greedy generation at batch 1, for transformers' ``generate`` and for ours with each norm.

    The floor is reading all matrices once a token at the bandwidth that this run measures; caches may beat it.
    """
    start = torch.randint(0, config.vocabulary, (1, prompt))
    other = llama(config).eval()

    def theirs() -> object:
        with torch.no_grad():
            return other.generate(
                start,
                attention_mask=torch.ones_like(start),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                pad_token_id=0,
            )

    contenders: dict[str, Callable[[], object]] = {REFERENCE: theirs}
    for kind in norms:
        model = Transformer(replace(config, norm=norm_options(kind)), seed=0).eval()
        contenders[kind] = lambda model=model: generate(model, start, new_tokens)  # type: ignore[misc]
    timings = race(contenders, repeats, advance=advance)
    size, bandwidth = 4 * matrix_parameters(config), read_bandwidth()
    floor = new_tokens * size / bandwidth
    return Report(
        title=f"Generation of {new_tokens} tokens after {prompt}, batch 1, cached: width {config.width}",
        reference=REFERENCE,
        rows=rows(timings, REFERENCE, dict.fromkeys(timings, floor)),
        settings={"config": config.to_dict(), "prompt": prompt, "new_tokens": new_tokens, "bandwidth": bandwidth},
        notes=(f"floor: {size / 1e6:.1f} MB of matrices a token at the {bandwidth / 1e9:.1f} GB/s measured here",),
    )


def llama(config: ModelConfig) -> "LlamaForCausalLM":
    """Return transformers' Llama of the same sizes, with random weights.

    Raises
    ------
    ResidlabError
        If transformers is not installed.
    """
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise ResidlabError(f"this benchmark compares with transformers: {install('hf')}") from error
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocabulary,
            hidden_size=config.width,
            intermediate_size=config.feedforward_width,
            num_hidden_layers=config.depth,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.context,
            tie_word_embeddings=config.tied_embeddings,
            rms_norm_eps=1e-5,
            eos_token_id=None,
            bos_token_id=None,
        )
    )
