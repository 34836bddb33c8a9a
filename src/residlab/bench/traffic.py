"""What the norms of a block really move when they run as separate operators: calls and bytes, one by one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from residlab.models.arithmetic import TORCH
from residlab.models.config import ModelConfig, norm_options
from residlab.models.transformer import Block, _Surroundings

_ALLOCATIONS = ("empty", "empty_like", "new_empty", "detach", "empty_strided", "new_empty_strided")


@dataclass
class Traffic:
    """What operators did.

    Attributes
    ----------
    calls
        Operators that computed something; views and allocations are none.
    bytes
        Sizes of all tensors that they were given, and of those that they made.
    """

    calls: int = 0
    bytes: int = 0


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the traffic of every operator that runs inside it; a tensor given twice to one is read twice.

    Kernels outside torch's dispatcher, such as the compiled norms, are not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.traffic = Traffic()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator, and add what it moved."""
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not func.is_view and name not in _ALLOCATIONS and name != "_unsafe_view":
            given, made = (tree_flatten(tensors)[0] for tensors in ((args, kwargs or {}), out))
            self.traffic.calls += 1
            # A tensor that a broadcast only repeats is as large in memory as what it repeats.
            self.traffic.bytes += sum(_size(each) for each in (*given, *made) if isinstance(each, Tensor))
        return out


def _size(tensor: Tensor) -> int:
    entries = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        entries *= length if stride else 1
    return entries * tensor.element_size()


class _Through(nn.Module):
    """A sublayer that does nothing, in the place of attention (which also returns its weights) or of feedforward."""

    def __init__(self, *, rows: bool) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, x: Tensor, *_: object) -> Any:
        return (x, None) if self.rows else x


def norms_alone(kind: str, width: int) -> Block:
    """Return a block of that norm, eager, in which attention and feedforward hand on what they are given.

    BHyT keeps its constant. Besides norms, the two additions to the stream are left.
    """
    options: dict[str, Any] = {"refresh": "frozen"} if kind == "bhyt" else {}
    block = Block(ModelConfig(depth=1, width=width, heads=1, vocabulary=2, norm=norm_options(kind, **options)), layer=2)
    block.attention, block.feedforward = _Through(rows=True), _Through(rows=False)  # type: ignore[assignment]
    for module in block.modules():
        if hasattr(module, "backend"):
            module.backend = "reference"  # type: ignore[assignment]
    return block


def block_traffic(kind: str, tokens: int, width: int, *, training: bool = False) -> Traffic:
    """Return the traffic of all norms of a block, run as separate float32 operators.

    Parameters
    ----------
    kind
        A key of `residlab.models.config.NORMS`.
    tokens, width
        Size of the stream.
    training
        Whether to run the backward too.
    """
    block = norms_alone(kind, width)
    x = torch.randn(1, tokens, width, requires_grad=training)
    around = _Surroundings(None, None, None, torch.ones(1, tokens, 1), return_rows=False, arithmetic=TORCH)
    with Counter() as counter, torch.set_grad_enabled(training):
        y, _ = block(x, around)
        if training:
            y.backward(torch.ones_like(y))
    additions = 4 if training else 2  # to the stream, and of the two gradients that meet at each
    seed = y.nbytes if training else 0  # ones_like, which starts the backward
    return Traffic(
        counter.traffic.calls - additions - training, counter.traffic.bytes - 3 * additions * y.nbytes - 2 * seed
    )


def passes(kind: str, *, training: bool = False) -> int:
    """Return how many tensors of the size of the stream the norms of a block move: what grows with tokens times width.

    Found from four sizes; gains, statistics and scalars drop out of the mixed difference.
    """
    low, high = 16, 48
    at = {(n, d): block_traffic(kind, n, d, training=training).bytes for n in (low, high) for d in (low, high)}
    mixed = at[high, high] - at[high, low] - at[low, high] + at[low, low]
    return mixed // (4 * (high - low) ** 2)
