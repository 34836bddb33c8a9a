"""The palette: colours and the font of every figure, for those who draw without plotly.

Every colour of `PALETTE` keeps a contrast of at least 3 against white and against ``#14181e`` (WCAG 2.2, 1.4.11), and
any two of them stay apart under simulated protanopia, deuteranopia and tritanopia; it starts from Okabe and Ito's
palette, whose yellow, sky blue and orange are too pale for white paper. Colour is never alone: a dash or a marker goes
with it.

The *ink* colours (`INK`, `MUTED`, `GRID`, `AXIS`, `PAPER`) are names as much as colours: a live notebook draws them as
they stand; a page replaces them by the reader's light or dark theme (`roles`).
"""

from __future__ import annotations

INK = "#20262e"
MUTED = "#5b6471"
GRID = "#e3e6eb"
AXIS = "#aab2bd"
PAPER = "#fefefe"

BLUE = "#1B67B1"
VERMILION = "#FF580D"
GREEN = "#27A56A"
VIOLET = "#9059FF"
RUST = "#BB3A00"
PINK = "#C47AC4"
GREY = "#75686D"

PALETTE: tuple[str, ...] = (BLUE, VERMILION, GREEN, VIOLET, RUST, PINK, GREY)

FONT_FAMILY = (
    'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "Liberation Sans", sans-serif'
)


def roles() -> dict[str, str]:
    """Return what each ink colour stands for, as the page's script reads it: ``{colour: role}``."""
    return {INK: "ink", MUTED: "muted", GRID: "grid", AXIS: "axis", PAPER: "paper"}
