"""Sentences: each rule has two sides, and the number that decides stands in the sentence."""

from __future__ import annotations

import dataclasses

import pytest

from residlab.inspection import findings
from residlab.inspection.inspect import inspect
from residlab.inspection.measure import Inspection, MassiveChannel, Sinks


@pytest.fixture(scope="module")
def seen(save, tmp_path_factory) -> Inspection:
    return inspect(save(tmp_path_factory.mktemp("model")), tokens=96)


def with_stream(seen: Inspection, **measures: dict[str, list[float]]) -> Inspection:
    stream = dataclasses.replace(
        seen.stream, **{name: getattr(seen.stream, name) | of for name, of in measures.items()}
    )
    return dataclasses.replace(seen, stream=stream)


@pytest.mark.parametrize(
    ("rms", "words"),
    [
        ([9.0, 1, 2, 4.1], "grows by a factor of 4.10 (over 4)"),
        ([9.0, 1, 8, 4.0], "stays within a factor of 4"),
        ([9.0, 1, 8, 0.25], "stays within a factor of 4"),
        ([9.0, 1, 8, 0.2], "shrinks to 0.200 of that (below 1/4)"),
    ],
)
def test_stream(seen, rms, words):
    finding = findings.stream(with_stream(seen, rms={"rest": rms}))
    assert words in finding.sentence


def test_massive(seen):
    calm = findings.massive(dataclasses.replace(seen, massive=[]))
    assert (calm.value, "No entry of the stream is over 100" in calm.sentence) == ("0", True)
    one = MassiveChannel(507, 25456.0, 12, 15968.0, "A", 12, 28, 68, 1.0)
    wild = findings.massive(dataclasses.replace(seen, massive=[one]))
    for words in ("1 channel of the stream holds", "all of them in a window's first token", "25,500 in channel 507"):
        assert words in wild.sentence
    assert "fp16" not in wild.sentence
    beyond = dataclasses.replace(one, value=-70_000.0, first=0.5)
    worse = findings.massive(dataclasses.replace(seen, massive=[beyond, one])).sentence
    for words in ("2 channels of the stream hold", "75.0% of them in", "over 65,504, the largest number of fp16"):
        assert words in worse


def test_sinks(seen):
    none = findings.sinks(dataclasses.replace(seen, sinks=Sinks({1: [0.5, 0.1]}, 0.1)))
    assert (none.value, "no head depends on that token" in none.sentence) == ("0 / 2", True)
    one = findings.sinks(dataclasses.replace(seen, sinks=Sinks({1: [0.51, 0.1]}, 0.1)))
    assert (one.value, "keep it in view" in one.sentence) == ("1 / 2", True)
    assert "returned attention weights" in findings.sinks(dataclasses.replace(seen, sinks=None)).sentence


@pytest.mark.parametrize(
    ("every", "rest", "words"),
    [
        (9.0, 1.0, "it never exceeds 10"),
        (10_000.0, 50.0, "the first token alone makes it more than 10 times larger"),
        (60.0, 50.0, "in ordinary tokens, too"),
        (60.0, 5.0, "only the first token takes it over 10"),
    ],
)
def test_kurtosis(seen, every, rest, words):
    made = with_stream(seen, excess_kurtosis={"all": [every] * 4, "rest": [rest, float("nan"), rest, rest]})
    assert words in findings.kurtosis(made).sentence


def test_crest(seen):
    def spread(crest: float) -> str:
        inputs = [dataclasses.replace(each, crest_factor={"all": crest, "rest": 1.0}) for each in seen.inputs]
        return findings.crest(dataclasses.replace(seen, inputs=inputs)).sentence

    assert "within half a bit of a Gaussian" in spread(4.0)
    assert "costs 3." in spread(40.0)  # log2(40 / 4.5) = 3.2
    assert "40.0 dB over the root mean square" in spread(100.0)


def test_sqnr(seen):
    def level(int8: float, token: float, apart: float) -> str:
        sqnr = {"int8": int8, "int8 per token": token, "int4": 1.0, "int4 per token": 1.0, "fp8 e4m3": 31.0}
        levels = {"all": sqnr, "rest": sqnr, "apart": {"int8": apart}}
        inputs = [dataclasses.replace(each, sqnr=levels) for each in seen.inputs]
        return findings.sqnr(dataclasses.replace(seen, inputs=inputs)).sentence

    assert "to 0 of 12 tensors" in level(20.0, 20.0, 20.0)
    assert "int8 with one scale will do" in level(20.0, 20.0, 20.0)
    assert "to 12 of 12 tensors" in level(19.9, 30.0, 19.9)
    assert level(19.9, 30.0, 19.9).endswith("; give each token a scale.")
    assert "does not cure it" in level(19.9, 19.0, 19.9)
    assert "because the first token sets the scale, and 16.5 dB if it does not" in level(0.0, 30.0, 16.5)


def test_growth(seen):
    def cost(**changes: object) -> str:
        results = dict(seen.growth.results)
        results[findings.COMMON] = results[findings.COMMON] | changes
        growth = dataclasses.replace(seen.growth, results=results)
        return findings.growth(dataclasses.replace(seen, growth=growth)).sentence

    assert "no cost that" in cost(added=0.01)
    assert "adds 0.0200 nats per token (over 0.01)" in cost(added=0.02)
    assert "2.00 times as much, and 2.00 unit roundoffs of bf16" in cost(rest=[0, 2**-8, 2**-9, 2**-7])
    assert "something overflows" in cost(finite=False)
    nothing = dataclasses.replace(seen, growth=dataclasses.replace(seen.growth, results={}))
    assert findings.growth(nothing).value == "–"


def test_numbers():
    assert [findings.sig(v) for v in (25456.5, 999.5, 12.34, -1234.0, 1e7, 0.0)] == [
        "25,500",
        "1,000",
        "12.3",
        "−1,230",
        "1.00 × 10⁷",
        "0",
    ]
    assert findings.db(float("inf")) == "∞ dB"
