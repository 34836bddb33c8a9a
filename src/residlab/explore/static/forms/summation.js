/* The closed form of the explorable "summation", the twin of residlab/explore/summation.py and of the functions in
   residlab.theory.summation that it calls; a test compares the two on every state. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  const explore = (residlab.explore = residlab.explore || {});
  explore.forms = explore.forms || Object.create(null);

  const BITS = { t4: 4, bf16: 8, tf32: 11, fp32: 24 };
  const BLOCK = 32;
  const WAYS = ["recursive", "blocked", "pairwise", "stochastic"];

  /** The most roundings that a term goes through. */
  const roundings = (way, n) => {
    if (way === "pairwise") return Math.ceil(Math.log2(n)) + 1;
    const run = way === "blocked" ? Math.min(BLOCK, n) : n;
    return run + Math.ceil(n / run) - 1;
  };
  const compounded = (m, u) => Math.expm1(m * Math.log1p(u));
  const worst = (way, n, u) => {
    const m = roundings(way, n);
    return way === "stochastic" ? compounded(m, 2 * u) : Math.min(n * u, compounded(m, u));
  };
  const root = (way, n, u) => {
    const m = roundings(way, n);
    return u * Math.sqrt(m) * Math.exp(((m - 1) / 2) * Math.log1p(u * u));
  };

  explore.forms.summation = ({ n, order, format, terms }, data) => {
    const u = 2 ** -BITS[format];
    const row = Object.keys(BITS).indexOf(format);
    const { values, shape } = data[terms];
    const count = shape[2];
    const x = Array.from(data.lengths.values.subarray(0, count));
    const here = Math.min(Array.from(data.lengths.values).indexOf(n), count - 1);
    const at = (way, length, what) => values[((row * WAYS.length + WAYS.indexOf(way)) * count + length) * 3 + what] / u;
    const along = (rule) => ({ x, y: x.map((each, i) => rule(each, i)) });
    const ways = WAYS.map((_, i) => i);
    const across = (rule) => ({ x: ways, y: WAYS.map(rule) });
    const [RMS, LARGEST, LAW] = [0, 1, 2];
    const series = {
      worst: along((each) => worst(order, each, u) / u),
      root: along((each) => root(order, each, u) / u),
      law: along((_, i) => at(order, i, LAW)),
      rms: along((_, i) => at(order, i, RMS)),
      largest: along((_, i) => at(order, i, LARGEST)),
      here: { x: [x[here], x[here]], y: [at(order, here, RMS), at(order, here, LARGEST)] },
      "worst-way": across((way) => worst(way, x[here], u) / u),
      "root-way": across((way) => root(way, x[here], u) / u),
      "law-way": across((way) => at(way, here, LAW)),
      "rms-way": across((way) => at(way, here, RMS)),
      "largest-way": across((way) => at(way, here, LARGEST)),
    };
    return {
      series,
      readouts: {
        count: x[here],
        worst: worst(order, x[here], u),
        root: root(order, x[here], u),
        law: at(order, here, LAW) * u,
        rms: at(order, here, RMS) * u,
        largest: at(order, here, LARGEST) * u,
        used: at(order, here, LARGEST) / (worst(order, x[here], u) / u),
      },
    };
  };
})();
