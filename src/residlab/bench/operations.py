"""How many operations and bytes a model needs, counted on paper, and what this machine can do."""

import time

import torch

from residlab.models.config import ModelConfig


def matrix_parameters(config: ModelConfig) -> int:
    """Return the entries of all matrices that multiply a token: those of the blocks, and the output layer."""
    attention = config.width * config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    feedforward = (3 if config.feedforward == "swiglu" else 2) * config.width * config.feedforward_width
    return config.depth * (attention + feedforward) + config.width * config.vocabulary


def forward_operations(config: ModelConfig, batch: int, tokens: int) -> int:
    """Return the floating-point operations of the matrix products of one forward.

    ``2 B T`` for each entry of `matrix_parameters`, and ``2 B T (T+1) heads head_dim`` a layer for causal scores and
    averages. Norms, softmax and activations, O(B T width) a layer, are left out.
    """
    scores = 2 * batch * tokens * (tokens + 1) * config.heads * config.head_dim
    return 2 * batch * tokens * matrix_parameters(config) + config.depth * scores


def training_operations(config: ModelConfig, batch: int, tokens: int) -> int:
    """Return the operations of forward and backward: three times the forward's, as each product has two gradients."""
    return 3 * forward_operations(config, batch, tokens)


def matrix_peak(seconds: float = 0.5, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> float:
    """Return the operations a second of matrix products here, the best of several square sizes."""
    best = 0.0
    sizes = (256, 512, 1024) if device == "cpu" else (2048, 4096, 8192)
    for size in sizes:
        a, b = (torch.rand(size, size, device=device).to(dtype) for _ in range(2))
        out = torch.empty(size, size, device=device, dtype=dtype)
        end = time.perf_counter() + seconds / len(sizes)
        while (begin := time.perf_counter()) < end:
            torch.mm(a, b, out=out)
            _finish(device)
            best = max(best, 2 * size**3 / (time.perf_counter() - begin))
    return best


def read_bandwidth(seconds: float = 0.3, megabytes: int = 256, *, device: str = "cpu") -> float:
    """Return the bytes a second at which this machine reads memory that its caches do not hold."""
    x = torch.ones(megabytes * 2**18, device=device)
    best, end = 0.0, time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        x.sum()
        _finish(device)
        best = max(best, x.nbytes / (time.perf_counter() - begin))
    return best


def _finish(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()
