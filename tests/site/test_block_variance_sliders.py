"""The sliders of chapter 3 by keyboard, mouse and touch, against theory."""

import numpy as np
import pytest

from residlab.explore import block_variance as bv

pytestmark = pytest.mark.browser

CHAPTER = "notebooks/03-block-variance.html"
CONTROLS = {
    "ratio": bv.RATIOS,
    "tokens": bv.TOKENS,
    "position": bv.POSITIONS,
    "shared": bv.SHARED,
    "focus": bv.FOCUS,
    "gain": bv.GAINS,
}


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
    state = page.evaluate("residlab.explore.mounted.get('block-variance').state")
    for name, (_, y) in bv.block_variance_explorable().compute(**state).series.items():
        plot = "document.querySelector('.rl-explorable .rl-plot')"
        drawn = page.evaluate(f"(name) => Array.from({plot}.data.find((t) => t.meta === name).y)", name)
        np.testing.assert_allclose(drawn, y, rtol=1e-9, atol=1e-12)
    return state


def test_by_keyboard(chapter):
    seen = chapter(viewport={"width": 1440, "height": 900})
    page = seen.page
    default = {"ratio": 0.2, "tokens": 1024.0, "position": 16.0, "shared": 0.0, "focus": 1.0, "gain": 100.0}
    assert check(page) == default
    for name, key in (("ratio", "ArrowRight"), ("tokens", "Home"), ("position", "End"), ("shared", "ArrowRight")):
        page.focus(f"#explore-block-variance-{name}")
        page.keyboard.press(key)
    assert check(page) == {**default, "ratio": 0.22, "tokens": 16.0, "position": 4096.0, "shared": 0.01}
    seen.assert_clean()


@pytest.mark.parametrize("how", ["mouse", "touch"])
def test_by_pointer(chapter, how):
    options = {"viewport": {"width": 390, "height": 844}}
    seen = chapter(**options, has_touch=True, is_mobile=True) if how == "touch" else chapter(**options)
    page = seen.page
    for name, values in CONTROLS.items():
        control = page.locator(f"#explore-block-variance-{name}")
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
