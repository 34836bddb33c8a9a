"""Glued numbers: read back from executed notebooks, as the book quotes them."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from residlab.errors import ResidlabError

Number = bool | int | float | str


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
