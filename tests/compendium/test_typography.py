"""Typography of pages, without a book around it; tests/site looks at the book's own pages in a browser."""

import pytest
from docutils import nodes
from docutils.utils import new_document

from residlab.compendium.numbers import in_print
from residlab.compendium.typography import KeepPunctuation, NumbersInPrint, OneIdEach


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("1.5e-23", "1.5\u00a0×\u00a010⁻²³"),
        ("-2.25E+06", "−2.25\u00a0×\u00a010⁶"),
        ("1e-15", "10⁻¹⁵"),
        ("-1e-05", "−10⁻⁵"),
        ("1.0e-05", "1.0\u00a0×\u00a010⁻⁵"),
        ("-0.75", "−0.75"),
        ("+0.5", "+0.5"),
        ("-12.5%", "−12.5%"),
        ("12,345", "12,345"),
        ("layer 1e5", "layer 1e5"),
        ("model-1", "model-1"),
        ("-inf", "-inf"),
        ("", ""),
    ],
)
def test_numbers_in_print(text, printed):
    assert in_print(text) == printed


def paragraph(*children):
    document = new_document("page")
    document += nodes.paragraph("", "", *(nodes.Text(c) if isinstance(c, str) else c for c in children))
    return document


def formula(text="x"):
    return nodes.math(text, text)


def shape(document):
    """Return the text of a paragraph with each span that no line break divides in brackets."""
    (found,) = document.findall(nodes.paragraph)
    return "".join(
        f"⟦{child.astext()}⟧" if isinstance(child, nodes.inline) else child.astext() for child in found.children
    )


@pytest.mark.parametrize(
    ("children", "wanted"),
    [
        (["so ", formula(), ". Then"], "so ⟦x.⟧ Then"),
        (["(", formula(), "), and"], "⟦(x),⟧ and"),
        (["an ", formula(), "-dimensional"], "an ⟦x-⟧dimensional"),
        (["plain ", formula(), " text"], "plain x text"),
        ([formula("a"), ", ", formula("b"), "; ", formula("c")], "⟦a,⟧ ⟦b;⟧ c"),
        (["the (", formula(), " of"], "the ⟦(x⟧ of"),
        ([formula(), "’s sign"], "⟦x’s⟧ sign"),
    ],
)
def test_a_formula_keeps_its_punctuation(children, wanted):
    document = paragraph(*children)
    text = document.astext()
    KeepPunctuation(document).run()
    assert shape(document) == wanted
    assert document.astext() == text
    assert all(span["classes"] == ["rl-unbroken"] for span in document.findall(nodes.inline))


def test_only_quoted_numbers_are_rewritten():
    quoted, other = nodes.inline("", "1e-07", classes=["pasted-text"]), nodes.inline("", "1e-07")
    document = paragraph("at ", quoted, " and ", other)
    NumbersInPrint(document).run()
    assert document.astext() == "at 10⁻⁷ and 1e-07"


def test_an_id_that_every_theorem_has_becomes_a_class():
    document = new_document("page")
    document += [nodes.section(ids=["proof-content"], classes=["theorem-content"]) for _ in range(2)]
    document += nodes.section(ids=["own"])
    OneIdEach(document).run()
    assert [section["ids"] for section in document.findall(nodes.section)] == [[], [], ["own"]]
    assert document[0]["classes"] == ["theorem-content", "proof-content"]
