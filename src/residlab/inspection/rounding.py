"""How errors of rounding grow: inferences in less precision beside a reference, behind each block.

Two kinds. *Emulated*: every operation rounded as hardware of that precision would (`residlab.models.rounded`), beside
the same in float64, for the architectures that `from_hugging_face` takes. *By torch*: the model itself with its
parameters and activations in bfloat16, beside float32, for every architecture; sums and functions in whatever torch
uses.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from residlab.errors import ResidlabError
from residlab.experiments.rounded_inference import REFERENCE, Inference, compared, inferred
from residlab.inspection.folder import Folder, anatomy
from residlab.models.hf.checkpoint import SUPPORTED
from residlab.models.hf.weights import from_hugging_face
from residlab.models.rounded import Rounded
from residlab.precision import compiled
from residlab.precision.roles import PRACTICE
from residlab.probes.activations import observe_inputs, observe_outputs

BY_TORCH = "bfloat16 by torch"
MOST, LEAST = 128, 16
_WORK = 2e10
"""Parameters times tokens that are rounded: a few seconds of a core for each kind."""


@dataclass(frozen=True)
class Growth:
    """Errors of rounding on the first tokens of the first window.

    Attributes
    ----------
    tokens : int
        How many.
    results : mapping of str to mapping of str to object
        By kind, the metrics of `residlab.experiments.rounded_inference`.
    missing : mapping of str to str
        Kinds that could not be measured, and why.
    """

    tokens: int
    results: Mapping[str, Mapping[str, Any]]
    missing: Mapping[str, str]


def rounded_tokens(parameters: int, length: int) -> int:
    """Return how many tokens are rounded: 128, fewer for large models, at least 16, never more than a window."""
    return min(length, max(LEAST, min(MOST, int(_WORK / max(parameters, 1)))))


def by_torch(model: nn.Module, folder: Folder, ids: Tensor) -> dict[str, Any]:
    """Return the metrics of `BY_TORCH`; the model's parameters are bfloat16 afterwards.

    Raises
    ------
    ResidlabError
        If the architecture does not compute in bfloat16.
    """
    exact = _inference(model, folder, ids)
    with torch.no_grad():
        for parameter in model.parameters():  # buffers stay: the angles of rotary positions are kept in float32
            parameter.data = parameter.data.to(torch.bfloat16)
    try:
        result = _inference(model, folder, ids)
    except RuntimeError as error:
        raise ResidlabError(f"{type(model).__name__} does not compute in bfloat16 here: {error}") from error
    return compared(exact, result, ids)


def _inference(model: nn.Module, folder: Folder, ids: Tensor) -> Inference:
    blocks = anatomy(model, folder.config).blocks
    last = list(blocks)[-1]
    stream: list[Tensor] = []

    def ends(_: str, output: Any) -> None:
        stream.append((output[0] if isinstance(output, tuple) else output).double())

    with (
        torch.no_grad(),
        observe_inputs(blocks, lambda _, x: stream.append(x.double())),
        observe_outputs({last: blocks[last]}, ends),
    ):
        output: Any = model(ids)
    return Inference(torch.stack(stream), output.logits.double())


def emulated(path: Path, ids: Tensor, advance: Callable[[str], None]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the metrics of what hardware does (`residlab.precision.roles.PRACTICE`) by name, and why not, by name."""
    try:
        if not compiled.available():
            raise ResidlabError("the emulator needs a C++ compiler, and there is none")
        advance("converting the weights")
        model = from_hugging_face(path, dtype=torch.float32).eval()
    except ResidlabError as error:
        return {}, dict.fromkeys(PRACTICE, str(error))
    advance("float64")
    exact = inferred(model, ids, Rounded(REFERENCE))
    found = {}
    for name in PRACTICE:
        advance(name)
        found[name] = compared(exact, inferred(model, ids, Rounded(name)), ids)
    return found, {}


def why_not_emulated(architecture: str) -> str | None:
    """Return why an architecture is not emulated; None if it may be."""
    if architecture in SUPPORTED:
        return None
    return f"{architecture} is none of the emulated architectures: {', '.join(SUPPORTED)}"


def growth(holder: list[nn.Module], folder: Folder, ids: Tensor, advance: Callable[[str], None]) -> Growth:
    """Measure both kinds.

    Parameters
    ----------
    holder
        A list with the model alone, emptied here: the emulated one takes its place in memory.
    folder
        Where its weights are.
    ids : Tensor, shape (1, tokens)
    advance
        Told what is being computed.
    """
    results: dict[str, Any] = {}
    missing: dict[str, str] = {}
    advance(BY_TORCH)
    try:
        results[BY_TORCH] = by_torch(holder[0], folder, ids)
    except ResidlabError as error:
        missing[BY_TORCH] = str(error)
    holder.clear()
    gc.collect()
    reason = why_not_emulated(folder.architecture)
    if reason is None:
        found, absent = emulated(folder.path, ids, advance)
        results, missing = results | found, missing | absent
    else:
        missing |= dict.fromkeys(PRACTICE, reason)
    return Growth(ids.shape[1], results, missing)
