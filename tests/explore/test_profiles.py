"""Recorded profiles: what is refused, what a state shows, and the page's script against Python on every state."""

import gzip
import itertools
from typing import Any

import numpy as np
import pytest

from residlab.errors import ResidlabError
from residlab.explore.explorable import Explorable
from residlab.explore.profiles import QUANTITIES, RecordedProfiles, profiles_explorable
from residlab.explore.static_face import explorable_html

NORMS, DEPTHS, STEPS = ("rmsnorm", "lns", "bhyt"), (2.0, 3.0, 5.0), (10.0, 20.0)


def fields() -> dict[str, Any]:
    random = np.random.default_rng(0)
    runs = (len(NORMS), len(DEPTHS), len(STEPS))
    made = {
        name: random.lognormal(size=(*runs, width)).astype(np.float32)
        for name, width in (("mean_abs", 11), ("variance", 11), ("deviation", 5))
    }
    for row, depth in enumerate(DEPTHS):
        for name, width in (("mean_abs", 2 * depth + 1), ("variance", 2 * depth + 1), ("deviation", depth)):
            made[name][:, row, :, int(width) :] = np.nan
    loss = random.lognormal(size=runs).astype(np.float32)
    return {"norms": NORMS, "depths": DEPTHS, "steps": STEPS, "loss": loss, **made}


@pytest.fixture(scope="module")
def recorded() -> RecordedProfiles:
    return RecordedProfiles(**fields())


@pytest.fixture(scope="module")
def explorable(recorded: RecordedProfiles) -> Explorable:
    return profiles_explorable(recorded, depth=3.0)


def test_a_state_shows_its_run(recorded: RecordedProfiles, explorable: Explorable) -> None:
    frame = explorable.frame({"norm": "lns", "depth": 2.0, "step": 20.0, "quantity": "variance"})
    x, y = frame.series["lns stream"]
    assert x.tolist() == [0, 0.5, 1, 1.5, 2]
    np.testing.assert_array_equal(y, recorded.variance[1, 0, 1, :5])
    x, y = frame.series["chosen block"]
    assert x.tolist() == [1, 2]
    np.testing.assert_array_equal(y, recorded.deviation[1, 0, 1, :2])
    assert frame.readouts["middle"] == recorded.deviation[1, 0, 1, 0]
    assert frame.readouts["growth"] == pytest.approx(recorded.variance[1, 0, 1, 4] / recorded.variance[1, 0, 1, 0])
    assert frame.readouts["loss"] == recorded.loss[1, 0, 1]


def test_no_state_shows_a_gap(explorable: Explorable) -> None:
    for norm, depth, step, quantity in itertools.product(NORMS, DEPTHS, STEPS, QUANTITIES):
        frame = explorable.frame({"norm": norm, "depth": depth, "step": step, "quantity": quantity})
        assert all(np.isfinite(y).all() for _, y in frame.series.values())
        assert all(map(np.isfinite, frame.readouts.values()))


def test_stays_light(explorable: Explorable) -> None:
    assert len(gzip.compress(explorable_html(explorable).encode())) < 100_000


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"norms": ("rmsnorm", "lns", "batchnorm")}, "got batchnorm"),
        ({"norms": ()}, "nothing was recorded"),
        ({"loss": np.zeros((3, 3), np.float32)}, "loss has the shape"),
        ({"depths": (2.0, 3.0, 6.0)}, "mean_abs has the shape"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ResidlabError, match=said):
        RecordedProfiles(**{**fields(), **change})


@pytest.mark.browser
def test_the_script_equals_python_on_every_state(explorable: Explorable, equals_its_script: Any) -> None:
    states = [
        {"norm": norm, "depth": depth, "step": step, "quantity": quantity}
        for norm, depth, step, quantity in itertools.product(NORMS, DEPTHS, STEPS, QUANTITIES)
    ]
    equals_its_script(explorable, states, rtol=1e-12)
