/* Explorables of a page: controls, readouts and a figure over a closed form that runs in the page. The state is in the
   address (#explore=name&lam=2); whatever an address says, only declared values are taken. Needs residlab-figures.js. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  const explore = (residlab.explore = residlab.explore || {});
  if (explore.mounted) return;
  explore.forms = explore.forms || Object.create(null); // name -> function(state, data, options) -> frame
  explore.mounted = new Map();

  /* ---- Numbers as text: the twin of residlab/explore/formats.py ---------------------------------------------------- */

  const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  const superscript = (n) => String(n).replace(/\d/g, (d) => SUPERSCRIPTS[d]).replace("-", "⁻");

  function significant(size) {
    if (size >= 999.5 && size < 1e6) return size.toFixed(0);
    const [mantissa, exponent] = size.toExponential(2).split("e");
    const power = Number(exponent);
    return power >= -3 && power <= 2 ? size.toPrecision(3) : `${mantissa} × 10${superscript(power)}`;
  }

  function format(value, name) {
    if (!Number.isFinite(value)) return "–";
    const sign = value < 0 ? "−" : "";
    const size = Math.abs(value);
    if (name.startsWith("fixed")) return sign + size.toFixed(Number(name.slice(5)));
    if (size === 0) return name === "share" ? "0%" : "0";
    if (name === "share" && size >= 1e-4) return `${sign}${significant(100 * size)}%`;
    return sign + significant(size);
  }

  /** Fill {names} of a template, doubled braces being braces. */
  function fill(template, texts) {
    return template.replace(/\{\{|\}\}|\{([a-z0-9-]+)\}/g, (all, name) => (name ? texts[name] : all[0]));
  }

  /* ---- The address ------------------------------------------------------------------------------------------------ */

  /** State that the address names for this explorable, or null. Unknown or malformed values become the default. */
  function addressed(name, controls) {
    const parameters = new URLSearchParams(location.hash.slice(1));
    if (parameters.get("explore") !== name) return null;
    return controls.map((control) => {
      const text = parameters.get(control.name) ?? "";
      if (control.options) return Object.hasOwn(control.options, text) ? text : control.default;
      const number = /^-?\d{1,9}(\.\d{1,9})?$/.test(text) ? Number(text) : NaN;
      return control.values.find((value) => Math.abs(value - number) < 1e-9) ?? control.default;
    });
  }

  function replaceFragment(fragment) {
    try {
      history.replaceState(history.state, "", location.href.split("#")[0] + fragment);
    } catch {
      // a sandboxed page may not write its address; the explorable works all the same
    }
  }

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = Object.assign(document.createElement("textarea"), { value: text, className: "rl-hidden" });
      document.body.append(area);
      area.select();
      const copied = document.execCommand("copy");
      area.remove();
      return copied;
    }
  }

  /* ---- One explorable ---------------------------------------------------------------------------------------------- */

  class Explorable {
    constructor(root, form) {
      const figures = residlab.figures;
      this.root = root;
      this.name = root.dataset.name;
      this.form = form;
      this.spec = figures.readSpec(root);
      this.plot = root.querySelector(":scope > .rl-plot");
      this.data = Object.fromEntries(
        Object.entries(this.spec.data).map(([key, { shape, f4 }]) => [key, { shape, values: new Float32Array(figures.bytes(f4)) }]),
      );
      this.options = Object.fromEntries(this.spec.controls.filter((c) => c.options).map((c) => [c.name, Object.keys(c.options)]));
      this.rows = this.spec.controls.map((control) => this.row(control));
      this.pending = false;
      this.values = addressed(this.name, this.spec.controls) ?? this.spec.controls.map((control) => control.default);
      this.refreshData = figures.dataPanel(root, () => ({ traces: this.traces(), layout: this.spec.figure.layout }));
      this.button(".rl-reset", () => this.reset());
      this.button(".rl-copy", () => this.copyLink());
      root.querySelector(".rl-controls").disabled = false;
      this.hidden = new Set();
      figures.bindLegend(root, this.hidden, () => this.schedule());
      this.drawing = { root, plot: this.plot, draw: () => this.repaint() };
      this.show();
      this.update();
      figures.adopt(this.drawing);
      root.dataset.ready = "true";
    }

    button(selector, action) {
      const button = this.root.querySelector(selector);
      button.disabled = false;
      button.addEventListener("click", action);
    }

    row(control) {
      const element = this.root.querySelector(`[data-control="${control.name}"]`);
      const input = element.querySelector("input, select");
      input.addEventListener("input", () => this.moved());
      return { element, input, output: element.querySelector("output") };
    }

    /** Bring the form elements to `values`. */
    show() {
      this.spec.controls.forEach((control, i) => {
        this.rows[i].input.value = control.options ? this.values[i] : String(control.values.indexOf(this.values[i]));
      });
    }

    moved() {
      this.values = this.spec.controls.map((control, i) => {
        const { value } = this.rows[i].input;
        return control.options ? value : control.values[Number(value)];
      });
      this.schedule();
      clearTimeout(this.writing);
      this.writing = setTimeout(() => replaceFragment(this.fragment()), 250);
    }

    /** Update once a frame, however many events a frame brings. */
    schedule() {
      if (this.pending) return;
      this.pending = true;
      requestAnimationFrame(() => {
        this.pending = false;
        this.update();
      });
    }

    get state() {
      return Object.fromEntries(this.spec.controls.map((control, i) => [control.name, this.values[i]]));
    }

    shown(control) {
      return !control.when || this.state[control.when[0]] === control.when[1];
    }

    fragment() {
      const parameters = new URLSearchParams({ explore: this.name });
      this.spec.controls.forEach((control, i) => {
        if (this.shown(control)) parameters.set(control.name, String(this.values[i]));
      });
      return `#${parameters}`;
    }

    update() {
      const begin = performance.now();
      this.frame = this.form(this.state, this.data, this.options);
      const texts = this.write();
      if (this.drawing.drawn) this.plotFrame().then(() => this.measure(begin));
      this.refreshData();
      clearTimeout(this.speaking);
      this.speaking = setTimeout(() => this.speak(texts), 200);
    }

    plotFrame() {
      const { visible, CONFIG } = residlab.figures;
      const traces = visible(this.traces(this.painted.data), this.hidden);
      return window.Plotly.react(this.plot, traces, this.painted.layout, CONFIG);
    }

    /** How long an update took, for whoever looks: a performance measure and `data-update-ms`. */
    measure(begin) {
      const mark = `residlab:${this.name}`;
      performance.clearMeasures(mark);
      this.root.dataset.updateMs = performance.measure(mark, { start: begin }).duration.toFixed(1);
    }

    /** Controls and readouts as text, in the page and for the templates. */
    write() {
      const texts = Object.create(null);
      this.spec.controls.forEach((control, i) => {
        const text = control.options ? control.options[this.values[i]] : format(this.values[i], control.format);
        const { element, input, output } = this.rows[i];
        texts[control.name] = text;
        element.hidden = !this.shown(control);
        if (!output) return;
        output.textContent = text;
        input.setAttribute("aria-valuetext", text);
        input.style.setProperty("--rl-at", `${(100 * Number(input.value)) / (control.values.length - 1)}%`);
      });
      for (const readout of this.spec.readouts) {
        texts[readout.name] = format(this.frame.readouts[readout.name], readout.format);
        this.root.querySelector(`[data-readout="${readout.name}"]`).textContent = texts[readout.name];
      }
      return texts;
    }

    /** The sentence is a live region: it changes when the hand rests, so that a drag is not read out stop by stop. */
    speak(texts) {
      const sentence = fill(this.spec.sentence, texts);
      const element = this.root.querySelector(".rl-sentence");
      if (element.textContent !== sentence) element.textContent = sentence;
      this.plot.setAttribute("aria-label", fill(this.spec.alt, texts));
    }

    traces(list = this.spec.figure.data) {
      const { series } = this.frame;
      return list.map((trace) => (Object.hasOwn(series, trace.meta) ? { ...trace, ...series[trace.meta] } : trace));
    }

    /** Draw in the theme's colours of now. */
    repaint() {
      const { figures } = residlab;
      const now = figures.colours(this.root, this.spec.roles);
      this.painted = {
        data: figures.paint(this.spec.figure.data, now),
        layout: figures.still(figures.adapt(figures.paint(this.spec.figure.layout, now), this.plot)),
      };
      this.plotFrame();
    }

    reset() {
      this.values = this.spec.controls.map((control) => control.default);
      this.show();
      this.update();
      clearTimeout(this.writing);
      if (addressed(this.name, this.spec.controls)) replaceFragment("");
      this.say("Reset.");
    }

    async copyLink() {
      clearTimeout(this.writing);
      replaceFragment(this.fragment());
      const link = location.href.split("#")[0] + this.fragment();
      this.say((await copy(link)) ? "Link copied." : `Copy this: ${link}`);
    }

    say(text) {
      const status = this.root.querySelector(".rl-status");
      status.textContent = text;
      clearTimeout(this.saying);
      this.saying = setTimeout(() => (status.textContent = ""), 4000);
    }

    /** Follow the address, if it speaks of this explorable. */
    follow() {
      const values = addressed(this.name, this.spec.controls);
      if (!values) return;
      this.values = values;
      this.show();
      this.update();
      this.root.scrollIntoView({ block: "start" });
    }
  }

  /* ---- The page ---------------------------------------------------------------------------------------------------- */

  function start() {
    if (!residlab.figures) return; // called again when that script comes
    for (const root of document.querySelectorAll(".rl-explorable:not([data-ready])")) {
      const { script } = residlab.figures.readSpec(root);
      if (!Object.hasOwn(explore.forms, script)) continue; // likewise
      const explorable = new Explorable(root, explore.forms[script]);
      explore.mounted.set(explorable.name, explorable);
      if (addressed(explorable.name, explorable.spec.controls)) root.scrollIntoView({ block: "start" });
    }
  }

  explore.format = format;
  if (document.readyState === "complete") setTimeout(start, 0);
  document.addEventListener("DOMContentLoaded", start);
  window.addEventListener("load", start);
  document.addEventListener("load", (event) => event.target.tagName === "SCRIPT" && start(), true);
  window.addEventListener("hashchange", () => explore.mounted.forEach((explorable) => explorable.follow()));
})();
