"""The static faces as HTML, and which face a shell shows."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import warnings
from html.parser import HTMLParser

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio
import pytest

from residlab.errors import ResidlabError
from residlab.explore.display import BookFigure, show, static_bundle, use_static_faces
from residlab.explore.explorable import Choice, Explorable, Frame, Readout, Slider
from residlab.explore.figures import figure_html, figure_spec
from residlab.explore.legend import legend_html
from residlab.explore.static_face import explorable_html
from residlab.explore.theme import INK, template

HOSTILE = '"><img src=x onerror=alert(1)></script><script>alert(2)</script>&\u2028'


class Elements(HTMLParser):
    """Every start tag with its attributes; checks that tags close in order."""

    VOID = frozenset({"input", "img", "br", "path", "rect"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def hostile_explorable() -> Explorable:
    return Explorable(
        name="hostile",
        title=HOSTILE,
        alt=HOSTILE + "{lam}",
        controls=(
            Slider("lam", HOSTILE, (1.0, 2.0), 1.0, description=HOSTILE),
            Choice("law", HOSTILE, {"a": HOSTILE, "b": "B"}, "a"),
        ),
        figure=go.Figure([go.Scatter(name=HOSTILE, meta="line", x=[], y=[]), go.Bar(name=HOSTILE, x=[1], y=[1])]),
        compute=lambda lam, law: Frame({"line": (np.zeros(1), np.zeros(1))}, {"r": lam}),
        readouts=(Readout("r", HOSTILE),),
        sentence=HOSTILE + "{law}",
        script="chebyshev",
        caption=HOSTILE,
    )


def spec_of(html: str) -> dict:
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', html, re.S)[1])


@pytest.mark.parametrize("face", ["explorable", "figure"])
def test_hostile_text_stays_text(face: str) -> None:
    figure = go.Figure(go.Scatter(name=HOSTILE, x=[0], y=[0]), {"title": {"text": HOSTILE}})
    html = (
        explorable_html(hostile_explorable())
        if face == "explorable"
        else figure_html(figure, alt=HOSTILE, name="hostile", caption=HOSTILE)
    )
    elements = Elements(html)
    assert not elements.named("img")
    assert [attributes.get("type") for attributes in elements.named("script")] == ["application/json"]
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
    assert HOSTILE in json.dumps(spec_of(html), ensure_ascii=False).replace('\\"', '"')


def test_static_face_has_labels_and_the_default_state(explorable: Explorable) -> None:
    html = explorable_html(explorable)
    elements = Elements(html)
    labelled = {attributes["for"] for attributes in elements.named("label")}
    fields = elements.named("input") + elements.named("select")
    assert {attributes["id"] for attributes in fields} == labelled
    assert len(labelled) == 4
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    (plot,) = [attributes for tag, attributes in elements.found if attributes.get("role") == "img"]
    assert "histogram of the argument z of tanh for the input law Gaussian, with gates at ±2.00" in plot["aria-label"]
    assert "1.00%" in html
    assert "height:640px" in plot["style"]
    assert "disabled" in elements.named("fieldset")[0]
    assert "https://" not in html
    assert "http://" not in html


def test_control_that_does_not_apply_is_hidden(explorable: Explorable) -> None:
    rows = {
        a["data-control"]: "hidden" in a
        for tag, a in Elements(explorable_html(explorable)).found
        if "data-control" in a
    }
    assert rows == {"lam": False, "kappa": False, "law": False, "site": True}


def test_recorded_data_are_little_endian_singles(explorable: Explorable) -> None:
    data = spec_of(explorable_html(explorable))["data"]
    survival = np.frombuffer(base64.b64decode(data["survival"]["f4"]), "<f4").reshape(data["survival"]["shape"])
    np.testing.assert_array_equal(survival, explorable.data["survival"])


def test_figure_spec_narrows_doubles_that_fit() -> None:
    values = np.array([1 / 3, np.nan, 2.0])
    spec = figure_spec(
        go.Figure([go.Scatter(x=np.arange(3), y=values), go.Scatter(y=np.array([1e300, 1.0]))], {"width": 300})
    )
    y = spec["data"][0]["y"]
    assert y["dtype"] == "f4"
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(y["bdata"]), "<f4"), values.astype("f4"))
    assert spec["data"][1]["y"]["dtype"] == "f8"
    assert "width" not in spec["layout"]


@pytest.mark.parametrize(("alt", "name"), [("", "x"), ("  ", "x"), ("alt", "Two words"), ("alt", "")])
def test_a_figure_needs_alt_and_name(alt: str, name: str) -> None:
    with pytest.raises(ResidlabError):
        figure_html(go.Figure(), alt=alt, name=name)
    with pytest.raises(ResidlabError):
        show(go.Figure(), alt=alt, name=name)


def test_legend_groups_traces_and_follows_ink() -> None:
    figure = go.Figure(
        [
            go.Scatter(name="mean", x=[1], y=[1], legendgroup="a", line={"color": INK}, mode="lines"),
            go.Scatter(x=[1], y=[2], legendgroup="a", showlegend=False),
            go.Bar(name="bars", x=[1], y=[1]),
            go.Heatmap(z=[[1]]),
        ],
        {"template": template()},
    )
    legend = Elements(legend_html(figure))
    assert [key["data-traces"] for key in legend.named("button")] == ["0 1", "2"]
    assert legend.named("path")[0]["stroke"] == "var(--rl-ink)"
    assert legend.named("rect")[0]["fill"] == template().layout.colorway[2]
    assert legend_html(go.Figure(go.Scatter(x=[1], y=[1]))) == ""


def test_static_bundle_is_html_and_words(explorable: Explorable) -> None:
    bundle = static_bundle(explorable)
    assert set(bundle) == {"text/html", "text/plain"}
    assert bundle["text/plain"].startswith("Two panels. Above: histogram")
    bundle = static_bundle(BookFigure(go.Figure(), "what it shows", "name"))
    assert set(bundle) == {"text/html", "text/plain"}
    assert bundle["text/plain"] == "what it shows"


def test_live_figure_is_the_ordinary_plotly_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pio.renderers, "default", "plotly_mimetype")
    figure = go.Figure(go.Scatter(x=[1], y=[2]))
    bundle = BookFigure(figure, "what it shows", "name")._repr_mimebundle_()
    assert bundle["text/plain"] == "what it shows"
    assert bundle["application/vnd.plotly.v1+json"]["data"][0]["type"] == "scatter"
    assert figure.layout.paper_bgcolor is None


def test_use_static_faces_needs_a_shell() -> None:
    with pytest.raises(ResidlabError, match="running kernel"):
        use_static_faces(None)


SHELL = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
from residlab.explore.display import BookFigure, show, use_static_faces
use_static_faces(shell)
from residlab.explore.chebyshev import chebyshev_explorable
import plotly.graph_objects as go
fmt = shell.display_formatter.format
data, _ = fmt(chebyshev_explorable())
assert set(data) == {"text/html", "text/plain"}, data.keys()
assert "rl-explorable" in data["text/html"]
data, _ = fmt(BookFigure(go.Figure(), "alt", "name"))
assert data["text/plain"] == "alt" and set(data) == {"text/html", "text/plain"}, data.keys()
seen = []
shell.showtraceback = lambda error: seen.append(error)
data, _ = fmt(go.Figure())
assert set(data) == {"text/plain"}, data.keys()
(error,) = seen
assert "show it with residlab.explore.display.show" in str(error[1])
for absent in ("ipywidgets", "anywidget", "torch"):
    assert absent not in sys.modules, absent
"""


