"""Is a norm cheaper? Training, prefill and decoding of one model, with each norm and each kernel that there is for it.

``residlab bench cost --json results/norm-cost-cpu.json`` records it, `residlab.bench.cost_record` reads it. Widths
and batches are swept around a centre. Everything at one size is timed in interleaved rounds of random order, in one
process; after a few rounds all models are thrown away and made anew, in another order, so that an interval over these
*blocks* knows where memory happened to lie. The same rules for all: whatever kernels exist for a norm take part.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from residlab import kernels
from residlab.bench.norms import OPERATORS as NORM_OPERATORS
from residlab.bench.norms import Arguments, one_pass
from residlab.bench.operations import forward_operations, matrix_parameters, matrix_peak, read_bandwidth
from residlab.bench.timing import race
from residlab.bench.traffic import Counter
from residlab.errors import ResidlabError
from residlab.kernels import Backend, TokenStatistic, compiled
from residlab.models.attention import KVCache
from residlab.models.config import NORMS, ModelConfig, norm_options
from residlab.models.generation import generate
from residlab.models.norms import RMSNorm
from residlab.models.transformer import Transformer, next_token_loss
from residlab.theory.cost import BLOCK, SITE, Work

WORKLOADS = ("training", "prefill", "decode")
NATIVE = ("rmsnorm", "lns", "peri-ln")
"""Norms made of RMSNorm alone, which torch has too."""
REFRESHED = "bhyt, refreshed"
"""BHyT whose constant is measured at every forward of training; elsewhere it is kept between steps."""
FINAL = {"layernorm": SITE["layernorm"], "dyt": SITE["dyt"]}


@dataclass(frozen=True)
class Settings:
    """What is timed.

    Attributes
    ----------
    cells
        (width, batch) pairs.
    depth, head_dim, vocabulary
        Of the model; the feedforward is a SwiGLU of 8/3 width.
    tokens
        Of each sequence, in training and prefill.
    prompt, new_tokens
        Of decoding: a call of `generate`.
    device, dtype
        Where, and the weights' and activations' type.
    seconds
        A race lasts about that long, with its rounds between the two limits.
    rounds
        The least and most rounds of a race.
    inner
        Calls that make one sample.
    """

    cells: tuple[tuple[int, int], ...] = ((128, 4), (256, 1), (256, 4), (256, 16), (512, 4))
    depth: int = 4
    head_dim: int = 32
    vocabulary: int = 1024
    tokens: int = 64
    prompt: int = 8
    new_tokens: int = 16
    device: str = "cpu"
    dtype: str = "float32"
    seconds: float = 2.0
    rounds: tuple[int, int] = (2, 12)
    inner: int = 1

    def config(self, kind: str, width: int) -> ModelConfig:
        """Return the model of a contender."""
        options: dict[str, Any] = {"refresh": "frozen"} if kind == "bhyt" else {}
        return ModelConfig(
            depth=self.depth,
            width=width,
            heads=width // self.head_dim,
            vocabulary=self.vocabulary,
            context=max(self.tokens, self.prompt + self.new_tokens),
            norm=norm_options("bhyt" if kind == REFRESHED else kind, **options),
        )


CPU = Settings()
GPU = Settings(
    cells=((1024, 8), (2048, 1), (2048, 8), (2048, 32), (3072, 8)),
    depth=2,
    head_dim=64,
    vocabulary=8192,
    tokens=512,
    prompt=32,
    new_tokens=32,
    device="cuda",
    dtype="bfloat16",
    inner=2,
)


def settings_here() -> Settings:
    """Return the settings of the device that this machine has."""
    return GPU if torch.cuda.is_available() else CPU


class TorchRMSNorm(nn.Module):
    """`torch.nn.functional.rms_norm` in the place of an `RMSNorm`, its gain and constants."""

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.gamma, self.eps, self.scale = norm.gamma, norm.eps, norm.scale

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each token."""
        gamma = self.gamma if self.scale == 1 else self.gamma * self.scale
        return nn.functional.rms_norm(x, gamma.shape, gamma, self.eps)


