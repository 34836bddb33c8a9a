"""Every page in a real browser: typeset, drawn, quiet, accessible, and asking nobody else for anything."""

import gzip
import re
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest
import yaml

from residlab.compendium.project import Project

TOC = yaml.safe_load((Project.find().root / "_toc.yml").read_text())
PAGES = [
    f"{file}.html" for file in (TOC["root"], *(entry["file"] for part in TOC["parts"] for entry in part["chapters"]))
]
DESKTOP = {"viewport": {"width": 1440, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def settle(page):
    """Unfold proofs and code, scroll through, so that what waits until it is near is drawn, and wait for typesetting.

    The data tables of figures stay folded: tests/explore opens one, and all their rows take a minute to examine.
    """
    page.wait_for_load_state("load")
    page.evaluate(
        "document.querySelectorAll('details:not(:is(.rl-figure, .rl-explorable) *)').forEach((d) => (d.open = true))"
    )
    if page.locator(".math").count():
        page.wait_for_function("[...document.querySelectorAll('.math')].every((m) => m.querySelector('mjx-container'))")
    for figure in page.locator(".rl-figure, .rl-explorable").all():
        figure.scroll_into_view_if_needed()
    page.wait_for_function("[...document.querySelectorAll('.rl-figure, .rl-explorable')].every((f) => f.dataset.drawn)")


def blank_traces(page):
    """Return the figures in which fewer traces left a mark than have a value within their axes."""
    return page.evaluate(
        """() => [...document.querySelectorAll(".rl-plot")].flatMap((plot) => {
          const inRange = (trace) => {
            const axis = plot._fullLayout[(trace.yaxis || "y").replace("y", "yaxis")];
            if (axis.type === "category") return true;  // its range is made to hold every name
            const values = Array.from(trace.y ?? [], (y) => (axis.type === "log" ? Math.log10(y) : y));
            return values.some((y) => y >= Math.min(...axis.range) && y <= Math.max(...axis.range));
          };
          const wanted = plot._fullData.filter((trace) => trace.visible !== false && inRange(trace)).length;
          const marks = [...plot.querySelectorAll(".overplot .trace, .heatmaplayer .hm")].filter((trace) =>
            [...trace.querySelectorAll("path, text, image")].some((mark) => {
              const box = mark.getBoundingClientRect();
              return box.width + box.height > 0.5;
            }),
          ).length;
          const height = plot.getBoundingClientRect().height;
          return wanted === 0 || marks < wanted || height < 100
            ? [`${plot.parentElement.id}: ${marks} of ${wanted} traces, ${height} px`]
            : [];
        })"""
    )


def check(seen, name):
    """Check that a settled page is typeset, drawn, within the window, and quiet."""
    page = seen.page
    found = page.evaluate(
        """() => ({
          broken: [...document.querySelectorAll("mjx-merror, [data-mjx-error]")].map((e) => e.textContent),
          untypeset: document.querySelector("main").innerText.includes("\\\\("),
          sideways: document.documentElement.scrollWidth > innerWidth,
          missing: [...document.images].filter((i) => !i.complete || !i.naturalWidth).map((i) => i.src),
        })"""
    )
    assert found == {"broken": [], "untypeset": False, "sideways": False, "missing": []}, name
    assert blank_traces(page) == [], name
    assert torn_off(page) == [], name
    assert unmarked(page) == [], name
    assert loose(page) == [], name
    seen.assert_clean()


def torn_off(page):
    """Return the formulas whose punctuation stands on the next line."""
    return page.evaluate(
        """() => [...document.querySelectorAll("span.math")].flatMap((formula) => {
          const next = formula.nextSibling;
          if (next?.nodeType !== Node.TEXT_NODE || !/^[.,;:!?)]/.test(next.data)) return [];
          const range = document.createRange();
          range.setStart(next, 0);
          range.setEnd(next, 1);
          const [mark, box] = [range.getBoundingClientRect(), formula.getBoundingClientRect()];
          const torn = box.width && (mark.top > box.bottom || mark.left < box.left);
          return torn ? [formula.parentElement.textContent] : [];
        })"""
    )


def unmarked(page):
    """Return the boxes of the article that scroll sideways, without a sign of it or out of the keyboard's reach."""
    return page.evaluate(
        """() => [...document.querySelectorAll(".bd-article :is(span.math, mjx-container, table)")].flatMap((box) => {
          const style = getComputedStyle(box);
          const scrolls = box.scrollWidth > box.clientWidth + 1 && ["auto", "scroll"].includes(style.overflowX);
          const reached = box.matches("[tabindex]") || box.querySelector("[tabindex], a, button");
          return scrolls && !(style.maskImage.includes("gradient") && reached) ? [box.textContent.slice(0, 80)] : [];
        })"""
    )


def loose(page):
    """Return the tables whose frame is wider than what they hold."""
    return page.evaluate(
        """() => [...document.querySelectorAll(".bd-article table")].flatMap((table) => {
          const row = table.querySelector("tr").getBoundingClientRect();
          const spare = table.getBoundingClientRect().width - row.width;
          return row.width && spare > 4 ? [`${spare} px beside ${table.textContent.trim().slice(0, 40)}`] : [];
        })"""
    )


def look(page, *, scheme, width):
    """Change colours and width of an open page, as a reader does who turns a phone or dims the light."""
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}' && innerWidth === {width}")
    page.wait_for_function(
        """[...document.querySelectorAll(".rl-plot")].every((plot) =>
          Math.abs(plot.getBoundingClientRect().width - plot.querySelector(".main-svg").width.baseVal.value) < 2)"""
    )


def serious(page, **options):
    """Return axe's serious findings.

    The theme paints its own chrome; what is ours is the article. Insides of pictures and formulas are presentational
    (role img), and large. Of thousands of coloured words of code a few of each colour are looked at.
    """
    from axe_playwright_python.sync_playwright import Axe

    page.evaluate(
        """() => {
          const seen = {};
          for (const word of document.querySelectorAll(".highlight span[class]")) {
            seen[word.className] = (seen[word.className] ?? 0) + 1;
            if (seen[word.className] > 3) word.replaceWith(...word.childNodes);
          }
        }"""
    )
    context = {"include": [[".bd-article"]], "exclude": [[".rl-plot svg"], ["mjx-container"]]}
    found = (
        Axe()
        .run(page, context=context, options={"resultTypes": ["violations"], "preload": False, **options})
        .response["violations"]
    )
    return [
        (rule["id"], [node["html"][:200] for node in rule["nodes"]][:3])
        for rule in found
        if rule["impact"] in ("serious", "critical")
    ]


def test_every_page_is_looked_at(pages):
    assert sorted(["index.html", *PAGES]) == pages


@pytest.mark.browser
@pytest.mark.parametrize("name", PAGES)
def test_from_disk(book, visit, name):
    seen = visit(book / name, **DESKTOP, color_scheme="light")
    settle(seen.page)
    check(seen, name)
    assert serious(seen.page) == []
    look(seen.page, scheme="dark", width=390)
    assert serious(seen.page, runOnly=["color-contrast"]) == []  # colours are all that differs
    check(seen, name)


@pytest.mark.browser
@pytest.mark.parametrize("name", PAGES)
def test_over_http_on_a_phone(served, visit, name):
    seen = visit(served + name, **PHONE, color_scheme="dark")
    settle(seen.page)
    check(seen, name)
    look(seen.page, scheme="light", width=1440)
    check(seen, name)


@pytest.mark.browser
def test_the_address_of_the_book_leads_to_its_front_page(book, served, visit):
    for address in (book / "index.html", served):
        seen = visit(address)
        seen.page.wait_for_url("**/book/intro.html")
        seen.assert_clean()


@pytest.mark.browser
def test_what_is_wrong_would_be_seen(book, visit):
    page = visit(book / "notebooks/02-chebyshev.html", **PHONE).page
    settle(page)
    assert (blank_traces(page), torn_off(page), unmarked(page)) == ([], [], [])
    page.evaluate("document.querySelector('.rl-figure .scatterlayer').innerHTML = ''")
    assert len(blank_traces(page)) == 1
    page.add_style_tag(content=".rl-unbroken { white-space: normal } [data-rl-more] { mask-image: none !important }")
    assert torn_off(page)
    assert unmarked(page)
    page = visit(book / "book/rerun.html", **DESKTOP).page
    assert loose(page) == []
    page.add_style_tag(content=".bd-article table { width: 150% !important; max-width: none !important }")
    assert loose(page)


@pytest.mark.browser
def test_a_wide_formula_is_scrolled_by_the_keyboard_and_fades_where_it_goes_on(book, visit):
    page = visit(book / "notebooks/04-theorem.html", **PHONE).page
    settle(page)
    for box in ("div.math mjx-container", "span.math"):
        wide = page.locator(f"{box}[data-rl-more=right]").first
        wide.scroll_into_view_if_needed()
        size = wide.bounding_box()
        (wide if box.endswith("container") else wide.locator("mjx-container")).focus()
        page.keyboard.press("ArrowRight")
        scrolled = page.locator(f"{box}:is([data-rl-more=both], [data-rl-more=left])")
        scrolled.wait_for()
        for _ in range(40):
            page.keyboard.press("ArrowRight")
        page.locator(f"{box}[data-rl-more=left]").wait_for()
        now = page.locator(f"{box}[data-rl-more=left]").bounding_box()
        assert (now["width"], now["height"]) == (size["width"], size["height"])
    page.set_viewport_size({"width": 1440, "height": 900})
    page.wait_for_function("!document.querySelector('.bd-article [data-rl-more]')")


class Links(HTMLParser):
    """Addresses that a page names, and the anchors that it offers."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.anchors, self.ids, self.loads = [], set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors.update(filter(None, (attributes.get("id"), attributes.get("name"))))
        self.ids += filter(None, [attributes.get("id")])
        if tag == "a" and attributes.get("href"):
            self.addresses.append(attributes["href"])
        for key in ("src", "srcset", "data", "poster"):
            if attributes.get(key) and tag != "a":
                self.loads.append(attributes[key])
        if tag == "link" and attributes.get("rel") not in ("canonical", "search", "index", "next", "prev"):
            self.loads.append(attributes["href"])


def test_every_internal_link_and_citation_resolves(book, pages):
    parsed = {
        name: Links((book / name).read_text(encoding="utf-8")) for name in [*pages, "genindex.html", "search.html"]
    }
    dead = []
    for name, page in parsed.items():
        for address in page.addresses:
            target, anchor = urldefrag(urljoin(name, address))
            if urlsplit(address).scheme or address.startswith("//"):
                continue
            target = unquote(target) or name
            if not (book / target).exists():
                dead.append(f"{name}: {address}")
            elif anchor and target in parsed and unquote(anchor) not in parsed[target].anchors:
                dead.append(f"{name}: {address} (no such anchor)")
    assert dead == []
    cited = [a for a in parsed["notebooks/02-chebyshev.html"].addresses if "bibliography.html#" in a]
    assert len(cited) >= 5


def test_nothing_is_loaded_from_elsewhere(book, pages):
    for name in pages:
        for address in Links((book / name).read_text(encoding="utf-8")).loads:
            assert not re.match(r"(https?:)?//", address), f"{name} loads {address}"
            if not address.startswith("data:"):
                assert (book / urljoin(name, address).partition("?")[0]).exists(), f"{name}: {address}"


def test_no_id_stands_twice_on_a_page(book, pages):
    for name in pages:
        ids = Links((book / name).read_text(encoding="utf-8")).ids
        assert [one for one in set(ids) if ids.count(one) > 1] == [], name


def test_pages_are_light(book, pages):
    for name in pages:
        assert len(gzip.compress((book / name).read_bytes())) <= 1.5e6, name


def test_plotly_is_loaded_only_where_something_is_drawn(book, pages):
    for name in pages:
        text = (book / name).read_text(encoding="utf-8")
        drawn = 'class="rl-figure' in text or 'class="rl-explorable' in text
        assert ("plotly.min.js" in text) == drawn, name


def test_each_verdict_links_to_its_cell(project, book):
    from residlab.compendium.ledger import findings

    text = (book / "book" / "claims.html").read_text(encoding="utf-8")
    for row in findings(project):
        assert f'id="claim-{row.id.lower()}"' in text
        if row.cell:
            assert re.search(rf'href="\.\./notebooks/{row.chapter}\.html#{row.cell}"', text), row.id
