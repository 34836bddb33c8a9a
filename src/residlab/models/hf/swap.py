"""Our norms in a model of transformers, which stays one: it trains, generates and saves with their own tools.

>>> from transformers import LlamaConfig, LlamaForCausalLM
>>> model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
...                                      num_attention_heads=4))
>>> print(swap_norms(model, "bhyt", tokens=512))
bhyt in 2 layers of LlamaForCausalLM (BHyTLlamaDecoderLayer)
  replaced: input_layernorm by BHyTStar, post_attention_layernorm by BHyT
  kept: model.norm

The norms in front of attention and feedforward change; the final norm, norms of queries and keys and norms behind
sublayers stay. What is saved says what it is: its ``model_type`` is ``residlab_llama`` and ``config.residlab`` holds
the options. transformers alone refuses to load it; `load_swapped` loads it.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import nn

from residlab.errors import ResidlabError
from residlab.models.config import (
    BHyTOptions,
    LayerNormOptions,
    LNSOptions,
    ModelConfig,
    NormOptions,
    PeriLNOptions,
    RMSNormOptions,
    norm_options,
)
from residlab.models.files import checked_device
from residlab.models.hf.families import FAMILIES, Family, family_of
from residlab.models.hf.layers import BHyTLayer, layer_class, mixin_for
from residlab.models.hf.needs import require
from residlab.models.norms import make_norm, make_output_norm

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FORMAT = 1
DEFAULT_TOKENS = 2048


@dataclass(frozen=True)
class SwapReport:
    """What `swap_norms` changed.

    Attributes
    ----------
    options
        Of the norm, every value resolved.
    model_class, layer_class
        Names; the layer's is transformers' own where that one still does.
    layers
        How many.
    sites
        Name of the norm in each layer, and of the class that stands there now.
    replaced, added, kept
        Names of modules: replaced, new, and norms that stayed.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    >>> report = swap_norms(LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)), "dyt")
    >>> report.kind, report.layers, report.sites, report.kept
    ('dyt', 2, {'input_layernorm': 'DyT', 'post_attention_layernorm': 'DyT'}, ('model.norm',))
    """

    options: NormOptions
    model_class: str
    layer_class: str
    layers: int
    sites: dict[str, str]
    replaced: tuple[str, ...]
    added: tuple[str, ...]
    kept: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Name of the norm."""
        return self.options.kind

    def __str__(self) -> str:
        lines = [f"{self.kind} in {self.layers} layers of {self.model_class} ({self.layer_class})"]
        lines.append("  replaced: " + ", ".join(f"{site} by {name}" for site, name in self.sites.items()))
        if self.added:
            lines.append("  added: " + ", ".join(_once_a_layer(self.added)))
        lines.append("  kept: " + (", ".join(_once_a_layer(self.kept)) or "none"))
        return "\n".join(lines)


