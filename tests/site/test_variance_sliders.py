"""The sliders of chapter 4 by keyboard, mouse and touch, against the recursion."""

import numpy as np
import pytest

from residlab.explore.variance import DEPTHS, KAPPAS, LAMBDAS, RHOS
from residlab.theory.recursion import second_moments, variance_trajectory

pytestmark = pytest.mark.browser

CHAPTER = "notebooks/04-theorem.html"
CONTROLS = {"lam": LAMBDAS, "kappa": KAPPAS, "depth": DEPTHS, "rho": RHOS}


@pytest.fixture
def chapter(base, visit):
    def opened(**options):
        seen = visit(base + CHAPTER, **options)
        seen.page.locator(".rl-explorable").scroll_into_view_if_needed()
        seen.page.wait_for_selector(".rl-explorable[data-drawn]")
        return seen

    return opened


def check(page):
    """Compare what is plotted with theory at the state that the page says, and return the state."""
    page.wait_for_timeout(200)  # an update is coalesced into the next frame
    state = page.evaluate("residlab.explore.mounted.get('variance').state")
    depth = int(state["depth"])
    for name, norm in (("Pre-LN", "pre-ln"), ("LNS", "lns"), ("BHyT", "bhyt")):
        plot = "document.querySelector('.rl-explorable .rl-plot')"
        drawn = page.evaluate(f"(name) => Array.from({plot}.data.find((t) => t.name === name).y)", name)
        ratio = state["lam"] / state["kappa"] if norm == "bhyt" else None
        moments = second_moments(norm, depth, ratio=ratio)
        np.testing.assert_allclose(drawn, variance_trajectory(moments, correlation=state["rho"]), rtol=1e-9)
    return state


def test_by_keyboard(chapter):
    seen = chapter(viewport={"width": 1440, "height": 900})
    page = seen.page
    assert check(page) == {"lam": 3.0, "kappa": 10.0, "depth": 28.0, "rho": 0.0}
    for name, key in (("lam", "ArrowRight"), ("kappa", "ArrowLeft"), ("depth", "End"), ("rho", "End")):
        page.focus(f"#explore-variance-{name}")
        page.keyboard.press(key)
    assert check(page) == {"lam": 3.25, "kappa": 9.75, "depth": 128.0, "rho": 1.0}
    seen.assert_clean()


@pytest.mark.parametrize("how", ["mouse", "touch"])
def test_by_pointer(chapter, how):
    options = {"viewport": {"width": 390, "height": 844}}
    seen = chapter(**options, has_touch=True, is_mobile=True) if how == "touch" else chapter(**options)
    page = seen.page
    for name, values in CONTROLS.items():
        control = page.locator(f"#explore-variance-{name}")
        control.scroll_into_view_if_needed()
        box = control.bounding_box()
        x, y = box["x"] + 0.7 * box["width"], box["y"] + box["height"] / 2
        if how == "touch":
            page.touchscreen.tap(x, y)
        else:
            page.mouse.click(x, y)
        moved = check(page)[name]
        assert abs(values.index(moved) / (len(values) - 1) - 0.7) < 0.08
    seen.assert_clean()
