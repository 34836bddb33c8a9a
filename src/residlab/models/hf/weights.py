"""Models of Hugging Face's transformers as `Transformer`, and back: configuration and weights, translated by name.

    transformers                                   here
    LlamaForCausalLM, MistralForCausalLM           rmsnorm, swiglu, rotary positions, grouped key-value heads
    GPT2LMHeadModel                                layernorm with bias, gelu, learnt positions, biases

Weights are read from safetensors one tensor at a time; a pickled checkpoint is never opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from residlab.errors import ResidlabError
from residlab.models.config import LayerNormOptions, ModelConfig, RMSNormOptions
from residlab.models.files import checked_device, load_weights, replaced_folder
from residlab.models.hf.checkpoint import check_architecture, local_folder, opened, read_config
from residlab.models.hf.needs import require
from residlab.models.transformer import Transformer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_GELUS = {"gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "gelu": "gelu"}
# Buffers that older checkpoints carry and that no weight depends on.
_IGNORED = re.compile(r"(\.attn\.(masked_)?bias|rotary_emb\.inv_freq)$")


class _Entry(NamedTuple):
    """One tensor of theirs: these of ours below each other, and then, for GPT-2's matrices, transposed."""

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False


def from_hugging_face(
    source: str | os.PathLike[str] | PreTrainedModel,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Transformer:
    """Return a Llama, Mistral or GPT-2 of Hugging Face's as our model, in evaluation mode, with the same logits.

    Dropout, which acts in training only, is not taken over.

    Parameters
    ----------
    source
        A folder with ``config.json`` and safetensors, the name of a model on the hub, or a loaded transformers model,
        which is copied and stays as it is.
    dtype
        Of the weights; by default that of ``source``.
    device
        Where to.

    Raises
    ------
    ResidlabError
        If the folder or the hub's model cannot be read, is damaged, pickled, quantized or of an architecture or
        setting that `Transformer` does not have (a scaled rotary embedding, a sliding window, a bias on some linear
        layers only), or a weight is not finite.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    >>> theirs, ids = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)).eval(), torch.arange(16)[None]
    >>> ours = from_hugging_face(theirs)
    >>> torch.allclose(ours(ids), theirs(ids).logits, atol=1e-5)
    True
    """
    require("from_hugging_face", "transformers")
    device = checked_device(device)
    if dtype is not None and not dtype.is_floating_point:
        raise ResidlabError(f"dtype must be a floating-point type; got {dtype}")
    if isinstance(source, torch.nn.Module):
        config = getattr(source, "config", None)
        check_architecture([type(source).__name__], vars(config) if config is not None else {})
        state = {name: tensor.detach() for name, tensor in source.state_dict().items()}
        if any(tensor.is_meta for tensor in state.values()):
            raise ResidlabError("the model has no weights yet: some are on the meta device")
        return _built(source.config, list(state), state.__getitem__, dtype, device, copy=True)
    folder = local_folder(source)
    config = read_config(folder)
    with opened(folder) as (names, read):
        return _built(config, names, read, dtype, device)


def to_hugging_face(model: Transformer, folder: str | os.PathLike[str]) -> None:
    """Write a model that Hugging Face's Llama or GPT-2 can express as a folder that transformers loads.

    ``AutoModelForCausalLM.from_pretrained(folder)`` then gives the same logits. No tokenizer is written, and no token
    id is declared special. A folder that holds a saved model is replaced, whole or not at all.

    Raises
    ------
    ResidlabError
        If the configuration has something that neither can express, which the message names, or the folder holds
        something else or cannot be written.

    Examples
    --------
    >>> from transformers import AutoModelForCausalLM
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.models.transformer import Transformer
    >>> ours = Transformer(ModelConfig(depth=2, width=32, heads=2, vocabulary=64, context=32), seed=0)
    >>> to_hugging_face(ours, "llama")
    >>> theirs, ids = AutoModelForCausalLM.from_pretrained("llama"), torch.arange(16)[None]
    >>> torch.allclose(theirs(ids).logits, ours(ids), atol=1e-5)
    True
    """
    require("to_hugging_face", "transformers")
    kind, config = _their_config(model.config)
    config.architectures = ["LlamaForCausalLM" if kind == "llama" else "GPT2LMHeadModel"]
    config.dtype = model.embedding.weight.dtype
    state = model.state_dict()
    weights = {}
    for entry in _entries(kind, model.config):
        tensor = torch.cat([state[name] for name in entry.ours]) if len(entry.ours) > 1 else state[entry.ours[0]]
        weights[entry.theirs] = (tensor.T if entry.transposed else tensor).detach().contiguous().cpu()
    with replaced_folder(folder) as staging:
        save_file(weights, staging / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(staging)


# --- The names of the tensors


def _entries(kind: str, config: ModelConfig) -> Iterator[_Entry]:
    return _gpt2_entries(config) if kind == "gpt2" else _llama_entries(config)


def _llama_entries(config: ModelConfig) -> Iterator[_Entry]:
    yield _Entry("model.embed_tokens.weight", ("embedding.weight",))
    linears = {
        "self_attn.q_proj": "attention.W_Q",
        "self_attn.k_proj": "attention.W_K",
        "self_attn.v_proj": "attention.W_V",
        "self_attn.o_proj": "attention.W_O",
        "mlp.gate_proj": "feedforward.W_gate",
        "mlp.up_proj": "feedforward.W_up",
        "mlp.down_proj": "feedforward.W_down",
    }
    for i in range(config.depth):
        theirs, ours = f"model.layers.{i}", f"blocks.{i}"
        yield _Entry(f"{theirs}.input_layernorm.weight", (f"{ours}.attention_norm.gamma",))
        yield _Entry(f"{theirs}.post_attention_layernorm.weight", (f"{ours}.feedforward_norm.gamma",))
        for their_name, our_name in linears.items():
            for part in ("weight", "bias") if config.bias else ("weight",):
                yield _Entry(f"{theirs}.{their_name}.{part}", (f"{ours}.{our_name}.{part}",))
    yield _Entry("model.norm.weight", ("final_norm.gamma",))
    if not config.tied_embeddings:
        yield _Entry("lm_head.weight", ("output.weight",))


def _gpt2_entries(config: ModelConfig) -> Iterator[_Entry]:
    yield _Entry("transformer.wte.weight", ("embedding.weight",))
    yield _Entry("transformer.wpe.weight", ("position_embedding.weight",))
    linears = {
        "attn.c_attn": ("attention.W_Q", "attention.W_K", "attention.W_V"),
        "attn.c_proj": ("attention.W_O",),
        "mlp.c_fc": ("feedforward.W_up",),
        "mlp.c_proj": ("feedforward.W_down",),
    }
    norms = {f"transformer.h.{i}.ln_1": f"blocks.{i}.attention_norm" for i in range(config.depth)}
    norms |= {f"transformer.h.{i}.ln_2": f"blocks.{i}.feedforward_norm" for i in range(config.depth)}
    for theirs, ours in {**norms, "transformer.ln_f": "final_norm"}.items():
        yield _Entry(f"{theirs}.weight", (f"{ours}.gamma",))
        yield _Entry(f"{theirs}.bias", (f"{ours}.beta",))
    for i in range(config.depth):
        for their_name, our_names in linears.items():
            for part in ("weight", "bias"):
                ours_parts = tuple(f"blocks.{i}.{name}.{part}" for name in our_names)
                yield _Entry(f"transformer.h.{i}.{their_name}.{part}", ours_parts, transposed=part == "weight")
    if not config.tied_embeddings:
        yield _Entry("lm_head.weight", ("output.weight",))


def _built(
    config: PreTrainedConfig,
    names: list[str],
    read: Callable[[str], Tensor],
    dtype: torch.dtype | None,
    device: torch.device,
    copy: bool = False,
) -> Transformer:
    """Return the model, reading one tensor after the other; ``copy`` what is read, which belongs to somebody."""
    ours = _our_config(config)
    there = {_with_prefix(name, config.model_type): name for name in names if not _IGNORED.search(name)}
    entries = list(_entries(config.model_type, ours))
    missing = [entry.theirs for entry in entries if entry.theirs not in there]
    left = sorted(there.keys() - {entry.theirs for entry in entries})
    if ours.tied_embeddings and "lm_head.weight" in left:
        left.remove("lm_head.weight")
        if not torch.equal(read(there["lm_head.weight"]), read(there[entries[0].theirs])):
            raise ResidlabError("tie_word_embeddings is true, but lm_head.weight differs from the embeddings")
    if missing or left:
        what = [f"lack {name}" for name in missing[:1]] + [f"have {name} too many" for name in left[:1]]
        raise ResidlabError(
            f"the weights are not those of the {config.model_type} described: they {' and '.join(what)}"
        )
    weights: dict[str, Tensor] = {}
    for entry in entries:
        tensor = read(there[entry.theirs])
        if not tensor.is_floating_point() or tensor.itemsize < 2:
            raise ResidlabError(f"{entry.theirs} is {tensor.dtype}: a quantized checkpoint cannot be converted")
        dtype = dtype or tensor.dtype  # the first tensor's, that of the embeddings
        tensor = (tensor.T if entry.transposed else tensor).to(device, dtype)
        if len(tensor) % len(entry.ours):
            raise ResidlabError(
                f"{entry.theirs} has shape {tuple(tensor.shape)}, which is no stack of queries, keys, values"
            )
        parts = tensor.chunk(len(entry.ours)) if len(entry.ours) > 1 else (tensor,)
        for name, part in zip(entry.ours, parts, strict=True):
            # A part of a stack is a view of all of it, which must not be kept alive twice.
            kept = len(parts) == 1 and not copy
            weights[name] = part.contiguous() if kept else part.clone(memory_format=torch.contiguous_format)
    with torch.device("meta"):
        model = Transformer(ours).to(dtype)
    load_weights(model, weights)
    return model.eval()


def _with_prefix(name: str, kind: str) -> str:
    """Return the name of a tensor as the whole model has it: GPT-2's files on the hub leave the beginning out."""
    bare = kind == "gpt2" and not name.startswith(("transformer.", "lm_head."))
    return f"transformer.{name}" if bare else name


# --- Configurations


def _our_config(config: PreTrainedConfig) -> ModelConfig:
    return _gpt2_config(config) if config.model_type == "gpt2" else _llama_config(config)


def _llama_config(config: PreTrainedConfig) -> ModelConfig:
    name = config.model_type
    rope = dict(config.rope_parameters or {})
    if rope.get("rope_type", "default") != "default":
        raise ResidlabError(f"rope_type must be default: scaled rotary embeddings are not supported; got {rope}")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ResidlabError(f"partial_rotary_factor must be 1; got {rope['partial_rotary_factor']}")
    if config.hidden_act != "silu":
        raise ResidlabError(f"hidden_act of a {name} must be silu; got {config.hidden_act!r}")
    biases = (bool(getattr(config, "attention_bias", False)), bool(getattr(config, "mlp_bias", False)))
    if biases[0] != biases[1]:
        raise ResidlabError(
            "attention_bias and mlp_bias must be equal, since ModelConfig.bias is all or nothing; "
            f"got {biases[0]} and {biases[1]}"
        )
    window = getattr(config, "sliding_window", None)
    if window is not None and window < config.max_position_embeddings:
        raise ResidlabError(
            "sliding_window must be null or at least max_position_embeddings = "
            f"{config.max_position_embeddings}, since attention here sees all earlier tokens; got {window}"
        )
    return ModelConfig(
        depth=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=getattr(config, "head_dim", None) or 0,
        vocabulary=config.vocab_size,
        context=config.max_position_embeddings,
        norm=RMSNormOptions(eps=config.rms_norm_eps),
        feedforward="swiglu",
        feedforward_width=config.intermediate_size,
        position="rope",
        rope_base=float(rope["rope_theta"]),
        bias=biases[0],
        tied_embeddings=bool(config.tie_word_embeddings),
        init_std=config.initializer_range or 0.02,
    )


def _gpt2_config(config: PreTrainedConfig) -> ModelConfig:
    if config.activation_function not in _GELUS:
        raise ResidlabError(
            f"activation_function must be one of {', '.join(_GELUS)}; got {config.activation_function!r}"
        )
    wanted = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
    for setting, value in wanted.items():
        if getattr(config, setting, value) != value:
            raise ResidlabError(f"{setting} of a gpt2 must be {value}; got {getattr(config, setting)}")
    return ModelConfig(
        depth=config.n_layer,
        width=config.n_embd,
        heads=config.n_head,
        vocabulary=config.vocab_size,
        context=config.n_positions,
        norm=LayerNormOptions(eps=config.layer_norm_epsilon),
        feedforward=_GELUS[config.activation_function],  # type: ignore[arg-type]
        feedforward_width=config.n_inner or 0,
        position="learned",
        bias=True,
        tied_embeddings=bool(config.tie_word_embeddings),
        init_std=config.initializer_range or 0.02,
    )


def _obstacles(config: ModelConfig, wanted: dict[str, Any]) -> list[str]:
    values = {**{name: getattr(config, name) for name in wanted if name != "norm"}, "norm": config.norm.kind}
    both = {"residual": (True,), "temperature_base": (1.0,), "logit_scale": (1.0,)}
    values |= {name: getattr(config, name) for name in both}
    return [f"{name} = {values[name]}" for name, allowed in {**wanted, **both}.items() if values[name] not in allowed]


def _their_config(config: ModelConfig) -> tuple[str, Any]:
    """Return which of Hugging Face's architectures expresses a configuration, and theirs."""
    llama = _obstacles(config, {"norm": ("rmsnorm",), "feedforward": ("swiglu",), "position": ("rope",)})
    if config.width % config.heads:
        llama.append(f"width = {config.width} that heads = {config.heads} do not divide")
    gpt2 = _obstacles(
        config,
        {
            "norm": ("layernorm",),
            "feedforward": ("gelu", "gelu-tanh"),
            "position": ("learned",),
            "bias": (True,),
            "kv_heads": (config.heads,),
            "head_dim": (config.width // config.heads,),
        },
    )
    if config.width % config.heads:
        gpt2.append(f"width = {config.width} that heads = {config.heads} do not divide")
    if isinstance(config.norm, LayerNormOptions) and not config.norm.bias:
        gpt2.append("a layernorm without bias")
    if llama and gpt2:
        raise ResidlabError(
            f"transformers cannot express this model: its Llama has no {', '.join(llama)}; "
            f"its GPT-2 no {', '.join(gpt2)}"
        )
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if not llama:
        from transformers import LlamaConfig

        return "llama", LlamaConfig(
            vocab_size=config.vocabulary,
            hidden_size=config.width,
            intermediate_size=config.feedforward_width,
            num_hidden_layers=config.depth,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.context,
            rms_norm_eps=config.norm.eps,  # type: ignore[union-attr]
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_base},
            attention_bias=config.bias,
            mlp_bias=config.bias,
            tie_word_embeddings=config.tied_embeddings,
            initializer_range=config.init_std,
            **special,
        )
    from transformers import GPT2Config

    return "gpt2", GPT2Config(
        vocab_size=config.vocabulary,
        n_positions=config.context,
        n_embd=config.width,
        n_layer=config.depth,
        n_head=config.heads,
        n_inner=config.feedforward_width,
        activation_function={"gelu": "gelu", "gelu-tanh": "gelu_new"}[config.feedforward],
        layer_norm_epsilon=config.norm.eps,  # type: ignore[union-attr]
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=config.tied_embeddings,
        initializer_range=config.init_std,
        **special,
    )
