"""Figures and explorables on a bare page, opened from a file, in a real browser."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from residlab.explore.explorable import Explorable
from residlab.explore.figures import figure_html
from residlab.explore.static_face import explorable_html
from residlab.explore.theme import INK, template

pytestmark = pytest.mark.browser

DRAWN = ".rl-explorable[data-drawn]"
LAM, KAPPA, LAW, SITE = (f"#explore-chebyshev-{name}" for name in ("lam", "kappa", "law", "site"))


def stream_figure(name: str = "stream") -> str:
    figure = go.Figure(
        [
            go.Scatter(name="=cmd, norm", x=[1, 2, 3], y=[1.0, 2.5, float("nan")], line={"color": INK}),
            go.Scatter(name="other", x=[1, 2, 3], y=[-1.0, 0.5, 1 / 3], error_y={"array": [0.1, 0.1, 0.2]}),
        ],
        {"template": template(), "xaxis": {"title": {"text": "layer"}}, "yaxis": {"title": {"text": "RMS <i>r</i>"}}},
    )
    return figure_html(figure, alt="RMS against layer.", name=name, caption="Figure 1")


@pytest.fixture
def open_page(explorable: Explorable, bare_page: Callable[..., Path], visit: Callable[..., Any]) -> Callable[..., Any]:
    def opened(fragment: str = "", extra: str = "", **options: Any) -> Any:
        path = bare_page(explorable_html(explorable) + extra)
        seen = visit(path.as_uri() + fragment, **options)
        seen.page.wait_for_selector(DRAWN)
        return seen

    return opened


def state(page: Any) -> dict[str, Any]:
    return page.evaluate("residlab.explore.mounted.get('chebyshev').state")


def draw_figure(page: Any) -> None:
    page.locator(".rl-figure").scroll_into_view_if_needed()
    page.wait_for_selector(".rl-figure[data-drawn]")


def readout(page: Any, name: str) -> str:
    return page.locator(f"[data-readout={name}]").inner_text()


def test_works_from_a_file_with_keyboard_and_mouse(open_page: Callable[..., Any]) -> None:
    seen = open_page()
    page = seen.page
    assert readout(page, "bound") == "1.00%"
    page.focus(KAPPA)
    page.keyboard.press("ArrowLeft")
    assert state(page)["kappa"] == 9.75
    page.keyboard.press("Home")
    page.wait_for_function("document.querySelector('[data-readout=bound]').textContent === '100%'")
    box = page.locator(LAM).bounding_box()
    page.mouse.click(box["x"] + box["width"] - 12, box["y"] + box["height"] / 2)
    assert state(page)["lam"] == 6.0
    page.wait_for_function("document.querySelector('output[for=explore-chebyshev-lam]').textContent === '6.00'")
    page.select_option(LAW, "measured")
    page.locator(SITE).wait_for()
    page.wait_for_function("document.querySelector('.rl-sentence').textContent.includes('measured activations')")
    assert "measured activations" in page.locator(".rl-explorable .rl-plot").get_attribute("aria-label")
    assert page.locator(KAPPA).get_attribute("aria-valuetext") == "1.00"
    page.click("text=Reset")
    assert state(page) == {"lam": 2.0, "kappa": 10.0, "law": "gaussian", "site": "layer-0"}
    page.locator(SITE).wait_for(state="hidden")
    seen.assert_clean()


def test_works_with_a_finger_on_a_phone(open_page: Callable[..., Any]) -> None:
    seen = open_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, device_scale_factor=2)
    page = seen.page
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    box = page.locator(KAPPA).bounding_box()
    page.touchscreen.tap(box["x"] + 14, box["y"] + box["height"] / 2)
    page.wait_for_function("residlab.explore.mounted.get('chebyshev').state.kappa < 3")
    small = page.evaluate(
        "[...document.querySelectorAll('input, select, button, summary')]"
        ".filter((e) => e.checkVisibility() && e.getBoundingClientRect().height < 43.9).map((e) => e.outerHTML)"
    )
    assert small == []
    seen.assert_clean()


def test_figure_draws_the_frame_of_the_state(open_page: Callable[..., Any], explorable: Explorable) -> None:
    page = open_page("#explore=chebyshev&lam=3&kappa=4&law=laplace").page
    wanted = explorable.frame({"lam": 3.0, "kappa": 4.0, "law": "laplace", "site": "layer-0"})
    drawn = page.evaluate(
        "Array.from(document.querySelector('.rl-explorable .rl-plot').data.find((t) => t.meta === 'law').y)"
    )
    assert drawn == pytest.approx(wanted.series["law"][1].tolist(), rel=1e-9)


def test_address_carries_the_state_there_and_back(open_page: Callable[..., Any]) -> None:
    page = open_page("#explore=chebyshev&lam=3.5&kappa=4.25&law=measured&site=layer-12").page
    wanted = {"lam": 3.5, "kappa": 4.25, "law": "measured", "site": "layer-12"}
    assert state(page) == wanted
    assert page.locator(LAM).input_value() == "13"
    page.select_option(LAW, "laplace")
    page.wait_for_function("location.hash === '#explore=chebyshev&lam=3.5&kappa=4.25&law=laplace'")
    page.evaluate("location.hash = '#explore=chebyshev&lam=1&law=three-point'")
    page.wait_for_function("residlab.explore.mounted.get('chebyshev').state.lam === 1")
    assert state(page) == {"lam": 1.0, "kappa": 10.0, "law": "three-point", "site": "layer-0"}
    assert page.locator(LAW).input_value() == "three-point"


@pytest.mark.parametrize(
    "fragment",
    [
        "#explore=chebyshev&lam=1e9&kappa=Infinity&law=__proto__&site=constructor",
        "#explore=chebyshev&lam=%3Cimg%20src=x%20onerror=alert(1)%3E&kappa=alert(1)&law=%22%3E%3Cscript%3E",
        "#explore=chebyshev&lam=2.1&kappa=-3&law=toString&lam=",
        "#explore=__proto__&lam=5",
        "#explore=%E0%A4%A&lam=%",
        "#explore=hasOwnProperty",
        "#" + "x" * 5000,
    ],
)
def test_hostile_addresses_give_the_default(open_page: Callable[..., Any], fragment: str) -> None:
    seen = open_page(fragment)
    assert state(seen.page) == {"lam": 2.0, "kappa": 10.0, "law": "gaussian", "site": "layer-0"}
    assert seen.page.locator("img").count() == 0
    seen.assert_clean()


def test_copy_link_gives_the_address(open_page: Callable[..., Any]) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"]).page
    page.focus(LAM)
    page.keyboard.press("ArrowRight")
    page.click("text=Copy link")
    page.wait_for_function("document.querySelector('.rl-status').textContent !== ''")
    assert page.locator(".rl-status").inner_text() == "Link copied."
    assert page.url.endswith("#explore=chebyshev&lam=2.25&kappa=10&law=gaussian")
    assert page.evaluate("navigator.clipboard.readText()") == page.url


def test_update_is_quick(open_page: Callable[..., Any]) -> None:
    """60 ms is the aim; three times that is the limit here, since test machines are busy."""
    page = open_page("#explore=chebyshev&law=laplace&kappa=3").page
    times = page.evaluate(
        """async () => {
          const root = document.querySelector(".rl-explorable");
          const input = document.getElementById("explore-chebyshev-lam");
          const times = [];
          for (let i = 0; i < 24; i += 1) {
            delete root.dataset.updateMs;
            input.value = i;
            input.dispatchEvent(new Event("input", { bubbles: true }));
            while (!root.dataset.updateMs) await new Promise((done) => setTimeout(done, 5));
            times.push(Number(root.dataset.updateMs));
          }
          return times;
        }"""
    )
    print("update ms:", sorted(times))
    assert statistics.median(times) <= 180
    assert page.evaluate("performance.getEntriesByName('residlab:chebyshev').length") == 1


def test_a_burst_of_events_is_one_update(open_page: Callable[..., Any]) -> None:
    page = open_page().page
    count = page.evaluate(
        """async () => {
          const explorable = residlab.explore.mounted.get("chebyshev");
          const form = explorable.form;
          let calls = 0;
          explorable.form = (...all) => ((calls += 1), form(...all));
          const input = document.getElementById("explore-chebyshev-lam");
          for (let i = 0; i < 20; i += 1) {
            input.value = i;
            input.dispatchEvent(new Event("input", { bubbles: true }));
          }
          await new Promise((done) => setTimeout(done, 300));
          return calls;
        }"""
    )
    assert count == 1


def test_figures_wait_until_near_without_moving_the_page(open_page: Callable[..., Any]) -> None:
    seen = open_page(extra=f'<div class="gap"></div>{stream_figure()}')
    page = seen.page
    figure = page.locator(".rl-figure")
    page.wait_for_timeout(200)
    assert figure.get_attribute("data-drawn") is None
    before = page.evaluate("document.documentElement.scrollHeight")
    draw_figure(page)
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollHeight") == before
    assert page.locator(".rl-figure .main-svg").count() > 0
    seen.assert_clean()


def test_printing_draws_everything_in_black_on_white(open_page: Callable[..., Any]) -> None:
    page = open_page(extra=f'<div class="gap"></div>{stream_figure()}', color_scheme="dark").page
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".rl-figure[data-drawn]").count() == 1
    assert page.evaluate("document.querySelector('.rl-figure .rl-plot').data[0].line.color") == "rgb(0, 0, 0)"
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.querySelector('.rl-figure .rl-plot').data[0].line.color") == "rgb(230, 233, 238)"


def test_theme_change_repaints(open_page: Callable[..., Any]) -> None:
    page = open_page(extra=stream_figure()).page
    draw_figure(page)
    colour = "document.querySelector('.rl-figure .rl-plot').data[0].line.color"
    assert page.evaluate(colour) == "rgb(32, 38, 46)"
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.wait_for_function(f"{colour} === 'rgb(230, 233, 238)'")
    tick = "getComputedStyle(document.querySelector('.rl-explorable .xtick text')).fill"
    page.wait_for_function(f"{tick} === 'rgb(164, 173, 184)'")


def test_table_and_csv_hold_the_numbers(open_page: Callable[..., Any]) -> None:
    page = open_page(extra=stream_figure()).page
    figure = page.locator(".rl-figure")
    assert figure.locator("table").count() == 0
    figure.locator("summary").click()
    figure.locator("table").wait_for()
    assert figure.locator("th").all_inner_texts() == ["series", "layer", "RMS r", "value or ±"]
    rows = [row.locator("td").all_inner_texts() for row in figure.locator("tbody tr").all()]
    assert rows[0] == ["=cmd, norm", "1", "1", ""]
    assert rows[-1] == ["other", "3", "0.3333333", "0.2"]
    assert len(rows) == 5
    with page.expect_download() as waited:
        figure.get_by_role("button", name="Download CSV").click()
    assert waited.value.suggested_filename == "stream.csv"
    text = Path(waited.value.path()).read_text(encoding="utf-8-sig")
    assert text.splitlines()[1] == '"\'=cmd, norm",1,1,'
    assert text.splitlines()[3] == "other,1,-1,0.1"
    page.locator(".rl-explorable summary").click()
    page.locator(".rl-explorable table").first.wait_for()
    assert page.locator(".rl-explorable caption").first.inner_text().startswith("share per bin against argument z")


def test_legend_buttons_hide_their_traces(open_page: Callable[..., Any]) -> None:
    page = open_page(extra=stream_figure()).page
    draw_figure(page)
    key = page.get_by_role("button", name="other")
    key.click()
    assert key.get_attribute("aria-pressed") == "false"
    shown = "document.querySelector('.rl-figure .rl-plot').data.map((t) => t.visible !== false)"
    assert page.evaluate(shown) == [True, False]
    key.press("Enter")
    assert page.evaluate(shown) == [True, True]


@pytest.mark.parametrize("defer", [True, False])
@pytest.mark.parametrize("order", [list, lambda names: names[::-1]], ids=["in-order", "reversed"])
def test_scripts_may_come_in_any_order(
    explorable: Explorable, bare_page: Callable[..., Path], visit: Callable[..., Any], order: Any, defer: bool
) -> None:
    seen = visit(bare_page(explorable_html(explorable) + stream_figure(), order=order, defer=defer))
    seen.page.wait_for_selector(DRAWN)
    draw_figure(seen.page)
    seen.assert_clean()


def test_scripts_that_come_after_everything(explorable: Explorable, bare_page: Callable[..., Path], visit: Any) -> None:
    names: list[str] = []

    def keep(found: list[str]) -> list[str]:
        names.extend(found)
        return []

    page = visit(bare_page(explorable_html(explorable), order=keep)).page
    assert page.evaluate("document.querySelector('fieldset').disabled")
    for name in reversed(names):
        page.add_script_tag(url=name)
    page.wait_for_selector(DRAWN)


def test_without_scripts_the_default_state_can_be_read(
    explorable: Explorable, bare_page: Callable[..., Path], visit: Callable[..., Any]
) -> None:
    page = visit(bare_page(explorable_html(explorable) + stream_figure()), java_script_enabled=False).page
    text = page.locator("main").inner_text()
    assert "Chebyshev allows no law more than 1.00%" in text
    assert "RMS against layer." in text
    assert page.locator(LAM).is_disabled()


def test_reduced_motion_moves_nothing(open_page: Callable[..., Any]) -> None:
    page = open_page(reduced_motion="reduce").page
    durations = "[...document.querySelectorAll('.rl-explorable *')].map((e) => getComputedStyle(e).transitionDuration)"
    assert set(page.evaluate(durations)) == {"0s"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(open_page: Callable[..., Any], scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = open_page("#explore=chebyshev&law=measured", extra=stream_figure(), color_scheme=scheme).page
    draw_figure(page)
    for summary in page.locator("summary").all():
        summary.click()
    page.locator("table").first.wait_for()
    found = axe.Axe().run(page).response["violations"]
    serious = [(v["id"], [n["html"] for n in v["nodes"]]) for v in found if v["impact"] in ("serious", "critical")]
    assert serious == []


def test_the_blocker_sees_outside_requests(bare_page: Callable[..., Path], visit: Callable[..., Any]) -> None:
    seen = visit(bare_page('<img src="https://example.org/x.png" alt="">'))
    assert seen.blocked == ["https://example.org/x.png"]
    with pytest.raises(AssertionError, match=r"example\.org"):
        seen.assert_clean()
