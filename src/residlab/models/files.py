"""A `Transformer` in a folder: ``config.json`` and ``model.safetensors``."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file, save_file

from residlab.errors import ResidlabError
from residlab.models.config import ModelConfig
from residlab.models.transformer import Transformer

FORMAT = "residlab-transformer-1"


def save_model(model: Transformer, folder: str | os.PathLike[str]) -> None:
    """Write a model to a folder that does not exist yet, or replace one that holds a model; whole or not at all.

    Raises
    ------
    ResidlabError
        If the folder holds something else, or cannot be written; or the model has several dtypes.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.models.transformer import Transformer
    >>> model = Transformer(ModelConfig(depth=1, width=32, heads=2, vocabulary=50, context=16), seed=0)
    >>> save_model(model, "saved")
    >>> sorted(path.name for path in Path("saved").iterdir())
    ['config.json', 'model.safetensors']
    """
    dtypes = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    if len(set(dtypes.values())) > 1:
        kinds = {dtype: name for name, dtype in dtypes.items()}
        named = " and ".join(f"{dtype} ({name})".removeprefix("torch.") for dtype, name in kinds.items())
        raise ResidlabError(f"a model is saved in one dtype; this one has {named}")
    with replaced_folder(folder) as staging:
        weights = {name: tensor.detach().contiguous().cpu() for name, tensor in model.state_dict().items()}
        save_file(weights, staging / "model.safetensors")
        config = {"format": FORMAT, "dtype": str(model.embedding.weight.dtype).removeprefix("torch.")}
        (staging / "config.json").write_text(json.dumps({**config, **model.config.to_dict()}, indent=2) + "\n")


_SAVED = frozenset({"config.json", "generation_config.json", "model.safetensors"})


@contextmanager
def replaced_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Let a block fill an empty folder that, when it ends without an error, takes the place of a model's.

    Raises
    ------
    ResidlabError
        If ``folder`` exists and is no saved model, or cannot be written.

    Examples
    --------
    >>> with replaced_folder("folder") as new:
    ...     _ = (new / "config.json").write_text("{}")
    ...
    >>> Path("folder/config.json").read_text()
    '{}'
    """
    folder = Path(folder)
    if folder.exists():
        inside = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
        if not {"config.json", "model.safetensors"} <= inside or not inside <= _SAVED:
            other = ", ".join(sorted(inside - _SAVED)[:3])
            what = f"holds {other}" if other else "is not a saved model"
            raise ResidlabError(f"{folder} exists and {what}: it is left as it is")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
        try:
            yield staging
            staging.chmod(0o755)
            if folder.exists():
                before = staging.with_name(f"{staging.name}-before")
                folder.rename(before)  # whole until the other has its name
                staging.rename(folder)
                shutil.rmtree(before)
            else:
                staging.rename(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise ResidlabError(f"{folder} cannot be written: {error}") from error


def load_model(folder: str | os.PathLike[str], device: torch.device | str = "cpu") -> Transformer:
    """Return the model that `save_model` wrote, in its dtype, in evaluation mode.

    Raises
    ------
    ResidlabError
        If a file is missing, damaged or of another architecture, or a weight is not finite.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.models.transformer import Transformer
    >>> model = Transformer(ModelConfig(depth=1, width=32, heads=2, vocabulary=50, context=16), seed=0)
    >>> save_model(model, "loaded")
    >>> ids = torch.arange(8)[None]
    >>> torch.equal(load_model("loaded")(ids), model(ids))
    True
    """
    folder, device = Path(folder), checked_device(device)
    try:
        values = json.loads((folder / "config.json").read_text())
    except OSError as error:
        raise ResidlabError(f"{folder} holds no model: {error}") from error
    except ValueError as error:
        raise ResidlabError(f"{folder / 'config.json'} is not JSON: {error}") from error
    if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
        raise ResidlabError(f"{folder} holds no {FORMAT}; for a Hugging Face model, use residlab.models.hf")
    dtype = getattr(torch, str(values.pop("dtype", "")), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ResidlabError(f"{folder / 'config.json'} names no floating-point dtype")
    config = ModelConfig.from_dict(values)
    with torch.device("meta"):
        model = Transformer(config).to(dtype)
    load_weights(model, read_weights(folder / "model.safetensors"))
    return model.to(device).eval()


def read_weights(file: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file.

    Raises
    ------
    ResidlabError
        If it is missing or damaged.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.models.transformer import Transformer
    >>> model = Transformer(ModelConfig(depth=1, width=32, heads=2, vocabulary=50, context=16), seed=0)
    >>> save_model(model, "read")
    >>> read_weights(Path("read/model.safetensors"))["embedding.weight"].shape
    torch.Size([50, 32])
    """
    try:
        return load_file(file)
    except (OSError, safetensors.SafetensorError) as error:
        raise ResidlabError(f"{file} is missing or damaged: {error}") from error


def load_weights(model: Transformer, weights: dict[str, torch.Tensor]) -> None:
    """Give a model a copy of its weights, all of them, in its dtype and on its device.

    A model on the meta device, which has no memory of its own, takes the tensors themselves.

    Raises
    ------
    ResidlabError
        If a name is missing or left over, a shape differs, or a value is not finite.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.models.transformer import Transformer
    >>> config = ModelConfig(depth=1, width=32, heads=2, vocabulary=50, context=16)
    >>> one, other = Transformer(config, seed=0), Transformer(config, seed=1)
    >>> load_weights(other, one.state_dict())
    >>> torch.equal(one.embedding.weight, other.embedding.weight)
    True
    """
    wanted = model.state_dict()
    missing, unknown = sorted(wanted.keys() - weights.keys()), sorted(weights.keys() - wanted.keys())
    if missing or unknown:
        what = [f"lack {_some(missing)}"] * bool(missing) + [f"have {_some(unknown)} too many"] * bool(unknown)
        raise ResidlabError(f"the weights do not fit the model: they {' and '.join(what)}")
    for name, tensor in weights.items():
        if tensor.shape != wanted[name].shape:
            raise ResidlabError(
                f"{name} must have shape {tuple(wanted[name].shape)}; the weights have {tuple(tensor.shape)}"
            )
        if not torch.isfinite(tensor).all():
            raise ResidlabError(f"{name} holds values that are not finite")
    empty = any(tensor.is_meta for tensor in wanted.values())
    model.load_state_dict({name: tensor.to(wanted[name].dtype) for name, tensor in weights.items()}, assign=empty)


def checked_device(device: torch.device | str) -> torch.device:
    """Return a device that this machine has.

    Raises
    ------
    ResidlabError
        If it has not.

    Examples
    --------
    >>> checked_device("cpu")
    device(type='cpu')
    """
    try:
        device = torch.device(device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        allowed = ["cpu"] + ["cuda"] * torch.cuda.is_available() + ["mps"] * torch.backends.mps.is_available()
        raise ResidlabError(f"device must be one of {', '.join(allowed)} on this machine; got {device}") from error
    return device


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
