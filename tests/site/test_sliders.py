"""Each slider of the book moved by keyboard, mouse and touch; what is plotted is what theory gives."""

import numpy as np
import pytest

from residlab.explore.chebyshev import KAPPAS, LAMBDAS
from residlab.theory.chebyshev import chebyshev_tail, vysochanskij_petunin_tail
from residlab.theory.laws import LAWS

pytestmark = pytest.mark.browser

CHAPTER = "notebooks/02-chebyshev.html"
LAM, KAPPA, LAW = (f"#explore-chebyshev-{name}" for name in ("lam", "kappa", "law"))


def plotted(page):
    """Return the traces by name, as plotly holds them, and the readouts as text."""
    page.wait_for_timeout(150)  # an update is coalesced into the next frame
    traces = page.evaluate(
        """() => {
          const list = (values) => Array.from(values, (v) => (Number.isFinite(v) ? v : null));
          const { data } = document.querySelector(".rl-explorable .rl-plot");
          return Object.fromEntries(data.map(({ name, x, y }) => [name, { x: list(x), y: list(y) }]));
        }"""
    )
    return {name: (np.array(t["x"], float), np.array(t["y"], float)) for name, t in traces.items()}


def check(page, lam, kappa, law="gaussian"):
    state = page.evaluate("residlab.explore.mounted.get('chebyshev').state")
    assert (state["lam"], state["kappa"], state["law"]) == (lam, kappa, law)
    traces = plotted(page)
    x, y = traces["chosen law"]
    np.testing.assert_allclose(y, LAWS[law].tail(x), rtol=1e-9)
    here_x, here_y = traces["at the chosen κ"]
    np.testing.assert_allclose(here_x, kappa)
    np.testing.assert_allclose(here_y, [chebyshev_tail(kappa), LAWS[law].tail(kappa)], rtol=1e-9)
    for name, bound in (("Chebyshev, 1/κ²", chebyshev_tail), ("unimodal bound (V.–P.)", vysochanskij_petunin_tail)):
        x, y = traces[name]
        np.testing.assert_allclose(y, bound(x), rtol=1e-9)
    inside, outside = traces["inside ±λ"], traces["at or beyond ±λ"]
    assert np.nansum(inside[1]) + np.nansum(outside[1]) == pytest.approx(1, abs=1e-9)
    if lam < 6.5:
        assert np.nansum(outside[1]) == pytest.approx(float(LAWS[law].tail(kappa)), rel=1e-9)


@pytest.fixture
def chapter(base, visit):
    def opened(page=CHAPTER, **options):
        seen = visit(base + page, **options)
        seen.page.locator(".rl-explorable").scroll_into_view_if_needed()
        seen.page.wait_for_selector(".rl-explorable[data-drawn]")
        return seen

    return opened


def test_by_keyboard(chapter):
    seen = chapter(viewport={"width": 1440, "height": 900})
    page = seen.page
    check(page, 2.0, 10.0)
    page.focus(LAM)
    page.keyboard.press("ArrowRight")
    page.focus(KAPPA)
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    check(page, 2.25, 1.5)
    page.focus(LAW)
    page.keyboard.press("ArrowDown")
    check(page, 2.25, 1.5, "laplace")
    page.focus(KAPPA)
    page.keyboard.press("End")
    check(page, 2.25, 20.0, "laplace")
    seen.assert_clean()


def test_by_mouse(chapter):
    seen = chapter(viewport={"width": 1440, "height": 900})
    page = seen.page
    for control, values, share in ((LAM, LAMBDAS, 0.25), (KAPPA, KAPPAS, 0.6)):
        page.locator(control).scroll_into_view_if_needed()
        box = page.locator(control).bounding_box()
        y = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] / 2, y)
        page.mouse.down()
        page.mouse.move(box["x"] + share * box["width"], y, steps=8)
        page.mouse.up()
        state = page.evaluate("residlab.explore.mounted.get('chebyshev').state")
        moved = state[control.rpartition("-")[2]]
        assert moved in values
        assert abs(values.index(moved) / (len(values) - 1) - share) < 0.08
    state = page.evaluate("residlab.explore.mounted.get('chebyshev').state")
    check(page, state["lam"], state["kappa"])
    seen.assert_clean()


def test_by_touch(chapter):
    seen = chapter(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = seen.page
    for control in (LAM, KAPPA):
        page.locator(control).scroll_into_view_if_needed()
        box = page.locator(control).bounding_box()
        page.touchscreen.tap(box["x"] + 0.2 * box["width"], box["y"] + box["height"] / 2)
    state = page.evaluate("residlab.explore.mounted.get('chebyshev').state")
    assert state["lam"] < 2.0
    assert state["kappa"] < 10.0
    check(page, state["lam"], state["kappa"])
    seen.assert_clean()


def test_measured_activations_are_those_of_the_executed_chapter(chapter, project):
    page = chapter(viewport={"width": 1440, "height": 900}).page
    page.select_option(LAW, "measured")
    sites = page.evaluate("[...document.querySelectorAll('#explore-chebyshev-site option')].map((o) => o.textContent)")
    assert sites[0] == "layer 1, before attention"
    assert len(sites) == 6
    page.select_option("#explore-chebyshev-site", label="layer 11, before attention")
    traces = plotted(page)
    _, y = traces["chosen law"]
    y = np.nan_to_num(y)
    assert np.all(np.diff(y) <= 1e-12)
    assert np.all(y <= chebyshev_tail(np.array(KAPPAS)) + 1e-12)
    assert y[KAPPAS.index(10.0)] == pytest.approx(0.00297, rel=0.02)


def test_the_stream_by_keyboard(chapter):
    seen = chapter("notebooks/01-stream.html", viewport={"width": 1440, "height": 900})
    page = seen.page

    def shown():
        page.wait_for_timeout(150)
        return page.evaluate(
            """() => {
              const { state, frame } = residlab.explore.mounted.get("stream");
              const plot = document.querySelector("#explore-stream .rl-plot");
              const of = (name) => plot.data.find((trace) => trace.name === name);
              const bars = Array.from(of("entries of the token").y).filter(Number.isFinite);
              const here = of("at the chosen layer");
              const total = bars.reduce((a, b) => a + b, 0);
              return { state, readouts: frame.readouts, total, here: { x: [...here.x], y: [...here.y] } };
            }"""
        )

    giant = shown()
    assert giant["state"] == {"layer": 12, "token": "t0"}
    assert giant["readouts"]["channel"] == 507
    assert giant["readouts"]["largest"] > 20_000
    page.focus("#explore-stream-layer")
    page.keyboard.press("ArrowLeft")
    before = shown()
    assert before["state"]["layer"] == 11
    assert before["readouts"]["largest"] < 500
    page.keyboard.press("Home")
    assert shown()["readouts"]["rms"] < 1
    page.keyboard.press("End")
    page.focus("#explore-stream-token")
    page.keyboard.press("ArrowDown")
    last = shown()
    assert last["state"] == {"layer": 30, "token": "t1"}
    assert last["here"]["x"] == [30, 30]
    assert last["here"]["y"] == pytest.approx([last["readouts"]["rms"], last["readouts"]["largest"]])
    assert {giant["total"], before["total"], last["total"]} == {576}
    seen.assert_clean()
