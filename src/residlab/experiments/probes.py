"""What a run may look at while it trains: named probes of `residlab.probes` on our models, as plain JSON values.

stream         each normalisation's input: mean absolute value, RMS, variance, largest entry, crest factor, excess
               kurtosis (pooled, per channel, per token), over all tokens, the first of each sequence, and the rest
profile        the same sites: mean absolute value and largest entry only, over all tokens
weights        each matrix: `residlab.probes.weights.matrix_shape`
attention      each layer: entropy of the rows, mass on the first token, similarity of the tokens that come in
bounds         each BHyT site: lam, lam/kappa, largest and root mean square gain
saturation     each site with a tanh: share of its values beyond 0.9 and beyond 0.99
approximation  each block of BHyT, by position: the second statistic as measured and as approximated
jacobian       each block: the distance of its Jacobian to the identity, for all tokens, the first, and the rest
skipping       each block: by how much the loss rises, in nats, when the block is skipped; and the loss
gradients      each block: norms of the loss's gradient in the stream that comes in, and in the weights of its attention
               and of its feedforward
quantization   each scheme: loss and accuracy of the next token; each input of linear layers and each weight: crest
               factor and signal-to-noise ratio by bits

``jacobian`` and ``skipping`` cost many forwards, in proportion to the depth, ``quantization`` one for each scheme over
eight thousand tokens: look at them seldom. In a run ``quantization`` reads held-out text, the others the step's batch.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from residlab.errors import ResidlabError
from residlab.kernels import TokenStatistic
from residlab.models.norms import BHyT, BHyTStar, DyT
from residlab.models.transformer import Transformer, next_token_loss
from residlab.precision.quantization import Quantizer
from residlab.precision.quantized_models import Scheme, linear_layers, weight_of
from residlab.probes.activations import modules_matching, observe_inputs, observe_outputs
from residlab.probes.attention import mass_on_key, row_entropy, token_similarity
from residlab.probes.blocks import record_calls
from residlab.probes.jacobian import jacobian_deviation
from residlab.probes.kurtosis import crest_factor, excess_kurtosis
from residlab.probes.quantization import Noise, Score, input_noise, next_token_score, noise, scheme_scores
from residlab.probes.stream import TOKEN_CLASSES, StreamProbe
from residlab.probes.weights import matrices, matrix_shape
from residlab.training.batches import evaluation_windows
from residlab.training.tokens import TokenFile

Probe = Callable[[nn.Module, Tensor], dict[str, Any]]
SITES = r"blocks\.\d+\.(attention|feedforward)_norm|final_norm"
SEQUENCES = 4
"""How many sequences of a batch the probes of activations look at."""
JACOBIAN_SEQUENCES, JACOBIAN_PROBES = 2, 2
FULL = "full"
"""The name of the scheme that rounds nothing."""
PLAIN_SCHEMES = ("W8A8", "W8A6", "W8A4", "W6A6", "W4A8", "W4A4", "FP8")
CONTROL_SCHEMES = ("W8A4 row", "W8A4 clip=0.999", "W8A4 hadamard", "W4A4 hadamard")
SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {FULL: Scheme(), **{name: Scheme.named(name) for name in (*PLAIN_SCHEMES, *CONTROL_SCHEMES)}}
)
QUANTIZERS: Mapping[str, Quantizer] = MappingProxyType(
    {**{str(bits): Quantizer(bits) for bits in (3, 4, 5, 6, 8, 10)}, "FP8": Quantizer("e4m3fn")}
)
"""One peak for a tensor. What the probe ``quantization`` measures noise with, by bits."""
QUANTIZED_AT_ONCE = 8
"""Sequences of one forward, over which the probe ``quantization`` takes its peaks."""
HELD_OUT_TOKENS, SCHEME_TOKENS = 16_384, 4096
"""Tokens that ``quantization`` reads without rounding, and those, the first of them, that it reads with each scheme."""


def stream(model: nn.Module, ids: Tensor) -> dict[str, Any]:
    """Return statistics of the residual stream in front of every normalisation, by site and class of tokens."""
    probe, shapes = StreamProbe(), dict[str, dict[str, dict[str, float]]]()

    def see(site: str, x: Tensor) -> None:
        probe(site, x)
        for name, positions in TOKEN_CLASSES.items():
            seen = x[..., positions, :]
            if seen.numel():
                shapes.setdefault(site, {})[name] = {
                    "mean_abs": float(seen.double().abs().mean()),
                    "crest_factor": float(crest_factor(seen, "pooled")),
                    "kurtosis_by_channel": float(excess_kurtosis(seen, "channel").nanmean()),
                    "kurtosis_by_token": float(excess_kurtosis(seen, "token").nanmean()),
                }

    with observe_inputs(modules_matching(model, SITES), see):
        model(ids[:SEQUENCES])
    return {
        site: {
            name: {
                "rms": moments.rms,
                "variance": moments.variance,
                "largest": moments.largest,
                "kurtosis_pooled": moments.excess_kurtosis,
                **shapes[site][name],
            }
            for name, moments in classes.items()
            if moments.count
        }
        for site, classes in probe.moments.items()
    }


def profile(model: nn.Module, ids: Tensor) -> dict[str, Any]:
    """Return the stream's mean absolute value and largest entry in front of every normalisation, over all tokens."""
    found: dict[str, Any] = {}

    def see(site: str, x: Tensor) -> None:
        size = x.double().abs()
        found[site] = {"mean_abs": float(size.mean()), "largest": float(size.max())}

    with observe_inputs(modules_matching(model, SITES), see):
        model(ids[:SEQUENCES])
    return found


