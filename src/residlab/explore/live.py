"""The live face of an explorable: widgets in a notebook, calling the Python function itself."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from residlab.explore.explorable import Control, Explorable, Slider
from residlab.explore.theme import PAPER


@dataclass(frozen=True)
class LiveFace:
    """The widgets of one explorable.

    Parameters
    ----------
    controls : dict of str to Widget
        A ``SelectionSlider`` or ``Dropdown`` for each control, by name.
    figure : FigureWidget
        The drawing.
    text : HTML
        Readouts and sentence.
    box : VBox
        All of them, as shown.
    """

    controls: dict[str, Any]
    figure: Any
    text: Any
    box: Any


def live_face(explorable: Explorable) -> LiveFace:
    """Build the widgets; moving one computes the state and updates traces and text.

    Needs a kernel with ipywidgets and anywidget. Nothing here runs when the book is executed: its kernels show the
    static face (`residlab.explore.display.use_static_faces`).
    """
    import ipywidgets
    import plotly.graph_objects as go

    controls = {control.name: _widget(ipywidgets, control) for control in explorable.controls}
    figure = go.FigureWidget(explorable.figure)
    figure.layout.paper_bgcolor = PAPER
    text = ipywidgets.HTML()
    moving = {trace.meta: trace for trace in figure.data if isinstance(trace.meta, str)}

    def update(_change: object = None) -> None:
        state = {name: widget.value for name, widget in controls.items()}
        frame = explorable.frame(state)
        with figure.batch_update():
            for key, (x, y) in frame.series.items():
                moving[key].x, moving[key].y = x, y
        text.value = readable_html(explorable, explorable.texts(state, frame))
        for control in explorable.controls:
            if control.when:
                shown = state[control.when[0]] == control.when[1]
                controls[control.name].layout.display = "" if shown else "none"

    for widget in controls.values():
        widget.observe(update, names="value")
    update()
    title = ipywidgets.HTML(f"<b>{escape(explorable.title)}</b>")
    return LiveFace(controls, figure, text, ipywidgets.VBox([title, *controls.values(), figure, text]))


def _widget(ipywidgets: Any, control: Control) -> Any:
    look = {"style": {"description_width": "14em"}, "layout": ipywidgets.Layout(width="min(100%, 36em)")}
    if isinstance(control, Slider):
        options = [(control.text(value), value) for value in control.values]
        return ipywidgets.SelectionSlider(options=options, value=control.default, description=control.label, **look)
    labels = [(label, value) for value, label in control.options.items()]
    return ipywidgets.Dropdown(options=labels, value=control.default, description=control.label, **look)


def readable_html(explorable: Explorable, texts: dict[str, str]) -> str:
    """Return a state as text: the sentence and the readouts, without controls or scripts."""
    items = "".join(f"<li>{escape(r.label)}: {escape(texts[r.name])}</li>" for r in explorable.readouts)
    return f"<p>{escape(explorable.sentence.format_map(texts))}</p><ul>{items}</ul>"


def live_bundle(explorable: Explorable) -> dict[str, Any]:
    """Return the MIME bundle of a live notebook: the widget, and readable text where widgets do not work."""
    bundle = live_face(explorable).box._repr_mimebundle_()
    data: dict[str, Any] = dict(bundle[0] if isinstance(bundle, tuple) else bundle)
    state = explorable.default_state
    texts = explorable.texts(state, explorable.frame(state))
    data["text/html"] = f"<p><b>{escape(explorable.title)}</b></p>{readable_html(explorable, texts)}"
    return data
