"""Charts: points stand where their axis says, whatever the numbers are, and no number breaks them."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from residlab.inspection import drawing
from residlab.inspection.drawing import Line, Span

SVG = re.compile(r"<svg.*?</svg>", re.DOTALL)
NUMBERS = st.floats(-1e12, 1e12).map(lambda v: v if abs(v) > 1e-12 else 0.0)


def drawn(html: str) -> list[ET.Element]:
    return [ET.fromstring(each) for each in SVG.findall(html) if "0 0 28 16" not in each]


def ticks(svg: ET.Element, width: int) -> list[tuple[float, str]]:
    """Height and label of the marks of the vertical axis."""
    found = [t for t in svg.findall("text") if t.get("text-anchor") == "end" and float(t.get("x")) < width / 4]
    return [(float(t.get("y")) - 4, t.text) for t in found]


@pytest.mark.parametrize(
    ("scale", "of"),
    [("linear", lambda v: v), ("log", math.log10), ("asinh", lambda v: math.asinh(2 * v))],
)
def test_points_stand_where_the_axis_says(scale, of):
    y = [1.0, 30.0, 100.0, 10_000.0, 4.0]
    html = drawing.line_chart([Line("a", range(5), y, "#1B67B1")], x_title="x", y_title="y", scale=scale)
    for svg, width in zip(drawn(html), (720, 350), strict=True):
        marks = ticks(svg, width)
        (y0, v0), (y1, v1) = [(h, float(label.replace(",", "").replace("10⁴", "10000"))) for h, label in marks][
            :: len(marks) - 1
        ]
        path = next(p.get("d") for p in svg.findall("path") if p.get("fill") == "none" and p.get("stroke"))
        heights = [float(point.split()[1]) for point in path[1:].split("L")]
        for value, height in zip(y, heights, strict=True):
            expected = y0 + (of(value) - of(v0)) / (of(v1) - of(v0)) * (y1 - y0)
            assert height == pytest.approx(expected, abs=0.2)


@given(st.lists(NUMBERS, min_size=1, max_size=40), st.sampled_from(["linear", "log", "asinh"]))
def test_every_point_lies_in_the_frame(values, scale):
    html = drawing.line_chart([Line("a", range(len(values)), values, "#000")], x_title="x", y_title="y", scale=scale)
    if scale == "log" and not any(v > 0 for v in values):
        assert html == "<p>No finite number to draw.</p>"
        return
    for svg, width in zip(drawn(html), (720, 350), strict=True):
        for path in svg.findall("path"):
            if path.get("fill") == "none" and path.get("stroke"):
                for point in path.get("d")[1:].split("L"):
                    x, y = map(float, point.split())
                    assert 56 <= x <= width - 12
                    assert 27.9 <= y <= 256.1
        assert 1 <= len(ticks(svg, width)) <= 16


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20))
def test_no_number_breaks_a_chart(values):
    line = [Line("a", range(len(values)), values, "#000")]
    for scale in ("linear", "log", "asinh"):
        drawn(drawing.line_chart(line, x_title="x", y_title="y", scale=scale))
    drawn(drawing.range_chart([Span("a", "b", values, "#000")], x_title="x"))


def test_ranges():
    html = drawing.range_chart([Span("int8", "all", [0.0, 10.0, 20.0, 30.0, 40.0], "#1B67B1")], x_title="dB")
    assert "int8, all: 5 tensors from 0.0 to 40.0 dB, median 20.0" in html
    wide = drawn(html)[0]
    low, high = re.match(r"M([\d.]+) [\d.]+H([\d.]+)", wide.find("g/path").get("d")).groups()
    scale = {t.text: float(t.get("x")) for t in wide.findall("text") if t.text in ("0", "40")}
    assert (float(low), float(high)) == (scale["0"], scale["40"])


def test_the_field_marks_what_exceeds():
    html = drawing.heat_map([(1, [0.2, 0.5]), (2, [0.51, 1.0])], x_title="block", y_title="head", mark=0.5)
    for svg in drawn(html):
        assert len(svg.findall("circle")) == 2
        titles = [t.text for t in svg.iter("title")]
        assert titles == [
            "block 1, head 0: 20.0%",
            "block 1, head 1: 50.0%",
            "block 2, head 0: 51.0%",
            "block 2, head 1: 100.0%",
        ]


def test_shades_run_from_dark_to_light():
    def light(color: str) -> float:
        return sum(w * int(color[i : i + 2], 16) for w, i in ((0.2126, 1), (0.7152, 3), (0.0722, 5)))

    levels = [light(drawing.shade(i / 50)) for i in range(51)]
    assert levels == sorted(levels)
    assert drawing.shade(-1) == drawing.shade(0.0) == "#00224e"
    assert drawing.shade(2) == "#fee838"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1000, "1,000"), (1e4, "10⁴"), (0.05, "0.05"), (5e-4, "5·10⁻⁴"), (-20, "−20"), (-1e6, "−10⁶")],
)
def test_ticks_are_written(value, text):
    assert drawing.number(value) == text


def test_names_are_escaped():
    lines = [Line("<b>", [0, 1], [1, 2], "#000"), Line("&", [0, 1], [1, 2], "#000")]
    html = drawing.line_chart(lines, x_title="<x>", y_title="y")
    assert "<b>" not in html
    assert "<x>" not in html