def kernels_of(kind: str, device: str = "cpu") -> tuple[str, ...]:
    """Return the kernels that take part for a norm: ``eager``, ``fused`` and ``torch``, as far as there are."""
    if kind == "layernorm":  # the eager one is torch's own fused kernel
        return ("eager",)
    fused = ("fused",) if device != "cpu" or compiled.available() else ()
    return ("eager", *fused, *(("torch",) if kind in NATIVE else ()))


def made(settings: Settings, kind: str, kernel: str, width: int) -> Transformer:
    """Return a contender's model; its weights, which decide nothing here, are drawn where they lie, which is quick."""
    with torch.device("meta"):
        model = Transformer(settings.config(kind, width))
    model = model.to_empty(device=settings.device).to(getattr(torch, settings.dtype))
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.ndim > 1:
                tensor.normal_(std=0.02)
            else:
                tensor.fill_(1.0)
        for kept in model.buffers():
            kept.fill_(0.01)
    fused: Backend = "triton" if settings.device != "cpu" else "compiled"
    model.use_kernels(fused if kernel == "fused" else "reference")
    if kernel == "torch":
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, RMSNorm):
                    setattr(parent, name, TorchRMSNorm(child))
    return model


def measure(
    settings: Settings = CPU, *, blocks: int = 7, advance: Callable[[str], None] = lambda name: None
) -> dict[str, Any]:
    """Time everything, and return JSON values: settings, machine limits, samples in seconds, counts.

    Raises
    ------
    ResidlabError
        If ``blocks`` is below 2, of which no interval can be made.
    """
    if blocks < 2:
        raise ResidlabError(f"an interval needs at least 2 blocks, --repeats 2; got {blocks}")
    begin = time.perf_counter()
    peak, bandwidth = limits(settings)
    operators = list(operator_points(settings, advance=advance))
    points: dict[tuple[str, int, int], dict[str, Any]] = {
        (workload, width, batch): {
            "workload": workload,
            "width": width,
            "batch": batch,
            "tokens": _tokens(settings, workload, batch),
            "counts": model_counts(settings, workload, width, batch),
            "seconds": {},
        }
        for workload in WORKLOADS
        for width, batch in settings.cells
    }
    for block in range(blocks):
        for width in sorted({width for width, _ in settings.cells}):
            for batch in (batch for w, batch in settings.cells if w == width):
                for workload, contenders in _contenders(settings, width, batch, block):
                    found = _race(contenders, settings, seed=block, advance=advance)
                    for name, samples in found.items():
                        points[workload, width, batch]["seconds"].setdefault(name, []).append(samples)
    return {
        "settings": asdict(settings),
        "blocks": blocks,
        "peak": peak,
        "bandwidth": bandwidth,
        "operators": operators,
        "points": list(points.values()),
        "duration": round(time.perf_counter() - begin, 1),
    }


def limits(settings: Settings) -> tuple[float, float]:
    """Return the operations a second of matrix products here, and the bytes a second of memory."""
    dtype = getattr(torch, settings.dtype)
    return matrix_peak(1.5, device=settings.device, dtype=dtype), read_bandwidth(1.0, device=settings.device)


def _tokens(settings: Settings, workload: str, batch: int) -> int:
    return batch * (settings.new_tokens if workload == "decode" else settings.tokens)


def _contenders(
    settings: Settings, width: int, batch: int, block: int
) -> Iterator[tuple[str, dict[str, Callable[[], object]]]]:
    """Yield each workload with its contenders, on models made for this block, in an order of its own."""
    names = [(kind, kernel) for kind in (*NORMS, REFRESHED) for kernel in _kernels_here(kind, settings.device)]
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(block)).tolist()
    models = {names[i]: made(settings, names[i][0], names[i][1], width) for i in order}
    data = torch.randint(settings.vocabulary, (batch, settings.tokens), generator=torch.Generator().manual_seed(block))
    data = data.to(settings.device)
    for workload, contender in (("training", _training), ("prefill", _prefill), ("decode", _decode)):
        yield (
            workload,
            {
                f"{kind}/{kernel}": contender(model, data, settings)
                for (kind, kernel), model in models.items()
                if kind != REFRESHED or workload == "training"
            },
        )


