"""The ledger: predicates, rows, verdicts, and the file of this book."""

import json
import os
import subprocess
import sys
import textwrap

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from residlab.compendium.ledger import Claim, departures, findings, holds, read_claims, verdict
from residlab.compendium.numbers import glued
from residlab.compendium.project import Project
from residlab.errors import ResidlabError

PAPERS = """\
papers:
  bhyt: {title: BHyT, arxiv: "2601.09719", citation: byun}
"""


def row(**fields):
    return Claim(**{"id": "A1", "paper": "bhyt", "claim": "c", "scope": "in general", "verdict": "pending"} | fields)


def computed(**rules):
    named = {name.replace("_", " "): rule for name, rule in rules.items()}
    return row(verdict="computed", rules=named, chapter="02-x", cell="c", accepted="holds")


@given(a=st.floats(-10, 10), b=st.floats(-10, 10))
def test_predicates_mean_what_python_means(a, b):
    numbers = {"a": a, "b": b}
    for predicate in ("a < b", "a <= b and not b == 3", "abs(a - b) > 1 or a * 2 >= -b / 4", "0 < a < b"):
        assert holds(predicate, numbers) == eval(predicate, {"abs": abs}, numbers)


@pytest.mark.parametrize(
    ("predicate", "says"),
    [
        ("a.real > 0", "'a.real' is not allowed"),
        ("__import__('os').system('x') == 0", "is not allowed"),
        ("[a][0] > 0", "is not allowed"),
        ("a ** 9 > 0", "is not allowed"),
        ("missing > 0", "no number named 'missing'"),
        ("a + 1", "neither true nor false"),
        ("a >", "is not an expression"),
        ("a / 0 > 1", "cannot be computed: float division by zero"),
        ("a < 'text'", "cannot be computed: '<' not supported"),
        ("abs('text') > 1", "cannot be computed: bad operand type"),
        (f"a * 1{'0' * 400} > 1", "cannot be computed: int too large"),
        (f"{'-' * 100_000}a > 1", "is not an expression"),
    ],
)
def test_predicates_allow_nothing_else(predicate, says):
    with pytest.raises(ResidlabError, match=says.replace("(", r"\(").replace(")", r"\)").replace("[", r"\[")):
        holds(predicate, {"a": 1.0})


def test_first_rule_that_holds_decides_and_none_is_undecided():
    claim = computed(holds="x < 1", holds_in_part="x < 2", does_not_hold="x > 3")
    assert [verdict(claim, {"x": x}) for x in (0.5, 1.5, 2.5, 3.5)] == [
        "holds",
        "holds in part",
        "undecided",
        "does not hold",
    ]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"verdict": "true"}, "verdict 'true' is not one of computed, not testable here, pending"),
        ({"verdict": "holds"}, "verdict 'holds' is not one of"),
        ({"scope": "everywhere"}, "scope 'everywhere'"),
        ({"verdict": "computed"}, "needs rules, chapter, cell and accepted"),
        ({"rules": {"holds": "x > 0"}}, "said by hand and has no rules"),
        ({"verdict": "not testable here"}, "needs a note"),
        ({"interval": ["a"]}, "interval names two numbers"),
        ({"interval": "ab"}, "claim A1: interval must be a list of two names, got 'ab'"),
        ({"interval": ["a", ["b"]]}, "claim A1: interval must be a list of two names"),
        ({"rules": {"holds": True}}, "claim A1: rules must give each verdict a predicate, .* got {'holds': True}"),
        ({"rules": ["x > 0"]}, "claim A1: rules must give each verdict a predicate"),
        ({"id": ["A1"]}, r"claim \['A1'\]: id must be a text"),
        ({"paper": ["bhyt"]}, r"claim A1: paper must be a text, got \['bhyt'\]"),
        ({"value": ["share"]}, r"claim A1: value must be a text, got \['share'\]"),
    ],
)
def test_rows_are_checked(fields, says):
    with pytest.raises(ResidlabError, match=says):
        row(**fields)


def test_a_rule_cannot_give_a_verdict_that_is_said_by_hand():
    with pytest.raises(ResidlabError, match="not a verdict that a rule can give"):
        computed(pending="x > 0")


@pytest.fixture
def project(tmp_path):
    for folder in ("notebooks", "book", "executed"):
        (tmp_path / folder).mkdir()
    (tmp_path / "_toc.yml").touch()
    (tmp_path / "notebooks" / "02-x.md").touch()
    return Project(tmp_path)


def write_claims(project, claims):
    (project.root / "book" / "claims.yml").write_text(PAPERS + "claims:\n" + textwrap.indent(claims, "  "))


def write_executed(project, *pairs):
    outputs = [
        nbformat.v4.new_output(
            "display_data",
            data={"application/papermill.record/text/plain": repr(value)},
            metadata={"scrapbook": {"name": name, "mime_prefix": "application/papermill.record/"}},
        )
        for name, value in pairs
    ]
    cell = nbformat.v4.new_code_cell("glue", outputs=outputs)
    path = project.executed / "02-x.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    return path


