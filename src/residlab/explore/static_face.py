"""The static face of an explorable: HTML that works without a kernel, and reads well without scripts."""

from __future__ import annotations

from html import escape

from residlab.explore.explorable import Choice, Control, Explorable, Slider, State
from residlab.explore.figures import embed_array, embed_json, figure_height, figure_spec
from residlab.explore.legend import legend_html
from residlab.explore.theme import roles


def explorable_html(explorable: Explorable) -> str:
    """Return the explorable as a section of a page.

    Controls are native form elements, disabled until the script runs; the values, the sentence and the text alternative
    of the default state are in the HTML. The specification is JSON, never code.
    """
    state = explorable.default_state
    texts = explorable.texts(state, explorable.frame(state))
    anchor = f"explore-{explorable.name}"
    controls = "\n".join(_control(control, anchor, state) for control in explorable.controls)
    caption = f'<p class="rl-caption">{escape(explorable.caption)}</p>\n' if explorable.caption else ""
    return (
        f'<section class="rl-explorable" id="{anchor}" data-name="{explorable.name}"'
        f' aria-labelledby="{anchor}-title">\n'
        f'<p class="rl-kicker" aria-hidden="true">Explore</p>\n'
        f'<p class="rl-title" id="{anchor}-title">{escape(explorable.title)}</p>\n'
        f'<fieldset class="rl-controls" disabled>\n'
        f'<legend class="rl-hidden">Controls: {escape(explorable.title)}</legend>\n'
        f"{controls}\n</fieldset>\n"
        f'<noscript><p class="rl-noscript">The controls need JavaScript; the default state is described below.</p>'
        f"</noscript>\n"
        f"{legend_html(explorable.figure)}"
        f'<div class="rl-plot" role="img" aria-label="{escape(explorable.alt.format_map(texts))}"'
        f' style="height:{figure_height(explorable.figure)}px"></div>\n'
        f"{_readouts(explorable, texts)}\n"
        f'<p class="rl-sentence" aria-live="polite" aria-atomic="true">'
        f"{escape(explorable.sentence.format_map(texts))}</p>\n"
        f"{caption}"
        f'<div class="rl-actions">\n<button type="button" class="rl-button rl-reset" disabled>Reset</button>\n'
        f'<button type="button" class="rl-button rl-copy" disabled>Copy link</button>\n'
        f'<span class="rl-status" role="status"></span>\n</div>\n'
        f'<details class="rl-data"><summary>Data</summary></details>\n'
        f'<script type="application/json">{embed_json(_spec(explorable))}</script>\n'
        "</section>"
    )


def _control(control: Control, anchor: str, state: State) -> str:
    own = f"{anchor}-{control.name}"
    note = f' <span class="rl-note">{escape(control.description)}</span>' if control.description else ""
    hidden = " hidden" if control.when and state[control.when[0]] != control.when[1] else ""
    label = f'<label for="{own}">{escape(control.label)}{note}</label>'
    if isinstance(control, Slider):
        index, shown = control.values.index(control.default), escape(control.text(control.default))
        field = (
            f'<output for="{own}" aria-live="off">{shown}</output>\n'
            f'<input type="range" id="{own}" min="0" max="{len(control.values) - 1}" step="1" value="{index}"'
            f' aria-valuetext="{shown}" autocomplete="off">'
        )
    else:
        field = f'<select id="{own}" autocomplete="off">{_options(control)}</select>'
    kind = "slider" if isinstance(control, Slider) else "choice"
    return f'<div class="rl-control rl-{kind}" data-control="{control.name}"{hidden}>\n{label}\n{field}\n</div>'


def _options(choice: Choice) -> str:
    return "".join(
        f'<option value="{value}"{" selected" if value == choice.default else ""}>{escape(label)}</option>'
        for value, label in choice.options.items()
    )


def _readouts(explorable: Explorable, texts: dict[str, str]) -> str:
    tiles = "\n".join(
        f'<div class="rl-readout"><dt>{escape(readout.label)}</dt>'
        f'<dd data-readout="{readout.name}">{escape(texts[readout.name])}</dd></div>'
        for readout in explorable.readouts
    )
    return f'<dl class="rl-readouts">\n{tiles}\n</dl>'


def _spec(explorable: Explorable) -> dict[str, object]:
    return {
        "script": explorable.script,
        "controls": [_control_spec(control) for control in explorable.controls],
        "readouts": [{"name": readout.name, "format": readout.format} for readout in explorable.readouts],
        "sentence": explorable.sentence,
        "alt": explorable.alt,
        "figure": figure_spec(explorable.figure),
        "roles": roles(),
        "data": {name: embed_array(values) for name, values in explorable.data.items()},
    }


def _control_spec(control: Control) -> dict[str, object]:
    spec: dict[str, object] = {"name": control.name, "default": control.default, "when": control.when}
    if isinstance(control, Slider):
        return spec | {"values": list(control.values), "format": control.format}
    return spec | {"options": dict(control.options)}
