/* What is wider than the page scrolls in a box of its own. Here the box learns to say so: `data-rl-more` names the
   sides on which more is to be seen (the style fades them), and the keyboard reaches it. Then: what search from disk
   and printing need. */
"use strict";
(() => {
  const BOXES = "span.math, div.math mjx-container, table";

  function look(box) {
    const svg = box.matches("table") ? null : box.querySelector("svg");
    // A formula's glyphs reach over its edges by a pixel or two; how wide it was set is what counts.
    const width = svg ? svg.getBoundingClientRect().width : box.scrollWidth;
    const hidden = Math.round(width - box.clientWidth);
    const left = box.scrollLeft > 1;
    const right = box.scrollLeft < hidden - 1;
    if (hidden <= 1) delete box.dataset.rlMore;
    else box.dataset.rlMore = left && right ? "both" : left ? "left" : "right";
    const reached = box.matches("[tabindex]:not([data-rl-reached])") || box.querySelector("[tabindex], a, button");
    if (hidden > 1 && !reached) {
      box.tabIndex = 0;
      box.dataset.rlReached = "";
    } else if (hidden <= 1 && "rlReached" in box.dataset) {
      box.removeAttribute("tabindex");
      delete box.dataset.rlReached;
    }
  }

  function boxes(element) {
    return element.matches(BOXES) ? [element] : [...element.querySelectorAll(BOXES)];
  }

  // Typesetting, unfolding a proof and turning a phone change sizes, all of which the observer sees.
  const observer = new ResizeObserver((entries) => entries.forEach(({ target }) => boxes(target).forEach(look)));
  document.querySelectorAll(".bd-article :is(.math, table)").forEach((element) => observer.observe(element));
  const scrolled = ({ target }) => target instanceof Element && target.matches("[data-rl-more]") && look(target);
  document.addEventListener("scroll", scrolled, { capture: true, passive: true });

  /* A page from disk may not read the pages that it found, which is where excerpts come from: it lists titles alone. */
  if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined") {
    DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
  }

  /* Sphinx looks an entry of the reference up by its name as a selector, in which dots would be classes. */
  if (typeof Search !== "undefined") {
    const text = Search.htmlToText;
    Search.htmlToText = (html, anchor) => text(html, anchor && `#${CSS.escape(anchor.slice(1))}`);
  }

  /* Paper is white and cannot be unfolded: print in the light, with proofs and solutions open; code and data stay shut. */
  const root = document.documentElement;
  let before = null;
  window.addEventListener("beforeprint", () => {
    if (before) return;
    const folded = document.querySelectorAll(".bd-article details.sd-dropdown:not([open])");
    before = { theme: root.dataset.theme, folded };
    for (const details of folded) details.open = true;
    if (before.theme) root.dataset.theme = "light";
  });
  window.addEventListener("afterprint", () => {
    if (!before) return;
    for (const details of before.folded) details.open = false;
    if (before.theme) root.dataset.theme = before.theme;
    before = null;
  });
})();
