/* The closed form of the explorable "one_stream", the twin of residlab/explore/one_stream.py: a random network with one
   token; a test compares the two on random states. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  const explore = (residlab.explore = residlab.explore || {});
  explore.forms = explore.forms || Object.create(null);

  const [D, DEPTH, GAIN, STRUCK, SHADES] = [64, 24, 0.5, 37, 8];
  const BITS = { exact: 0, bf16: 8, fp8: 4, coarse: 2 };

  function size(x) {
    let squares = 0;
    for (const value of x) squares += value * value;
    return Math.sqrt(squares / x.length);
  }

  const largest = (x) => x.reduce((most, value) => Math.max(most, Math.abs(value)), 0);

  let kept = null;

  /** Where the token starts, the signs of each block, and the entries of each shade; drawn once. */
  function network() {
    if (kept) return kept;
    const { uniform, normals } = explore.random;
    const start = new Float64Array(D);
    for (let pair = 0; pair < D / 2; pair += 1) [start[pair], start[D / 2 + pair]] = normals(pair);
    const scale = size(start);
    start.forEach((value, i) => (start[i] = value / scale));
    const signs = Int8Array.from({ length: DEPTH * D }, (_, i) => (uniform(D + i) < 0.5 ? -1 : 1));
    const order = Array.from(start.keys()).sort((a, b) => start[a] - start[b]);
    const groups = Array.from({ length: SHADES }, (_, i) =>
      order.slice((i * D) / SHADES, ((i + 1) * D) / SHADES).filter((entry) => entry !== STRUCK),
    );
    kept = { start, signs, groups };
    return kept;
  }

  /** Sylvester's matrix times x, in place. */
  function hadamard(x) {
    for (let half = 1; half < D; half *= 2) {
      for (let i = 0; i < D; i += 1) {
        if (i & half) continue;
        const [a, b] = [x[i], x[i + half]];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
    return x;
  }

  /** To so many bits of the significand, nearest even; 0 leaves a value as it is. */
  function rounded(value, bits) {
    if (bits === 0 || value === 0) return value;
    let exponent = Math.floor(Math.log2(Math.abs(value)));
    if (2 ** exponent > Math.abs(value)) exponent -= 1;
    if (2 ** (exponent + 1) <= Math.abs(value)) exponent += 1;
    const unit = 2 ** (exponent - bits + 1);
    const most = 1.5 * 2 ** 52; // a sum with it has no room for a fraction
    return (value / unit + most - most) * unit;
  }

  function read(x, change, ratio) {
    const r = size(x);
    return x.map((value) => (change === "bounded" ? Math.tanh((ratio * value) / r) : value / r));
  }

  function stream(change, ratio, blow, block, bits) {
    const { start, signs } = network();
    let x = start;
    const states = [x];
    for (let layer = 0; layer < DEPTH; layer += 1) {
      const mixed = hadamard(read(x, change, ratio).map((value, i) => signs[layer * D + i] * value));
      const branch = mixed.map((value) => value / Math.sqrt(D));
      x = x.map((value, i) => (change === "removed" ? branch[i] : value + GAIN * branch[i]));
      if (layer + 1 === block) x[STRUCK] += blow;
      x = x.map((value) => rounded(value, bits));
      states.push(x);
    }
    return states;
  }

  const blocks = Array.from({ length: DEPTH + 1 }, (_, block) => block);

  explore.forms.one_stream = ({ change, ratio, blow, block, format }) => {
    const exact = stream(change, ratio, blow, block, 0)[DEPTH];
    const drawn = stream(change, ratio, blow, block, BITS[format]);
    const sizes = drawn.map(size);
    const end = drawn[DEPTH];
    const last = read(end, change, ratio);
    const series = {
      struck: { x: blocks, y: drawn.map((x) => x[STRUCK]) },
      size: { x: [...blocks, NaN, ...blocks], y: [...sizes, NaN, ...sizes.map((r) => -r)] },
    };
    network().groups.forEach((entries, i) => {
      const x = entries.flatMap(() => [...blocks, NaN]);
      series[`shade-${i}`] = { x, y: entries.flatMap((entry) => [...drawn.map((state) => state[entry]), NaN]) };
    });
    return {
      series,
      readouts: {
        size: sizes[DEPTH],
        crest: largest(end) / sizes[DEPTH],
        read: largest(last) / size(last),
        error: size(end.map((value, i) => value - exact[i])) / size(exact),
      },
    };
  };
})();