def swap_norms(hf_model: PreTrainedModel, kind: str, **options: Any) -> SwapReport:
    """Put a norm of ours in front of each sublayer of a transformers model, in place.

    **This changes the function that the model computes**, unless ``kind`` is ``rmsnorm``: swap before pretraining, or
    train on. Gains are carried over (Gemma's ``1 + w`` as ``gamma``, in the dtype of ``w``), everything else of the
    norms starts as its options say. Swap before an optimizer holds the parameters, and before the model is wrapped,
    sharded or compiled. New parameters require gradients where the old gains did.

    Parameters
    ----------
    hf_model
        LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM or GemmaForCausalLM; with a norm other
        than ``bhyt`` and ``peri-ln`` also Gemma2ForCausalLM and Gemma3ForCausalLM, whose sublayers have norms behind
        them already.
    kind, options
        As in `residlab.models.config.norm_options`, with these differences. ``eps`` of ``rmsnorm``, ``layernorm``,
        ``lns`` and ``peri-ln`` is by default the replaced norms' own. ``tokens`` of ``bhyt``, over which attention is
        taken to average, should be the length of training sequences; by default it is ``max_position_embeddings``, but
        2048 at most, since models are rarely trained on the longest sequence that they allow. It is recorded in
        ``config.residlab``. The constant takes the matrices of values and outputs only, no bias (Qwen2 has some).
        ``averaged="position"`` counts by ``position_ids``, up to a sliding window: pass them with padding on the left,
        as ``generate`` does, because transformers makes them from 0 on whatever the mask;
        ``averaged="rows"`` needs ``attn_implementation="eager"``. ``refresh="forward"`` is explained, with what escapes
        it, in `residlab.models.hf.layers.BHyTLayer`; ``refresh=n`` needs `RefreshConstants`, and ``"construction"``
        has no meaning for weights that are there already.

    Raises
    ------
    ResidlabError
        If the model's class is another, its norms were swapped already, it is quantized, spread over devices or has no
        weights yet, an option is unknown or out of range, or the norm does not fit the architecture.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    >>> model, ids = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)).eval(), torch.arange(16)[None]
    >>> before = model(ids).logits
    >>> print(swap_norms(model, "bhyt", lam_attention=3.0, lam_feedforward=3.0, tokens=512))
    bhyt in 2 layers of LlamaForCausalLM (BHyTLlamaDecoderLayer)
      replaced: input_layernorm by BHyTStar, post_attention_layernorm by BHyT
      kept: model.norm
    >>> torch.allclose(model(ids).logits, before)  # another function: train it
    False
    """
    if getattr(getattr(hf_model, "config", None), "residlab", None) is not None:
        raise ResidlabError(f"the norms of this model were swapped already, to {hf_model.config.residlab['norm']}")
    family = family_of(hf_model)
    _check_model(hf_model)
    chosen = _resolved(kind, options, hf_model, family)
    config = copy.deepcopy(hf_model.config)  # another model may have been made from the same object
    swapped, swapped_config = swapped_classes(family)
    config.__class__ = swapped_config
    vars(config).pop("model_type", None)  # where a configuration came from a file, it hides the class's
    config.residlab = {"format": FORMAT, "norm": {"kind": chosen.kind, **dataclasses.asdict(chosen)}}
    before = hf_model.config
    for module in hf_model.modules():
        if getattr(module, "config", None) is before:
            module.config = config
    hf_model.__class__ = swapped
    return install(hf_model)


