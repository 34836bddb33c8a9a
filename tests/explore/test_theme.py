from __future__ import annotations

import itertools

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio
import pytest

from residlab.explore import theme

# Machado, Oliveira, Fernandes 2009, severity 1, on linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
LMS = np.array(
    [[0.41222147, 0.53633254, 0.05144599], [0.2119035, 0.68069955, 0.10739696], [0.08830246, 0.28171884, 0.629978]]
)
LAB = np.array(
    [[0.21045426, 0.79361779, -0.00407205], [1.9779985, -2.42859221, 0.45059371], [0.0259040, 0.78277177, -0.80867577]]
)


def linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    low, high = sorted(linear(c) @ [0.2126, 0.7152, 0.0722] for c in (a, b))
    return float((high + 0.05) / (low + 0.05))


def oklab(rgb: np.ndarray) -> np.ndarray:
    return LAB @ np.cbrt(LMS @ np.clip(rgb, 0, 1))


@pytest.mark.parametrize("colour", theme.PALETTE)
@pytest.mark.parametrize("background", ["#ffffff", "#14181e", "#121212"])
def test_palette_reads_on_light_and_dark(colour: str, background: str) -> None:
    assert contrast(colour, background) >= 3.0


@pytest.mark.parametrize("vision", VISION)
def test_norms_stay_apart_for_every_vision(vision: str) -> None:
    seen = {norm: oklab(VISION[vision] @ linear(colour)) for norm, colour in theme.NORM_COLORS.items()}
    for a, b in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[a] - seen[b]) > 0.09, (a, b)


def test_every_norm_has_colour_dash_and_symbol_of_its_own() -> None:
    assert set(theme.NORM_COLORS) == set(theme.NORM_DASHES) == set(theme.NORM_SYMBOLS)
    assert len(set(theme.NORM_COLORS.values())) == len(set(theme.NORM_SYMBOLS.values())) == 7
    assert set(theme.NORM_COLORS.values()) <= set(theme.PALETTE)


def test_text_colours_read_on_paper() -> None:
    assert contrast(theme.INK, theme.PAPER) >= 7
    assert contrast(theme.MUTED, theme.PAPER) >= 4.5


def test_ink_colours_are_no_data_colours() -> None:
    assert len(theme.roles()) == 5
    assert not set(theme.roles()) & set(theme.PALETTE)


def test_use_theme_makes_the_template_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pio.templates, "_default", pio.templates.default)
    theme.use_theme()
    layout = go.Figure().layout.template.layout
    assert pio.templates.default == "residlab"
    assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert layout.colorway == theme.PALETTE


def test_decades() -> None:
    axis = theme.decades(-4, 1.3, step=2)
    assert axis["ticktext"] == ["10⁻⁴", "10⁻²", "1"]
    assert axis["tickvals"] == pytest.approx([1e-4, 1e-2, 1])
    assert axis["range"] == [-4, 1.3]
    go.Figure().update_yaxes(**axis)
