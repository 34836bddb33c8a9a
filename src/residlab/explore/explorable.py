"""The declaration of an explorable: what moves, what it computes, what it says. Two faces are made from it.

The live face (`residlab.explore.live`) calls `Explorable.compute` in the kernel. The static face
(`residlab.explore.static_face`) runs the same closed form, written once more in a packaged script, in a page that needs
no kernel; a test compares the two.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import plotly.graph_objects as go

from residlab.errors import ResidlabError
from residlab.explore.assets import form_script
from residlab.explore.figures import check_name, check_text
from residlab.explore.formats import check_format, format_value

Array = np.ndarray[Any, Any]
State = Mapping[str, float | str]


@dataclass(frozen=True)
class Slider:
    """A number chosen from a fixed list.

    Parameters
    ----------
    name : str
        Keyword of `Explorable.compute` and key in the page's address.
    label : str
        What the reader sees, symbol included.
    values : tuple of float
        The stops, increasing.
    default : float
        One of them.
    format : str
        How a value is written, see `residlab.explore.formats.format_value`.
    description : str
        A few words of help beside the label: what it means, its unit.
    when : (str, str), optional
        Name of a `Choice` and the value at which this control is shown.
    """

    name: str
    label: str
    values: tuple[float, ...]
    default: float
    format: str = "fixed2"
    description: str = ""
    when: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "control name")
        check_text(self.label, "the label", self.name)
        check_format(self.format)
        if len(self.values) < 2 or not all(np.diff(self.values) > 0) or not np.isfinite(self.values).all():
            raise ResidlabError(f"slider {self.name!r} needs two or more finite, increasing values, got {self.values}")
        if self.default not in self.values:
            raise ResidlabError(f"slider {self.name!r}: the default {self.default} is not among its values")

    def text(self, value: float | str) -> str:
        """Write one of the values."""
        return format_value(float(value), self.format)


@dataclass(frozen=True)
class Choice:
    """One of a few named alternatives.

    Parameters
    ----------
    name, label, description, when
        As in `Slider`.
    options : mapping of str to str
        Value (stands in the address) to label (what the reader sees).
    default : str
        One of the values.
    """

    name: str
    label: str
    options: Mapping[str, str]
    default: str
    description: str = ""
    when: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "control name")
        check_text(self.label, "the label", self.name)
        if not self.options:
            raise ResidlabError(f"choice {self.name!r} has no options")
        for value, label in self.options.items():
            check_name(value, f"option of {self.name!r}:")
            check_text(label, "the label", value)
        if self.default not in self.options:
            raise ResidlabError(f"choice {self.name!r}: the default {self.default!r} is not among {list(self.options)}")

    def text(self, value: float | str) -> str:
        """Write one of the values: its label."""
        return self.options[str(value)]


Control = Slider | Choice


@dataclass(frozen=True)
class Readout:
    """A number under the figure: its name in `Frame.readouts`, its label, how it is written."""

    name: str
    label: str
    format: str = "sig3"

    def __post_init__(self) -> None:
        check_name(self.name, "readout name")
        check_text(self.label, "the label", self.name)
        check_format(self.format)


@dataclass(frozen=True)
class Frame:
    """What one state shows.

    Parameters
    ----------
    series : mapping of str to (array, array)
        For each moving trace of the figure, by its ``meta``, the x and y values; NaN is a gap.
    readouts : mapping of str to float
        For each `Readout`, its value.
    """

    series: Mapping[str, tuple[Array, Array]]
    readouts: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Explorable:
    """Sliders over a closed form, declared once.

    Parameters
    ----------
    name : str
        Stands in the address: ``#explore=chebyshev&lam=2``.
    title : str
        The question it answers.
    alt : str
        Text alternative of the figure, a template: ``{lam}`` is the control or readout of that name, as it is written.
    controls : tuple of Slider or Choice
        What moves.
    figure : plotly.graph_objects.Figure
        The drawing. A trace whose ``meta`` is a string takes its x and y from the series of that name; the others stay.
    compute : callable
        ``compute(**state) -> Frame``, the closed form.
    readouts : tuple of Readout
        Numbers under the figure.
    sentence : str
        The state in words, a template like `alt`; announced to screen readers when it changes.
    script : str
        Name of the packaged script with the same closed form, ``static/forms/<script>.js``.
    data : mapping of str to array
        Recorded arrays for the script, embedded as float32.
    caption : str
        Plain text under the figure.

    Raises
    ------
    ResidlabError
        If names repeat, a template names something unknown, or `compute` at the default state does not give exactly the
        series and readouts declared.
    """

    name: str
    title: str
    alt: str
    controls: tuple[Control, ...]
    figure: go.Figure
    compute: Callable[..., Frame]
    readouts: tuple[Readout, ...]
    sentence: str
    script: str
    data: Mapping[str, Array] = field(default_factory=dict)
    caption: str = ""

    def __post_init__(self) -> None:
        check_name(self.name, "explorable name")
        check_text(self.title, "the title", self.name)
        form_script(self.script)
        names = [part.name for part in (*self.controls, *self.readouts)]
        for name in names:
            if names.count(name) > 1 or name == "explore":
                raise ResidlabError(f"explorable {self.name!r}: the name {name!r} is taken")
        for what, text in (("alt", self.alt), ("sentence", self.sentence)):
            check_text(text, f"the {what}", self.name)
            self._check_template(what, text, names)
        for control in self.controls:
            self._check_condition(control)
        self.frame(self.default_state)

    def _check_template(self, what: str, text: str, names: list[str]) -> None:
        try:
            fields = [(name, spec, conversion) for _, name, spec, conversion in string.Formatter().parse(text)]
        except ValueError as error:
            raise ResidlabError(f"{what} of {self.name!r} is no template: {error}") from None
        for name, spec, conversion in fields:
            if name is not None and (name not in names or spec or conversion):
                raise ResidlabError(
                    f"{what} of {self.name!r} names {{{name}}}; there are {', '.join(names)}, without a format"
                )

    def _check_condition(self, control: Control) -> None:
        if control.when is None:
            return
        owner = {c.name: c for c in self.controls}.get(control.when[0])
        if not isinstance(owner, Choice) or control.when[1] not in owner.options or owner.when:
            raise ResidlabError(f"control {control.name!r} is shown when {control.when}: no such choice and option")

    @property
    def default_state(self) -> dict[str, float | str]:
        """The state a reader meets first."""
        return {control.name: control.default for control in self.controls}

    @property
    def moving(self) -> tuple[str, ...]:
        """The ``meta`` of the traces that move, in the order of the figure."""
        return tuple(trace.meta for trace in self.figure.data if isinstance(trace.meta, str))

    def frame(self, state: State) -> Frame:
        """Compute one state, and check that it says what was declared.

        Raises
        ------
        ResidlabError
            If the state, the series or the readouts are not the declared ones.
        """
        if set(state) != set(self.default_state):
            raise ResidlabError(
                f"{self.name!r}: the state has {sorted(state)}, the controls are {sorted(self.default_state)}"
            )
        frame = self.compute(**state)
        for what, got, wanted in (
            ("series", set(frame.series), set(self.moving)),
            ("readouts", set(frame.readouts), {readout.name for readout in self.readouts}),
        ):
            if got != wanted:
                raise ResidlabError(
                    f"{self.name!r}: compute gives the {what} {sorted(got)}, declared are {sorted(wanted)}"
                )
        return frame

    def texts(self, state: State, frame: Frame) -> dict[str, str]:
        """Write every control and readout of a state."""
        written = {control.name: control.text(state[control.name]) for control in self.controls}
        return written | {r.name: format_value(float(frame.readouts[r.name]), r.format) for r in self.readouts}

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        from residlab.explore.live import live_bundle

        return live_bundle(self)
