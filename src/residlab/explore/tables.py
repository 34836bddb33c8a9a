"""Tables of results: one declaration for the book, the notebook and a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from residlab.errors import ResidlabError
from residlab.explore.figures import check_name, check_text


@dataclass(frozen=True)
class BookTable:
    """A table whose first column names the rows.

    Parameters
    ----------
    header : sequence of str
        Titles of the columns; that of the first may be empty.
    rows : sequence of sequence of str
        Cells, as they are written.
    caption : str
        What it shows. Required.
    name : str
        The table's name on the page; its anchor is ``#table-<name>``.

    Raises
    ------
    ResidlabError
        If a row is shorter or longer than the header, the caption is empty, or the name cannot stand in an address.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    name: str

    def __post_init__(self) -> None:
        check_name(self.name, "table name")
        check_text(self.caption, "the caption", self.name)
        for row in self.rows:
            if len(row) != len(self.header):
                raise ResidlabError(
                    f"table {self.name!r}: a row has {len(row)} cells, the header {len(self.header)}: {list(row)}"
                )

    def html(self) -> str:
        """Return the table, its first column as headers of rows; it scrolls sideways where it is too wide."""
        head = "".join(f'<th scope="col">{escape(title)}</th>' for title in self.header)
        body = "".join(
            f'<tr><th scope="row">{escape(row[0])}</th>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
            + "</tr>\n"
            for row in self.rows
        )
        return (
            f'<table class="rl-sheet" id="table-{self.name}">\n<caption><span>{escape(self.caption)}</span></caption>\n'
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"
        )

    def text(self) -> str:
        """Return the table for a terminal, columns aligned."""
        lines = [list(self.header), *map(list, self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.header))]
        drawn = [
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([self.caption, *drawn])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": self.text()}


def show_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, name: str, caption: str) -> None:
    """Display a table; parameters and errors as `BookTable`."""
    from IPython.display import display

    display(BookTable(header, rows, caption, name))  # type: ignore[no-untyped-call, unused-ignore]
