"""Typography of pages: formulas keep their punctuation, numbers are written as in print, proofs share no id."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

from residlab.compendium.numbers import in_print

_BEFORE = re.compile(r"[(\[{“‘\"'±~]+$")
_AFTER = re.compile(r"^(?:[-‑–—]|[.,;:!?)\]}’”\"'…%]+(?:s\b)?)")


class KeepPunctuation(SphinxPostTransform):
    """Wrap an inline formula and the punctuation that touches it: browsers break the line between them otherwise."""

    default_priority = 900
    formats = ("html",)

    def run(self, **_: Any) -> None:
        """Wrap each formula of the page in a span of class ``rl-unbroken`` where something touches it."""
        for formula in list(self.document.findall(nodes.math)):
            _wrap(formula)


def _wrap(formula: nodes.math) -> None:
    parent = formula.parent
    assert parent is not None
    place = parent.index(formula)
    before = parent[place - 1] if place else None
    after = parent[place + 1] if place + 1 < len(parent) else None
    leading = _BEFORE.search(before) if isinstance(before, nodes.Text) else None
    trailing = _AFTER.match(after) if isinstance(after, nodes.Text) else None
    if not leading and not trailing:
        return
    wrapper = nodes.inline(classes=["rl-unbroken"])
    parent[place] = wrapper
    if leading:
        parent[place - 1] = nodes.Text(leading.string[: leading.start()])
        wrapper += nodes.Text(leading[0])
    wrapper += formula
    if trailing:
        parent[place + 1] = nodes.Text(trailing.string[trailing.end() :])
        wrapper += nodes.Text(trailing[0])


class NumbersInPrint(SphinxPostTransform):
    """Write quoted numbers (``{glue:text}``) as in print: 1.5 × 10⁻²³ for 1.5e-23, and a minus sign for a hyphen."""

    default_priority = 900  # after numbers of other chapters have been fetched

    def run(self, **_: Any) -> None:
        """Rewrite the text of each quoted number."""
        for quoted in self.document.findall(nodes.inline):
            if "pasted-text" in quoted["classes"]:
                quoted.children = [nodes.Text(in_print(quoted.astext()))]
                quoted.setup_child(quoted.children[0])


class OneIdEach(SphinxPostTransform):
    """Drop the id ``proof-content``, which sphinx-proof gives to the inside of every theorem: an id stands once."""

    default_priority = 900

    def run(self, **_: Any) -> None:
        """Turn the id into a class."""
        for section in self.document.findall(nodes.section):
            if "proof-content" in section["ids"]:
                section["ids"].remove("proof-content")
                section["classes"].append("proof-content")
