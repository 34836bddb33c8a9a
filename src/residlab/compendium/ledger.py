"""The ledger of claims: what the three papers say, and what this book found.

``book/claims.yml`` holds a row for each claim. A row whose verdict is ``computed`` gives rules, an ordered mapping from
verdicts to predicates over its chapter's glued numbers; the first predicate that holds decides, and if none does the
claim is undecided. ``accepted`` keeps the verdict that was last reviewed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import yaml

from residlab.compendium.numbers import Number, glued
from residlab.compendium.project import Project
from residlab.errors import ResidlabError

VERDICTS = ("holds", "holds in part", "does not hold", "undecided", "not testable here", "pending")
BY_HAND = ("not testable here", "pending")
SCOPES = ("in general", "at our scale")

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


@dataclass(frozen=True)
class Paper:
    """One of the three papers."""

    key: str
    title: str
    arxiv: str
    citation: str


@dataclass(frozen=True)
class Claim:
    """A row of ``claims.yml`` as written."""

    id: str
    paper: str
    claim: str
    scope: str
    verdict: str
    published: str | None = None
    chapter: str | None = None
    cell: str | None = None
    rules: Mapping[str, str] = field(default_factory=dict)
    value: str | None = None
    interval: list[str] | None = None
    unit: str | None = None
    accepted: str | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        """Check the row against itself.

        Raises
        ------
        ResidlabError
            Naming the claim and what is wrong with it.
        """
        self._check_kinds()
        words = ("computed", *BY_HAND)
        if self.verdict not in words:
            self._refuse(f"verdict {self.verdict!r} is not one of {', '.join(words)}")
        if self.scope not in SCOPES:
            self._refuse(f"scope {self.scope!r} is not one of {', '.join(SCOPES)}")
        if self.verdict == "computed":
            if not (self.rules and self.chapter and self.cell and self.accepted):
                self._refuse("a computed verdict needs rules, chapter, cell and accepted")
            for word in (*self.rules, self.accepted):
                if word not in VERDICTS or word in BY_HAND:
                    self._refuse(f"{word!r} is not a verdict that a rule can give")
        elif self.rules:
            self._refuse(f"{self.verdict!r} is said by hand and has no rules")
        if self.verdict == "not testable here" and not self.note:
            self._refuse("'not testable here' needs a note with the reason")
        if self.interval is not None and len(self.interval) != 2:
            self._refuse("interval names two numbers")

    def _check_kinds(self) -> None:
        """Refuse what YAML read as something else than the row needs."""
        for name in ("id", "paper", "verdict", "scope", "chapter", "cell", "value", "accepted"):
            given = getattr(self, name)
            if not isinstance(given, str) and (given is not None or name in ("id", "paper")):
                self._refuse(f"{name} must be a text, got {given!r}")
        rules: Any = self.rules or {}
        if not isinstance(rules, dict) or not all(isinstance(each, str) for rule in rules.items() for each in rule):
            self._refuse(f"rules must give each verdict a predicate, both as texts; got {rules!r}")
        names: Any = self.interval or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            self._refuse(f"interval must be a list of two names, got {names!r}")

    def _refuse(self, why: str) -> None:
        raise ResidlabError(f"claim {self.id}: {why}")


@dataclass(frozen=True)
class Finding:
    """A claim with its verdict, and the numbers that it rests on."""

    id: str
    paper: str
    claim: str
    published: str | None
    scope: str
    verdict: str
    accepted: str | None
    value: Number | None
    interval: tuple[Number, Number] | None
    unit: str | None
    chapter: str | None
    cell: str | None
    note: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return asdict(self)


def holds(predicate: str, numbers: Mapping[str, Number]) -> bool:
    """Return whether a predicate over numbers is true: comparisons, and/or/not, + − × ÷, and ``abs``.

    Raises
    ------
    ResidlabError
        If the predicate is not of that form, names a number that is not there, or cannot be computed.
    """
    try:
        tree = ast.parse(predicate, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ResidlabError(f"predicate {predicate!r} is not an expression") from None
    try:
        result = _evaluate(tree, numbers, predicate)
    except (ArithmeticError, TypeError, RecursionError, MemoryError) as error:
        raise ResidlabError(f"predicate {predicate!r} cannot be computed: {error}") from None
    if not isinstance(result, bool):
        raise ResidlabError(f"predicate {predicate!r} is neither true nor false, but {result!r}")
    return result


def _evaluate(node: ast.expr, numbers: Mapping[str, Number], whole: str) -> Any:
    def value(child: ast.expr) -> Any:
        return _evaluate(child, numbers, whole)

    match node:
        case ast.Constant(value=bool() | int() | float() | str() as constant):
            return constant
        case ast.Name(id=name):
            if name not in numbers:
                raise ResidlabError(f"predicate {whole!r}: no number named {name!r} was glued")
            return numbers[name]
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(value(part) for part in parts)
        case ast.BoolOp(op=ast.Or(), values=parts):
            return any(value(part) for part in parts)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](value(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](value(left), value(right))
        case ast.Compare(left=left, ops=ops, comparators=rights) if all(type(op) in _OPERATORS for op in ops):
            values = [value(left), *(value(right) for right in rights)]
            return all(_OPERATORS[type(op)](a, b) for op, a, b in zip(ops, values, values[1:], strict=False))
        case ast.Call(func=ast.Name(id="abs"), args=[argument], keywords=[]):
            return abs(value(argument))
    raise ResidlabError(f"predicate {whole!r}: {ast.unparse(node)!r} is not allowed there")


def verdict(claim: Claim, numbers: Mapping[str, Number]) -> str:
    """Return the verdict that a computed claim's rules give.

    Raises
    ------
    ResidlabError
        Naming the claim, as :func:`holds`.
    """
    for word, predicate in claim.rules.items():
        try:
            if holds(predicate, numbers):
                return word
        except ResidlabError as error:
            raise ResidlabError(f"claim {claim.id}: {error}") from None
    return "undecided"


def read_claims(project: Project) -> tuple[dict[str, Paper], list[Claim]]:
    """Return the papers and the rows of ``book/claims.yml``, checked.

    Raises
    ------
    ResidlabError
        If the file is missing or malformed, an id stands twice, or a paper or chapter is unknown.
    """
    path = project.root / "book" / "claims.yml"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not {"papers", "claims"} <= content.keys():
            raise ResidlabError(f"{path} must hold papers and claims")
        papers = {key: Paper(key, **fields) for key, fields in content["papers"].items()}
        claims = [Claim(**fields) for fields in content["claims"]]
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ResidlabError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    seen: set[str] = set()
    chapters = project.chapter_names()
    for claim in claims:
        if claim.id in seen:
            raise ResidlabError(f"claim {claim.id} stands twice in {path.name}")
        seen.add(claim.id)
        if claim.paper not in papers:
            raise ResidlabError(f"claim {claim.id}: paper {claim.paper!r} is not one of {', '.join(papers)}")
        if claim.chapter is not None and claim.chapter not in chapters:
            raise ResidlabError(f"claim {claim.id}: there is no chapter {claim.chapter!r}")
    return papers, claims


def findings(project: Project) -> list[Finding]:
    """Return every claim with its verdict, computed from the executed chapters.

    Raises
    ------
    ResidlabError
        If a chapter that decides a claim is not executed, or a number that a rule names is missing.
    """
    _, claims = read_claims(project)
    numbers: dict[str, dict[str, Number]] = {}
    result = []
    for claim in claims:
        mine: Mapping[str, Number] = {}
        word = claim.verdict
        if claim.chapter is not None and claim.verdict == "computed":
            if claim.chapter not in numbers:
                numbers[claim.chapter] = glued(project.executed / f"{claim.chapter}.ipynb")
            mine = numbers[claim.chapter]
            word = verdict(claim, mine)
        for name in filter(None, [claim.value, *(claim.interval or [])]):
            if name not in mine:
                raise ResidlabError(f"claim {claim.id}: no number named {name!r} was glued by {claim.chapter}")
        result.append(
            Finding(
                claim.id,
                claim.paper,
                claim.claim,
                claim.published,
                claim.scope,
                word,
                claim.accepted,
                mine[claim.value] if claim.value else None,
                (mine[claim.interval[0]], mine[claim.interval[1]]) if claim.interval else None,
                claim.unit,
                claim.chapter,
                claim.cell,
                claim.note,
            )
        )
    return result


def departures(rows: list[Finding]) -> list[str]:
    """Return one sentence for each computed verdict that differs from the accepted one."""
    return [
        f"{row.id}: computed {row.verdict!r}, accepted {row.accepted!r}"
        for row in rows
        if row.accepted is not None and row.verdict != row.accepted
    ]