def _kernels_here(kind: str, device: str) -> tuple[str, ...]:
    return kernels_of("bhyt" if kind == REFRESHED else kind, device)


def _training(model: Transformer, data: Tensor, settings: Settings) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        next_token_loss(model(data), data).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def _prefill(model: Transformer, data: Tensor, settings: Settings) -> Callable[[], object]:
    B, T = data.shape
    constants = model.variance_constants()

    @torch.no_grad()
    def prefill() -> object:
        cache = KVCache(model.config, B, T, dtype=model.embedding.weight.dtype, device=data.device)
        return model(data, cache=cache, constants=constants)

    return prefill


def _decode(model: Transformer, data: Tensor, settings: Settings) -> Callable[[], object]:
    prompts = data[:, : settings.prompt].tolist()
    return lambda: generate(model, prompts, settings.new_tokens)


def _race(
    contenders: dict[str, Callable[[], object]], settings: Settings, *, seed: int, advance: Callable[[str], None]
) -> dict[str, list[float]]:
    """Return the seconds of each call, sample by sample."""

    def sampled(contender: Callable[[], object]) -> Callable[[], object]:
        def sample() -> None:
            for _ in range(settings.inner):
                contender()
            if settings.device != "cpu":
                torch.cuda.synchronize()

        return sample

    samples = {name: sampled(contender) for name, contender in contenders.items()}
    first = race(samples, 1, shuffle=seed, advance=advance)
    least, most = settings.rounds
    rounds = min(max(least, round(settings.seconds / sum(timing.best for timing in first.values()))), most)
    rest = race(samples, rounds - 1, warmup=0, shuffle=seed + 1000, advance=advance)
    both = {name: (*first[name].samples, *rest[name].samples) for name in samples}
    # Four digits: a clock that is interrupted knows no more, and the file stays small.
    return {name: [float(f"{s / settings.inner:.4g}") for s in seconds] for name, seconds in both.items()}


# --- Counts


def model_counts(settings: Settings, workload: str, width: int, batch: int) -> dict[str, Any]:
    """Return what a call of a workload asks for: operations and bytes of its matrices, and of each kind of norms.

    Operations of ``decode`` are those of the new tokens, without the prompt. Bytes of matrices are their weights, read
    once a forward; training reads them three times. The passes of training are those of a fused backward: five in place
    of two for each application.
    """
    config = settings.config("rmsnorm", width)
    forwards = settings.new_tokens if workload == "decode" else 1
    tokens = _tokens(settings, workload, batch)
    size = torch.empty((), dtype=getattr(torch, settings.dtype)).element_size()
    if workload == "decode":
        seen = sum(settings.prompt + step + 1 for step in range(forwards))
        scores = 4 * batch * seen * config.depth * config.heads * config.head_dim
        operations = 2 * tokens * matrix_parameters(config) + scores
    else:
        operations = forward_operations(config, batch, settings.tokens) * (3 if workload == "training" else 1)
    norms = {}
    for kind, block in BLOCK.items():
        whole = whole_model(kind, block, settings.depth)
        passes = whole.fused // 2 * 5 if workload == "training" else whole.fused
        norms[kind] = {
            "operations": tokens * whole.operations(width),
            "tanhs": tokens * width * whole.tanhs,
            "fused_bytes": tokens * width * size * passes,
        }
    times = 3 if workload == "training" else 1
    return {
        "matrix_operations": operations,
        "matrix_bytes": times * forwards * size * matrix_parameters(config),
        "norms": norms,
    }


