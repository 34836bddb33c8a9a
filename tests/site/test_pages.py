"""Every page in a real browser: typeset, drawn, quiet, accessible, and asking nobody else for anything."""

import gzip
import re
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
DESKTOP = {"viewport": {"width": 1440, "height": 900}}


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
            const values = Array.from(trace.y ?? [], (y) => (axis.type === "log" ? Math.log10(y) : y));
            return values.some((y) => y >= Math.min(...axis.range) && y <= Math.max(...axis.range));
          };
          const wanted = plot._fullData.filter((trace) => trace.visible !== false && inRange(trace)).length;
          const marks = [...plot.querySelectorAll(".overplot .trace")].filter((trace) =>
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


@pytest.mark.browser
@pytest.mark.parametrize("options", [DESKTOP, {**PHONE, "color_scheme": "dark"}], ids=["desktop-light", "phone-dark"])
def test_every_page_is_typeset_drawn_and_quiet(base, pages, visit, options):
    for name in pages:
        seen = visit(base + name, **options)
        page = seen.page
        page.wait_for_load_state("load")
        if name != "index.html":  # a redirect to the front page
            settle(page)
            broken = page.evaluate(
                "[...document.querySelectorAll('mjx-merror, [data-mjx-error]')].map((e) => e.textContent)"
            )
            assert broken == [], name
            assert "\\(" not in page.locator("main").inner_text(), name
            assert blank_traces(page) == [], name
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} scrolls sideways"
            missing = page.evaluate(
                "[...document.images].filter((i) => !i.complete || !i.naturalWidth).map((i) => i.src)"
            )
            assert missing == [], name
        seen.assert_clean()
        page.context.close()


@pytest.mark.browser
def test_a_blank_figure_would_fail(base, visit):
    page = visit(base + "notebooks/02-chebyshev.html", **DESKTOP).page
    settle(page)
    assert blank_traces(page) == []
    page.evaluate("document.querySelector('.rl-figure .scatterlayer').innerHTML = ''")
    assert len(blank_traces(page)) == 1


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(book, pages, visit, scheme):
    from axe_playwright_python.sync_playwright import Axe

    for name in pages:
        if name == "index.html":
            continue
        page = visit(book / name, color_scheme=scheme, **DESKTOP).page
        settle(page)
        # The theme paints its own chrome; what is ours is the article.
        # Insides of pictures and formulas are presentational (role img), and large.
        context = {"include": [[".bd-article"]], "exclude": [[".rl-plot svg"], ["mjx-container"]]}
        options = {"resultTypes": ["violations"]}
        if scheme == "dark":  # colours are all that differs
            options["runOnly"] = ["color-contrast"]
        found = Axe().run(page, context=context, options=options).response["violations"]
        serious = [
            (rule["id"], [node["html"][:200] for node in rule["nodes"]][:3])
            for rule in found
            if rule["impact"] in ("serious", "critical")
        ]
        assert serious == [], name
        page.context.close()


class Links(HTMLParser):
    """Addresses that a page names, and the anchors that it offers."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.anchors, self.loads = [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors.update(filter(None, (attributes.get("id"), attributes.get("name"))))
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
