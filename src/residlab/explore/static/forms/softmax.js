/* The closed form of the explorable "softmax", the twin of residlab/explore/softmax.py and of the functions in
   residlab.theory.softmax that it calls; a test compares the two on every state. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  const explore = (residlab.explore = residlab.explore || {});
  explore.forms = explore.forms || Object.create(null);

  const KEYS = Array.from({ length: 10 }, (_, i) => 2 ** (i + 3));
  const FORMATS = {
    bf16: { t: 8, emin: -126, largest: Infinity },
    fp16: { t: 11, emin: -14, largest: 65504 },
    e4m3fn: { t: 4, emin: -6, largest: 448 },
    fp32: { t: 24, emin: -126, largest: Infinity },
  };
  const GOLDEN = 0.6180339887498949;
  const SPREAD = 3;
  const RANKS = 64;
  const view = new DataView(new ArrayBuffer(8));

  /** The nearest whole number, ties to even, of a number that is not negative. */
  const rint = (x) => {
    const down = Math.floor(x);
    const rest = x - down;
    return rest > 0.5 || (rest === 0.5 && down % 2) ? down + 1 : down;
  };

  /** A positive number rounded to nearest; its exponent is read off its bits. */
  const nearest = (x, { t, emin, largest }) => {
    if (x === 0) return 0;
    view.setFloat64(0, x);
    const exponent = ((view.getUint32(0) >>> 20) & 0x7ff) - 1023;
    const unit = 2 ** (Math.max(exponent, emin) - t + 1);
    return Math.min(rint(x / unit) * unit, largest);
  };

  const sum = (row) => {
    // Neumaier's compensated sum: the page needs no more than that of Python's fsum.
    let total = 0;
    let lost = 0;
    for (const term of row) {
      const next = total + term;
      lost += Math.abs(total) >= Math.abs(term) ? total - next + term : term - next + total;
      total = next;
    }
    return total + lost;
  };

  /** Fold a row by additions, from the first term on or neighbours first. */
  const folded = (row, pairwise, add) => {
    if (!pairwise) return row.reduce(add);
    let level = row;
    while (level.length > 1) {
      const above = [];
      for (let i = 0; i + 1 < level.length; i += 2) above.push(add(level[i], level[i + 1]));
      if (level.length % 2) above.push(level[level.length - 1]);
      level = above;
    }
    return level[0];
  };

  const terms = (gap, format) =>
    Array.from({ length: KEYS[KEYS.length - 1] - 1 }, (_, i) =>
      nearest(Math.exp(-(gap + SPREAD * (((i + 1) * GOLDEN) % 1))), format),
    );

  explore.forms.softmax = ({ keys, gap, format, order }) => {
    const chosen = FORMATS[format];
    const u = 2 ** -chosen.t;
    const pairwise = order === "pairwise";
    const all = terms(gap, chosen);
    const known = KEYS.map((n) => {
      const others = all.slice(0, n - 1);
      const row = order === "last" ? [...others, 1] : [1, ...others];
      const exact = sum(row);
      const total = folded(row, pairwise, (a, b) => nearest(a + b, chosen));
      const low = folded(row, pairwise, (a, b) => Math.max(a, b, (a + b) / (1 + u)));
      const high = folded(row, pairwise, (a, b) => a + b + Math.min(a, b, (a + b) * (u / (1 + u))));
      let effective = 0;
      for (const term of row) effective += Math.min(1, term / exact / u);
      return { error: Math.abs(total - exact) / exact, bound: Math.max(high - exact, exact - low) / exact, effective };
    });
    const drawn = (value) => (value > 0 ? value : NaN);
    const here = KEYS.indexOf(keys);
    const sorted = [1, ...all.slice(0, keys - 1).sort((a, b) => b - a)];
    const whole = sum(sorted);
    const ranks = [];
    for (let i = 0; i < RANKS; i++) {
      const rank = rint(10 ** ((Math.log10(keys) * i) / (RANKS - 1)));
      if (rank !== ranks[ranks.length - 1]) ranks.push(rank);
    }
    const classical = KEYS.map((n) => (n - 1) * u);
    return {
      series: {
        measured: { x: KEYS, y: known.map(({ error }) => drawn(error)) },
        bounded: { x: KEYS, y: known.map(({ bound }) => drawn(bound)) },
        soft: { x: KEYS, y: known.map(({ effective }) => u * effective) },
        classical: { x: KEYS, y: classical },
        here: { x: [keys], y: [drawn(known[here].error)] },
        weights: { x: ranks, y: ranks.map((rank) => drawn(sorted[rank - 1] / whole)) },
        unit: { x: [1, keys], y: [u, u] },
      },
      readouts: {
        effective: known[here].effective,
        measured: known[here].error,
        bounded: known[here].bound,
        soft: u * known[here].effective,
        classical: classical[here],
      },
    };
  };
})();
