"""What a run may look at while it trains: named probes of `residlab.probes` on our models, as plain JSON values.

stream      each normalisation's input: RMS, variance, largest entry, crest factor, excess kurtosis (pooled, per
            channel, per token), over all tokens, the first of each sequence, and the rest
weights     each matrix: `residlab.probes.weights.matrix_shape`
attention   each layer: entropy of the rows, mass on the first token, similarity of the tokens that come in
bounds      each BHyT site: lam, lam/kappa, largest gain
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from residlab.errors import ResidlabError
from residlab.models.norms import BHyT, BHyTStar
from residlab.models.transformer import Transformer
from residlab.probes.activations import modules_matching, observe_inputs
from residlab.probes.attention import mass_on_key, row_entropy, token_similarity
from residlab.probes.kurtosis import crest_factor, excess_kurtosis
from residlab.probes.stream import TOKEN_CLASSES, StreamProbe
from residlab.probes.weights import matrices, matrix_shape

Probe = Callable[[nn.Module, Tensor], dict[str, Any]]
SITES = r"blocks\.\d+\.(attention|feedforward)_norm|final_norm"
SEQUENCES = 4
"""How many sequences of a batch the probes of activations look at."""


def stream(model: nn.Module, ids: Tensor) -> dict[str, Any]:
    """Return statistics of the residual stream in front of every normalisation, by site and class of tokens."""
    probe, shapes = StreamProbe(), dict[str, dict[str, dict[str, float]]]()

    def see(site: str, x: Tensor) -> None:
        probe(site, x)
        for name, positions in TOKEN_CLASSES.items():
            seen = x[..., positions, :]
            if seen.numel():
                shapes.setdefault(site, {})[name] = {
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
        }
        for name, module in model.named_modules()
        if isinstance(module, BHyTStar | BHyT)
    }


PROBES: dict[str, Probe] = {"stream": stream, "weights": weights, "attention": attention, "bounds": bounds}


def probes_named(names: Sequence[str]) -> dict[str, Probe]:
    """Return probes by their names.

    Raises
    ------
    ResidlabError
        If there is none of that name.
    """
    unknown = sorted(set(names) - set(PROBES))
    if unknown:
        raise ResidlabError(f"probes must be among {', '.join(PROBES)}; got {', '.join(unknown)}")
    return {name: PROBES[name] for name in names}
