"""A checkpoint of Hugging Face's: where it is, what its configuration says, and its tensors one at a time.

Only safetensors are read. A pickled checkpoint is neither downloaded nor opened.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
from torch import Tensor

from residlab.errors import ResidlabError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

SUPPORTED = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "GPT2LMHeadModel": "gpt2"}

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def check_architecture(architectures: list[str], values: dict[str, Any]) -> None:
    """Refuse what the values of a configuration tell to be something else."""
    if values.get("residlab") is not None:
        raise ResidlabError("the model has swapped norms: load it with residlab.models.hf.load_swapped")
    if architectures[:1] not in [[name] for name in SUPPORTED]:
        got = ", ".join(architectures) or f"none (model_type {values.get('model_type')!r})"
        raise ResidlabError(f"architecture must be one of {', '.join(SUPPORTED)}; got {got}")
    if values.get("quantization_config") is not None:
        raise ResidlabError("the checkpoint is quantized: only plain floating-point weights can be converted")


def local_folder(source: str | os.PathLike[str]) -> Path:
    """Return a folder that is there, or that the hub gives."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    if not isinstance(source, str) or not _HUB_NAME.fullmatch(source):
        raise ResidlabError(
            f"{source} is no folder, nor the name of a model on the hub, as in HuggingFaceTB/SmolLM2-135M"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=["*.json", "*.safetensors"], ignore_patterns=["*/*"]))
    except Exception as error:  # of many classes: no network, no such name, no access, no space
        raise ResidlabError(
            f"{source} is no folder here, and the hub did not give it ({type(error).__name__}). With a network, check "
            f"the name and your access; without one, run `hf download {source} --local-dir FOLDER` on a machine that "
            "has one, and name that folder"
        ) from error


def read_values(folder: Path) -> dict[str, Any]:
    """Return what ``config.json`` in a folder says, if that describes a model of Hugging Face's."""
    try:
        values = json.loads((folder / "config.json").read_text())
    except OSError as error:
        raise ResidlabError(f"{folder} holds no model: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ResidlabError(f"{folder / 'config.json'} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ResidlabError(f"{folder / 'config.json'} describes no model")
    if str(values.get("format", "")).startswith("residlab-"):
        raise ResidlabError(f"{folder} holds a model of ours: load it with residlab.models.files.load_model")
    return values


def named_architectures(values: dict[str, Any]) -> list[str]:
    """Return the names under ``architectures`` in the values of a configuration; one alone is a list of one."""
    named = values.get("architectures") or []
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ResidlabError(f"architectures in config.json must be a list of names; got {named!r}")
    return names


def read_config(folder: Path) -> PreTrainedConfig:
    """Return the configuration in a folder, if it is one of those supported."""
    values = read_values(folder)
    architectures = named_architectures(values)
    kind = values.get("model_type")
    if not architectures and kind in SUPPORTED.values():
        architectures = [name for name, model_type in SUPPORTED.items() if model_type == kind]

    check_architecture(architectures, values)
    if SUPPORTED[architectures[0]] != kind:
        raise ResidlabError(f"model_type of a {architectures[0]} must be {SUPPORTED[architectures[0]]}; got {kind!r}")
    return their_config(folder, str(kind))


def their_config(folder: Path, kind: str) -> PreTrainedConfig:
    """Return transformers' configuration of a folder; its own code, if it has any, is not run."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # of many classes, huggingface_hub's for one wrong value among them
        raise ResidlabError(f"{folder / 'config.json'} is not the configuration of a {kind}: {error}") from error


@contextmanager
def opened(folder: Path) -> Iterator[tuple[list[str], Callable[[str], Tensor]]]:
    """Open a checkpoint's safetensors files; hand out the names of its tensors, and what reads one."""
    files = _weight_files(folder)
    with ExitStack() as stack:
        homes: dict[str, Any] = {}
        for file in files:
            try:
                handle = stack.enter_context(safetensors.safe_open(file, framework="pt"))
                homes |= dict.fromkeys(handle.keys(), handle)
            except (OSError, safetensors.SafetensorError) as error:
                raise ResidlabError(f"{file} is missing or damaged: {error}") from error
        yield list(homes), lambda name: homes[name].get_tensor(name)


@dataclass(frozen=True)
class TensorHeader:
    """What a file says of a tensor before it is read: its shape, and its type as safetensors names it (``F32``)."""

    shape: tuple[int, ...]
    dtype: str


def tensor_headers(folder: Path) -> dict[str, TensorHeader]:
    """Return the headers of a checkpoint's tensors by name; no weight is read."""
    found = {}
    for file in _weight_files(folder):
        try:
            with safetensors.safe_open(file, framework="pt") as handle:
                for name in handle.keys():  # noqa: SIM118  (a handle is no dictionary)
                    part = handle.get_slice(name)
                    found[name] = TensorHeader(tuple(part.get_shape()), part.get_dtype())
        except (OSError, safetensors.SafetensorError) as error:
            raise ResidlabError(f"{file} is missing or damaged: {error}") from error
    return found


def _weight_files(folder: Path) -> list[Path]:
    """Return the files that transformers would read: the single one goes before an index beside it."""
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ResidlabError(f"{index} does not say where the weights are: {error!r}") from error
        unnamed = [shard for shard in shards if not isinstance(shard, str)]
        if unnamed:
            raise ResidlabError(f"{index} does not say where the weights are: {unnamed[0]!r} is not the name of a file")
        outside = [shard for shard in shards if Path(shard).name != shard]
        if outside:
            raise ResidlabError(f"{index} names a file outside its folder: {outside[0]}")
        return [folder / shard for shard in shards]
    pickled = [file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in sorted(folder.glob(pattern))]
    if pickled:
        raise ResidlabError(
            f"{folder} holds its weights as a pickle ({pickled[0]}), which could run any code and is never opened: "
            "convert it to safetensors, or take a revision that has them"
        )
    raise ResidlabError(f"{folder} holds no model.safetensors")