def load_swapped(
    folder: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    attn_implementation: str | None = None,
) -> PreTrainedModel:
    """Return a model that was saved after `swap_norms`, by ``save_pretrained`` or by a ``Trainer``, for evaluation.

    Parameters
    ----------
    folder
        With ``config.json`` and safetensors.
    dtype
        Of the weights; by default as saved.
    device
        Where to.
    attn_implementation
        As transformers' ``from_pretrained`` takes it.

    Raises
    ------
    ResidlabError
        If the folder holds no such model or an unknown version of it, is damaged, or its weights do not fit or are not
        finite.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> model, ids = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)).eval(), torch.arange(16)[None]
    >>> report = swap_norms(model, "bhyt", tokens=512)
    >>> model.save_pretrained("llama-bhyt")
    >>> torch.equal(load_swapped("llama-bhyt")(ids).logits, model(ids).logits)
    True
    """
    require("load_swapped", "transformers")
    folder, device = Path(folder), checked_device(device)
    try:
        values = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ResidlabError(f"{folder} holds no model: {error}") from error
    said = values.get("residlab") if isinstance(values, dict) else None
    if not isinstance(said, dict):
        raise ResidlabError(f"{folder} holds no model with swapped norms: its config.json has no residlab")
    if said.get("format") != FORMAT or not isinstance(said.get("norm"), dict):
        raise ResidlabError(f"{folder} must be of format {FORMAT}; got {said.get('format')!r}")
    family = _family_of_type(str(values.get("model_type")))
    options_of(said)
    swapped, config_class = swapped_classes(family)
    try:
        config = config_class.from_pretrained(folder, local_files_only=True)
        model, info = swapped.from_pretrained(
            folder,
            config=config,
            dtype=dtype or "auto",
            attn_implementation=attn_implementation,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except ResidlabError:
        raise
    except Exception as error:  # of many classes: missing or damaged files, shapes, values of the configuration
        raise ResidlabError(f"{folder} cannot be loaded: {error}") from error
    wrong = [f"{what.removesuffix('_keys')}: {min(info[what])}" for what in _WRONG if info[what]]
    if wrong:
        raise ResidlabError(f"the weights in {folder} do not fit its configuration: {', '.join(wrong)}")
    broken = next((name for name, value in model.state_dict().items() if not torch.isfinite(value).all()), None)
    if broken is not None:
        raise ResidlabError(f"{folder}: {broken} holds values that are not finite")
    return cast("PreTrainedModel", model.to(device))


_WRONG = ("missing_keys", "unexpected_keys", "mismatched_keys")


def refresh_constants(hf_model: nn.Module, step: int | None = None) -> None:
    """Bring the constants that the layers of a swapped model keep up to date with its weights.

    With ``step``, only where ``refresh = n`` divides it. Without, always. With ``refresh = "forward"``, which keeps
    constants only from one forward of evaluation to the next, those are measured anew. The model may be wrapped.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes))
    >>> report = swap_norms(model, "bhyt", tokens=512, refresh=100)
    >>> layer = model.model.layers[0]
    >>> kept = layer.variance_constant.item()
    >>> _ = layer.self_attn.v_proj.weight.data.mul_(2)
    >>> refresh_constants(model, step=99)  # not yet
    >>> layer.variance_constant.item() / kept
    1.0
    >>> refresh_constants(model, step=100)
    >>> round(layer.variance_constant.item() / kept, 4)
    4.0
    """
    for layer in hf_model.modules():
        if not isinstance(layer, BHyTLayer):
            continue
        if layer.options.refresh == "forward":
            layer.forget()
        elif step is None or (layer.options.refresh != "frozen" and step % int(layer.options.refresh) == 0):
            layer.keep_constant()


# --- Before


def _check_model(hf_model: Any) -> None:
    if getattr(hf_model, "is_quantized", False) or getattr(hf_model.config, "quantization_config", None) is not None:
        raise ResidlabError("the model is quantized: norms can be swapped in floating-point models only")
    for name, module in hf_model.named_modules():
        if hasattr(module, "_hf_hook"):
            raise ResidlabError(f"{name or 'the model'} is dispatched by accelerate: swap first, without a device_map")
    for name, parameter in hf_model.named_parameters():
        if parameter.is_meta:
            raise ResidlabError(f"{name} is on the meta device: swap when the weights are there")


def _resolved(kind: str, options: dict[str, Any], hf_model: Any, family: Family) -> NormOptions:
    """Return the options with everything decided that depends on the model."""
    chosen = norm_options(kind, **dict(options))
    if isinstance(chosen, RMSNormOptions | LayerNormOptions | LNSOptions | PeriLNOptions) and "eps" not in options:
        chosen = dataclasses.replace(chosen, eps=float(hf_model.config.rms_norm_eps))
    elsewhere = {
        "alpha_final": "the final norm",
        "embedding_scale": "the embedding",
        "embedding_norm": "the embedding",
        "gain_attention": "the gain",
        "gain_feedforward": "the gain",
    }
    for name, what in elsewhere.items():
        if options.get(name):
            raise ResidlabError(f"{name} has no place in a swap: {what} stays as it is")
    if isinstance(chosen, BHyTOptions | PeriLNOptions) and family.normed_outputs:
        why = (
            "attention's output is normed, so that its variance does not follow from its weights: take bhyt*"
            if isinstance(chosen, BHyTOptions)
            else "each sublayer has a norm behind it already"
        )
        raise ResidlabError(f"{kind} does not fit {family.model_name}: {why}")
    if isinstance(chosen, BHyTOptions):
        if chosen.refresh == "construction":
            raise ResidlabError(
                'refresh = "construction" has no place in a swap, which finds weights: "frozen" keeps their constant'
            )
        if chosen.averaged == "context" and chosen.tokens is None:
            chosen = dataclasses.replace(chosen, tokens=min(hf_model.config.max_position_embeddings, DEFAULT_TOKENS))
        if chosen.averaged == "rows" and hf_model.config._attn_implementation != "eager":
            raise ResidlabError(
                'averaged = "rows" needs the attention weights: attn_implementation must be "eager"; '
                f'got "{hf_model.config._attn_implementation}"'
            )
    return chosen


# --- The change itself


def install(hf_model: Any) -> SwapReport:
    """Put the norms that ``config.residlab`` describes into a model that has transformers' own."""
    options, family = options_of(hf_model.config.residlab), _family_of_type(hf_model.config.model_type)
    mixin = mixin_for(options)
    layers = hf_model.model.layers
    # Only norm, width and depth matter to a norm; the rest of the shape is any.
    shape = ModelConfig(
        depth=len(layers), width=hf_model.config.hidden_size, heads=1, head_dim=2, vocabulary=1, norm=options
    )
    sites, replaced, added = {}, [], []
    for index, layer in enumerate(layers):
        for site, (name, theirs) in zip(("attention", "feedforward"), list(family.sites(layer)), strict=True):
            norm = _in_place_of(theirs, make_norm(shape, cast("Literal['attention', 'feedforward']", site), index + 1))
            with torch.no_grad():
                norm.gamma.copy_(family.gain(theirs))
            setattr(layer, name, norm)
            sites[name] = type(norm).__name__
            replaced.append(f"model.layers.{index}.{name}")
        for name in ("attention_output_norm", "feedforward_output_norm"):
            output_norm = make_output_norm(shape)
            if output_norm is not None:
                setattr(layer, name, _in_place_of(theirs, output_norm))
                added.append(f"model.layers.{index}.{name}")
        if mixin is not None:
            layer.__class__ = layer_class(family, mixin)
        if isinstance(options, BHyTOptions):
            layer.options, layer.tokens, layer._remembered = options, options.tokens or 1, None
            layer.register_buffer("variance_constant", None)
            if options.refresh != "forward":
                layer.keep_constant()
    layer_name = type(layers[0]).__name__
    for model in (hf_model, hf_model.model):
        model._no_split_modules = {*(model._no_split_modules or ()), layer_name}
    kept = tuple(
        name
        for name, module in hf_model.named_modules()
        if "Norm" in type(module).__name__ and type(module).__module__.startswith("transformers.")
    )
    return SwapReport(options, family.model_name, layer_name, len(layers), sites, tuple(replaced), tuple(added), kept)


def _in_place_of(theirs: nn.Module, ours: nn.Module) -> Any:
    """Return our norm on the device, in the dtype and mode, and as trainable as the one that it replaces."""
    weight = theirs.weight
    assert isinstance(weight, nn.Parameter)
    ours = ours.to(device=weight.device, dtype=weight.dtype).requires_grad_(weight.requires_grad).train(theirs.training)
    # A stand-in of the wrong shape: transformers' own class refuses the checkpoint. Finding no weight at all, it would
    # report that and go on with an RMSNorm whose gains are one.
    ours.register_buffer("weight", torch.zeros(1, device=weight.device, dtype=weight.dtype))
    return ours


def options_of(said: dict[str, Any]) -> NormOptions:
    """Return the options of the norm in a ``config.residlab``."""
    values = dict(said["norm"])
    return norm_options(str(values.pop("kind", None)), **values)


class _SwappedModel:
    """A model whose norms were swapped: what transformers builds from a saved configuration."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        install(self)

    def _get_name(self) -> str:
        # Trainer looks the printed name up to know how labels are shifted when they are smoothed.
        return next(cls.__name__ for cls in type(self).__mro__ if cls.__module__.startswith("transformers."))


@cache
def swapped_classes(family: Family) -> tuple[Any, Any]:
    """Return the classes of a family's swapped models and of their configurations.

    Their ``model_type`` is ``residlab_...``. They are not registered with transformers, whose own loading refuses what
    they saved instead of building the original norms.
    """
    model, _, config = family.classes()
    ours = {"__module__": __name__}
    config_name, model_name = f"Residlab{config.__name__}", f"Residlab{model.__name__}"
    swapped_config = type(config_name, (config,), {**ours, "model_type": f"residlab_{config.model_type}"})
    return type(model_name, (_SwappedModel, model), {**ours, "config_class": swapped_config}), swapped_config


def __getattr__(name: str) -> Any:
    """Find a class that `swapped_classes` makes by its name, as pickle does, in a process that has not made it too."""
    for family in FAMILIES:
        if name.startswith(f"Residlab{family.name}"):
            for made in swapped_classes(family):
                if made.__name__ == name:
                    return made
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _family_of_type(model_type: str) -> Family:
    for family in FAMILIES:
        # The long way is for Gemma 3, whose type is gemma3_text.
        if model_type.startswith(f"residlab_{family.name.lower()}") and (
            swapped_classes(family)[1].model_type == model_type
        ):
            return family
    allowed = ", ".join(f"residlab_{family.name.lower()}" for family in FAMILIES)
    raise ResidlabError(f"model_type of a model with swapped norms must be one of {allowed}; got {model_type!r}")


def _once_a_layer(names: tuple[str, ...]) -> list[str]:
    """Return the names with their layer's number left out, each once."""
    return list(dict.fromkeys(".".join("*" if part.isdigit() else part for part in name.split(".")) for name in names))
