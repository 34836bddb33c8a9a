"""A local folder with a causal language model: what its files say before a weight is read, and then the model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from residlab.errors import ResidlabError
from residlab.models.hf.checkpoint import (
    TensorHeader,
    named_architectures,
    opened,
    read_values,
    tensor_headers,
    their_config,
)
from residlab.models.hf.needs import quiet_transformers, require
from residlab.precision.quantized_models import linear_layers

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

FLOATS = ("F64", "F32", "F16", "BF16")
_OTHERS = ("BOOL", "I64", "I32", "U8")
"""Types of masks and positions that older checkpoints carry beside their weights."""
_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "tekken.json",
)


@dataclass(frozen=True, eq=False)
class Folder:
    """A checkpoint that can be inspected.

    Attributes
    ----------
    path : Path
        Where it is.
    config : PreTrainedConfig
        Transformers' configuration.
    architecture : str
        The name of its class.
    tensors : mapping of str to TensorHeader
        By name.
    skeleton : nn.Module
        The model on the meta device: no weights, no memory.
    """

    path: Path
    config: PreTrainedConfig
    architecture: str
    tensors: Mapping[str, TensorHeader]
    skeleton: nn.Module

    @property
    def name(self) -> str:
        """What the folder is called."""
        return self.path.resolve().name

    @property
    def text_config(self) -> Any:
        """The configuration of the language model."""
        return self.config.get_text_config()

    @property
    def parameters(self) -> int:
        """Parameters of the model; those of tied matrices count once."""
        return sum(parameter.numel() for parameter in self.skeleton.parameters())

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Floating-point types that its tensors have, as safetensors names them."""
        return tuple(sorted({header.dtype for header in self.tensors.values()} & set(FLOATS)))

    @property
    def context(self) -> int | None:
        """The most tokens that it takes; None where the configuration knows no limit."""
        limit = getattr(self.text_config, "max_position_embeddings", None)
        return int(limit) if isinstance(limit, int) and limit > 0 else None


def read_folder(path: Path) -> Folder:
    """Return what a folder holds, without reading a weight or running code that lies in it.

    Raises
    ------
    ResidlabError
        If there is no such folder, it holds no model, or a model that cannot be inspected: pickled or quantized
        weights, an architecture that transformers does not have among its causal language models, none or several lists
        of blocks, no tokenizer.
    """
    require("residlab inspect", "transformers")
    if not path.exists():
        raise ResidlabError(f"there is no folder {path}")
    if not path.is_dir():
        raise ResidlabError(f"{path} is a file: name the folder that holds config.json and the safetensors files")
    if not any(path.iterdir()):
        raise ResidlabError(f"the folder {path} is empty")
    if (path / "adapter_config.json").exists() and not (path / "config.json").exists():
        raise ResidlabError(f"{path} holds an adapter alone: merge it into its base model first")
    values = read_values(path)
    architecture = _architecture(path, values)
    tensors = tensor_headers(path)
    strange = {name: header for name, header in tensors.items() if header.dtype not in (*FLOATS, *_OTHERS)}
    if strange:
        name, header = next(iter(strange.items()))
        raise ResidlabError(
            f"{name} is stored as {header.dtype}: only plain floating-point weights ({', '.join(FLOATS)}) are read"
        )
    if not any((path / name).exists() for name in _TOKENIZERS):
        raise ResidlabError(
            f"{path} holds no tokenizer ({', '.join(_TOKENIZERS[:3])}, ...): copy the files of the model's "
            "tokenizer there"
        )
    config = their_config(path, str(values.get("model_type")))
    return Folder(path, config, architecture, tensors, _skeleton(config, architecture))


