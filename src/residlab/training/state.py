"""Nested state as tensors and JSON: what a checkpoint holds, without pickle.

>>> tensors, scalars = flatten_state({"step": 3, "state": {0: (torch.zeros(2), None)}})
>>> list(tensors), unflatten_state(tensors, scalars)
(['/state/0/0'], {'step': 3, 'state': {0: (tensor([0., 0.]), None)}})

The tensors go to a safetensors file as they are: contiguous, none sharing memory. ``scalars`` goes through ``json``.
"""

import math
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from residlab.errors import ResidlabError

ALLOWED = "dict (keys str or int), list, tuple, None, bool, int, float, str, torch.Tensor (dense)"


def flatten_state(state: Any) -> tuple[dict[str, Tensor], Any]:
    """Take nested values apart: tensors by name, and everything else as JSON that refers to them.

    A tensor that occurs twice is stored once and comes back as one; tensors that only share memory come back apart.
    Values and dtypes are kept bit for bit (non-finite numbers, 0-d, empty and complex tensors included); whether a
    tensor requires a gradient, its strides and that it was a parameter are not.

    Raises
    ------
    ResidlabError
        If a value is of another type than `ALLOWED`, and where.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, _Flattening(tensors).take_apart(state, "")


class _Flattening:
    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self.known: dict[int, Any] = {}
        self.storages: set[int] = set()
        self.kept: list[Tensor] = []  # alive, so that no other tensor takes over an id or an address

    def take_apart(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if kind is list:
            return [self.take_apart(item, f"{path}/{index}") for index, item in enumerate(value)]
        if kind is tuple:
            return {"tuple": [self.take_apart(item, f"{path}/{index}") for index, item in enumerate(value)]}
        if kind in (dict, OrderedDict):
            wrong = [key for key in value if type(key) not in (str, int)]
            if wrong:
                raise ResidlabError(
                    f"the key {wrong[0]!r} of {path or 'the state'} is a {type(wrong[0]).__name__}, "
                    "which a checkpoint cannot hold; allowed are str and int"
                )
            return {"dict": [[key, self.take_apart(item, f"{path}/{key}")] for key, item in value.items()]}
        if kind in (Tensor, nn.Parameter) and value.layout == torch.strided and value.device.type != "meta":
            return self._tensor(value, path or "/")
        raise ResidlabError(
            f"{path or 'the state'} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold; "
            f"allowed are {ALLOWED}"
        )

    def _tensor(self, value: Tensor, path: str) -> Any:
        if id(value) in self.known:
            return self.known[id(value)]
        name, copies = path, 1
        while name in self.tensors:  # {"a/b": t} beside {"a": {"b": t}}
            copies += 1
            name = f"{path}#{copies}"
        flat = value.detach().resolve_conj().resolve_neg()
        if value.is_complex():
            flat = torch.view_as_real(flat)
        flat = flat.contiguous()
        storage = flat.untyped_storage()
        if storage.data_ptr() in self.storages or storage.nbytes() != flat.nbytes:
            flat = flat.clone()
        self.storages.add(flat.untyped_storage().data_ptr())
        self.kept += [value, flat]
        self.tensors[name] = flat
        self.known[id(value)] = {"tensor": name, "complex": True} if value.is_complex() else {"tensor": name}
        return self.known[id(value)]


def unflatten_state(tensors: dict[str, Tensor], scalars: Any) -> Any:
    """Return what `flatten_state` took apart; the tensors are those given, not copies.

    Raises
    ------
    ResidlabError
        If ``scalars`` names a tensor that is missing, or is not what `flatten_state` makes.
    """
    complexes: dict[str, Tensor] = {}

    def put_together(node: Any) -> Any:
        if node is None or isinstance(node, bool | int | float | str):
            return node
        if isinstance(node, list):
            return [put_together(item) for item in node]
        match node:
            case {"float": "nan" | "inf" | "-inf" as text}:
                return float(text)
            case {"tuple": [*items]}:
                return tuple(put_together(item) for item in items)
            case {"dict": [*pairs]} if all(
                isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (str, int) for pair in pairs
            ):
                return {key: put_together(item) for key, item in pairs}
            case {"tensor": str(name)} if name not in tensors:
                raise ResidlabError(f"the saved state needs a tensor {name}, which is missing")
            case {"tensor": str(name), "complex": True}:
                return complexes.setdefault(name, torch.view_as_complex(tensors[name]))
            case {"tensor": str(name)}:
                return tensors[name]
        raise ResidlabError(f"the saved state is damaged: {str(node)[:80]} is nothing that flatten_state writes")

    return put_together(scalars)