def weights(model: nn.Module, ids: Tensor) -> dict[str, Any]:
    """Return the shape of each matrix."""
    return {name: asdict(matrix_shape(weight)) for name, weight in matrices(model)}


def attention(model: nn.Module, ids: Tensor) -> dict[str, Any]:
    """Return, for each layer, the mean entropy of attention rows, the sink's mass and the tokens' similarity."""
    assert isinstance(model, Transformer)
    similarity: list[float] = []
    sites = modules_matching(model, r"blocks\.\d+\.attention_norm")
    with observe_inputs(sites, lambda _, x: similarity.append(float(token_similarity(x).mean()))):
        _, rows = model.forward_with_rows(ids[:SEQUENCES])
    return {
        str(layer): {
            "entropy": float(row_entropy(row).mean()),
            "mass_on_first": float(mass_on_key(row).mean()),
            "token_similarity": similarity[layer - 1],
        }
        for layer, row in enumerate(rows, start=1)
    }


def bounds(model: nn.Module, ids: Tensor) -> dict[str, Any]:
    """Return what Theorem 3.5's hypothesis is about: each site's lam, its ratio to kappa, and its largest gain."""
    return {
        name: {
            "lam": float(module.lam.detach()),
            "ratio": float(module.lam.detach()) / module.kappa,
            "largest_gain": float(module.gamma.detach().abs().max()),
            "rms_gain": float(module.gamma.detach().double().square().mean().sqrt()),
        }
        for name, module in model.named_modules()
        if isinstance(module, BHyTStar | BHyT)
    }