def _architecture(path: Path, values: dict[str, Any]) -> str:
    """Return the name of the class, if it is one that can be inspected."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, __version__

    if values.get("residlab") is not None:
        raise ResidlabError(f"{path} holds a model with swapped norms, which transformers' own classes do not have")
    if values.get("quantization_config") is not None:
        raise ResidlabError(f"the weights in {path} are quantized: only plain floating-point weights are read")
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        code = " Its own code (auto_map) is never run." if values.get("auto_map") else ""
        raise ResidlabError(f"model_type {kind!r} is none that transformers {__version__} knows.{code}")
    known = AutoModelForCausalLM._model_mapping
    config_class = CONFIG_MAPPING[kind]
    classes = known.get(config_class, ())
    names = [each.__name__ for each in (classes if isinstance(classes, tuple | list) else (classes,))]
    given = named_architectures(values) or names[:1]
    if not names or given[0] not in names:
        got = given[0] if given else f"none (model_type {kind!r})"
        allowed = f"for model_type {kind!r} that is {' or '.join(names)}" if names else "LlamaForCausalLM is one"
        raise ResidlabError(
            f"architecture {got} is none of transformers' causal language models (AutoModelForCausalLM); {allowed}"
        )
    return str(given[0])


def _skeleton(config: PreTrainedConfig, architecture: str) -> nn.Module:
    from transformers import AutoModelForCausalLM

    try:
        with quiet_transformers(), torch.device("meta"):
            model: nn.Module = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, attn_implementation="eager", trust_remote_code=False
            )
    except Exception as error:  # of many classes: what a configuration lacks shows when its layers are made
        raise ResidlabError(f"config.json describes no {architecture} that can be built: {error}") from error
    anatomy(model, config)
    return model


@dataclass(frozen=True, eq=False)
class Anatomy:
    """Where in a model what is measured happens.

    Attributes
    ----------
    blocks : dict of str to nn.Module
        Its blocks in their order: what they read is the stream.
    linears : dict of str to nn.Module
        The linear layers inside of blocks.
    """

    blocks: dict[str, nn.Module]
    linears: dict[str, nn.Module]

    def block_of(self, name: str) -> int:
        """Return the number of the block, from 1, that a module belongs to."""
        return next(i for i, block in enumerate(self.blocks, 1) if name == block or name.startswith(f"{block}."))


def anatomy(model: nn.Module, config: PreTrainedConfig) -> Anatomy:
    """Return the parts of a model of transformers: its one list of as many blocks as the configuration has layers.

    Raises
    ------
    ResidlabError
        If there is no such list, or several, or no linear layer in it.
    """
    depth = getattr(config.get_text_config(), "num_hidden_layers", None)
    if depth == 0:
        raise ResidlabError(f"{type(model).__name__} has no blocks: num_hidden_layers is 0")
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    # A list inside of a block (experts) is not one of blocks, however long.
    outer = {
        name: module for name, module in lists.items() if not name.startswith(tuple(f"{other}." for other in lists))
    }
    matching = [name for name, module in outer.items() if len(module) == depth]
    if len(matching) != 1:
        there = ", ".join(f"{name} of {len(module)}" for name, module in outer.items()) or "none"
        raise ResidlabError(
            f"{type(model).__name__} is not supported: it should have one list of {depth} blocks (nn.ModuleList); "
            f"its lists are {there}"
        )
    (name,) = matching
    blocks = {f"{name}.{i}": block for i, block in enumerate(lists[name])}
    linears = {each: layer for each, layer in linear_layers(model).items() if each.startswith(f"{name}.")}
    if not linears:
        raise ResidlabError(f"{type(model).__name__} is not supported: its blocks have no linear layers (nn.Linear)")
    return Anatomy(blocks, linears)


def linear_share(folder: Folder) -> float:
    """Return the share of the blocks' parameters that are weights of linear layers; low where experts are stacked."""
    parts = anatomy(folder.skeleton, folder.config)
    weights = sum(layer.weight.numel() for layer in parts.linears.values() if isinstance(layer.weight, torch.Tensor))
    return weights / sum(each.numel() for block in parts.blocks.values() for each in block.parameters())


