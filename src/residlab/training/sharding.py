"""Parameters divided among processes (FSDP2): each block a unit that is gathered while it computes, the rest another.

Each process holds ``1/world`` of the weights, gradients and optimizer state, cut along the first axis; a unit is whole
only during its forward and its backward. At the start every process holds the whole model once, in the memory of its
CPU, and at a checkpoint the first one does, so that a checkpoint is the same file whoever wrote it.
"""

from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

from residlab.models.transformer import Transformer

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Strategy = Literal["ddp", "fsdp"]


def is_sharded(value: object) -> bool:
    """Return whether a tensor is divided among processes."""
    return hasattr(value, "full_tensor")  # what torch's DTensor adds; to import it takes a second


def gathered(value: Tensor) -> Tensor:
    """Return a tensor as a whole, on its device; all processes must call it if it is divided."""
    return cast(Any, value).full_tensor() if is_sharded(value) else value


def shard(model: Transformer, mesh: "DeviceMesh") -> Transformer:
    """Divide a model's parameters among the processes of a mesh, in place, and return it.

    Buffers stay whole on every process. Constants of BHyT that are kept between forwards are measured on gathered
    weights (`Transformer.refresh`, which all processes must call).
    """
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    for block in model.layers:
        fully_shard(block, mesh=mesh)
        if block.approximation is not None and block.variance_constant is not None:
            register_fsdp_forward_method(block, "measured_constant")
    fully_shard(model, mesh=mesh)
    return model


def reshard(model: nn.Module) -> None:
    """Give up what a forward without a backward left whole: the parameters outside the blocks."""
    if hasattr(model, "reshard"):
        cast(Any, model).reshard()


def whole(value: Any, *, keep: bool) -> Any:
    """Return nested values with all divided tensors gathered, on the CPU; where ``keep`` is false, None for them.

    All processes must call it, with values that are alike. What is not divided is returned as it is.
    """
    if is_sharded(value):
        full = gathered(value.detach())
        return full.cpu() if keep else None
    if isinstance(value, dict):
        return {key: whole(item, keep=keep) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(whole(item, keep=keep) for item in value)
    return value


def divided_like(value: Tensor, parameter: Tensor) -> Tensor:
    """Return this process's part of a whole tensor, cut as a parameter is, if it has the parameter's shape.

    Anything else, such as a count of steps, is returned as it is.
    """
    if not is_sharded(parameter) or value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    # Every process has read the whole tensor: nothing needs to be sent.
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def whole_model(model: Transformer, *, keep: bool) -> Transformer | None:
    """Return the model itself if it is not divided; else a whole copy on its device, or None if not ``keep``.

    All processes must call it. Draws no random number.
    """
    if not any(map(is_sharded, model.parameters())):
        return model
    weights = whole(model.state_dict(), keep=keep)
    if not keep:
        return None
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        copy = Transformer(model.config)
    copy.load_state_dict(weights, assign=True)
    return copy.to(next(model.parameters()).device).train(model.training)
