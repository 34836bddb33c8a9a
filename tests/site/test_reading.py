"""What a reader does with a page beside reading it: searches the book, prints it, and expects it to stand still."""

import pytest

DESKTOP = {"viewport": {"width": 1280, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
PAPER = 657  # pixels between margins of 18 mm on A4


def typeset(page):
    page.wait_for_load_state("load")
    page.wait_for_function("[...document.querySelectorAll('.math')].every((m) => m.querySelector('mjx-container'))")


@pytest.mark.browser
@pytest.mark.parametrize("where", ["disk", "http"])
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("absorption", "notebooks/15-softmax.html"),
        ("Chebyshev", "notebooks/02-chebyshev.html"),
        ("crest factor", "book/glossary.html"),
    ],
)
def test_search_finds_the_chapter(book, served, visit, where, words, found):
    seen = visit(book / "book/intro.html" if where == "disk" else served + "book/intro.html", **DESKTOP)
    page = seen.page
    page.locator(".search-button__button:visible").first.click()
    page.wait_for_selector("#pst-search-dialog[open] input[type=search]:focus")
    page.keyboard.type(words)
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=*")
    page.wait_for_selector(f"#search-results a[href*='{found}']")
    page.wait_for_function("/^Search finished/.test(document.querySelector('.search-summary')?.textContent)")
    if where == "http":
        page.wait_for_selector("#search-results .context")
    page.locator(f"#search-results a[href*='{found}']").first.click()
    page.wait_for_url(f"**/{found}*", wait_until="commit")
    seen.assert_clean()


@pytest.mark.browser
def test_search_says_so_where_there_is_nothing(book, visit):
    seen = visit((book / "search.html").as_uri() + "?q=zygodactyl", **DESKTOP)
    seen.page.wait_for_function("/did not match any/.test(document.querySelector('.search-summary')?.textContent)")
    seen.assert_clean()


@pytest.mark.browser
def test_paper_has_the_article_alone_with_its_proofs_open(book, visit):
    seen = visit(book / "notebooks/15-softmax.html", **DESKTOP, color_scheme="dark")
    page = seen.page
    typeset(page)
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    folded = page.locator("details.sd-dropdown").count()
    assert folded > 5
    assert page.locator("details.sd-dropdown[open]").count() == 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.set_viewport_size({"width": PAPER, "height": 986})
    page.emulate_media(media="print")
    page.wait_for_function("[...document.querySelectorAll('.rl-figure, .rl-explorable')].every((f) => f.dataset.drawn)")
    shown = page.evaluate(
        """() => {
          const gone = ".bd-sidebar-primary, .bd-sidebar-secondary, .bd-header-article, .headerlink, .rl-actions, " +
            ".rl-data, input[type=range], details.hide:not([open])";
          const drawn = [...document.querySelectorAll(".rl-figure, .rl-explorable")];
          const high = (box) => box.getBoundingClientRect().height;
          return {
            left: [...document.querySelectorAll(gone)].filter((e) => e.checkVisibility()).map((e) => e.className),
            open: document.querySelectorAll("details.sd-dropdown[open]").length,
            theme: document.documentElement.dataset.theme,
            wide: [...document.querySelectorAll(".rl-plot")].filter((plot) =>
              plot.querySelector(".main-svg").getBoundingClientRect().right > innerWidth + 1).length,
            tall: drawn.filter((figure) => high(figure) > innerHeight).map((figure) => figure.id),
            split: drawn.filter((figure) => getComputedStyle(figure).breakInside !== "avoid").length,
            chosen: document.querySelector(".rl-control output").checkVisibility(),
          };
        }"""
    )
    assert shown == {"left": [], "open": folded, "theme": "light", "wide": 0, "tall": [], "split": 0, "chosen": True}
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details.sd-dropdown[open]").count() == 0
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    seen.assert_clean()


@pytest.mark.browser
def test_paper_names_where_links_lead(book, visit):
    page = visit(book / "book/rerun.html", **DESKTOP).page
    page.emulate_media(media="print")
    after = page.evaluate(
        """() => [...document.querySelectorAll(".bd-article a.external")].map((link) =>
          [getComputedStyle(link, "::after").content, link.href])"""
    )
    assert after
    assert all(address.rstrip("/") in content for content, address in after)


SHIFTS = """
  window.shifts = [];
  new PerformanceObserver((list) => {
    for (const shift of list.getEntries()) {
      const nodes = shift.sources.map(({ node }) => (node?.nodeType === Node.TEXT_NODE ? node.parentElement : node));
      const moved = nodes.filter((node) => node?.closest?.(".bd-article-container"));
      if (!shift.hadRecentInput && moved.length) window.shifts.push([shift.value, moved.map((node) => node.className)]);
    }
  }).observe({ type: "layout-shift", buffered: true });
"""


@pytest.mark.browser
@pytest.mark.parametrize("options", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("name", ["book/intro.html", "notebooks/02-chebyshev.html", "notebooks/15-softmax.html"])
def test_nothing_moves_when_figures_are_drawn(book, visit, name, options):
    page = visit(book / name, **options).page
    typeset(page)  # which does move text: formulas are set in the page
    page.evaluate(SHIFTS.replace("buffered: true", "buffered: false"))
    for figure in page.locator(".rl-figure, .rl-explorable").all():
        figure.scroll_into_view_if_needed()
    page.wait_for_function("[...document.querySelectorAll('.rl-figure, .rl-explorable')].every((f) => f.dataset.drawn)")
    page.wait_for_timeout(300)
    shifts = page.evaluate("window.shifts")
    assert sum(value for value, _ in shifts) < 0.01, shifts


@pytest.mark.browser
def test_the_first_page_is_usable_soon(book, visit):
    page = visit(book / "book/intro.html", **DESKTOP).page
    page.wait_for_selector("#explore-one-stream[data-ready]")
    shown, usable = page.evaluate(
        """() => [
          performance.getEntriesByName("first-contentful-paint")[0].startTime,
          performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd,  // sliders answer from then on
        ]"""
    )
    assert shown < usable < 3000  # milliseconds; a second on a machine that does nothing else


@pytest.mark.browser
def test_letters_keep_their_size_when_scripts_start(browser, book, visit):
    without = browser.new_context(java_script_enabled=False, **DESKTOP)
    plain = without.new_page()
    plain.goto((book / "book/intro.html").as_uri())
    before = plain.locator(".bd-header-article").bounding_box()
    without.close()
    page = visit(book / "book/intro.html", **DESKTOP).page
    page.wait_for_function("['light', 'dark'].includes(document.documentElement.dataset.theme)")
    after = page.locator(".bd-header-article").bounding_box()
    assert (before["y"], before["height"]) == (after["y"], after["height"])
