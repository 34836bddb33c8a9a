"""What decides B6, B7 and B8, on records made up so that each verdict comes out."""

import math

import numpy as np
import pytest
import yaml

from residlab.compendium.ledger import Claim, verdict
from residlab.compendium.project import Project
from residlab.errors import ResidlabError
from residlab.experiments import quantization_results as qr
from residlab.experiments.plans import Found
from residlab.experiments.probes import QUANTIZERS, SCHEMES
from residlab.experiments.record import Record

ROWS = {
    row["id"]: Claim(**row)
    for row in yaml.safe_load((Project.find().root / "book" / "claims.yml").read_text())["claims"]
}


def run(
    kind="free",
    optimizer="muon",
    seed=0,
    *,
    bits=2.0,
    accuracy=0.5,
    loss=1.0,
    rise=0.1,
    sqnr=30.0,
    stage="main",
    **more,
):
    """A record whose schemes add `rise` bits, and whose inputs have `sqnr` dB at every bit width."""

    def score(name):
        nats = loss + (0 if name == "full" else rise[name] if isinstance(rise, dict) else rise) * math.log(2)
        return {"loss": [nats], "accuracy": [accuracy]}

    def ratio(name):
        return [sqnr[name] if isinstance(sqnr, dict) else sqnr]

    site = {
        tokens: {"crest_factor": [10.0], "kurtosis": [0.0], "sqnr": {name: ratio(name) for name in QUANTIZERS}}
        for tokens in ("all", "rest")
    }
    looks = {
        "tokens": [100],
        "loss": [loss],
        "accuracy": [accuracy],
        "schemes": {name: score(name) for name in SCHEMES},
        "inputs": {"a": site, "b": site},
        "weights": {},
    }
    model = {"residual": kind != "free", "initialization": "gpt2-scaled" if kind == "plain" else "orthogonal"}
    return Record(
        experiment=f"residual-free/{stage}",
        hash=f"{kind}{optimizer}{seed}",
        config={"model": model, "optimizer": {"kind": optimizer}},
        seed=seed,
        metrics={"bits_per_byte": bits, "looks": {"step": [1], "quantization": looks}, **more},
        versions={},
        hardware={},
        commit=None,
        time="",
    )


def compared(free, residual, wobble=0.01):
    """Three seeds of both; numbers in `free` and `residual` wobble with the seed, against each other."""

    def moved(options, seed, sign):
        factor = 1 + sign * wobble * (seed - 1)
        return {
            name: {key: each * factor for key, each in value.items()} if isinstance(value, dict) else value * factor
            for name, value in options.items()
        }

    records = [run("free", "muon", seed, **moved(free, seed, 1)) for seed in range(3)]
    records += [run("residual", "muon", seed, **moved(residual, seed, -1)) for seed in range(3)]
    return qr.comparison(Found("residual-free", records))


def said(claim, numbers):
    return verdict(ROWS[claim], numbers)


def test_the_best_of_each_kind_is_compared():
    records = [run(kind, optimizer, seed, bits=bits + 0.01 * seed) for seed in (1, 0) for kind, optimizer, bits in (
        ("plain", "adamw", 2.0), ("residual", "muon", 1.9), ("free", "muon", 2.2), ("free", "soap", 2.1)
    )]  # fmt: skip
    records.append(run("free", "kl-shampoo", 0, bits=1.0))  # not complete
    records += [run("residual", "kl-shampoo", 0, bits=1.0), run("residual", "kl-shampoo", 1, bits=None)]  # diverged
    found = qr.comparison(Found("residual-free", records))
    assert (found.residual, found.free) == ("residual, muon", "free, soap")
    assert [record.seed for record in found.runs["free, soap"]] == [0, 1]


def test_nothing_recorded():
    assert qr.comparison(Found("residual-free", [])) is None
    one = [run("free"), run("residual")]
    assert qr.comparison(Found("residual-free", one)) is None  # one seed has no interval
    assert qr.comparison(Found("residual-free", [run("free", seed=s) for s in range(3)])) is None
    numbers = {**qr.decides_b6(None), **qr.decides_b7(None), **qr.decides_b8(None)}
    assert [said(claim, numbers) for claim in ("B6", "B7", "B8")] == ["undecided"] * 3


