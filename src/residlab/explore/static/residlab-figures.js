/* Figures of a page: drawn from the JSON beside them when they come near the window, in the colours of the page's theme,
   with the numbers behind them as a table and as CSV. Needs Plotly: loaded by the page, before or after, or fetched from
   beside this script if its element says so (data-plotly="plotly.min.js"). Asks nobody else for anything. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  if (residlab.figures) return;

  const here = document.currentScript;
  const NEAR = "600px";
  const ROWS = 500;
  const ROLES = ["ink", "muted", "grid", "axis", "paper"];
  const drawings = new Set(); // every drawing of the page: { root, plot, draw(colours), drawn }

  /* ---- The specification beside a figure ------------------------------------------------------------------------- */

  function readSpec(root) {
    return JSON.parse(root.querySelector(':scope > script[type="application/json"]').textContent);
  }

  function bytes(base64) {
    const text = atob(base64);
    const out = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i += 1) out[i] = text.charCodeAt(i);
    return out.buffer;
  }

  const KINDS = new Map(
    Object.entries({
      f4: Float32Array,
      f8: Float64Array,
      i1: Int8Array,
      u1: Uint8Array,
      i2: Int16Array,
      u2: Uint16Array,
      i4: Int32Array,
      u4: Uint32Array,
    }),
  );

  /** Values of a trace attribute: a list as it is, plotly's {dtype, bdata, shape} decoded (rows where it has two axes). */
  function values(attribute) {
    if (attribute === undefined || attribute === null) return null;
    if (Array.isArray(attribute) || ArrayBuffer.isView(attribute)) return attribute;
    if (typeof attribute.bdata !== "string" || !KINDS.has(attribute.dtype)) return null;
    const flat = new (KINDS.get(attribute.dtype))(bytes(attribute.bdata));
    const shape = String(attribute.shape || flat.length).split(",").map(Number);
    if (shape.length < 2) return flat;
    return Array.from({ length: shape[0] }, (_, i) => flat.subarray(i * shape[1], (i + 1) * shape[1]));
  }

  /* ---- Colours of the theme -------------------------------------------------------------------------------------- */

  /** What each ink colour is in the page's theme now: a map from the colour in the figure to the colour to draw. */
  function colours(root, roles) {
    const probe = document.createElement("span");
    probe.hidden = true;
    root.append(probe);
    const now = new Map();
    for (const [colour, role] of Object.entries(roles)) {
      if (!ROLES.includes(role)) continue;
      probe.style.color = `var(--rl-${role})`;
      now.set(colour, getComputedStyle(probe).color);
    }
    probe.remove();
    return now;
  }

  /** A copy of a figure's JSON in which every ink colour is the theme's; lists of numbers are shared, not copied. */
  function paint(value, now) {
    if (typeof value === "string") return now.get(value) || value;
    if (value === null || typeof value !== "object" || ArrayBuffer.isView(value)) return value;
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map((item) => paint(item, now));
    if (typeof value.bdata === "string") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, paint(item, now)]));
  }

  /* No mode bar: its buttons would be unreachable inside an image. `resized` below also sees a side bar that opens. */
  const CONFIG = { displayModeBar: false, displaylogo: false, responsive: false, scrollZoom: false };

  /** A finger scrolls the page; it does not zoom a figure. A narrow column gets narrow margins. */
  function adapt(layout, plot) {
    if (matchMedia("(pointer: coarse)").matches) layout.dragmode = false;
    if (plot.clientWidth < 480) {
      const margin = layout.margin || (layout.template && layout.template.layout.margin) || {};
      layout.margin = { ...margin, l: Math.min(margin.l ?? 64, 52), r: Math.min(margin.r ?? 20, 40) };
    }
    return layout;
  }

  /** Axes that neither move under a drag nor measure their labels anew: an update then takes half the time. */
  function still(layout) {
    for (const part of [layout, layout.template && layout.template.layout]) {
      for (const [key, axis] of Object.entries(part || {})) {
        if (/^[xy]axis\d*$/.test(key)) Object.assign(axis, { automargin: false, fixedrange: true });
      }
    }
    return layout;
  }

  /* ---- Drawing when near ----------------------------------------------------------------------------------------- */

  function draw(drawing) {
    if (!window.Plotly) return;
    drawing.drawn = true;
    drawing.draw();
    drawing.root.dataset.drawn = "true";
  }

  /** The buttons of a legend show and hide their traces; `hidden` holds the numbers of those hidden. */
  function bindLegend(root, hidden, redraw) {
    for (const key of root.querySelectorAll(":scope > .rl-legend > li > .rl-key")) {
      key.disabled = false;
      key.addEventListener("click", () => {
        const shown = key.getAttribute("aria-pressed") !== "true";
        key.setAttribute("aria-pressed", String(shown));
        for (const number of key.dataset.traces.split(" ").map(Number)) {
          if (shown) hidden.delete(number);
          else hidden.add(number);
        }
        redraw();
      });
    }
  }

  const visible = (traces, hidden) => traces.map((trace, i) => (hidden.has(i) ? { ...trace, visible: false } : trace));

  function redrawAll() {
    for (const drawing of drawings) if (drawing.drawn) draw(drawing);
  }

  const nearby = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        const drawing = [...drawings].find((d) => d.plot === entry.target);
        if (!entry.isIntersecting || drawing.drawn) continue;
        if (!window.Plotly) continue; // `start` observes again once it is there
        nearby.unobserve(entry.target);
        draw(drawing);
      }
    },
    { rootMargin: NEAR },
  );

  const widths = new WeakMap();
  const resized = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) {
      const before = widths.get(target);
      widths.set(target, contentRect.width);
      if (before === undefined || Math.abs(before - contentRect.width) < 1 || contentRect.width === 0) continue;
      requestAnimationFrame(() => target.querySelector(".main-svg") && window.Plotly.Plots.resize(target));
    }
  });

  /** Take over a drawing: `draw` is called when it comes near, when the theme changes and before printing. */
  function adopt(drawing) {
    drawings.add(drawing);
    nearby.observe(drawing.plot);
    resized.observe(drawing.plot);
  }

  /* ---- The numbers behind a figure ------------------------------------------------------------------------------- */

  const plain = (text) => String(text ?? "").replace(/<br\s*\/?>/gi, " ").replace(/<[^>]*>/g, "");

  function axisTitle(layout, name, fallback) {
    const axis = layout[`${name[0]}axis${name.slice(1)}`];
    return plain(axis && axis.title && (axis.title.text ?? axis.title)) || fallback;
  }

  function cell(value) {
    if (value === null || value === undefined || Number.isNaN(value)) return "";
    return typeof value === "number" ? String(Number(value.toPrecision(7))) : plain(value);
  }

  function traceRows(trace) {
    const x = values(trace.x);
    const y = values(trace.y);
    const z = values(trace.z);
    const name = plain(trace.name);
    if (z && z.length && typeof z[0] !== "number") {
      return z.flatMap((row, i) => Array.from(row, (v, j) => [name, x ? x[j] : j, y ? y[i] : i, v]));
    }
    const error = trace.error_y && values(trace.error_y.array);
    const length = Math.max(x ? x.length : 0, y ? y.length : 0);
    const rows = Array.from({ length }, (_, i) => [name, x ? x[i] : i, y ? y[i] : null, error ? error[i] : null]);
    return rows.filter(([, a, b]) => !Number.isNaN(a) && !(y && (b === null || Number.isNaN(b))));
  }

  /** One table for each pair of axes: { title, header, rows }. */
  function tables(traces, layout) {
    const panels = new Map();
    for (const trace of traces) {
      if (trace.hoverinfo === "skip") continue; // decoration
      const key = `${trace.xaxis || "x"} ${trace.yaxis || "y"}`;
      if (!panels.has(key)) panels.set(key, []);
      panels.get(key).push(...traceRows(trace));
    }
    return [...panels].map(([key, rows]) => {
      const [x, y] = key.split(" ");
      const header = ["series", axisTitle(layout, x, "x"), axisTitle(layout, y, "y"), "value or ±"];
      const used = rows.some((row) => row[3] !== null && row[3] !== undefined) ? 4 : 3;
      const text = rows.map((row) => row.slice(0, used).map(cell));
      return { title: `${header[2]} against ${header[1]}`, header: header.slice(0, used), rows: text };
    });
  }

  function element(tag, properties = {}, ...children) {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  }

  function tableElement({ title, header, rows }) {
    const head = element("tr", {}, ...header.map((text) => element("th", { scope: "col", textContent: text })));
    const body = rows.slice(0, ROWS).map((row) => element("tr", {}, ...row.map((t) => element("td", { textContent: t }))));
    const more = rows.length > ROWS ? ` (the first ${ROWS} of ${rows.length} rows; the CSV has all)` : "";
    const caption = element("caption", { textContent: title + more });
    const table = element("table", { className: "rl-table" }, caption, element("thead", {}, head), element("tbody", {}, ...body));
    const scroll = element("div", { className: "rl-scroll", tabIndex: 0 }, table);
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", title);
    return scroll;
  }

  function csv(list) {
    // A leading =, +, @ would be a formula to a spreadsheet; numbers keep their minus.
    const safe = (t) => (/^[=+@\t\r]|^-(?![\d.])/.test(t) ? `'${t}` : t);
    const quote = (t) => (/[",\n\r]/.test(safe(t)) ? `"${safe(t).replaceAll('"', '""')}"` : safe(t));
    return list.flatMap((t) => [t.header, ...t.rows, [""]].map((row) => row.map(quote).join(","))).join("\r\n");
  }

  function download(name, text) {
    const address = URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv;charset=utf-8" }));
    element("a", { href: address, download: `${name}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }

  /** Fill the folded "Data" of a figure when it is opened; `current()` gives { traces, layout }. Returns a refresher. */
  function dataPanel(root, current) {
    const details = root.querySelector(":scope > details.rl-data");
    const fill = () => {
      if (!details.open) return;
      const { traces, layout } = current();
      const list = tables(traces, layout);
      const button = element("button", { type: "button", className: "rl-button", textContent: "Download CSV" });
      button.addEventListener("click", () => download(root.dataset.name, csv(list)));
      details.replaceChildren(details.querySelector("summary"), button, ...list.map(tableElement));
    };
    details.addEventListener("toggle", fill);
    return fill;
  }

  /* ---- Plain figures --------------------------------------------------------------------------------------------- */

  function mount(root) {
    const { figure, roles } = readSpec(root);
    const plot = root.querySelector(":scope > .rl-plot");
    const hidden = new Set();
    root.dataset.ready = "true";
    dataPanel(root, () => ({ traces: figure.data, layout: figure.layout }));
    const drawing = {
      root,
      plot,
      draw() {
        const now = colours(root, roles);
        const traces = visible(paint(figure.data, now), hidden);
        window.Plotly.react(plot, traces, adapt(paint(figure.layout, now), plot), CONFIG);
      },
    };
    bindLegend(root, hidden, () => drawing.drawn && drawing.draw());
    adopt(drawing);
  }

  /** Plotly is large: where the page names it (`data-plotly`), it comes when all else is there and can be used. */
  function fetchPlotly() {
    if (window.Plotly || !here?.dataset.plotly || document.readyState === "loading") return;
    const script = element("script", { src: new URL(here.dataset.plotly, here.src).href });
    delete here.dataset.plotly;
    setTimeout(() => document.head.append(script), 0);
  }

  function start() {
    fetchPlotly();
    for (const root of document.querySelectorAll(".rl-figure:not([data-ready])")) mount(root);
    for (const drawing of drawings) {
      if (drawing.drawn) continue;
      nearby.unobserve(drawing.plot); // observing anew reports anew, should Plotly have come late
      nearby.observe(drawing.plot);
    }
  }

  /** Call `task` when the document is parsed, when it is loaded, and after every later script: they may come in any order. */
  function whenReady(task) {
    if (document.readyState === "complete") setTimeout(task, 0);
    document.addEventListener("DOMContentLoaded", task);
    window.addEventListener("load", task);
    document.addEventListener("load", (event) => event.target.tagName === "SCRIPT" && task(), true);
  }

  new MutationObserver(redrawAll).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  window.addEventListener("beforeprint", () => {
    document.documentElement.dataset.rlPrint = "true";
    for (const drawing of drawings) draw(drawing);
  });
  window.addEventListener("afterprint", () => {
    delete document.documentElement.dataset.rlPrint;
    redrawAll();
  });
  residlab.figures = { CONFIG, readSpec, bytes, colours, paint, adapt, still, visible, bindLegend, adopt, dataPanel };
  whenReady(start);
})();
