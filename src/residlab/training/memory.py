"""The memory of a training step, counted on paper.

P parameters, M of them in the matrices (of m rows and c columns each) that the optimizer's kind takes; n tokens at
once, ``n = batch context / (accumulation processes)``; b bytes a number that matrices multiply: 4, or 2 under bfloat16:

    weights       4 P
    gradients     4 P
    optimizer     8 (P - M) by AdamW, and of the matrices
                      adamw           8 M                            two averages
                      signgd, muon    4 M                            one (signgd without momentum: none)
                      soap            24 M + 16 sum(m**2 + c**2)     a copy, two averages; factors, their eigenbases
                      shampoo         16 M + 16 sum(m**2 + c**2)     a copy, a buffer; factors, their roots
                      kl-shampoo      4 M + 8 sum(m**2 + c**2)       one; factors, their eigenbases
    activations   what each layer keeps for its backward, below
    logits        n vocabulary (b + 4): themselves and their gradient (their log-probabilities are kept, above)

A block of width d, ``q = heads head_dim``, ``k = kv_heads head_dim``, f inner features, keeps for each token

    norms         8 d bytes a site (LayerNorm 4 d; centred BHyT* 12 d): the stream, and what gamma multiplies
    attention     b d, its input (at bfloat16 once for each of W_Q, W_K, W_V), b (3 q + 2 k), queries, output (twice,
                  since heads are put together), keys, values, and 4 heads; where ``averaged = "rows"``, which takes the
                  explicit path, b 4 q and (4 heads context), its rows, at bfloat16 half as much again
    feedforward   b d, its input (at bfloat16 once for each matrix), and 4 b f (swiglu) or 2 b f (gelu)

and beside the blocks the final norm keeps a site and its output, the loss 4 vocabulary and a target of 8. bfloat16
keeps a copy of each matrix, 2 bytes a weight.

The most is in use where the backward begins, when all activations are there and, of the gradients, only the output
layer's (with accumulation, all of them); or, of a small batch, where it ends; or, of a smaller one, where a checkpoint
is written, each of whose two files is there twice, as the bytes of its tensors and as a whole (in main memory):

    peak = weights + optimizer + max(activations + logits + gradient of the output layer, gradients, checkpoint)

This holds for the formulas of `residlab.kernels.reference`, which a CPU runs; fused kernels and torch.compile keep
less. Not counted: what an operator or a second-order step uses in passing, evaluation and probes (without a backward,
they use less), blocks that FSDP has gathered, and the interpreter with its libraries.

The saved tensors themselves agree with the count to a byte. What a process has resident agrees to 2 or 3 % where the
allocator gives back what is freed (glibc with ``MALLOC_MMAP_THRESHOLD_=131072``): measured on Linux, with BHyT, blocks
of width 256 and 256 tokens, 439 MB against 430 counted (16 sequences, 4 blocks), and 115 against 111 at bfloat16 (4);
with width 512 and 2 sequences of 64, where the checkpoint decides, 359 against 357. As glibc comes, it keeps what is
freed in a heap that gets holes, because its threshold for giving back rises with what is freed, to 32 MB: then 640 MB
are resident in place of 439.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from residlab.errors import ResidlabError
from residlab.models.config import (
    BHyTOptions,
    BHyTStarOptions,
    DyTOptions,
    LayerNormOptions,
    LNSOptions,
    ModelConfig,
    PeriLNOptions,
)
from residlab.models.transformer import Transformer
from residlab.training.config import TrainConfig
from residlab.training.optimizers import Assignment, OptimizerConfig, assign
from residlab.training.sharding import Strategy


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """The bytes of a training step in one process; see the top of this module.

    Attributes
    ----------
    weights, gradients, optimizer, activations, logits
        By what they are for.
    early_gradients
        Those that are there when the backward begins, or nearly so: the output layer's; with accumulation, all.
    checkpoint
        What writing one takes: twice the larger of its two files.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.training.config import TrainConfig
    >>> memory = step_memory(TrainConfig(model=ModelConfig(depth=4, width=256, heads=4, vocabulary=257), steps=1))
    >>> memory.weights == memory.gradients, memory.peak > memory.weights + memory.optimizer
    (True, True)
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    early_gradients: int
    checkpoint: int

    @property
    def peak(self) -> int:
        """The most that is in use at once."""
        start = self.activations + self.logits + self.early_gradients
        return self.weights + self.optimizer + max(start, self.gradients, self.checkpoint)

    def __str__(self) -> str:
        names = ("weights", "gradients", "optimizer", "activations", "logits")
        parts = ", ".join(f"{name} {getattr(self, name) / 1e6:.3g}" for name in names)
        return f"about {self.peak / 1e6:.3g} MB of memory at its peak ({parts})"


