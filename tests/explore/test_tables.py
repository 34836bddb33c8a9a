"""Tables of results: what a page, a notebook and a terminal get, and what is refused."""

from html.parser import HTMLParser

import pytest

from residlab.errors import ResidlabError
from residlab.explore.tables import BookTable

TABLE = BookTable(
    ["", "loss", "error"], [["BHyT*, λ < κ", "2.41", "1.2 %"], ["none", "10.3", "44 %"]], "What, & why", "x"
)


class Cells(HTMLParser):
    def __init__(self):
        super().__init__()
        self.cells, self.tags = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if data.strip():
            self.cells.append(data)


def test_every_cell_is_on_the_page_as_it_was_written():
    page = Cells()
    page.feed(TABLE.html())
    assert page.cells == ["What, & why", "loss", "error", *TABLE.rows[0], *TABLE.rows[1]]
    assert [attrs["scope"] for tag, attrs in page.tags if tag == "th"] == ["col"] * 3 + ["row"] * 2
    assert page.tags[0] == ("table", {"class": "rl-sheet", "id": "table-x"})


def test_a_terminal_gets_aligned_columns():
    assert TABLE.text().splitlines() == [
        "What, & why",
        "              loss  error",
        "BHyT*, λ < κ  2.41  1.2 %",
        "none          10.3   44 %",
    ]
    assert set(TABLE._repr_mimebundle_()) == {"text/html", "text/plain"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows": [["a", "b"]]}, r"a row has 2 cells, the header 3: \['a', 'b'\]"),
        ({"caption": " "}, "caption"),
        ({"name": "two words"}, "table name"),
    ],
)
def test_refusals(changes, said):
    values = {"header": TABLE.header, "rows": TABLE.rows, "caption": TABLE.caption, "name": "x", **changes}
    with pytest.raises(ResidlabError, match=said):
        BookTable(**values)
