"""Glued numbers: read back from executed notebooks, and written as the book quotes them."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from residlab.errors import ResidlabError
from residlab.explore.formats import power_of_ten

Number = bool | int | float | str

_NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<digits>\d[\d,]*(?:\.\d+)?)(?:[eE](?P<power>[+-]?\d+))?(?P<unit>%?)")


def in_print(text: str) -> str:
    """Write a formatted number as in print; a text that is no number stays as it is.

    A minus sign for the hyphen, and powers of ten for Python's ``e``: ``-1.5e-07`` becomes ``−1.5 × 10⁻⁷`` (which no
    line break divides), ``1e-15`` becomes ``10⁻¹⁵``.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    number = match["digits"]
    if match["power"]:
        power = power_of_ten(int(match["power"]))
        number = power if number == "1" else f"{number}\u00a0×\u00a0{power}"
    return match["sign"].replace("-", "−") + number + match["unit"]


def glued(path: Path) -> dict[str, Number]:
    """Return the numbers that a chapter glued (``myst_nb.glue(name, float(value))``), by name.

    Parameters
    ----------
    path : Path
        An executed notebook.

    Raises
    ------
    ResidlabError
        If the notebook is missing or unreadable, a name was glued twice, or a value is not a plain number or text.
    """
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    except FileNotFoundError:
        raise ResidlabError(f"{path.stem} is not executed yet: run residlab execute {path.stem}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ResidlabError(f"{path} is not an executed notebook: {error}") from None
    numbers: dict[str, Number] = {}
    for output in outputs:
        record = output.get("metadata", {}).get("scrapbook")
        if not record:
            continue
        name = record["name"]
        if name in numbers:
            raise ResidlabError(f"{path.stem}: {name} is glued twice")
        text = "".join(output["data"].get(record.get("mime_prefix", "") + "text/plain", ""))
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = None
        if not isinstance(value, bool | int | float | str):
            raise ResidlabError(
                f"{path.stem}: {name} is glued as {text!r}; glue a plain number, float(value), or a text"
            )
        numbers[name] = value
    return numbers
