"""Parameters of a chapter: typed, ranged, validated before a kernel starts.

The cell tagged ``parameters`` is the only place for a parameter's type, default, range and meaning, a line each::

    lam: float = 2.0  # (0, 10] input bound
    law: str = "gaussian"  # {gaussian, laplace} law of the entries
    centred: bool = True  # subtract the mean
"""

from __future__ import annotations

import ast
import io
import math
import re
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from residlab.errors import ResidlabError

Value = bool | int | float | str

_TYPES: dict[str, type] = {"bool": bool, "int": int, "float": float, "str": str}
_INTERVAL = re.compile(r"([\[(])\s*([^,\s]+)\s*,\s*([^,\s]+)\s*([\])])\s*(.*)")
_CHOICES = re.compile(r"\{([^}]*)\}\s*(.*)")
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _plain(value: float) -> str:
    return str(int(value)) if value.is_integer() else f"{value:g}"


@dataclass(frozen=True)
class Interval:
    """An interval of numbers with open or closed ends."""

    low: float
    high: float
    low_closed: bool
    high_closed: bool

    def __contains__(self, value: object) -> bool:
        """Whether a number lies inside."""
        if not isinstance(value, int | float):
            return False
        above = value >= self.low if self.low_closed else value > self.low
        below = value <= self.high if self.high_closed else value < self.high
        return above and below

    def __str__(self) -> str:
        """As written in the parameters cell."""
        opening, closing = "[" if self.low_closed else "(", "]" if self.high_closed else ")"
        return f"{opening}{_plain(self.low)}, {_plain(self.high)}{closing}"


@dataclass(frozen=True)
class Parameter:
    """One parameter: its name, type, default, what is allowed, and what it means."""

    name: str
    type: type
    default: Value
    allowed: Interval | tuple[str, ...] | None
    meaning: str

    def describe(self) -> str:
        """Return what is allowed, in words."""
        if isinstance(self.allowed, tuple):
            return "one of " + ", ".join(self.allowed)
        return f"{self.type.__name__} in {self.allowed}" if self.allowed else self.type.__name__

    def parse(self, text: str) -> Value:
        """Return the value that a command line gave as text.

        Raises
        ------
        ResidlabError
            If the text is not of the parameter's type, or not allowed.
        """
        try:
            value: Value = _WORDS[text.lower()] if self.type is bool else self.type(text)
        except (ValueError, KeyError):
            raise ResidlabError(f"parameter {self.name}: {text!r} is not allowed, only {self.describe()}") from None
        return self.check(value)

    def check(self, value: Value) -> Value:
        """Return ``value`` if it is allowed, else raise :class:`~residlab.errors.ResidlabError`."""
        good = type(value) is self.type or (self.type is float and type(value) is int)
        if good and self.type is float and isinstance(value, int | float):
            try:
                good = math.isfinite(value)
            except OverflowError:  # an integer beyond the largest float
                good = False
        if good and self.allowed is not None:
            good = value in self.allowed
        if not good:
            raise ResidlabError(f"parameter {self.name}: {value!r} is not allowed, only {self.describe()}")
        return float(value) if self.type is float else value


def read_parameters(source: str, where: str) -> dict[str, Parameter]:
    """Read the parameters cell of a chapter.

    Parameters
    ----------
    source : str
        Code of the cell.
    where : str
        The chapter's name, for messages.

    Raises
    ------
    ResidlabError
        If a line is not ``name: type = default  # allowed meaning``, or a default is not allowed.
    """
    try:
        body = ast.parse(source).body
        comments = {
            token.start[0]: token.string.lstrip("# ")
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
    except (SyntaxError, ValueError, RecursionError, tokenize.TokenError) as error:
        raise ResidlabError(f"{where}: the parameters cell is not Python: {error}") from None
    parameters: dict[str, Parameter] = {}
    for node in body:
        parameter = _read_line(node, comments.get(node.end_lineno or node.lineno, ""), where)
        if parameter.name in parameters:
            raise ResidlabError(f"{where}: parameter {parameter.name} is given twice")
        parameters[parameter.name] = parameter
    return parameters


def _read_line(node: ast.stmt, comment: str, where: str) -> Parameter:
    form = "name: type = default  # allowed meaning"
    if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None):
        raise ResidlabError(f"{where}: parameters cell, line {node.lineno}: write {form}")
    name, kind = node.target.id, _TYPES.get(ast.unparse(node.annotation))
    if kind is None:
        raise ResidlabError(
            f"{where}: parameter {name}: type {ast.unparse(node.annotation)!r} is not one of {', '.join(_TYPES)}"
        )
    try:
        default = ast.literal_eval(node.value)
    except (ValueError, TypeError, RecursionError):
        raise ResidlabError(f"{where}: parameter {name}: the default must be a literal") from None
    allowed, meaning = _read_comment(comment, kind)
    if not meaning or (allowed is None and kind in (int, float)):
        raise ResidlabError(f"{where}: parameter {name}: say what is allowed and what it means: {form}")
    parameter = Parameter(name, kind, default, allowed, meaning)
    try:
        parameter.check(default)
    except ResidlabError as error:
        raise ResidlabError(f"{where}: default of {error}") from None
    return parameter


def _read_comment(comment: str, kind: type) -> tuple[Interval | tuple[str, ...] | None, str]:
    if kind in (int, float) and (match := _INTERVAL.match(comment)):
        opening, low, high, closing, meaning = match.groups()
        try:
            return Interval(float(low), float(high), opening == "[", closing == "]"), meaning.strip()
        except ValueError:
            return None, ""
    if kind is str and (match := _CHOICES.match(comment)):
        return tuple(word.strip() for word in match[1].split(",")), match[2].strip()
    return None, comment.strip()


def resolve(
    declared: Mapping[str, Parameter], given: Sequence[str] | Mapping[str, str], where: str
) -> dict[str, Value]:
    """Return validated values for ``name=value`` texts, only those given.

    Raises
    ------
    ResidlabError
        If a text is not ``name=value``, a name is unknown, or a value is not allowed.
    """
    if not isinstance(given, Mapping):
        pairs = {}
        for text in given:
            name, equals, value = text.partition("=")
            if not equals:
                raise ResidlabError(f"-p {text!r}: write -p name=value")
            pairs[name.strip()] = value.strip()
        given = pairs
    values = {}
    for name, text in given.items():
        if name not in declared:
            known = ", ".join(declared) or "none"
            raise ResidlabError(f"{where} has no parameter {name!r}; its parameters are: {known}")
        try:
            values[name] = declared[name].parse(text)
        except ResidlabError as error:
            raise ResidlabError(f"{where}: {error}") from None
    return values
