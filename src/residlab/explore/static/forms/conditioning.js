/* The closed form of the explorable "conditioning", the twin of residlab/explore/conditioning.py and of the functions in
   residlab.theory.conditioning and norm_errors that it calls; a test compares the two on random states. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  const explore = (residlab.explore = residlab.explore || {});
  explore.forms = explore.forms || Object.create(null);

  const OUTLIERS = Array.from({ length: 31 }, (_, i) => Number((10 ** (i / 5)).toPrecision(3)));
  const FORMATS = {
    bf16: { u: 2 ** -8, largest: 3.3895313892515355e38 },
    fp16: { u: 2 ** -11, largest: 65504 },
    fp32: { u: 2 ** -24, largest: 3.4028234663852886e38 },
  };
  const SERIES = ["worst", "median", "rms", "bound", "error-worst", "error-median", "error-rms"];

  const mean = (values) => values.reduce((sum, v) => sum + v, 0) / values.length;
  /** NaN for what is infinite, or so large that float64 cannot tell. */
  const finite = (v) => (v < 1e9 ? v : NaN);
  const quotient = (a, b) => (b === 0 ? (a === 0 ? 0 : Infinity) : a / b);
  const growth = (u, count) => Math.expm1(count * Math.log1p(u));

  function median(values) {
    const sorted = Float64Array.from(values).sort();
    const n = sorted.length;
    return n % 2 ? sorted[(n - 1) / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
  }

  /** Deviations from the mean, subtracted twice, and their root mean square. */
  function centre(x) {
    const first = mean(x);
    const once = x.map((v) => v - first);
    const second = mean(once);
    const c = once.map((v) => v - second);
    return { c, s: Math.sqrt(mean(c.map((v) => v * v))) };
  }

  /** The componentwise condition number of each output of LayerNorm. */
  function entries(x, c, s) {
    const d = x.length;
    const z = c.map((v) => v / s);
    const order = Array.from(z.keys()).sort((i, j) => z[i] - z[j]);
    const ranked = order.map((i) => z[i]);
    const plain = [0];
    const tilted = [0];
    for (const i of order) {
      plain.push(plain[plain.length - 1] + Math.abs(x[i]));
      tilted.push(tilted[tilted.length - 1] + Math.abs(x[i]) * z[i]);
    }
    const before = (turn) => {
      let low = 0;
      let high = d;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (ranked[middle] < turn) low = middle + 1;
        else high = middle;
      }
      return low;
    };
    return z.map((zi, i) => {
      let total = plain[d];
      if (zi !== 0) {
        const up = before(-1 / zi);
        const below = plain[up] + zi * tilted[up];
        const whole = plain[d] + zi * tilted[d];
        total = zi > 0 ? whole - 2 * below : 2 * below - whole;
      }
      const own = (1 + zi * zi) / d;
      const spread = Math.abs(x[i]) * Math.max(1 - 2 * own, -own) + total / d;
      return quotient(Math.max(spread, 0), Math.abs(c[i]));
    });
  }

  function bound(outlier, rest) {
    const d = rest.length + 1;
    const m = mean(rest);
    const gap = Math.abs(outlier - m);
    const deviations = rest.map((v) => Math.abs(v - m));
    const delta = quotient(d * Math.max(...deviations), gap);
    if (!(delta < 1)) return { delta, bound: Infinity };
    const average = mean(rest.map(Math.abs));
    const tilt = Math.abs(outlier) / gap;
    const sizes = rest.map((v, i) => (1 - 2 / d) * Math.abs(v) + tilt * deviations[i]);
    const variance = mean(deviations.map((v) => (v / gap) ** 2));
    const above = average * (1 + (delta * (2 + delta)) / d) + Math.abs(outlier) * variance + Math.max(...sizes);
    return { delta, bound: ((d / gap) * above) / (1 - delta) };
  }

  function at(outlier, rest, { u, largest }) {
    const x = rest.concat(outlier);
    const d = x.length;
    const { c, s } = centre(x);
    const own = entries(x, c, s);
    const token = bound(outlier, rest);
    const squares = x.map((v) => v * v);
    const energy = squares.reduce((sum, v) => sum + v, 0);
    const depth = Math.ceil(Math.log2(d));
    const sigma = Math.min(growth(u, depth), (d - 1) * u);
    const tau = ((sigma * (1 + u) + u) * mean(x.map(Math.abs))) / s;
    const part = growth(u, depth / 2 + 6);
    const relative = c.map((v) => {
      const y = Math.abs(v / s);
      return (part * (y + tau) + tau + (y * tau * tau) / 2) / y;
    });
    const fits = energy < largest;
    const values = {
      delta: token.delta,
      worst: Math.max(...own),
      median: median(own),
      rms: Math.max(...squares.map((v) => (v === 0 ? 0 : 2 * (1 - v / energy)))),
      bound: token.bound,
      "error-worst": fits ? Math.max(...relative) : NaN,
      "error-median": fits ? median(relative) : NaN,
      "error-rms": fits ? growth(u, depth / 2 + 4) : NaN,
    };
    return Object.fromEntries(Object.entries(values).map(([key, v]) => [key, finite(v)]));
  }

  explore.forms.conditioning = ({ outlier, background, mean: middle, width, format }, data) => {
    const rest = Array.from(data[`width-${width}`].values, (q) => middle + background * q);
    const curves = OUTLIERS.map((each) => at(each, rest, FORMATS[format]));
    const here = curves[OUTLIERS.indexOf(outlier)];
    const series = {};
    for (const name of SERIES) series[name] = { x: OUTLIERS, y: curves.map((curve) => curve[name]) };
    for (const [place, prefix] of [["here", ""], ["error-here", "error-"]]) {
      const y = ["worst", "median", "rms"].map((name) => here[prefix + name]);
      series[place] = { x: [outlier, outlier, outlier], y };
    }
    const { bound: _, ...readouts } = here;
    return { series, readouts };
  };
})();