def whole_model(kind: str, block: Work, depth: int) -> Work:
    """Return the work of all norms of a model, the final one included."""
    return block * depth + FINAL.get(kind, SITE["rmsnorm"])


# --- Operators alone, for the roofline


def operator_points(
    settings: Settings, *, rows: int = 0, width: int = 0, repeats: int = 25, advance: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Yield operations, bytes and seconds of single norms, and of matrix products of three shapes, forward.

    By default a tensor is larger than what the caches hold for a core. The bytes of separate operators are counted
    while they run, those of fused kernels are two passes.
    """
    on_cpu = settings.device == "cpu"
    width, rows = width or (512 if on_cpu else 4096), rows or (8192 if on_cpu else 16384)
    dtype = getattr(torch, settings.dtype)
    arguments = Arguments.draw(rows, width, dtype, settings.device)
    passes = _norm_passes(arguments, settings)
    weight = torch.rand(4 * width, width, device=settings.device).to(dtype)
    products = {f"matrix, {n}": torch.rand(n, width, device=settings.device).to(dtype) for n in (1, 16, 1024)}
    for name, tokens in products.items():
        passes[name, "torch"] = lambda tokens=tokens: nn.functional.linear(tokens, weight)  # type: ignore[misc]

    def finished(run: Callable[[], object]) -> Callable[[], object]:
        def call() -> None:
            run()
            if not on_cpu:
                torch.cuda.synchronize()

        return call

    with torch.no_grad():
        timed = {f"{kind}/{kernel}": finished(run) for (kind, kernel), run in passes.items()}
        timings = race(timed, repeats, warmup=2, shuffle=0, advance=advance)
        for (kind, kernel), run in passes.items():
            if kind in products:
                n, size = len(products[kind]), weight.element_size()
                counts = {"operations": 2 * n * weight.numel(), "tanhs": 0}
                counts["bytes"] = size * (weight.numel() + n * (width + len(weight)))
            else:
                work = SITE[kind]
                counts = {"operations": rows * work.operations(width), "tanhs": rows * width * work.tanhs}
                with Counter() as counter:
                    run()
                fused = rows * width * arguments.x.element_size() * work.fused
                counts["bytes"] = fused if kernel == "fused" else counter.traffic.bytes
            seconds = float(f"{timings[f'{kind}/{kernel}'].median:.4g}")
            yield {"name": kind, "kernel": kernel, **counts, "seconds": seconds}


def _norm_passes(a: Arguments, settings: Settings) -> dict[tuple[str, str], Callable[[], object]]:
    fused: Backend = "compiled" if settings.device == "cpu" else "triton"
    x, gain = a.x.detach(), a.gamma.detach().to(a.x.dtype)
    passes: dict[tuple[str, str], Callable[[], object]] = {
        ("layernorm", "eager"): lambda: nn.functional.layer_norm(x, gain.shape, gain, gain, 1e-6),
        ("rmsnorm", "torch"): lambda: nn.functional.rms_norm(x, gain.shape, gain, 1e-6),
    }
    functions = {
        "rmsnorm": NORM_OPERATORS["rms_norm"].function,
        "dyt": lambda a, backend: (kernels.dyt(a.x, a.scalar, a.gamma, backend=backend),),
        "bhyt*": NORM_OPERATORS["bhyt_exact"].function,
        "bhyt, second site": _second_site,
    }
    for kind, function in functions.items():
        for kernel in kernels_of(kind.partition(",")[0], settings.device):
            if kernel != "torch":
                passes[kind, kernel] = one_pass(function, a, "forward", fused if kernel == "fused" else "reference")
    return passes


def _second_site(a: Arguments, backend: Backend) -> tuple[Tensor, ...]:
    statistic = TokenStatistic(a.spread, None)
    return kernels.bhyt_approximate(a.x, a.gamma, a.scalar, statistic, a.increment, backend=backend)
