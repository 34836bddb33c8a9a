"""The report: one HTML file that stands alone. It has no script and asks no address for anything: see its policy."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from residlab.explore.formats import format_value
from residlab.inspection import sections
from residlab.inspection.findings import Finding, counted, findings
from residlab.inspection.measure import Inspection
from residlab.inspection.memory import gigabytes

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(seen: Inspection) -> str:
    """Return the report."""
    found = findings(seen)
    name = escape(str(seen.model["name"]))
    version, day = str(seen.resources["versions"]["residlab"]), str(seen.resources["time"])[:10]
    # The book's own sheet, for its colours in light and dark.
    sheets = (("residlab.explore", "static/residlab-explore.css"), ("residlab.inspection", "page.css"))
    style = "\n".join((files(package) / sheet).read_text(encoding="utf-8") for package, sheet in sheets)
    parts = "\n".join(_section(each, getattr(sections, each.key)(seen)) for each in found)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="generator" content="residlab inspect">
<link rel="icon" href="data:,">
<title>{name} inspected</title>
<style>
{style}
</style>
</head>
<body>
<main>
<header>
<p class="in-kicker">residlab inspect</p>
<h1>{name}</h1>
<p class="in-lede">{escape(_lede(seen))}</p>
{_tiles(seen, found)}
</header>
{parts}
{_method(seen)}
<footer>Made by residlab {escape(version)} on {escape(day)}. What the measures mean, with proofs and with what they do
not say, is in its book, <em>The Residual Stream: Bound It, Remove It, Round It</em>.</footer>
</main>
</body>
</html>
"""


def millions(parameters: int) -> str:
    """Write a number of parameters."""
    for unit, name in ((1e9, "billion"), (1e6, "million")):
        if parameters >= unit:
            return f"{parameters / unit:.3g} {name} parameters"
    return f"{parameters:,} parameters"


def _lede(seen: Inspection) -> str:
    model, text = seen.model, seen.text
    begin = f", each begun with {text['begin']}" if text["begin"] else ""
    windows = f"{text['windows']} windows of {text['window']}" if text["windows"] > 1 else "one window"
    fewer = f" ({text['asked']:,} were asked for)" if text["asked"] != text["tokens"] else ""
    return (
        f"{model['architecture']}, {millions(model['parameters'])}, {model['layers']} blocks of width "
        f"{model['width']:,}, stored as {', '.join(model['dtypes'])}. It read {text['tokens']:,} tokens{fewer} of "
        f"{text['name']} in {windows}{begin}, at a loss of {seen.nats:.2f} nats per token (a guess among "
        f"all {model['vocabulary']:,} tokens: {model['uniform_nats']:.2f})."
    )


def _tiles(seen: Inspection, found: Sequence[Finding]) -> str:
    shown = [("method", f"{seen.nats:.2f}", "nats per token on the text")]
    shown += [(each.key, each.value, each.unit) for each in found]
    tiles = "".join(
        f'<li><a href="#{key}"><strong>{escape(value)}</strong><span>{escape(unit)}</span></a></li>\n'
        for key, value, unit in shown
    )
    return f'<ul class="in-tiles" aria-label="Findings">\n{tiles}</ul>'


def _section(finding: Finding, body: str) -> str:
    return (
        f'<section id="{finding.key}" aria-labelledby="{finding.key}-title">\n'
        f'<h2 id="{finding.key}-title">{escape(finding.title)}</h2>\n'
        f'<p class="in-meaning">{escape(finding.sentence)}</p>\n{body}\n</section>'
    )


def _method(seen: Inspection) -> str:
    resources = seen.resources
    versions = ", ".join(f"{name} {version}" for name, version in resources["versions"].items())
    seconds = ", ".join(f"{name} {value:.3g}" for name, value in resources["seconds"].items())
    facts = {
        "Model": f"{seen.model['architecture']}, {seen.model['parameters']:,} parameters, {seen.model['layers']} "
        f"blocks, width {seen.model['width']:,}, {seen.model['heads']} heads, context {seen.model['context']}; weights "
        f"of {', '.join(seen.model['dtypes'])} computed in float32",
        "Text": f"{seen.text['name']}: {seen.text['windows']} × {seen.text['window']} tokens; each window is read by "
        "itself, and its first token has nothing before it",
        "Quantization": "inputs of linear layers, whose weights are "
        f"{format_value(seen.model['linear_share'], 'share')} of the blocks' parameters; experts that see some tokens "
        "only are left out",
        "Seconds": f"{resources['total_seconds']:.3g} in all with {counted(resources['threads'], 'thread')} at a load "
        f"of {resources['load']} ({seconds})",
        "Memory": f"{gigabytes(resources['memory_taken'])} at the peak of the process, "
        f"{gigabytes(resources['memory_counted'])} counted beforehand",
        "Versions": versions,
    }
    entries = "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items())
    return (
        '<section id="method" aria-labelledby="method-title">\n<h2 id="method-title">How this was measured</h2>\n'
        f"<dl>\n{entries}\n</dl>\n</section>"
    )
