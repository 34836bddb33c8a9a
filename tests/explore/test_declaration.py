from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from residlab.errors import ResidlabError
from residlab.explore.explorable import Choice, Explorable, Frame, Readout, Slider

SLIDER = Slider("lam", "λ", (1.0, 2.0, 3.0), 2.0)
CHOICE = Choice("law", "Law", {"gaussian": "Gaussian", "laplace": "Laplace"}, "gaussian")


def compute(*, lam: float, law: str) -> Frame:
    return Frame({"line": (np.array([0.0, 1.0]), np.array([0.0, lam]))}, {"slope": lam})


def declare(**changes: Any) -> Explorable:
    parts: dict[str, Any] = {
        "name": "line",
        "title": "A line",
        "alt": "A line of slope {slope}.",
        "controls": (SLIDER, CHOICE),
        "figure": go.Figure([go.Scatter(meta="line", x=[], y=[]), go.Scatter(x=[0, 1], y=[1, 1])]),
        "compute": compute,
        "readouts": (Readout("slope", "Slope"),),
        "sentence": "The slope is {slope} at λ = {lam}.",
        "script": "chebyshev",
    }
    return Explorable(**parts | changes)


def test_a_sound_declaration() -> None:
    line = declare()
    assert line.default_state == {"lam": 2.0, "law": "gaussian"}
    assert line.moving == ("line",)
    texts = line.texts(line.default_state, line.frame(line.default_state))
    assert texts == {"lam": "2.00", "law": "Gaussian", "slope": "2.00"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lam", "λ", (1.0, 2.0), 1.5), "default 1.5 is not among"),
        (("lam", "λ", (2.0, 1.0), 1.0), "increasing"),
        (("lam", "λ", (1.0,), 1.0), "two or more"),
        (("lam", "λ", (1.0, float("nan")), 1.0), "finite"),
        (("Lam", "λ", (1.0, 2.0), 1.0), "lower-case"),
        (("lam", " ", (1.0, 2.0), 1.0), "is empty"),
        (("lam", "λ", (1.0, 2.0), 1.0, "percent"), "unknown number format"),
    ],
)
def test_slider_refuses(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ResidlabError, match=message):
        Slider(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("law", "Law", {}, "gaussian"), "no options"),
        (("law", "Law", {"gaussian": "Gaussian"}, "laplace"), "default 'laplace' is not among"),
        (("law", "Law", {'"><script>': "x"}, '"><script>'), "lower-case"),
        (("law", "Law", {"gaussian": ""}, "gaussian"), "is empty"),
    ],
)
def test_choice_refuses(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ResidlabError, match=message):
        Choice(*arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a b"}, "lower-case"),
        ({"title": ""}, "title of 'line' is empty"),
        ({"alt": "  "}, "alt of 'line' is empty"),
        ({"script": "../../etc/passwd"}, "no script for the form"),
        ({"controls": (SLIDER, SLIDER, CHOICE)}, "'lam' is taken"),
        ({"readouts": (Readout("slope", "Slope"), Readout("lam", "λ"))}, "'lam' is taken"),
        ({"readouts": (Readout("explore", "x"),)}, "'explore' is taken"),
        ({"sentence": "{slop}"}, r"names \{slop\}; there are lam, law, slope"),
        ({"sentence": "{slope.__class__}"}, "names"),
        ({"sentence": "{slope:>30}"}, "without a format"),
        ({"sentence": "{slope!r}"}, "without a format"),
        ({"sentence": "{"}, "is no template"),
        ({"figure": go.Figure()}, r"series \['line'\], declared are \[\]"),
        ({"readouts": (Readout("speed", "Speed"),), "alt": "x", "sentence": "x"}, "readouts"),
        ({"controls": (SLIDER, Choice("law", "Law", {"a": "A"}, "a", when=("lam", "2")))}, "no such choice"),
        ({"controls": (Slider("lam", "λ", (1.0, 2.0), 1.0, when=("law", "cauchy")), CHOICE)}, "no such choice"),
    ],
)
def test_explorable_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ResidlabError, match=message):
        declare(**changes)


def test_frame_refuses_a_state_that_lacks_a_control() -> None:
    with pytest.raises(ResidlabError, match=r"the state has \['lam'\]"):
        declare().frame({"lam": 1.0})
