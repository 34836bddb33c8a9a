"""Blocks of a model as functions: record how they are called, turn tokens' angles into numbers, skip them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class BlockCall:
    """How a model called one of its blocks: call it to run the block again, on other tokens.

    Parameters
    ----------
    block : nn.Module
        The block.
    x : Tensor
        Its first argument, detached.
    rest : tuple
        The other positional arguments: masks, positions.
    keywords : mapping
        Keyword arguments.

    Examples
    --------
    >>> block = nn.Linear(2, 2, bias=False)
    >>> with record_calls({"block": block}) as calls:
    ...     y = block(torch.ones(1, 2))
    ...
    >>> call = calls["block"]
    >>> torch.equal(call(2 * call.x), 2 * y)
    True
    """

    block: nn.Module
    x: Tensor
    rest: tuple[Any, ...]
    keywords: Mapping[str, Any]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the block's output, the first one if there are several, for tokens ``x``, all else as recorded."""
        output = self.block(x, *self.rest, **self.keywords)
        tokens: Tensor = output[0] if isinstance(output, tuple) else output
        return tokens


@contextmanager
def record_calls(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, BlockCall]]:
    """Record the last call of each module while the context is open: ``with record_calls(layers) as calls: model(x)``.

    The arguments are kept, not copied: run the model under ``torch.no_grad()``, not ``inference_mode``, whose tensors
    no derivative accepts.

    Parameters
    ----------
    modules : mapping of str to nn.Module
        What to record. Each must be given its tokens as the first positional argument.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> with record_calls({"relu": model[1]}) as calls, torch.no_grad():
    ...     y = model(torch.ones(4, 2))
    ...
    >>> tuple(calls["relu"].x.shape)
    (4, 3)
    """
    calls: dict[str, BlockCall] = {}

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def see(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            calls[name] = BlockCall(module, arguments[0].detach(), arguments[1:], dict(keywords))

        return see

    with ExitStack() as stack:
        for name, module in modules.items():
            stack.callback(module.register_forward_pre_hook(hook(name), with_kwargs=True).remove)
        yield calls


@contextmanager
def skipped(*blocks: nn.Module) -> Iterator[None]:
    """Make blocks do nothing while the context is open: each returns its first argument as it is.

    The blocks' forward is put back at the end, also after an exception. A block must be one that returns a tensor, as
    the decoder layers of transformers 5 do.

    Parameters
    ----------
    *blocks : nn.Module
        What to skip.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> x = torch.ones(1, 2)
    >>> with skipped(*model):
    ...     torch.equal(model(x), x)
    ...
    True
    """

    def identity(x: Tensor, *_rest: object, **_keywords: object) -> Tensor:
        return x

    with ExitStack() as stack:
        for block in blocks:
            # Usually forward is the class's, and removing ours uncovers it; a wrapped one stands on the instance.
            own = vars(block).get("forward")
            if own is None:
                stack.callback(delattr, block, "forward")
            else:
                stack.callback(setattr, block, "forward", own)
            block.forward = identity
        yield


def angles(x: Tensor, y: Tensor) -> Tensor:
    """Return the angle between each token of ``x`` and the same token of ``y``, in radians.

    ``2 atan2(|u - v|, |u + v|)`` of the unit vectors, which is exact for small angles, where an arc cosine is not.

    Parameters
    ----------
    x, y : Tensor, shape (..., d)
        Of one shape, any floating-point dtype.

    Returns
    -------
    Tensor, float64, shape (...)
        In [0, pi]; NaN where one of the two is zero.

    Raises
    ------
    ValueError
        If the shapes differ.

    Notes
    -----
    Source: Kahan 2006, How futile are mindless assessments of roundoff, section 12.

    Examples
    --------
    >>> x, y = torch.tensor([[1.0, 0], [1, 0], [1, 0]]), torch.tensor([[0.0, 2], [1, 1e-9], [-3, 0]])
    >>> angles(x, y)  # pi/2, 1e-9, pi
    tensor([1.5708e+00, 1.0000e-09, 3.1416e+00], dtype=torch.float64)
    """
    if x.shape != y.shape:
        raise ValueError(f"angles need tokens of one shape, got {tuple(x.shape)} and {tuple(y.shape)}")
    x, y = x.detach().double(), y.detach().double()
    u, v = x / x.norm(dim=-1, keepdim=True), y / y.norm(dim=-1, keepdim=True)
    return 2 * torch.atan2((u - v).norm(dim=-1), (u + v).norm(dim=-1))
