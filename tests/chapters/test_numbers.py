"""The numbers of the executed book: each guarded, each verdict the accepted one."""

import math
from pathlib import Path

import pytest
import yaml

from residlab.compendium.ledger import departures, findings
from residlab.compendium.numbers import glued
from residlab.compendium.project import Project

GUARDS = yaml.safe_load((Path(__file__).parent / "guards.yml").read_text())
CHAPTERS = Project.find().chapter_names()


@pytest.fixture(scope="module")
def numbers(project, book):
    return {name: glued(project.executed / f"{name}.ipynb") for name in CHAPTERS}


def test_every_chapter_has_guards_and_no_guard_is_left_over():
    assert sorted(GUARDS) == CHAPTERS


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_no_number_without_a_guard_and_no_guard_without_a_number(numbers, chapter):
    assert numbers[chapter].keys() == GUARDS[chapter].keys()


@pytest.mark.parametrize(("chapter", "name"), [(chapter, name) for chapter in GUARDS for name in GUARDS[chapter]])
def test_numbers_are_what_was_reviewed(numbers, chapter, name):
    guard = dict(GUARDS[chapter][name])
    expected, value = guard.pop("value"), numbers[chapter][name]
    assert len(guard) == 1, "one tolerance a guard: exact, rtol or atol"
    if guard.get("exact"):
        assert value == expected
    else:
        assert math.isclose(value, expected, rel_tol=guard.get("rtol", 0.0), abs_tol=guard.get("atol", 0.0))


def test_verdicts_are_the_accepted_ones(project, book):
    rows = findings(project)
    assert departures(rows) == []
    assert {row.id: row.verdict for row in rows}["A1"] == "holds"


def test_the_text_of_chapter_6_says_what_the_ledger_does(project, numbers, book):
    words = {row.id: row.verdict for row in findings(project)}
    said = {claim: numbers["06-cost"][f"{claim.lower()}_word"] for claim in ("A11", "A12", "A13")}
    assert said == {claim: words[claim] for claim in said}


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_quoted_number_is_glued(project, numbers, chapter):
    from residlab.compendium.chapter import Chapter

    quoted = Chapter(chapter, project.notebooks / f"{chapter}.md").glue_keys
    assert quoted
    assert quoted <= numbers[chapter].keys()
