from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("ipywidgets")
pytest.importorskip("anywidget")

from residlab.explore.explorable import Explorable
from residlab.explore.live import LiveFace, live_bundle, live_face


@pytest.fixture
def face(explorable: Explorable) -> LiveFace:
    return live_face(explorable)


def drawn(face: LiveFace) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {t.meta: (np.asarray(t.x), np.asarray(t.y)) for t in face.figure.data if isinstance(t.meta, str)}


@pytest.mark.parametrize(
    "state",
    [
        {"lam": 2.0, "kappa": 10.0, "law": "gaussian", "site": "layer-0"},
        {"lam": 3.25, "kappa": 4.0, "law": "laplace", "site": "layer-0"},
        {"lam": 1.0, "kappa": 2.5, "law": "three-point", "site": "layer-0"},
        {"lam": 6.0, "kappa": 5.0, "law": "measured", "site": "layer-12"},
    ],
)
def test_moving_controls_draws_what_compute_gives(explorable: Explorable, face: LiveFace, state: dict) -> None:
    for name, value in state.items():
        face.controls[name].value = value
    frame, shown = explorable.frame(state), drawn(face)
    assert set(shown) == set(frame.series)
    for key, (x, y) in frame.series.items():
        np.testing.assert_array_equal(shown[key][0], x)
        np.testing.assert_array_equal(shown[key][1], y)
    texts = explorable.texts(state, frame)
    for readout in explorable.readouts:
        assert f"{readout.label}: {texts[readout.name]}" in face.text.value


def test_same_labels_and_stops_as_the_static_face(explorable: Explorable, face: LiveFace) -> None:
    for control in explorable.controls:
        widget = face.controls[control.name]
        assert widget.description == control.label
        assert widget.value == control.default
    assert [value for _, value in face.controls["lam"].options] == list(explorable.controls[0].values)


def test_second_control_is_shown_only_for_its_law(face: LiveFace) -> None:
    assert face.controls["site"].layout.display == "none"
    face.controls["law"].value = "measured"
    assert face.controls["site"].layout.display == ""


def test_live_bundle_has_the_widget_and_readable_text(explorable: Explorable) -> None:
    bundle = live_bundle(explorable)
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "Chebyshev allows no law more than" in bundle["text/html"]
    assert "<script" not in bundle["text/html"]