def test_a_shell_with_static_faces_makes_no_widget() -> None:
    done = subprocess.run([sys.executable, "-c", SHELL], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_raw_figure_fails_the_executed_notebook(tmp_path) -> None:
    """What IPython prints as a traceback, papermill takes as a failed cell."""
    nbformat = pytest.importorskip("nbformat")
    papermill = pytest.importorskip("papermill")
    from papermill.exceptions import PapermillExecutionError

    cells = [
        "from residlab.explore.display import show, use_static_faces\nuse_static_faces(get_ipython())\n"
        "import plotly.graph_objects as go",
        'show(go.Figure(), alt="nothing yet", name="empty")',
        "go.Figure()",
    ]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell, id=f"c{i}") for i, cell in enumerate(cells)],
        metadata={"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}},
    )
    nbformat.write(notebook, tmp_path / "in.ipynb")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # papermill's and the kernel client's own
        with pytest.raises(PapermillExecutionError, match="alternative text"):
            papermill.execute_notebook(
                tmp_path / "in.ipynb", tmp_path / "out.ipynb", progress_bar=False, execution_timeout=60
            )
    executed = nbformat.read(tmp_path / "out.ipynb", 4)
    shown = [cell for cell in executed.cells if "show(go" in cell.source]
    assert set(shown[0].outputs[0].data) == {"text/html", "text/plain"}
