"""The ledger as a page: MyST markdown from the findings."""

from __future__ import annotations

from collections import Counter

from residlab.compendium.ledger import VERDICTS, Finding, findings, read_claims
from residlab.compendium.numbers import Number, in_print
from residlab.compendium.project import Project


def markdown(project: Project) -> list[str]:
    """Return the whole ledger as lines of MyST markdown, one block a claim, grouped by paper."""
    papers, _ = read_claims(project)
    rows = findings(project)
    lines = [*tally(project), ""]
    for paper in papers.values():
        lines += [f"## {paper.title}", "", f"{{cite:t}}`{paper.citation}`, arXiv {paper.arxiv}.", ""]
        for row in rows:
            if row.paper == paper.key:
                lines += _block(row)
    return lines


def tally(project: Project) -> list[str]:
    """Return one line that counts the verdicts."""
    rows = findings(project)
    counts = Counter(row.verdict for row in rows)
    parts = [f"{badge(word)} {counts[word]}" for word in VERDICTS if counts[word]]
    return [f"**{len(rows)} claims:** " + " · ".join(parts)]


def badge(verdict: str) -> str:
    """Return a verdict as an inline badge."""
    return f'<span class="rl-verdict rl-verdict-{verdict.replace(" ", "-")}">{verdict}</span>'


def _block(row: Finding) -> list[str]:
    lines = [f"(claim-{row.id.lower()})=", "", "::::{div} rl-claim", ""]
    lines += [
        f'<span class="rl-claim-id">{row.id}</span> {badge(row.verdict)} <span class="rl-scope">{row.scope}</span>',
        "",
    ]
    lines += [row.claim, ""]
    if row.published:
        lines += [f"*Published:* {row.published}", ""]
    if row.value is not None:
        ours = f"*Ours:* {_number(row.value)}"
        if row.interval is not None:
            ours += f" [{_number(row.interval[0])}, {_number(row.interval[1])}]"
        lines += [ours + (f" {row.unit}" if row.unit else ""), ""]
    if row.note:
        lines += [row.note, ""]
    if row.chapter and row.cell:
        lines += [f"*Decided in* {{ref}}`{row.cell}`, {{doc}}`/notebooks/{row.chapter}`.", ""]
    return [*lines, "::::", ""]


def _number(value: Number) -> str:
    return in_print(f"{value:.4g}") if isinstance(value, float) else str(value)
