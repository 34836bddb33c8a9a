/* The closed form of the explorable "cost", the twin of residlab/explore/cost.py and of the functions in
   residlab.theory.cost that it calls; a test compares the two on random states. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  const explore = (residlab.explore = residlab.explore || {});
  explore.forms = explore.forms || Object.create(null);

  const WIDTHS = [...Array.from({ length: 12 }, (_, i) => (i % 2 ? 1.5 : 1) * 2 ** (7 + Math.floor(i / 2))), 8192];
  const ITEMSIZE = 2;
  /** Of all norms of a block: operations an entry, tanh priced at 20, and passes over the stream. */
  const BLOCK = {
    rmsnorm: { entry: 8, fused: 4, eager: 14 },
    bhyt: { entry: 6 + 2 * 20, fused: 4, eager: 15 },
    dyt: { entry: 4 + 2 * 20, fused: 4, eager: 12 },
    "peri-ln": { entry: 16, fused: 8, eager: 28 },
  };

  explore.forms.cost = ({ width, tokens, balance, kernels }) => {
    const matrices = (d) => Math.max((24 * tokens * d * d) / balance, ITEMSIZE * (12 * d * d + 19 * tokens * d));
    const norms = (kind, d) => {
      const work = BLOCK[kind];
      return tokens * d * Math.max(ITEMSIZE * work[kernels], work.entry / balance);
    };
    const base = (d) => matrices(d) + norms("rmsnorm", d);
    const gain = (kind) => WIDTHS.map((d) => base(d) / (matrices(d) + norms(kind, d)) - 1);
    const gains = { bhyt: gain("bhyt"), dyt: gain("dyt"), "peri-ln": gain("peri-ln") };
    gains.nothing = WIDTHS.map((d) => base(d) / matrices(d) - 1);
    const share = WIDTHS.map((d) => norms("rmsnorm", d) / base(d));
    const here = WIDTHS.indexOf(width);
    const curves = Object.fromEntries(Object.entries(gains).map(([key, y]) => [key, { x: WIDTHS, y }]));
    return {
      series: {
        ...curves,
        here: { x: [width, width], y: [gains.nothing[here], gains.bhyt[here]] },
        share: { x: WIDTHS, y: share },
        "share-here": { x: [width], y: [share[here]] },
      },
      readouts: {
        share: share[here],
        most: gains.nothing[here],
        bhyt: gains.bhyt[here],
        dyt: gains.dyt[here],
        peri: gains["peri-ln"][here],
      },
    };
  };
})();
