"""Each explorable of the book by keyboard, mouse and touch; what is plotted is what theory, or the record, gives.

A new explorable is one more `Case`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from residlab.experiments import rounding_results, together_results
from residlab.experiments.bhyt_depth import MAIN
from residlab.experiments.growth_results import growth_runs
from residlab.experiments.norm_results import profiles
from residlab.experiments.recorded import found
from residlab.experiments.residual_free_results import recipe_runs, recorded_similarity
from residlab.explore import (
    block_variance,
    conditioning,
    cost,
    feedforward,
    finetuning,
    isometry,
    kurtosis,
    lipschitz,
    one_stream,
    precision_budget,
    propagation,
    quantization,
    roles,
    softmax,
    summation,
    variance,
)
from residlab.explore.architect import MeasuredNetworks, architect_explorable
from residlab.explore.error_growth import RecordedGrowth, error_growth_explorable
from residlab.explore.panels import KAPPAS, LAMBDAS
from residlab.explore.profiles import RecordedProfiles, profiles_explorable
from residlab.explore.theme import NORM_TITLES
from residlab.theory.chebyshev import chebyshev_tail, vysochanskij_petunin_tail
from residlab.theory.laws import LAWS
from residlab.theory.recursion import second_moments, variance_trajectory

pytestmark = pytest.mark.browser


@dataclass(frozen=True)
class Case:
    """One explorable of the book.

    Parameters
    ----------
    page, name : str
        The page that holds it, its name there.
    start : dict
        The state that a reader meets first.
    sliders : dict
        The values of each slider.
    keys : dict
        For some controls, the keys to press there, in this order.
    then : dict
        The state after those.
    check : callable
        Compares what is shown with what should be.
    """

    page: str
    name: str
    start: dict
    sliders: dict
    keys: dict
    then: dict
    check: Callable


def check_stream(shown):
    layer, own = int(shown.state["layer"]), shown.readouts
    assert np.nansum(shown.series["entries of the token"][1]) == 576
    for name, readout in (("its root mean square", "rms"), ("its largest entry", "largest")):
        assert shown.series[name][1][layer] == own[readout]
    x, y = shown.series["at the chosen layer"]
    assert (x.tolist(), y.tolist()) == ([layer, layer], [own["rms"], own["largest"]])
    assert own["crest"] == pytest.approx(own["largest"] / own["rms"])
    if shown.state["token"] == "t0" and 12 <= layer <= 27:
        assert own["channel"] == 507
        assert own["largest"] > 20_000
    elif layer in (0, 11):
        assert own["largest"] < 500
        assert own["rms"] < (1 if layer == 0 else 50)


def check_chebyshev(shown):
    lam, kappa, law = shown.state["lam"], shown.state["kappa"], LAWS[shown.state["law"]]
    wanted = {
        "chosen law": law.tail,
        "Chebyshev, 1/κ²": chebyshev_tail,
        "unimodal bound (V.–P.)": vysochanskij_petunin_tail,
    }
    for name, tail in wanted.items():
        x, y = shown.series[name]
        np.testing.assert_allclose(y, tail(x), rtol=1e-9)
    x, y = shown.series["at the chosen κ"]
    np.testing.assert_allclose(x, kappa)
    np.testing.assert_allclose(y, [chebyshev_tail(kappa), law.tail(kappa)], rtol=1e-9)
    inside, outside = (np.nansum(shown.series[name][1]) for name in ("inside ±λ", "at or beyond ±λ"))
    assert inside + outside == pytest.approx(1, abs=1e-9)
    if lam < 6.5:
        assert outside == pytest.approx(float(law.tail(kappa)), rel=1e-9)


def check_variance(shown):
    state = shown.state
    for name, norm in (("Pre-LN", "pre-ln"), ("LNS", "lns"), ("BHyT", "bhyt")):
        ratio = state["lam"] / state["kappa"] if norm == "bhyt" else None
        moments = second_moments(norm, int(state["depth"]), ratio=ratio)
        wanted = variance_trajectory(moments, correlation=state["rho"])
        np.testing.assert_allclose(shown.series[name][1], wanted, rtol=1e-9)
    x, y = shown.series["where you are"]
    assert (x.tolist(), y.tolist()) == ([state["depth"]], [pytest.approx(state["lam"] / state["kappa"])])


def check_block_variance(shown):
    series = block_variance.block_variance_explorable().compute(**shown.state).series
    names = {
        "the paper’s constant, T": "paper",
        "causal form, t": "causal",
        "the truth": "true",
        "constant": "error-paper",
        "causal form": "error-causal",
    }
    for name, meta in names.items():
        for got, wanted in zip(shown.series[name], series[meta], strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)


RECORDED = RecordedProfiles(**profiles(found("bhyt-depth"), MAIN))


def check_profiles(shown):
    frame = profiles_explorable(RECORDED).compute(**shown.state)
    assert shown.readouts == pytest.approx(dict(frame.readouts), rel=1e-9)
    for norm in MAIN:
        for name, meta in ((NORM_TITLES[norm], "stream"), (f"{NORM_TITLES[norm]}, Jacobian", "block")):
            for got, wanted in zip(shown.series[name], frame.series[f"{norm} {meta}"], strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-6)


GROWTH = RecordedGrowth(**growth_runs(found("rounding")))
TOGETHER = together_results.all_models(found("together"), "cpu")
NETWORKS = MeasuredNetworks(**together_results.measured_networks(TOGETHER))


def check_error_growth(shown):
    idle = {"kind": "layernorm-scaled", "depth": GROWTH.depths[0], "whole": "layernorm", "format": "fp16"}
    state = {**idle, **shown.state}
    frame = error_growth_explorable(GROWTH).compute(**state)
    assert shown.readouts == pytest.approx(dict(frame.readouts), rel=1e-6)
    names = {"relative error": "relative", "predicted": "predicted", "absolute error": "error"}
    for name, meta in names.items():
        np.testing.assert_allclose(shown.series[name][1], frame.series[meta][1], rtol=1e-6)


def check_precision_budget(shown):
    frame = precision_budget.precision_budget_explorable().compute(**shown.state)
    assert shown.readouts == pytest.approx(dict(frame.readouts), rel=1e-9, abs=1e-12)
    for name, meta in (
        ("relative error", "chosen"),
        ("the other network", "other"),
        ("bits bought, at most", "bought"),
    ):
        np.testing.assert_allclose(shown.series[name][1], frame.series[meta][1], rtol=1e-9)


def check_architect(shown):
    frame = architect_explorable(NETWORKS).compute(**shown.state)
    assert shown.readouts == pytest.approx(dict(frame.readouts), rel=1e-9, abs=1e-12)
    for name, meta in (("at full precision", "full"), ("with residual connections", "residual"), ("without", "free")):
        np.testing.assert_allclose(shown.series[name][0], frame.series[meta][0], rtol=1e-9)


def check_one_stream(shown):
    frame = one_stream.one_stream_explorable().compute(**{"ratio": 0.25, **shown.state})
    assert shown.readouts == pytest.approx(dict(frame.readouts), rel=1e-9, abs=1e-12)
    names = {"lowest at the start": "shade-0", "the entry that is struck": "struck", "root mean square, ±r": "size"}
    for name, meta in names.items():
        np.testing.assert_allclose(shown.series[name][1], frame.series[meta][1], rtol=1e-9, atol=1e-12)


def check_cost(shown):
    frame = cost.cost_explorable().compute(**shown.state)
    assert shown.readouts == pytest.approx(dict(frame.readouts), rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(shown.series["no norm at all"][1], frame.series["nothing"][1], rtol=1e-9)


def check_finetuning(shown):
    series = finetuning.finetuning_explorable().compute(**shown.state).series
    names = {
        "gradient descent": "path",
        "the best exchange": "best",
        "η, t": "here",
        "η/2, 2t": "halved",
        "remains of the new text": "remaining",
        "forgotten of the old text": "forgotten",
    }
    for name, meta in names.items():
        for got, wanted in zip(shown.series[name], series[meta], strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)


def check_quantization(shown):
    frame = quantization.quantization_explorable().compute(**shown.state)
    assert shown.readouts == pytest.approx(dict(frame.readouts), rel=1e-8, abs=1e-9)
    for name in ("law", "floor", "sample"):
        for title, panel in ((name, "bits"), (f"{name}, by peak", "peak")):
            np.testing.assert_allclose(shown.series[title][1], frame.series[f"{name}-{panel}"][1], rtol=1e-8)


def check_isometry(shown):
    frame = isometry.isometry_explorable().compute(**shown.state)
    assert shown.readouts == pytest.approx(dict(frame.readouts), rel=1e-8, abs=1e-12, nan_ok=True)
    for name, meta in (("one isometry", "spread coherent"), ("independent isometries, defect", "defect isotropic")):
        np.testing.assert_allclose(shown.series[name][1], frame.series[meta][1], rtol=1e-8)


SIMILARITY = propagation.RecordedSimilarity(**recorded_similarity(recipe_runs(found("residual-free"), "cpu")))


def check_propagation(shown):
    frame = propagation.propagation_explorable(SIMILARITY).compute(**shown.state)
    assert shown.readouts == pytest.approx(dict(frame.readouts), rel=1e-7, abs=1e-9, nan_ok=True)
    drawn = {"cosine of two tokens": "similarity", "participation": "participation"}
    drawn |= {"recorded, before training": "before", "recorded, after 200 steps": "after"}
    for name, meta in drawn.items():
        np.testing.assert_allclose(shown.series[name][1], frame.series[meta][1], rtol=1e-7, atol=1e-9)


def check_lipschitz(shown):
    frame = lipschitz.lipschitz_explorable().compute(**shown.state)
    assert shown.readouts == pytest.approx(dict(frame.readouts), rel=1e-6, abs=1e-12)
    for name, meta in (("norm", "norm-length"), ("local bound, by tokens", "local-tokens")):
        np.testing.assert_allclose(shown.series[name][1], frame.series[meta][1], rtol=1e-6)


def check_kurtosis(shown):
    frame = kurtosis.kurtosis_explorable().compute(**shown.state)
    assert shown.readouts == pytest.approx(dict(frame.readouts), rel=1e-8, nan_ok=True)
    names = {"linear chain, exact": "chain", "closure": "closure", "eight channels, simulated": "sample"}
    for name, meta in names.items():
        np.testing.assert_allclose(shown.series[name][1], frame.series[meta][1], rtol=1e-8)


def check_summation(shown):
    state, own = shown.state, shown.readouts
    u = 2.0 ** -summation.BITS[state["format"]]
    x, bound = shown.series["worst case"]
    wanted = [summation.worst_case(state["order"], int(n), u) / u for n in x]
    np.testing.assert_allclose(bound, wanted, rtol=1e-9)
    np.testing.assert_allclose(
        shown.series["u √m"][1], [summation.root_law(state["order"], int(n), u) / u for n in x], rtol=1e-9
    )
    largest = shown.series["measured, largest"][1]
    assert state["order"] == "stochastic" or np.all(largest <= bound)
    assert np.all(shown.series["measured, root mean square"][1] <= largest * (1 + 1e-6))
    here = x.tolist().index(own["count"])
    assert own["count"] == min(state["n"], x[-1])
    assert own["largest"] == pytest.approx(largest[here] * u, rel=1e-6)
    assert own["worst"] == pytest.approx(bound[here] * u, rel=1e-9)


ROLES = roles.RecordedRoles(**rounding_results.tables(rounding_results.role_runs(found("rounding"))))


def check_roles(shown):
    frame = roles.roles_explorable(ROLES).compute(**shown.state)
    assert shown.readouts == pytest.approx(dict(frame.readouts), rel=1e-6, nan_ok=True)
    for key, title in roles.ROLES.items():
        np.testing.assert_allclose(shown.series[title][1], frame.series[key][1], rtol=1e-6)


def check_softmax(shown):
    frame = softmax.softmax_explorable().compute(**shown.state)
    assert shown.readouts == pytest.approx(dict(frame.readouts), rel=1e-9, abs=1e-15)
    names = {"measured": "measured", "bound, this order": "bounded", "u · effective terms": "soft"}
    for name, meta in names.items():
        np.testing.assert_allclose(shown.series[name][1], frame.series[meta][1], rtol=1e-9, atol=1e-15)


def check_conditioning(shown):
    frame = conditioning.conditioning_explorable().compute(**shown.state)
    assert shown.readouts == pytest.approx(dict(frame.readouts), rel=1e-6, abs=1e-9, nan_ok=True)
    names = {"LayerNorm, worst entry": "worst", "LayerNorm, median entry": "median", "RMSNorm, error": "error-rms"}
    for name, meta in names.items():
        np.testing.assert_allclose(shown.series[name][1], frame.series[meta][1], rtol=1e-6)


def check_feedforward(shown):
    frame = feedforward.feedforward_explorable().compute(**shown.state)
    assert shown.readouts == pytest.approx(dict(frame.readouts), rel=1e-6, nan_ok=True)
    for name, meta in {
        "relative condition": "relative",
        "error, measured": "measured",
        "error, bound": "bound",
    }.items():
        np.testing.assert_allclose(shown.series[name][1], frame.series[meta][1], rtol=1e-6)


CASES = [
    Case(
        "book/intro.html",
        "one-stream",
        start={"change": "nothing", "blow": 9.0, "block": 6.0, "format": "exact"},
        sliders={"blow": one_stream.BLOWS, "block": one_stream.BLOCKS},
        keys={"change": ("ArrowDown", "ArrowDown", "ArrowUp"), "ratio": ("ArrowRight",), "format": ("ArrowDown",)},
        then={"change": "bounded", "ratio": 0.3, "blow": 9.0, "block": 6.0, "format": "bf16"},
        check=check_one_stream,
    ),
    Case(
        "notebooks/01-stream.html",
        "stream",
        start={"layer": 12, "token": "t0"},
        sliders={"layer": tuple(range(31))},
        keys={"layer": ("End", "ArrowLeft"), "token": ("ArrowDown",)},
        then={"layer": 29, "token": "t1"},
        check=check_stream,
    ),
    Case(
        "notebooks/02-chebyshev.html",
        "chebyshev",
        start={"lam": 2.0, "kappa": 10.0, "law": "gaussian"},
        sliders={"lam": LAMBDAS, "kappa": KAPPAS},
        keys={"lam": ("ArrowRight",), "kappa": ("Home", "ArrowRight", "ArrowRight"), "law": ("ArrowDown",)},
        then={"lam": 2.25, "kappa": 1.5, "law": "laplace"},
        check=check_chebyshev,
    ),
    Case(
        "notebooks/03-block-variance.html",
        "block-variance",
        start={"ratio": 0.2, "tokens": 1024.0, "position": 16.0, "shared": 0.0, "focus": 1.0, "gain": 100.0},
        sliders={
            "ratio": block_variance.RATIOS,
            "tokens": block_variance.TOKENS,
            "position": block_variance.POSITIONS,
            "shared": block_variance.SHARED,
            "focus": block_variance.FOCUS,
            "gain": block_variance.GAINS,
        },
        keys={"ratio": ("ArrowRight",), "tokens": ("Home",), "position": ("End",), "shared": ("ArrowRight",)},
        then={"ratio": 0.22, "tokens": 16.0, "position": 4096.0, "shared": 0.01},
        check=check_block_variance,
    ),
    Case(
        "notebooks/04-theorem.html",
        "variance",
        start={"lam": 3.0, "kappa": 10.0, "depth": 28.0, "rho": 0.0},
        sliders={"lam": LAMBDAS, "kappa": KAPPAS, "depth": variance.DEPTHS, "rho": variance.RHOS},
        keys={"lam": ("ArrowRight",), "kappa": ("ArrowLeft",), "depth": ("End",), "rho": ("End",)},
        then={"lam": 3.25, "kappa": 9.75, "depth": 128.0, "rho": 1.0},
        check=check_variance,
    ),
    Case(
        "notebooks/05-training.html",
        "profiles",
        start={"norm": "bhyt", "depth": 12.0, "step": RECORDED.steps[-1], "quantity": "mean-abs"},
        sliders={"depth": RECORDED.depths, "step": RECORDED.steps},
        keys={"norm": ("ArrowUp",), "depth": ("Home",), "step": ("Home", "ArrowRight"), "quantity": ("ArrowDown",)},
        then={"norm": "peri-ln", "depth": RECORDED.depths[0], "step": RECORDED.steps[1], "quantity": "variance"},
        check=check_profiles,
    ),
    Case(
        "notebooks/06-cost.html",
        "cost",
        start={"width": 2048.0, "tokens": 4096.0, "balance": 128.0, "kernels": "fused"},
        sliders={"width": cost.WIDTHS, "tokens": cost.TOKENS, "balance": cost.BALANCES},
        keys={"width": ("End",), "tokens": ("Home",), "balance": ("ArrowRight",), "kernels": ("ArrowDown",)},
        then={"width": 8192.0, "tokens": 1.0, "balance": 256.0, "kernels": "eager"},
        check=check_cost,
    ),
    Case(
        "notebooks/07-forgetting.html",
        "finetuning",
        start={"rate": 0.2, "steps": 32.0, "overlap": 0.5, "decay": 1.0},
        sliders={
            "rate": finetuning.RATES,
            "steps": finetuning.STEPS,
            "overlap": finetuning.OVERLAPS,
            "decay": finetuning.DECAYS,
        },
        keys={"rate": ("ArrowRight",), "steps": ("End",), "overlap": ("Home",), "decay": ("ArrowLeft",)},
        then={"rate": 0.5, "steps": 1024.0, "overlap": 0.0, "decay": 0.75},
        check=check_finetuning,
    ),
    Case(
        "notebooks/11-quantization.html",
        "quantization",
        start={"bits": 8.0, "peak": quantization.PEAKS[6], "law": "gaussian"},
        sliders={"bits": quantization.BITS, "peak": quantization.PEAKS},
        keys={"bits": ("ArrowLeft",), "peak": ("End",), "law": ("ArrowDown",)},
        then={"bits": 7.0, "peak": 1000.0, "law": "laplace"},
        check=check_quantization,
    ),
    Case(
        "notebooks/09-isometry.html",
        "isometry",
        start={"step": 0.01, "steps": 50.0, "width": 128.0},
        sliders={"step": isometry.RATES, "steps": isometry.STEPS, "width": isometry.WIDTHS},
        keys={"step": ("ArrowRight",), "steps": ("Home",), "width": ("End",)},
        then={"step": isometry.RATES[isometry.RATES.index(0.01) + 1], "steps": 1.0, "width": 4096.0},
        check=check_isometry,
    ),
    Case(
        "notebooks/10-residual-free.html",
        "propagation",
        start={
            "start": "apart",
            "feedforward": "gelu",
            "scale": 1.0,
            "beta": 1.03,
            "depth": 12.0,
            "initial": 0.05,
        },
        sliders={
            "scale": propagation.SCALES,
            "beta": propagation.BETAS,
            "depth": propagation.DEPTHS,
            "initial": propagation.INITIALS,
        },
        keys={"start": ("ArrowDown",), "scale": ("ArrowRight",), "beta": ("ArrowLeft",), "initial": ("Home",)},
        then={
            "start": "shared",
            "feedforward": "gelu",
            "scale": 1.25,
            "beta": 1.02,
            "depth": 12.0,
            "initial": 0.0,
        },
        check=check_propagation,
    ),
    Case(
        "notebooks/13-norms.html",
        "conditioning",
        start={"outlier": 1000.0, "background": 1.0, "mean": 0.0, "width": 64.0, "format": "bf16"},
        sliders={
            "outlier": conditioning.OUTLIERS,
            "background": conditioning.BACKGROUNDS,
            "mean": conditioning.MEANS,
            "width": conditioning.WIDTHS,
        },
        keys={
            "outlier": ("End",),
            "background": ("Home",),
            "mean": ("ArrowRight",),
            "width": ("ArrowRight",),
            "format": ("ArrowDown",),
        },
        then={"outlier": 1e6, "background": 0.01, "mean": 0.1, "width": 256.0, "format": "fp16"},
        check=check_conditioning,
    ),
    Case(
        "notebooks/14-feedforward.html",
        "feedforward",
        start={"x": -5.0, "form": "erf", "format": "fp32"},
        sliders={"x": feedforward.ARGUMENTS},
        keys={"x": ("ArrowRight",), "form": ("ArrowDown",), "format": ("ArrowUp",)},
        then={"x": -4.875, "form": "erfc", "format": "fp16"},
        check=check_feedforward,
    ),
    Case(
        "notebooks/16-lipschitz.html",
        "lipschitz",
        start={"tokens": 256.0, "radius": 1.0, "form": 1.0, "outlier": 20.0, "attended": "every"},
        sliders={
            "tokens": lipschitz.TOKENS,
            "radius": lipschitz.RADII,
            "form": lipschitz.FORMS,
            "outlier": lipschitz.OUTLIERS,
        },
        keys={
            "tokens": ("ArrowRight",),
            "radius": ("ArrowLeft",),
            "form": ("ArrowRight",),
            "outlier": ("End",),
            "attended": ("ArrowDown",),
        },
        then={"tokens": 512.0, "radius": 0.75, "form": 1.5, "outlier": 100.0, "attended": "half"},
        check=check_lipschitz,
    ),
    Case(
        "notebooks/17-growth.html",
        "error-growth",
        start={"vary": "factor", "model": "layernorm", "factor": 1.0},
        sliders={"factor": GROWTH.factors},
        keys={"factor": ("End", "ArrowLeft"), "model": ("ArrowDown", "ArrowDown")},
        then={"factor": 10.0, "model": "smollm2"},
        check=check_error_growth,
    ),
    Case(
        "notebooks/18-together.html",
        "precision-budget",
        start={
            "network": "free",
            "feedforward": "swiglu",
            "format": "bf16",
            "depth": 12.0,
            "gain": 0.2,
            "embedding": 1.0,
            "crest": 4.5,
        },
        sliders={
            "depth": precision_budget.DEPTHS,
            "gain": precision_budget.GAINS,
            "embedding": precision_budget.EMBEDDINGS,
            "crest": precision_budget.CRESTS,
        },
        keys={"network": ("ArrowUp",), "depth": ("ArrowRight",), "gain": ("Home",), "crest": ("End",)},
        then={
            "network": "residual",
            "feedforward": "swiglu",
            "format": "bf16",
            "depth": 16.0,
            "gain": 0.05,
            "embedding": 1.0,
            "crest": 1000.0,
        },
        check=check_precision_budget,
    ),
    Case(
        "notebooks/18-together.html",
        "architect",
        start={"arithmetic": "w4a4", "network": next(iter(NETWORKS.titles)), "measure": "sqnr"},
        sliders={},
        keys={"arithmetic": ("ArrowDown",), "network": ("ArrowDown",), "measure": ("ArrowDown", "ArrowDown")},
        then={"arithmetic": "w4a4-hadamard", "network": list(NETWORKS.titles)[1], "measure": "kurtosis"},
        check=check_architect,
    ),
    Case(
        "notebooks/17-growth.html",
        "error-growth",
        start={"vary": "factor"},
        sliders={},
        keys={"vary": ("ArrowDown", "ArrowDown"), "whole": ("ArrowDown",), "format": ("ArrowUp", "ArrowUp")},
        then={"vary": "format", "whole": "rmsnorm", "format": "e4m3fn"},
        check=check_error_growth,
    ),
    Case(
        "notebooks/08-kurtosis.html",
        "kurtosis",
        start={"width": 64.0, "stream": 0.7, "depth": 24.0, "injected": 0.0},
        sliders={
            "width": kurtosis.WIDTHS,
            "stream": kurtosis.STREAMS,
            "depth": kurtosis.DEPTHS,
            "injected": kurtosis.INJECTED,
        },
        keys={"width": ("ArrowRight",), "stream": ("Home",), "depth": ("End",), "injected": ("ArrowRight",)},
        then={"width": 128.0, "stream": 0.0, "depth": 64.0, "injected": 0.01},
        check=check_kurtosis,
    ),
    Case(
        "notebooks/12-four-precisions.html",
        "summation",
        start={"n": 512.0, "order": "recursive", "format": "bf16", "terms": "down"},
        sliders={"n": tuple(map(float, summation.LENGTHS))},
        keys={
            "n": ("End",),
            "order": ("ArrowDown", "ArrowDown"),
            "format": ("ArrowDown", "ArrowDown"),
            "terms": ("ArrowDown", "ArrowDown"),
        },
        then={"n": 1536.0, "order": "pairwise", "format": "fp32", "terms": "squares"},
        check=check_summation,
    ),
    Case(
        "notebooks/12-four-precisions.html",
        "roles",
        start={"role": "all", "format": "bf16", "other": "bf16-products"},
        sliders={},
        keys={"role": ("ArrowUp", "ArrowUp"), "format": ("ArrowDown",), "other": ("ArrowDown",)},
        then={"role": "w", "format": "fp16", "other": "fp16-products"},
        check=check_roles,
    ),
    Case(
        "notebooks/15-softmax.html",
        "softmax",
        start={"keys": 512.0, "gap": 5.0, "format": "bf16", "order": "first"},
        sliders={"keys": softmax.KEYS, "gap": softmax.GAPS},
        keys={"keys": ("End",), "gap": ("ArrowRight",), "format": ("ArrowDown",), "order": ("ArrowDown",)},
        then={"keys": 4096.0, "gap": 6.0, "format": "fp16", "order": "last"},
        check=check_softmax,
    ),
]


def check_moved(case, shown, slider, share):
    values, value = case.sliders[slider], shown.state[slider]
    assert abs(values.index(value) / (len(values) - 1) - share) <= max(
        0.08, 0.51 / (len(values) - 1)
    )  # the nearest stop
    case.check(shown)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_by_keyboard_and_mouse(explorable, case):
    on_page = explorable(case.page, case.name)
    shown = on_page.shown()
    assert shown.state.items() >= case.start.items()
    case.check(shown)
    for control, keys in case.keys.items():
        for key in keys:
            on_page.press(control, key)
            case.check(on_page.shown())
    assert on_page.shown().state.items() >= case.then.items()
    for slider in case.sliders:
        for move, share in ((on_page.drag, 0.25), (on_page.drag, 0.6), (on_page.click, 0.4)):
            move(slider, share)
            check_moved(case, on_page.shown(), slider, share)
    on_page.seen.assert_clean()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_by_touch(explorable, case):
    on_page = explorable(case.page, case.name, phone=True)
    for slider in case.sliders:
        for share in (0.2, 0.7):
            on_page.tap(slider, share)
            check_moved(case, on_page.shown(), slider, share)
    on_page.seen.assert_clean()


def test_the_stream_by_layer(explorable):
    on_page = explorable("notebooks/01-stream.html", "stream")
    largest = {}
    for key, layer in (("", 12), ("ArrowLeft", 11), ("Home", 0), ("ArrowRight", 1)):
        on_page.press("layer", *filter(None, [key]))
        shown = on_page.shown()
        assert shown.state == {"layer": layer, "token": "t0"}
        check_stream(shown)
        largest[layer] = shown.readouts["largest"]
    assert largest[0] < largest[1] < largest[12]


def test_measured_activations_are_those_of_the_executed_chapter(explorable):
    on_page = explorable("notebooks/02-chebyshev.html", "chebyshev")
    page = on_page.page
    page.select_option("#explore-chebyshev-law", "measured")
    sites = page.locator("#explore-chebyshev-site option").all_inner_texts()
    assert sites[0] == "layer 1, before attention"
    assert len(sites) == 6
    page.select_option("#explore-chebyshev-site", label="layer 11, before attention")
    y = np.nan_to_num(on_page.shown().series["chosen law"][1])
    assert np.all(np.diff(y) <= 1e-12)
    assert np.all(y <= chebyshev_tail(np.array(KAPPAS)) + 1e-12)
    assert y[KAPPAS.index(10.0)] == pytest.approx(0.00297, rel=0.02)