@contextmanager
def observe_tanh(model: nn.Module, observer: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Observe the values of each tanh of a model's norms, before gains; channels whose gain is 0 are left out."""
    sites = {name: m for name, m in model.named_modules() if isinstance(m, BHyTStar | BHyT | DyT)}

    def see(site: str, output: Any) -> None:
        module, y = sites[site], output[0] if isinstance(output, tuple) else output
        beta = getattr(module, "beta", None)
        observer(site, ((y if beta is None else y - beta) / module.gamma)[..., module.gamma != 0])

    with observe_outputs(sites, see):
        yield


def saturation(model: nn.Module, ids: Tensor) -> dict[str, Any]:
    """Return the share of each tanh's values beyond 0.9 and 0.99 (arguments beyond 1.472 and 2.647)."""
    found: dict[str, Any] = {}

    def see(site: str, tanh: Tensor) -> None:
        found[site] = {f"beyond_{bound}": float((tanh.abs() > bound).double().mean()) for bound in (0.9, 0.99)}

    with observe_tanh(model, see):
        model(ids[:SEQUENCES])
    return found


def approximation(model: nn.Module, ids: Tensor) -> dict[str, Any]:
    """Return, for each block of BHyT and each range of positions, the second site's statistic and its approximation.

    ``measured`` and ``approximated`` are means over tokens of the variance (mean-free or centred, as the norm is), and
    ``log_ratio`` the mean of the logarithm of approximated / measured. Positions count from 1 and go by octaves.
    """
    assert isinstance(model, Transformer)
    found: dict[str, Any] = {}

    def see(module: nn.Module, arguments: tuple[Tensor, TokenStatistic, Tensor]) -> None:
        z, statistic, increment = arguments
        assert isinstance(module, BHyT)
        z = z.double()
        measured = z.var(-1, correction=0) if module.centred else z.square().mean(-1)
        approximated = (statistic.spread.double() + increment).squeeze(-1).expand_as(measured)
        log_ratio = (approximated / measured).log()
        octaves = {}
        first = 0
        while first < z.shape[1]:
            here = slice(first, min(2 * first + 1, z.shape[1]))
            octaves[f"{here.start + 1}-{here.stop}"] = {
                "measured": float(measured[:, here].mean()),
                "approximated": float(approximated[:, here].mean()),
                "log_ratio": float(log_ratio[:, here].mean()),
            }
            first = here.stop
        found[str(len(found) + 1)] = octaves

    sites = [block.feedforward_norm for block in model.layers if isinstance(block.feedforward_norm, BHyT)]
    handles = [site.register_forward_pre_hook(see) for site in sites]
    try:
        model(ids[:SEQUENCES])
    finally:
        for handle in handles:
            handle.remove()
    return found


def jacobian(model: nn.Module, ids: Tensor) -> dict[str, Any]:
    """Return ``||J - I||_F / sqrt(T d)`` of each block's Jacobian, from a few random probes with a fixed seed."""
    assert isinstance(model, Transformer)
    with record_calls(modules_matching(model, r"blocks\.\d+")) as calls:
        model.forward_with_rows(ids[:JACOBIAN_SEQUENCES])  # the explicit path of attention, which has derivatives
    found = {}
    generator = torch.Generator().manual_seed(0)
    for layer, call in enumerate(calls.values(), start=1):
        deviation = jacobian_deviation(call, call.x, probes=JACOBIAN_PROBES, generator=generator)
        found[str(layer)] = {name: deviation.tokens(positions).value for name, positions in TOKEN_CLASSES.items()}
    return found


def skipping(model: nn.Module, ids: Tensor) -> dict[str, Any]:
    """Return the loss on a few sequences, and by how much it rises when a block hands on what it was given."""
    assert isinstance(model, Transformer)
    seen = ids[:SEQUENCES]
    loss = float(next_token_loss(model(seen), seen))
    rise = {}
    for layer, block in enumerate(model.layers, start=1):
        handle = block.register_forward_hook(lambda _, arguments, output: (arguments[0], *output[1:]))
        try:
            rise[str(layer)] = float(next_token_loss(model(seen), seen)) - loss
        finally:
            handle.remove()
    return {"loss": loss, "rise": rise}


def gradients(model: nn.Module, ids: Tensor) -> dict[str, Any]:
    """Return 2-norms of the gradient of the loss on a few sequences, by block; no ``grad`` is touched."""
    assert isinstance(model, Transformer)
    seen, streams = ids[:SEQUENCES], list[Tensor]()
    handles = [
        block.register_forward_pre_hook(lambda _, arguments: streams.append(arguments[0])) for block in model.layers
    ]
    parts = {
        f"{layer}.{name}": [p for p in getattr(block, name).parameters() if p.requires_grad]
        for layer, block in enumerate(model.layers, start=1)
        for name in ("attention", "feedforward")
    }
    try:
        with torch.enable_grad():
            loss = next_token_loss(model(seen), seen)
            wanted = [p for part in parts.values() for p in part] + streams
            found = iter(torch.autograd.grad(loss, wanted))
    finally:
        for handle in handles:
            handle.remove()

    def norm(count: int) -> float:
        return math.sqrt(sum(float(next(found).double().square().sum()) for _ in range(count)))

    inside = {name: norm(len(part)) for name, part in parts.items()}
    return {
        str(layer): {
            "stream": norm(1),
            "attention": inside[f"{layer}.attention"],
            "feedforward": inside[f"{layer}.feedforward"],
        }
        for layer in range(1, len(streams) + 1)
    }


def quantization(model: nn.Module, ids: Tensor) -> dict[str, Any]:
    """Return loss and accuracy, as they are and by scheme, and noise by input of linear layers and by weight.

    Peaks are taken over `QUANTIZED_AT_ONCE` sequences at a time; noise at inputs is that of the first of these. What is
    no number is None.
    """
    windows = torch.split(ids.to(next(model.parameters()).device), QUANTIZED_AT_ONCE)
    few = windows[: max(1, SCHEME_TOKENS // windows[0].numel())]
    classes = {name: TOKEN_CLASSES[name] for name in ("all", "rest")}
    inputs = input_noise(model, windows[0], QUANTIZERS, classes=classes)
    weights = {name: noise(weight_of(layer), QUANTIZERS) for name, layer in linear_layers(model).items()}
    full = next_token_score(model, windows)
    scores: Mapping[str, Score | None] = dict.fromkeys(SCHEMES)
    if math.isfinite(full.loss):  # a model that diverged has no score, and no quantizer takes what it computes
        scores = scheme_scores(model, few, SCHEMES)
    return {
        "tokens": full.tokens,
        "loss": _number(full.loss),
        "accuracy": _number(full.accuracy),
        "scheme_tokens": sum(window[:, 1:].numel() for window in few),
        "schemes": {
            name: {
                "loss": None if score is None else _number(score.loss),
                "accuracy": None if score is None else _number(score.accuracy),
            }
            for name, score in scores.items()
        },
        "inputs": {site: {name: _plain(each) for name, each in found.items()} for site, found in inputs.items()},
        "weights": {name: _plain(each) for name, each in weights.items()},
    }


def _plain(noise: Noise) -> dict[str, Any]:
    return {
        "crest_factor": _number(noise.crest_factor),
        "kurtosis": _number(noise.excess_kurtosis),
        "sqnr": {name: _number(value) for name, value in noise.sqnr.items()},
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


PROBES: dict[str, Probe] = {
    "stream": stream,
    "profile": profile,
    "weights": weights,
    "attention": attention,
    "bounds": bounds,
    "saturation": saturation,
    "approximation": approximation,
    "jacobian": jacobian,
    "skipping": skipping,
    "gradients": gradients,
    "quantization": quantization,
}
ON_HELD_OUT = ("quantization",)
"""Probes that read held-out text in a run."""


def held_out(tokens: TokenFile, context: int) -> Tensor:
    """Return the first sequences of a text, (B, context), about `HELD_OUT_TOKENS` tokens, fewer if it has fewer.

    Raises
    ------
    ResidlabError
        If the text is shorter than a window.
    """
    windows = next(evaluation_windows(tokens, context, batch=max(1, HELD_OUT_TOKENS // context)))
    return torch.from_numpy(windows.tokens[windows.mask.all(axis=1), :-1])


def probes_named(names: Sequence[str], text: Callable[[], Tensor] | None = None) -> dict[str, Probe]:
    """Return probes by their names.

    Parameters
    ----------
    names
        Of `PROBES`.
    text
        Makes the ids that those of `ON_HELD_OUT` look at instead of the ids they are given; by default they look at
        these too.

    Raises
    ------
    ResidlabError
        If there is none of that name.
    """
    unknown = sorted(set(names) - set(PROBES))
    if unknown:
        raise ResidlabError(f"probes must be among {', '.join(PROBES)}; got {', '.join(unknown)}")
    found = {name: PROBES[name] for name in names}
    if text is not None:
        found |= {name: _reading(found[name], text) for name in names if name in ON_HELD_OUT}
    return found


def _reading(probe: Probe, text: Callable[[], Tensor]) -> Probe:
    return lambda model, ids: probe(model, text().to(ids.device))
