"""The recorded stream: what it counts, and the page's script against Python on every state."""

from __future__ import annotations

import gzip
from typing import Any

import numpy as np
import pytest
from scipy import stats

from residlab.errors import ResidlabError
from residlab.explore.explorable import Explorable
from residlab.explore.static_face import explorable_html
from residlab.explore.stream import BINS, LOW, WIDTH, RecordedStream, record_stream, stream_explorable

LAYERS, TOKENS, D = 31, 24, 576


@pytest.fixture(scope="module")
def stream() -> np.ndarray:
    rng = np.random.default_rng(0)
    x = rng.standard_t(4, (LAYERS, TOKENS, D)) * np.linspace(0.1, 20, LAYERS)[:, None, None]
    x[12:28, 0, 507] = 22_000.0
    x[3, 5, :10] = 0.0
    return x


@pytest.fixture(scope="module")
def explorable(stream: np.ndarray) -> Explorable:
    return stream_explorable(record_stream([f" word{i}" for i in range(TOKENS)], stream))


def test_counts_and_statistics_are_those_of_each_token(stream: np.ndarray) -> None:
    recorded = record_stream(["a"] * TOKENS, stream)
    np.testing.assert_array_equal(recorded.counts.sum(-1), D)
    np.testing.assert_allclose(recorded.rms, np.sqrt(np.mean(stream**2, -1)), rtol=1e-6)
    np.testing.assert_allclose(recorded.kurtosis, stats.kurtosis(stream, axis=-1), rtol=1e-4)
    assert (recorded.channel[12:28, 0] == 507).all()
    token = stream[20, 3]
    size = np.log10(np.abs(token) / np.sqrt(np.mean(token**2)))
    edges = LOW + WIDTH * np.arange(BINS + 1)
    edges[0], edges[-1] = -np.inf, np.inf
    np.testing.assert_array_equal(recorded.counts[20, 3], np.histogram(size, edges)[0])


def test_the_default_state_shows_the_massive_activation(explorable: Explorable) -> None:
    state = explorable.default_state
    frame = explorable.frame(state)
    assert state == {"layer": 12.0, "token": "t0"}
    assert frame.readouts["channel"] == 507
    assert frame.readouts["crest"] == pytest.approx(24, rel=1e-3)
    assert "22000" in explorable.sentence.format_map(explorable.texts(state, frame))
    assert np.nansum(frame.series["histogram"][1]) == D


def test_the_gaussian_line_adds_up(explorable: Explorable) -> None:
    drawn = next(trace for trace in explorable.figure.data if trace.name == "a Gaussian token")
    assert np.nansum(np.asarray(drawn.y, float)) == pytest.approx(D, rel=1e-3)


def test_stays_light(explorable: Explorable) -> None:
    assert len(gzip.compress(explorable_html(explorable).encode())) < 200_000


def test_what_does_not_fit_is_refused(stream: np.ndarray) -> None:
    with pytest.raises(ResidlabError, match=r"shape \(layers, 2, d\)"):
        record_stream(["a", "b"], stream)
    with pytest.raises(ResidlabError, match="not zero"):
        record_stream(["a"], np.zeros((2, 1, 4)))
    good = np.zeros((2, 1), np.float32)
    with pytest.raises(ResidlabError, match="counts have the shape"):
        RecordedStream(("a",), np.zeros((2, 1, 3), np.float32), good, good, good, good)
    with pytest.raises(ResidlabError, match="of 2 tokens"):
        RecordedStream(("a", "b"), np.zeros((2, 1, BINS), np.float32), good, good, good, good)


@pytest.mark.browser
def test_the_script_equals_python_on_every_state(explorable: Explorable, equals_its_script: Any) -> None:
    states = [{"layer": float(layer), "token": f"t{i}"} for layer in range(LAYERS) for i in range(TOKENS)]
    equals_its_script(explorable, states, rtol=1e-12)
