"""What configurations check when they are made; each message names the value and what is allowed."""

import dataclasses
import math
import os
from typing import Any

from residlab.errors import ResidlabError


def made(cls: type[Any], what: str, options: dict[str, Any]) -> object:
    """Return ``cls(**options)``.

    Raises
    ------
    ResidlabError
        If an option is unknown or a required one is missing; ``what`` is what the message calls the class.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}
    unknown = sorted(str(name) for name in set(options) - set(fields))
    if unknown:
        raise ResidlabError(f"{what} has no option {', '.join(unknown)}; it has {', '.join(fields)}")
    missing = [name for name, field in fields.items() if field.default is dataclasses.MISSING and name not in options]
    if missing:
        raise ResidlabError(f"{what} needs {', '.join(missing)}")
    return cls(**options)


def is_real(value: object) -> bool:
    """Return whether a value is a finite number, which true and false are not."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the largest float
        return False


def environment_count(name: str, default: int) -> int:
    """Return a whole number >= 0 that torchrun, or another launcher, has put into the environment.

    Raises
    ------
    ResidlabError
        If it is something else.
    """
    said = os.environ.get(name)
    if said is None:
        return default
    if not said.isdecimal():
        raise ResidlabError(f"the environment's {name} must be a whole number >= 0; got {said!r}")
    return int(said)


def check_positive(options: object, *names: str) -> None:
    """Raise ResidlabError unless the named values are finite numbers > 0."""
    for name in names:
        value = getattr(options, name)
        if not is_real(value) or value <= 0:
            raise ResidlabError(f"{name} must be a finite number > 0; got {value!r}")


def check_non_negative(options: object, *names: str) -> None:
    """Raise ResidlabError unless the named values are finite numbers >= 0."""
    for name in names:
        value = getattr(options, name)
        if not is_real(value) or value < 0:
            raise ResidlabError(f"{name} must be a finite number >= 0; got {value!r}")


def check_counts(options: object, *names: str) -> None:
    """Raise ResidlabError unless the named values are whole numbers >= 1."""
    for name in names:
        value = getattr(options, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ResidlabError(f"{name} must be a whole number >= 1; got {value!r}")


def check_booleans(options: object, *names: str) -> None:
    """Raise ResidlabError unless the named values are true or false."""
    for name in names:
        if not isinstance(getattr(options, name), bool):
            raise ResidlabError(f"{name} must be true or false; got {getattr(options, name)!r}")


def check_one_of(options: object, name: str, allowed: tuple[str, ...]) -> None:
    """Raise ResidlabError unless the named value is among those allowed."""
    value = getattr(options, name)
    if value not in allowed:
        raise ResidlabError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")
