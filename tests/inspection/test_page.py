"""The report: it stands alone, says the same as the numbers, and can be read anywhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from residlab.inspection.findings import findings
from residlab.inspection.inspect import inspect
from residlab.inspection.page import page

SECTIONS = ["stream", "massive", "sinks", "kurtosis", "crest", "sqnr", "growth", "method"]
VOID = {"meta", "link", "br", "hr", "img"}


class Reader(HTMLParser):
    """Elements and their attributes; complains about what is not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def seen(save, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parent") / "<script>alert(1)</script>".replace("/", "∕")
    return inspect(save(folder), tokens=192)


@pytest.fixture(scope="module")
def text(seen) -> str:
    return page(seen)


@pytest.fixture(scope="module")
def read(text) -> Reader:
    return Reader(text)


def test_it_stands_alone(text, read):
    tags = {tag for tag, _ in read.found}
    assert not tags & {"script", "img", "iframe", "object", "embed", "base", "form"}
    for tag, attributes in read.found:
        assert not any(name.startswith("on") for name in attributes), tag
        for name in ("src", "href", "action", "srcset", "data", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
    assert not re.search(r"url\(|@import|https?://", text)
    policy = next(a["content"] for _, a in read.found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_a_name_is_only_a_name(text):
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;∕script&gt;" in text


def test_it_is_small(text):
    assert len(text.encode()) < 400_000


def test_every_measure_has_a_section_a_sentence_and_a_figure(seen, read):
    assert [a["id"] for tag, a in read.found if tag == "section"] == SECTIONS
    words = " ".join(" ".join(read.words).split())
    for finding in findings(seen):
        assert finding.sentence in words
        assert finding.sentence.endswith(".")
    figures = [a for _, a in read.found if a.get("role") == "img"]
    assert len(figures) == 7
    assert all(len(a["aria-label"] or "") > 60 for a in figures)
    assert sum(tag == "details" for tag, _ in read.found) == 7


def test_links_lead_somewhere(read):
    ids = [a["id"] for _, a in read.found if "id" in a]
    assert len(ids) == len(set(ids))
    links = [a["href"] for tag, a in read.found if tag == "a"]
    assert len(links) == 8
    assert {link[1:] for link in links} <= set(ids)


def test_tables_hold_the_numbers(seen, text):
    from residlab.inspection.findings import sig

    rows = re.findall(r"<tr><th scope=\"row\">(.*?)</th>(.*?)</tr>", text)
    stream = rows[: seen.depth + 1]
    for layer, (head, cells) in enumerate(stream):
        values = [seen.stream.rms[name][layer] for name in ("rest", "first", "all")]
        assert (head, re.findall("<td>(.*?)</td>", cells)) == (str(layer), [sig(value) for value in values])


def test_nothing_of_this_machine_is_in_it(seen, text, tmp_path_factory):
    assert str(tmp_path_factory.getbasetemp()) not in text
    assert str(Path.home()) not in text


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_in_a_browser(text, tmp_path, visit, width, scheme):
    file = tmp_path / "report.html"
    file.write_text(text, encoding="utf-8")
    seen = visit(file, viewport={"width": width, "height": 900}, color_scheme=scheme)
    seen.assert_clean()
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    shown = seen.page.eval_on_selector_all(
        "figure svg", "all => all.filter(one => one.getBoundingClientRect().width > 0).length"
    )
    drawn = seen.page.eval_on_selector_all("figure [role=img] > div", "all => all.length")
    legends = seen.page.eval_on_selector_all(".in-legend svg", "all => all.length")
    assert drawn == 14
    assert shown == 7 + legends
    dark = seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 30)"
    assert dark == (scheme == "dark")
    seen.page.click("#stream summary")
    assert seen.page.is_visible("#stream table")


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_for_everybody(text, tmp_path, visit, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    file = tmp_path / "report.html"
    # axe is a script, which the page's policy forbids.
    file.write_text(re.sub("<meta http-equiv[^>]*>", "", text), encoding="utf-8")
    seen = visit(file, viewport={"width": 1000, "height": 900}, color_scheme=scheme)
    for summary in seen.page.query_selector_all("summary"):
        summary.click()
    found = axe.run(seen.page)
    assert not found.response["violations"], found.generate_report()
