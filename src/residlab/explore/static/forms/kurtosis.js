/* The closed form of the explorable "kurtosis", the twin of residlab/explore/kurtosis.py and of
   residlab.theory.kurtosis_depth; a test compares the two on random states. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  const explore = (residlab.explore = residlab.explore || {});
  explore.forms = explore.forms || Object.create(null);

  const INITIAL = 3;
  const [ROWS, DEEPEST, WIDEST] = [8, 64, 1024];
  const NODES = 1024;
  const GRID = Array.from({ length: 101 }, (_, i) => i / 100);

  /** Mean of the zonal harmonic of degree 4 over one step: the trapezoidal rule on a circle, exact for even d. */
  function eigenvalue(d, a, b) {
    let [sum, mass] = [0, 0];
    for (let i = 1; i < NODES; i += 1) {
      const angle = (Math.PI * i) / NODES;
      const [t, weight] = [Math.cos(angle), Math.sin(angle) ** (d - 2)];
      const along = a + b * t;
      const squared = (along * along) / (along * along + b * b * (1 - t) * (1 + t));
      const p4 = ((d + 2) * (d + 4) * squared * squared - 6 * (d + 2) * squared + 3) / (d * d - 1);
      sum += weight * p4;
      mass += weight;
    }
    return sum / mass;
  }

  let kept = { d: 0, all: null };
  function directions(d) {
    if (kept.d !== d) {
      const all = new Float64Array(ROWS * DEEPEST * d);
      for (let step = 0; step < ROWS * DEEPEST; step += 1) {
        let squares = 0;
        for (let pair = 0; pair < d / 2; pair += 1) {
          const [x, y] = explore.random.normals(step * (WIDEST / 2) + pair);
          all[step * d + pair] = x;
          all[step * d + d / 2 + pair] = y;
          squares += x * x + y * y;
        }
        for (let j = 0; j < d; j += 1) all[step * d + j] /= Math.sqrt(squares);
      }
      kept = { d, all };
    }
    return kept.all;
  }

  /** Mean participation of a few rows of products of 0 ... depth layers. */
  function walked(d, a, b, depth) {
    const all = directions(d);
    const seen = new Array(depth + 1).fill(0);
    seen[0] = 1;
    for (let row = 0; row < ROWS; row += 1) {
      const v = new Float64Array(d);
      v[0] = 1;
      for (let layer = 0; layer < depth; layer += 1) {
        const start = (row * DEEPEST + layer) * d;
        let squares = 0;
        for (let j = 0; j < d; j += 1) {
          v[j] = a * v[j] + b * all[start + j];
          squares += v[j] * v[j];
        }
        let fourths = 0;
        const norm = Math.sqrt(squares);
        for (let j = 0; j < d; j += 1) {
          v[j] /= norm;
          fourths += v[j] ** 4;
        }
        seen[layer + 1] += fourths / ROWS;
      }
    }
    return seen;
  }

  /** What was there and what each layer injected, transported. */
  function transported(g, injected) {
    let before = 0;
    return g.map((value) => {
      const k = INITIAL * value + injected * before;
      before += value;
      return k;
    });
  }

  let acrossKept = { d: 0, y: null };
  function across(d) {
    if (acrossKept.d !== d) {
      const floor = 3 / (d + 2);
      acrossKept = { d, y: GRID.map((a) => floor + (1 - floor) * eigenvalue(d, a, Math.sqrt(1 - a * a))) };
    }
    return acrossKept.y;
  }

  explore.forms.kurtosis = ({ width: d, stream: a, depth, injected }) => {
    const b = Math.sqrt(1 - a * a);
    const [floor, lam] = [3 / (d + 2), eigenvalue(d, a, b)];
    const layers = Array.from({ length: depth + 1 }, (_, l) => l);
    const chain = transported(layers.map((l) => floor + (1 - floor) * lam ** l), injected);
    const factor = floor + (1 - floor) * lam;
    const closed = [INITIAL];
    for (let l = 0; l < depth; l += 1) closed.push(factor * closed[l] + injected);
    const sample = transported(walked(d, a, b, depth), injected);
    const fixed = injected === 0 ? 0 : factor >= 1 ? NaN : injected / (1 - factor);
    return {
      series: {
        chain: { x: layers, y: chain },
        closure: { x: layers, y: closed },
        sample: { x: layers, y: sample },
        floor: { x: [0, depth], y: [INITIAL * floor, INITIAL * floor] },
        factors: { x: GRID, y: across(d) },
        here: { x: [a], y: [factor] },
      },
      readouts: {
        factor,
        floor: INITIAL * floor,
        end: chain[depth],
        "end-closure": closed[depth],
        "end-sample": sample[depth],
        "fixed-point": fixed,
      },
    };
  };
})();