def step_memory(config: TrainConfig, *, processes: int = 1, strategy: Strategy = "ddp") -> StepMemory:
    """Return the memory of a training step in one of several processes, without training.

    Parameters
    ----------
    config
        The run.
    processes
        How many share a batch.
    strategy
        ``fsdp`` divides weights, gradients and the optimizer's state among them.

    Raises
    ------
    ResidlabError
        If the optimizer does not take the model, or no memory could hold it.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.training.config import TrainConfig
    >>> config = TrainConfig(model=ModelConfig(depth=4, width=256, heads=4, vocabulary=257, context=256), steps=1)
    >>> round(step_memory(config).peak / 1e6)  # megabytes
    430
    >>> round(step_memory(replace(config, accumulation=4)).peak / 1e6)
    149
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            model = Transformer(config.model)
    except (RuntimeError, OverflowError, TypeError) as error:  # torch counts bytes with 64 bits
        raise ResidlabError(
            f"a model of width {config.model.width}, vocabulary {config.model.vocabulary} and context "
            f"{config.model.context} is too large for any memory"
        ) from error
    parts = processes if strategy == "fsdp" else 1
    assignments = assign(model, config.optimizer)
    numbers = sum(a.parameter.numel() for a in assignments)
    fixed = sum(tensor.nbytes for tensor in model.buffers())
    output = 4 * config.model.vocabulary * config.model.width
    batch = max(1, config.batch // (config.accumulation * processes))
    half = config.precision == "bfloat16"
    kept = optimizer_bytes(config.optimizer, assignments)
    return StepMemory(
        weights=4 * numbers // parts + fixed,
        gradients=4 * numbers // parts,
        optimizer=kept // parts,
        activations=activation_bytes(config.model, batch, bfloat16=half),
        logits=batch * config.model.context * config.model.vocabulary * (4 + (2 if half else 4)),
        early_gradients=(4 * numbers if config.accumulation > 1 else output) // parts,
        checkpoint=2 * max(4 * numbers + fixed, kept),
    )


def optimizer_bytes(config: OptimizerConfig, assignments: Sequence[Assignment]) -> int:
    """Return the bytes that an optimizer keeps between steps, its counts of steps left out.

    Examples
    --------
    >>> from residlab.training.optimizer_config import OptimizerConfig
    >>> from residlab.training.optimizers import assign
    >>> model = torch.nn.Linear(100, 100, bias=False)
    >>> for kind in ("adamw", "muon", "soap"):
    ...     config = OptimizerConfig(kind=kind)
    ...     print(kind, optimizer_bytes(config, assign(torch.nn.Sequential(model), config)) / 10_000)
    ...
    adamw 8.0
    muon 4.0
    soap 56.0
    """
    rest = sum(a.parameter.numel() for a in assignments if a.by == "adamw")
    shapes = [tuple(a.parameter.shape) for a in assignments if a.by != "adamw"]
    numbers = sum(rows * columns for rows, columns in shapes)
    squares = sum(rows**2 + columns**2 for rows, columns in shapes)
    each, square = {
        "adamw": (8, 0),
        "signgd": (4 if config.momentum else 0, 0),
        "muon": (4, 0),
        "soap": (24, 16),
        "shampoo": (16, 16),
        "kl-shampoo": (4, 8),
    }[config.kind]
    return 8 * rest + each * numbers + square * squares


def activation_bytes(config: ModelConfig, batch: int, *, bfloat16: bool = False) -> int:
    """Return the bytes that a forward of ``batch`` sequences of ``context`` tokens and its loss keep for the backward.

    Weights themselves and token ids are not in it.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> config = ModelConfig(depth=2, width=64, heads=4, vocabulary=257, context=128)
    >>> round(activation_bytes(config, batch=8) / activation_bytes(config, batch=4), 2)
    2.0
    """
    T, d, V = config.context, config.width, config.vocabulary
    q, k, f = config.heads * config.head_dim, config.kv_heads * config.head_dim, config.feedforward_width
    norm, b, swiglu = config.norm, 2 if bfloat16 else 4, config.feedforward == "swiglu"
    # Without a residual the stream is bfloat16 itself, and what a norm returns is not cast once for each matrix.
    inputs = 3 + (2 if swiglu else 1) if bfloat16 and config.residual else 2
    block = (
        b * inputs * d + b * f * (4 if swiglu else 2) + 4 * (_site(config, "attention") + _site(config, "feedforward"))
    )
    if isinstance(norm, PeriLNOptions):
        block += 4 * 2 * (2 * d + 1)
    fixed = 4  # the loss's count of targets
    if isinstance(norm, BHyTOptions) and norm.averaged == "rows":
        block += b * 4 * q + config.heads * T * (4 + 2 * bfloat16)
        fixed += config.depth * T * T  # masks
    else:
        # Rotated queries are laid out head by head, and so is the output: to put heads together copies it.
        block += b * ((3 if config.position == "rope" else 2) * q + 2 * k) + 4 * config.heads
    token = config.depth * block + 4 * _site(config, "final") + b * d + 4 * V + 8
    if bfloat16 and not config.residual:
        token += b * 2 * d  # but for the first, which reads the embeddings, and whose output three matrices cast
    if isinstance(norm, PeriLNOptions) and norm.embedding_norm:
        token += 4 * (2 * d + 1)
    if isinstance(norm, DyTOptions) and norm.embedding_scale:
        token += 4 * d
    fixed += T * (4 * config.head_dim if config.position == "rope" else 8)
    if isinstance(norm, LNSOptions):
        fixed += 4 * 2 * (config.depth - 1) * d  # gains, scaled
    if bfloat16:
        fixed += 2 * (config.depth * d * (2 * q + 2 * k + f * (3 if swiglu else 2)) + d * V)
    return batch * T * token + fixed


def _site(config: ModelConfig, site: str) -> int:
    """Return the float32 numbers that a norm keeps for each token: features, and a few of the token's."""
    d, norm = config.width, config.norm
    if isinstance(norm, LayerNormOptions):
        return d + 2
    if isinstance(norm, DyTOptions):
        return 2 * d
    if not isinstance(norm, BHyTStarOptions) or site == "final":
        return 2 * d + 1
    if site == "attention" or not isinstance(norm, BHyTOptions):
        return 3 * d + 4 if norm.centred else 2 * d + 3
    return 2 * d + (3 if config.residual else 2)
