"""Activations of any ``nn.Module``, seen through hooks that change nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


def modules_matching(model: nn.Module, pattern: str) -> dict[str, nn.Module]:
    """Return the submodules whose qualified name matches a regular expression in full, in the model's order.

    Parameters
    ----------
    model : nn.Module
        Any module.
    pattern : str
        For instance ``r"model\\.layers\\.\\d+\\.input_layernorm"``.

    Raises
    ------
    ValueError
        If nothing matches; the message shows some of the names there are.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> list(modules_matching(model, r"[02]"))
    ['0', '2']
    """
    found = {name: module for name, module in model.named_modules() if re.fullmatch(pattern, name)}
    if not found:
        names = [name for name, _ in model.named_modules() if name]
        raise ValueError(f"no submodule matches {pattern!r}; there are {len(names)}, for instance {names[:5]}")
    return found


@contextmanager
def observe_inputs(modules: Mapping[str, nn.Module], observer: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Call ``observer(name, input)`` whenever one of ``modules`` runs, with its first positional argument, detached.

    The hooks return nothing, so outputs and gradients stay as they are; they are removed when the block ends, also by
    an exception.

    Parameters
    ----------
    modules : mapping of str to nn.Module
        What to observe, by the name that the observer is told.
    observer : callable
        Receives the module's name and its input, of whatever shape and dtype the module is given. It must not write to
        the tensor, which shares the model's memory.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> seen = {}
    >>> with observe_inputs(dict(model.named_children()), seen.__setitem__):
    ...     out = model(torch.ones(4, 2))
    ...
    >>> {name: tuple(x.shape) for name, x in seen.items()}
    {'0': (4, 2), '1': (4, 3)}
    """

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def see(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            observer(name, arguments[0].detach())

        return see

    handles = [module.register_forward_pre_hook(hook(name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def observe_outputs(modules: Mapping[str, nn.Module], observer: Callable[[str, Any], None]) -> Iterator[None]:
    """Call ``observer(name, output)`` whenever one of ``modules`` has run, with what it returned, as it is.

    As `observe_inputs`; an output that is a tuple (attention returns its weights beside the result) is passed on whole
    and not detached.

    Parameters
    ----------
    modules : mapping of str to nn.Module
        What to observe, by the name that the observer is told.
    observer : callable
        Receives the module's name and its output, to which it must not write.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> seen = {}
    >>> with observe_outputs({"relu": model[1]}, seen.__setitem__):
    ...     out = model(torch.ones(4, 2))
    ...
    >>> torch.equal(seen["relu"], out)
    True
    """

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def see(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
            observer(name, output)

        return see

    handles = [module.register_forward_hook(hook(name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
