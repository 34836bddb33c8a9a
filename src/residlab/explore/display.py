"""Showing figures and explorables: live in a notebook, static in the book."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import plotly.graph_objects as go

from residlab.errors import ResidlabError
from residlab.explore.explorable import Explorable
from residlab.explore.figures import check_name, check_text, figure_html
from residlab.explore.static_face import explorable_html
from residlab.explore.theme import PAPER

_PLOTLY = (("plotly.graph_objs._figure", "Figure"), ("plotly.graph_objs._figurewidget", "FigureWidget"))


@dataclass(frozen=True, eq=False)
class BookFigure:
    """A plotly figure with what a page needs beside it.

    Parameters
    ----------
    figure : plotly.graph_objects.Figure
        What to draw.
    alt, name, caption : str
        As in `residlab.explore.figures.figure_html`.

    Raises
    ------
    ResidlabError
        If `alt` is empty or `name` cannot stand in an address.
    """

    figure: go.Figure
    alt: str
    name: str
    caption: str = ""

    def __post_init__(self) -> None:
        check_name(self.name, "figure name")
        check_text(self.alt, "the alt text", self.name)

    def html(self) -> str:
        """Return the figure as a page shows it."""
        return figure_html(self.figure, alt=self.alt, name=self.name, caption=self.caption)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        live = go.Figure(self.figure)
        live.layout.paper_bgcolor = PAPER
        data: dict[str, Any] = dict(live._repr_mimebundle_())
        return {**data, "text/plain": self.alt}


def show(fig: go.Figure, *, alt: str, name: str, caption: str = "") -> None:
    """Display a figure, with its text alternative.

    In a live notebook the ordinary plotly figure; in the book the static face.

    Parameters
    ----------
    fig : plotly.graph_objects.Figure
        What to draw.
    alt : str
        What the figure shows, for a reader who cannot see it. Required.
    name : str
        The figure's name on the page; its anchor is ``#fig-<name>``.
    caption : str
        Plain text under the figure.

    Raises
    ------
    ResidlabError
        If `alt` is empty or `name` cannot stand in an address.
    """
    from IPython.display import display

    display(BookFigure(fig, alt, name, caption))  # type: ignore[no-untyped-call, unused-ignore]


def static_bundle(shown: BookFigure | Explorable) -> dict[str, str]:
    """Return the MIME bundle of the book: the static face, and its text alternative as ``text/plain``.

    IPython adds a ``text/plain`` of its own to every bundle that has none: a figure's would be its whole declaration.
    No widget is made, and no JSON of plotly's stands beside the HTML.
    """
    if isinstance(shown, BookFigure):
        return {"text/html": shown.html(), "text/plain": shown.alt}
    state = shown.default_state
    words = shown.alt.format_map(shown.texts(state, shown.frame(state)))
    return {"text/html": explorable_html(shown), "text/plain": words}


def use_static_faces(shell: Any) -> None:
    """Make one IPython shell show static faces from now on.

    The executor of the book calls it in the kernel before the first cell: ``use_static_faces(get_ipython())``. A plotly
    figure displayed as it is then ends in an error, since it has no text alternative.

    Parameters
    ----------
    shell : IPython.core.interactiveshell.InteractiveShell
        The kernel's shell.

    Raises
    ------
    ResidlabError
        If there is no shell.
    """
    if shell is None:
        raise ResidlabError("use_static_faces needs the shell of a running kernel, got None")
    bundles, displays = shell.display_formatter.mimebundle_formatter, shell.display_formatter.ipython_display_formatter
    bundles.for_type(BookFigure, static_bundle)
    bundles.for_type(Explorable, static_bundle)
    for module, name in _PLOTLY:
        displays.for_type_by_name(module, name, _refuse)
        bundles.for_type_by_name(module, name, _in_place)
        shell.display_formatter.formatters["text/html"].for_type_by_name(module, name, _no_html)


def _refuse(_figure: object) -> NoReturn:
    raise ResidlabError(
        "a plotly figure without alternative text cannot go into the book: "
        'show it with residlab.explore.display.show(fig, alt="what it shows", name="its-name")'
    )


def _in_place(_figure: object) -> dict[str, str]:
    return {"text/plain": "(a figure without alternative text)"}


def _no_html(_figure: object) -> None:
    """Plotly's own HTML of the refused figure would ask a third party for scripts."""
