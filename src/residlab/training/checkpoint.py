"""Checkpoints: safetensors and JSON, whole or absent, the newest two kept.

Its files, in the folder of the run:

    step-000200/model.safetensors       weights
                optimizer.safetensors   tensors of the optimizer, and the random generators' states
                state.json              step, configuration, the optimizer's plain values, hashes of both files
"""

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load, save
from torch import Tensor

from residlab.errors import ResidlabError
from residlab.training.state import flatten_state, unflatten_state

FORMAT = "residlab-checkpoint-1"
KEPT = 2
_STATE = {"step": int, "config": dict, "progress": dict, "optimizer": dict, "sha256": dict}
_NAME = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True)
class Checkpoint:
    """All that training needs to go on as if it had never stopped.

    Examples
    --------
    >>> list(Checkpoint.__dataclass_fields__)
    ['step', 'config', 'model', 'optimizer', 'random', 'progress']
    """

    step: int
    config: dict[str, Any]
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    random: dict[str, Tensor]
    progress: dict[str, Any]


def random_state() -> dict[str, Tensor]:
    """Return the states of torch's generators.

    Examples
    --------
    >>> sorted(random_state())[0]
    'cpu'
    """
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_state(states: dict[str, Tensor]) -> None:
    """Put torch's generators into those states.

    Examples
    --------
    >>> states = random_state()
    >>> before = torch.rand(3)
    >>> set_random_state(states)
    >>> torch.equal(torch.rand(3), before)
    True
    """
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint, then remove all but the newest two.

    It gets its name only when it is complete and on the disk, so that a crash leaves the ones before it as they were.

    Raises
    ------
    ResidlabError
        If it cannot be written, for instance on a full disk.

    Examples
    --------
    >>> parts = {"model": {"w": torch.ones(2)}, "optimizer": {}, "random": random_state(), "progress": {}}
    >>> save_checkpoint(Path("run"), Checkpoint(step=10, config={"seed": 0}, **parts)).name
    'step-000010'
    """
    target = folder / f"step-{checkpoint.step:06d}"
    staging = folder / f".{target.name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        tensors, scalars = flatten_state({"optimizer": checkpoint.optimizer, "random": checkpoint.random})
        weights = {name: tensor.detach().contiguous().cpu() for name, tensor in checkpoint.model.items()}
        hashes = {
            name: _write(staging / name, save({key: tensor.contiguous().cpu() for key, tensor in content.items()}))
            for name, content in (("model.safetensors", weights), ("optimizer.safetensors", tensors))
        }
        state = {
            "format": FORMAT,
            "step": checkpoint.step,
            "config": checkpoint.config,
            "progress": checkpoint.progress,
            "optimizer": scalars,
            "sha256": hashes,
        }
        _write(staging / "state.json", (json.dumps(state, indent=1) + "\n").encode())
        if target.exists():
            shutil.rmtree(target)
        staging.rename(target)
        _sync(folder)
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise ResidlabError(f"the checkpoint {target} cannot be written: {error}; earlier ones are intact") from error
    for old in _complete(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def latest_checkpoint(folder: Path, config: dict[str, Any]) -> Checkpoint | None:
    """Return the newest checkpoint in a folder, or None where there is none.

    Raises
    ------
    ResidlabError
        If it is damaged, or belongs to another configuration.

    Examples
    --------
    >>> parts = {"model": {"w": torch.ones(2)}, "optimizer": {}, "random": random_state(), "progress": {}}
    >>> for step in (10, 20, 30):
    ...     path = save_checkpoint(Path("run-a"), Checkpoint(step=step, config={"seed": 0}, **parts))
    ...
    >>> latest_checkpoint(Path("run-a"), {"seed": 0}).step, len(list(Path("run-a").iterdir()))  # two are kept
    (30, 2)
    >>> latest_checkpoint(Path("none"), {"seed": 0}) is None
    True
    """
    found = _complete(folder)
    return load_checkpoint(found[-1], config) if found else None


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint in a folder, whatever its configuration, or None where there is none.

    Raises
    ------
    ResidlabError
        If it is damaged.

    Examples
    --------
    >>> parts = {"model": {"w": torch.ones(2)}, "optimizer": {}, "random": random_state(), "progress": {}}
    >>> path = save_checkpoint(Path("run-b"), Checkpoint(step=10, config={"seed": 0}, **parts))
    >>> newest_checkpoint(Path("run-b")).config
    {'seed': 0}
    """
    found = _complete(folder)
    return load_checkpoint(found[-1]) if found else None