def check_weights(folder: Folder) -> None:
    """Read every tensor once, one at a time.

    Raises
    ------
    ResidlabError
        Naming the first that holds NaN or infinity, how many entries are concerned, and how many tensors; or if there
        are none, or all are zero.
    """
    wrong: dict[str, str] = {}
    zero = True
    with opened(folder.path) as (names, read):
        if not names:
            raise ResidlabError(f"the safetensors files in {folder.path} hold no tensors")
        for name in names:
            tensor = read(name)
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            # The sum of two finite extremes may overflow; their own finiteness says all, and NaN is passed on.
            low, high = tensor.aminmax()
            zero = zero and not bool(low) and not bool(high)
            if bool(low.isfinite() & high.isfinite()):
                continue
            parts = {"NaN": int(tensor.isnan().sum()), "infinity": int(tensor.isinf().sum())}
            kinds = " and ".join(f"{count:,} {kind}" for kind, count in parts.items() if count)
            wrong[name] = f"{kinds} among {tensor.numel():,} entries"
    if wrong:
        name, what = next(iter(wrong.items()))
        more = f"; {len(wrong) - 1} more tensors are not finite either" if len(wrong) > 1 else ""
        raise ResidlabError(f"the weights are not all numbers: {name} holds {what}{more}")
    if zero:
        raise ResidlabError("all weights are 0: nothing flows through this model")


def _left_over(folder: Folder, unexpected: Iterable[str]) -> list[str]:
    """Return which of the names that the model has no place for are of blocks beyond its last one."""
    prefix = f"{getattr(folder.skeleton, 'base_model_prefix', '')}."
    blocks = anatomy(folder.skeleton, folder.config).blocks
    place = next(iter(blocks)).rpartition(".")[0].removeprefix(prefix)
    number = re.compile(rf"{re.escape(place)}\.(\d+)\.")
    found = ((name, number.match(name.removeprefix(prefix))) for name in unexpected)
    return sorted(name for name, match in found if match and int(match[1]) >= len(blocks))


def _misfit(folder: Folder) -> str:
    """Return which tensor has not the shape that the architecture has for it, if one has not."""
    prefix = getattr(folder.skeleton, "base_model_prefix", "")
    for name, wanted in folder.skeleton.state_dict().items():
        header = folder.tensors.get(name) or folder.tensors.get(name.removeprefix(f"{prefix}."))
        if header is not None and header.shape != tuple(wanted.shape):
            return f"{name} in {folder.path} has the shape {header.shape}; by config.json it is {tuple(wanted.shape)}"
    return ""


def load(folder: Folder) -> PreTrainedModel:
    """Return the model, float32, in evaluation mode, with an attention that returns its weights.

    Raises
    ------
    ResidlabError
        If the tensors are not those of the architecture, or there are some of more blocks than the configuration has.
    """
    from transformers import AutoModelForCausalLM

    try:
        with quiet_transformers():
            model, report = AutoModelForCausalLM.from_pretrained(
                folder.path,
                dtype=torch.float32,
                attn_implementation="eager",
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ResidlabError(_misfit(folder) or f"transformers cannot load {folder.path}: {first}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ResidlabError(f"the files lack weights of {folder.architecture}: {missing[0]}{more}")
    left = _left_over(folder, report["unexpected_keys"])
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        depth = len(anatomy(folder.skeleton, folder.config).blocks)
        raise ResidlabError(
            f"num_hidden_layers in config.json is {depth}, but the files hold weights of more blocks: {left[0]}{more}"
        )
    model.config.use_cache = False
    return model.eval()


def load_tokenizer(folder: Folder) -> PreTrainedTokenizerBase:
    """Return the tokenizer.

    Raises
    ------
    ResidlabError
        If its files cannot be read, or ask for code of their own.
    """
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            return AutoTokenizer.from_pretrained(folder.path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # of many classes, one for each kind of file
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        what = type(error).__name__
        raise ResidlabError(f"the tokenizer in {folder.path} cannot be read: {what}: {first}") from error