COMPUTED = """\
- {id: A1, paper: bhyt, claim: c, scope: in general, verdict: computed, chapter: 02-x, cell: c, accepted: holds,
   rules: {holds: share <= bound, does not hold: share > bound}, value: share, interval: [low, share]}
- {id: A2, paper: bhyt, claim: d, scope: at our scale, verdict: pending}
"""


def test_findings_carry_verdict_value_and_interval(project):
    write_claims(project, COMPUTED)
    write_executed(project, ("share", 0.004), ("bound", 0.01), ("low", 0.001))
    first, second = findings(project)
    assert (first.verdict, first.value, first.interval) == ("holds", 0.004, (0.001, 0.004))
    assert (second.verdict, second.value) == ("pending", None)
    assert departures([first, second]) == []


def test_a_verdict_that_changed_departs_from_the_accepted_one(project):
    write_claims(project, COMPUTED)
    write_executed(project, ("share", 0.02), ("bound", 0.01), ("low", 0.001))
    assert departures(findings(project)) == ["A1: computed 'does not hold', accepted 'holds'"]


def test_a_rule_that_cannot_be_computed_names_its_claim(project):
    write_claims(project, COMPUTED.replace("share <= bound", "share / low > 1"))
    write_executed(project, ("share", 0.02), ("bound", 0.01), ("low", 0.0))
    with pytest.raises(ResidlabError, match=r"^claim A1: predicate 'share / low > 1' cannot be computed"):
        findings(project)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_a_character_gets_its_number(project, encoding):
    write_claims(project, "- {id: A1, paper: bhyt, claim: a − b, scope: in general, verdict: pending}")
    done = subprocess.run(
        [sys.executable, "-m", "residlab.cli", "claims", "--json", "--root", str(project.root)],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["claim"] == "a − b"


def test_a_number_that_a_row_names_must_be_glued(project):
    write_claims(project, COMPUTED)
    write_executed(project, ("share", 0.02), ("bound", 0.01))
    with pytest.raises(ResidlabError, match="A1: no number named 'low'"):
        findings(project)


def test_a_chapter_that_is_not_executed_is_said(project):
    write_claims(project, COMPUTED)
    with pytest.raises(ResidlabError, match="02-x is not executed yet: run residlab execute 02-x"):
        findings(project)


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        (COMPUTED + COMPUTED, "A1 stands twice"),
        ("- {id: A1, paper: other, claim: c, scope: in general, verdict: pending}", "paper 'other'"),
        ("- {id: A1, paper: bhyt, claim: c, scope: in general, verdict: pending, chapter: 09-y}", "no chapter '09-y'"),
        ("- {id: A1, paper: bhyt, colour: red}", "cannot be read"),
        ("- [", "cannot be read"),
        ("- {id: A1, published: 2024-99-99}", "cannot be read"),
    ],
)
def test_a_malformed_file_is_one_sentence(project, claims, says):
    write_claims(project, claims)
    with pytest.raises(ResidlabError, match=says) as error:
        read_claims(project)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"papers: {}", b"\xff\xfe"])
def test_a_file_that_is_no_ledger_is_one_sentence(project, content):
    (project.root / "book" / "claims.yml").write_bytes(content)
    with pytest.raises(ResidlabError, match=r"claims\.yml (must hold papers and claims|cannot be read)"):
        read_claims(project)


def test_a_table_of_contents_that_is_no_text_is_one_sentence(project):
    (project.root / "_toc.yml").write_bytes(b"\xff\xfe")
    with pytest.raises(ResidlabError, match=r"_toc\.yml cannot be read"):
        project.unlisted(["01-a"])


def test_numbers_come_back_as_glued(project):
    path = write_executed(project, ("a", 0.1), ("b", 3), ("c", True), ("d", "text"))
    assert glued(path) == {"a": 0.1, "b": 3, "c": True, "d": "text"}


def test_numbers_glued_twice_or_not_plain_are_refused(project):
    with pytest.raises(ResidlabError, match="a is glued twice"):
        glued(write_executed(project, ("a", 0.1), ("a", 0.2)))
    with pytest.raises(ResidlabError, match="glue a plain number"):
        glued(write_executed(project, ("a", [1])))


def test_the_book_has_a_row_for_every_claim_of_the_three_papers():
    papers, claims = read_claims(Project.find())
    expected = [f"A{i}" for i in range(1, 14)] + [f"B{i}" for i in range(1, 9)] + [f"C{i}" for i in range(1, 10)]
    assert [claim.id for claim in claims] == expected
    assert {claim.id[0]: claim.paper for claim in claims} == dict(zip("ABC", papers, strict=True))