def newest_state(folder: Path) -> tuple[int, dict[str, Any]] | None:
    """Return step and configuration of a folder's newest checkpoint, or None; the weights are not read.

    A state that cannot be read counts as none: who loads the checkpoint is told.

    Examples
    --------
    >>> parts = {"model": {"w": torch.ones(2)}, "optimizer": {}, "random": random_state(), "progress": {}}
    >>> path = save_checkpoint(Path("run-d"), Checkpoint(step=10, config={"seed": 0}, **parts))
    >>> newest_state(Path("run-d")), newest_state(Path("none"))
    ((10, {'seed': 0}), None)
    """
    found = _complete(folder)
    if not found:
        return None
    try:
        state = json.loads((found[-1] / "state.json").read_text())
        return int(state["step"]), dict(state["config"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def load_checkpoint(path: Path, config: dict[str, Any] | None = None) -> Checkpoint:
    """Return a checkpoint; where ``config`` is given, it must be the one that it was made with.

    Raises
    ------
    ResidlabError
        If it is damaged, or belongs to another configuration.

    Examples
    --------
    >>> parts = {"model": {"w": torch.ones(2)}, "optimizer": {}, "random": random_state(), "progress": {}}
    >>> path = save_checkpoint(Path("run-c"), Checkpoint(step=10, config={"seed": 0}, **parts))
    >>> load_checkpoint(path).model
    {'w': tensor([1., 1.])}
    >>> load_checkpoint(path, {"seed": 0}).step
    10
    """
    try:
        state = json.loads((path / "state.json").read_text())
        files = {name: (path / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")}
    except (OSError, ValueError) as error:
        raise ResidlabError(f"the checkpoint {path} is damaged: {error}; remove it to use an earlier one") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ResidlabError(f"{path} is no {FORMAT}")
    missing = [name for name, kind in _STATE.items() if not isinstance(state.get(name), kind)]
    if missing:
        raise ResidlabError(
            f"the checkpoint {path} is damaged: state.json has no valid {', '.join(missing)}; "
            "remove it to use an earlier one"
        )
    for name, content in files.items():
        if hashlib.sha256(content).hexdigest() != state["sha256"].get(name):
            raise ResidlabError(f"the checkpoint {path} is damaged: {name}; remove it to use an earlier one")
    config = None if config is None else json.loads(json.dumps(config))  # tuples come back as lists
    if config is not None and state["config"] != config:
        changed = ", ".join(_differences(state["config"], config))
        raise ResidlabError(f"the checkpoint {path} belongs to another configuration; these differ: {changed}")
    try:
        model, tensors = (load(files[name]) for name in ("model.safetensors", "optimizer.safetensors"))
    except safetensors.SafetensorError as error:
        raise ResidlabError(f"the checkpoint {path} is damaged: {error}") from error
    try:
        rest = unflatten_state(tensors, state["optimizer"])
        optimizer, random = rest["optimizer"], rest["random"]
    except (KeyError, TypeError) as error:
        raise ResidlabError(
            f"the checkpoint {path} is damaged: state.json, optimizer; remove it to use an earlier one"
        ) from error
    return Checkpoint(state["step"], state["config"], model, optimizer, random, state["progress"])


def _complete(folder: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def _write(file: Path, content: bytes) -> str:
    """Write a file through to the disk and return its SHA-256."""
    with file.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    return hashlib.sha256(content).hexdigest()


def _sync(folder: Path) -> None:
    """Bring a folder's new names to the disk, where the system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Name the values that differ, as ``model.depth (2, now 3)``."""
    found = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            found += _differences(before, after, f"{prefix}{name}.")
        elif before != after:
            found.append(f"{prefix}{name} ({before}, now {after})")
    return found
