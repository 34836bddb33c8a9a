"""Parameters: what a chapter declares, and what a user may set."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from residlab.compendium.parameters import Interval, read_parameters, resolve
from residlab.errors import ResidlabError

CELL = """\
lam: float = 2.0  # (0, 10] input bound
layers: int = 3  # [1, inf) number of layers
law: str = "gaussian"  # {gaussian, laplace} law of the entries
centred: bool = True  # subtract the mean
"""


@pytest.fixture
def declared():
    return read_parameters(CELL, "02-x")


def test_reads_type_default_range_and_meaning(declared):
    lam = declared["lam"]
    assert (lam.type, lam.default, lam.meaning) == (float, 2.0, "input bound")
    assert lam.allowed == Interval(0.0, 10.0, False, True)
    assert declared["law"].allowed == ("gaussian", "laplace")
    assert declared["layers"].describe() == "int in [1, inf)"
    assert list(declared) == ["lam", "layers", "law", "centred"]


def test_resolves_texts_to_typed_values(declared):
    values = resolve(declared, ["lam=3", "layers=7", "law=laplace", "centred=no"], "02-x")
    assert values == {"lam": 3.0, "layers": 7, "law": "laplace", "centred": False}
    assert [type(v) for v in values.values()] == [float, int, str, bool]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lam=0", "02-x: parameter lam: 0.0 is not allowed, only float in (0, 10]"),
        ("lam=10.1", "only float in (0, 10]"),
        ("lam=nan", "nan is not allowed"),
        ("lam=inf", "inf is not allowed"),
        ("lam=two", "'two' is not allowed"),
        ("lam=", "'' is not allowed"),
        ("layers=2.5", "'2.5' is not allowed, only int in [1, inf)"),
        ("layers=0", "0 is not allowed"),
        ("law=cauchy", "'cauchy' is not allowed, only one of gaussian, laplace"),
        ("centred=maybe", "'maybe' is not allowed, only bool"),
        ("kappa=3", "02-x has no parameter 'kappa'; its parameters are: lam, layers, law, centred"),
        ("lam", "write -p name=value"),
    ],
)
def test_refuses_with_the_value_and_what_is_allowed(declared, text, says):
    with pytest.raises(ResidlabError) as error:
        resolve(declared, [text], "02-x")
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("lam = 2.0  # (0, 1] x", "write name: type = default"),
        ("lam: float = 2.0", "say what is allowed and what it means"),
        ("lam: float = 2.0  # input bound", "say what is allowed"),
        ("lam: float = 2.0  # (0, 1] input bound", "default of parameter lam: 2.0 is not allowed"),
        ("lam: float = 2.0  # (0, x] input bound", "say what is allowed"),
        ("lam: complex = 2.0  # (0, 3] input bound", "type 'complex' is not one of bool, int, float, str"),
        ("lam: float = f()  # (0, 3] input bound", "must be a literal"),
        ("lam: int = 2  # (0, 3] a\nlam: int = 2  # (0, 3] a", "given twice"),
        ("lam: float = = 2", "is not Python"),
        ("lam: float = {[]: 1}  # (0, 3] input bound", "must be a literal"),
        (f"lam: float = 1{'0' * 400}  # (0, inf) input bound", "is not allowed, only float in (0, inf)"),
    ],
)
def test_refuses_a_malformed_parameters_cell(cell, says):
    with pytest.raises(ResidlabError) as error:
        read_parameters(cell, "02-x")
    assert says in str(error.value)
    assert str(error.value).startswith("02-x")


@given(
    low=st.floats(-1e3, 1e3), width=st.floats(0.1, 1e3), closed=st.tuples(st.booleans(), st.booleans()), x=st.floats()
)
def test_interval_is_the_mathematical_one(low, width, closed, x):
    interval = Interval(low, low + width, *closed)
    inside = low < x < low + width or (x == low and closed[0]) or (x == low + width and closed[1])
    assert (x in interval) == (inside and not math.isnan(x))