@pytest.mark.parametrize(
    ("free", "residual", "wobble", "wanted"),
    [
        (0.49, 0.50, 1e-3, "holds"),
        (0.51, 0.50, 1e-3, "does not hold"),
        (0.45, 0.50, 1e-3, "does not hold"),
        (0.482, 0.50, 3e-3, "holds in part"),
        (0.50, 0.50, 1e-2, "undecided"),
        (0.49, 0.50, 5e-2, "undecided"),
    ],
)
def test_b6(free, residual, wobble, wanted):
    numbers = qr.decides_b6(compared({"accuracy": free}, {"accuracy": residual}, wobble))
    assert numbers["b6_difference"] == pytest.approx(100 * (free - residual), abs=1e-9)
    assert said("B6", numbers) == wanted


@pytest.mark.parametrize(
    ("free", "residual", "wanted"),
    [
        ({"loss": 1.0, "rise": 0.1}, {"loss": 1.0, "rise": 0.4}, "holds"),
        ({"loss": 1.2, "rise": 0.1}, {"loss": 1.0, "rise": 0.2}, "holds in part"),  # hurt less, and still behind
        ({"loss": 1.0, "rise": 0.4}, {"loss": 1.0, "rise": 0.1}, "does not hold"),
        ({"loss": 1.0, "rise": 0.2}, {"loss": 1.0, "rise": 0.2}, "undecided"),
    ],
)
def test_b7(free, residual, wanted):
    assert said("B7", qr.decides_b7(compared(free, residual, 0.003))) == wanted


def test_b7_by_scheme():
    mixed = dict.fromkeys(SCHEMES, 0.2) | {"W8A4": 0.5}
    numbers = qr.decides_b7(compared({"rise": 0.2}, {"rise": mixed}))
    assert numbers == {"b7_hurts_residual": 1, "b7_hurts_free": 0, "b7_free_ahead": 1}
    assert said("B7", numbers) == "holds in part"


@pytest.mark.parametrize(
    ("free", "residual", "wanted"),
    [
        (33.0, 30.0, "holds"),
        (27.0, 30.0, "does not hold"),
        (30.0, 30.0, "undecided"),
        (dict.fromkeys(QUANTIZERS, 30.0) | {"3": 10.0}, 20.0, "holds in part"),
        (dict.fromkeys(QUANTIZERS, 20.0) | {"3": 10.0}, 20.0, "does not hold"),
    ],
)
def test_b8(free, residual, wanted):
    assert said("B8", qr.decides_b8(compared({"sqnr": free}, {"sqnr": residual}))) == wanted


def test_measures():
    record = run(loss=2.0, rise=0.3, accuracy=0.25, sqnr=20.0)
    assert qr.bits_of()(record) == pytest.approx(2 / math.log(2))
    assert qr.increase("W4A4")(record) == pytest.approx(0.3)
    assert qr.accuracy()(record) == qr.accuracy("W8A8")(record) == 25
    assert qr.sqnr("8", "rest")(record) == 20
    assert qr.nmse("8")(record) == pytest.approx(0.01)
    assert qr.crest()(record) == 20


def test_a_model_that_diverged_under_a_scheme_decides_nothing():
    found = compared({"rise": 0.1}, {"rise": 0.4})
    found.runs["free, muon"][0].metrics["looks"]["quantization"]["schemes"]["W8A8"]["loss"] = [None]
    gap = found.difference(qr.increase("W8A8"))
    assert np.isnan(gap.middle)
    assert (gap.low, gap.high) == (-math.inf, math.inf)
    assert qr.decides_b7(found)["b7_hurts_residual"] == 2


def test_runs_that_did_not_look():
    record = run()
    del record.metrics["looks"]["quantization"]
    assert qr.arms(Found("residual-free", [record])) == {}
    with pytest.raises(ResidlabError, match="did not look at quantization"):
        qr.seen(record)


def test_the_interval_is_the_paired_t_tests():
    from scipy.stats import ttest_rel

    found = compared({"accuracy": 0.48}, {"accuracy": 0.5}, 0.02)
    free, residual = ([qr.accuracy()(r) for r in found.runs[name]] for name in (found.free, found.residual))
    low, high = ttest_rel(free, residual).confidence_interval(0.95)
    gap = found.difference(qr.accuracy())
    assert (gap.low, gap.high) == (pytest.approx(low), pytest.approx(high))
