"""Schedules: their ends, how fast they may change, that no phase turns back, and what is refused."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from residlab.errors import ResidlabError
from residlab.training.schedules import ScheduleConfig


@st.composite
def schedules(draw, kinds=("constant", "cosine", "linear", "wsd")):
    kind = draw(st.sampled_from(kinds))
    steps = draw(st.integers(1, 200))
    values = {"kind": kind, "steps": steps, "warmup": draw(st.integers(0, steps - 1))}
    if kind != "constant":
        values["final"] = draw(st.floats(0, 1))
    if kind == "wsd" and draw(st.booleans()):
        values["decay"] = draw(st.integers(1, steps - values["warmup"]))
    return ScheduleConfig(**values)


@given(schedules())
def test_ends(schedule):
    assert schedule.factor(0) == (1 / schedule.warmup if schedule.warmup else 1)
    if schedule.warmup:
        assert schedule.factor(schedule.warmup - 1) == 1
    assert schedule.factor(schedule.warmup) == 1
    assert schedule.factor(schedule.steps) == schedule.final
    assert schedule.factor(schedule.steps + 1000) == schedule.final


@given(schedules())
def test_up_then_never_up_again(schedule):
    factors = [schedule.factor(step) for step in range(schedule.steps + 2)]
    w = schedule.warmup
    assert all(0 < a < b for a, b in itertools.pairwise(factors[:w]))
    assert all(a >= b for a, b in itertools.pairwise(factors[w:]))
    assert all(min(schedule.final, factors[0]) <= f <= 1 for f in factors)


@given(schedules())
def test_no_jump(schedule):
    decaying = schedule.decay or schedule.steps - schedule.warmup
    slope = math.pi / 2 if schedule.kind == "cosine" else 1  # the steepest point of a half cosine
    bound = max(1 / max(schedule.warmup, 1), slope * (1 - schedule.final) / decaying)
    for step in range(schedule.steps + 1):
        assert abs(schedule.factor(step + 1) - schedule.factor(step)) <= bound + 1e-12


@given(schedules(kinds=("cosine", "linear", "wsd")))
def test_the_closed_forms(schedule):
    w, n, f = schedule.warmup, schedule.steps, schedule.final
    for t in range(w, n + 1):
        if schedule.kind == "linear":
            wanted = 1 - (1 - f) * (t - w) / (n - w)
        elif schedule.kind == "cosine":
            wanted = f + (1 - f) * (1 + math.cos(math.pi * (t - w) / (n - w))) / 2
        else:
            wanted = 1 - (1 - f) * max(0, t - n + schedule.decay) / schedule.decay
        assert schedule.factor(t) == pytest.approx(wanted, abs=1e-12)


@given(schedules())
def test_json_and_back_is_the_same(schedule):
    assert ScheduleConfig.from_dict(json.loads(json.dumps(schedule.to_dict()))) == schedule


def test_halfway():
    half = {kind: ScheduleConfig(kind=kind, steps=100, final=0.2).factor(50) for kind in ("linear", "cosine", "wsd")}
    assert half == pytest.approx({"linear": 0.6, "cosine": 0.6, "wsd": 1.0})
    assert ScheduleConfig(kind="wsd", steps=100, final=0.2).factor(95) == pytest.approx(0.6)
    assert ScheduleConfig(kind="cosine", steps=100).factor(25) == pytest.approx((1 + math.sqrt(0.5)) / 2)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "schedule needs steps"),
        ({"steps": 0}, "steps must be a whole number >= 1; got 0"),
        ({"steps": 10.0}, "steps must be a whole number >= 1; got 10.0"),
        ({"steps": 10, "kind": "step"}, "kind must be one of constant, cosine, linear, wsd; got 'step'"),
        ({"steps": 10, "warmup": 10}, "warmup must be a whole number in [0, steps = 10); got 10"),
        ({"steps": 10, "warmup": -1}, "warmup must be a whole number in [0, steps = 10); got -1"),
        ({"steps": 10, "warmup": True}, "warmup must be a whole number in [0, steps = 10); got True"),
        ({"steps": 10, "kind": "linear", "final": 1.1}, "final must be a number in [0, 1]; got 1.1"),
        ({"steps": 10, "final": 0.1}, 'final belongs to cosine, linear and wsd; kind = "constant" got 0.1'),
        ({"steps": 10, "kind": "linear", "decay": 3}, 'decay belongs to kind = "wsd"; got decay = 3 for "linear"'),
        ({"steps": 10, "kind": "wsd", "decay": 0}, "decay must be a whole number >= 1; got 0"),
        ({"steps": 10, "kind": "wsd", "warmup": 5, "decay": 6}, "warmup + decay must be at most steps = 10; got 5 + 6"),
        ({"steps": 10, "warm": 1}, "schedule has no option warm; it has kind, steps, warmup"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(values, said):
    with pytest.raises(ResidlabError) as error:
        ScheduleConfig.from_dict(values)
    assert said in str(error.value)


def test_a_negative_step_is_refused():
    with pytest.raises(ResidlabError, match="step must be >= 0; got -1"):
        ScheduleConfig(steps=3).factor(-1)
