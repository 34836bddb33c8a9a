/* The closed form of the explorable "lipschitz", the twin of residlab/explore/lipschitz.py and of
   residlab.theory.attention_outlier; a test compares the two on random states. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  const explore = (residlab.explore = residlab.explore || {});
  explore.forms = explore.forms || Object.create(null);

  const TOKENS = Array.from({ length: 12 }, (_, k) => 2 ** (k + 1));
  const LENGTHS = Array.from({ length: 61 }, (_, i) => 10 ** ((i - 20) / 20));
  const SHARED = 0.6;
  const APART = 0.8;
  const ITERATIONS = 60;
  const STARTS = [
    [0.3, 0.9, 0.5, 0.4],
    [0.7, 0.4, -0.6, 0.5],
    [-0.2, 0.5, 0.8, 0.9],
  ];

  const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3];
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const unit = (v) => {
    const size = Math.sqrt(dot(v, v));
    return v.map((x) => x / size);
  };

  /** p (I + y a^T)^T v for the keys, M^T v for the own block: their lengths. */
  function lengths(row, v) {
    const va = dot(v, row.a);
    const keys = row.keys.map(({ p, y }) => {
      const t = dot(y, v);
      return p * Math.sqrt(Math.max(dot(v, v) + 2 * t * va + t * t * row.g, 0));
    });
    const pulled = row.own.map((column) => dot(column, v)); // own: the columns of the block
    return [...keys, Math.sqrt(dot(pulled, pulled))];
  }

  function applied(row, v, weights) {
    const va = dot(v, row.a);
    const next = [0, 0, 0, 0];
    row.keys.forEach(({ p, y }, j) => {
      const c = weights[j] * p * p;
      const t = dot(y, v);
      for (let k = 0; k < 4; k++) next[k] += c * (v[k] + t * row.a[k] + (va + t * row.g) * y[k]);
    });
    row.own.forEach((column) => {
      const t = weights[weights.length - 1] * dot(column, v);
      for (let k = 0; k < 4; k++) next[k] += t * column[k];
    });
    return next;
  }

  function ascended(row, start) {
    let v = unit(start);
    let value = 0;
    for (let n = 0; n < ITERATIONS; n++) {
      const own = lengths(row, v);
      const before = value;
      value = sum(own);
      if (value - before <= 1e-10 * value) break;
      const longer = applied(row, v, own.map((size) => (size > 1e-140 ? 1 / size : 0)));
      if (dot(longer, longer) > 0) v = unit(longer);
    }
    return sum(lengths(row, v));
  }

  /** The outlier's mass, the norm and the local bound of the ordinary rows of one sign. */
  function ofSign(N, R, alpha, s, sign, every) {
    const logit = alpha * R * s * (every ? SHARED : sign * APART);
    const power = Math.exp(Math.min(logit, 0));
    const ordinary = Math.exp(-Math.max(logit, 0));
    const one = ordinary / (power + N * ordinary);
    const p = power / (power + N * ordinary);
    const rest = N * one;
    const D = Math.hypot(s, SHARED * R);
    const towards = [(-SHARED * R) / D, 0, every ? 0 : s / D, every ? s / D : 0];
    const across = [0, sign * APART * R, 0, 0];
    const y = [
      across.map((x, k) => x - D * p * towards[k]),
      across.map((x, k) => -x - D * p * towards[k]),
      towards.map((x) => D * rest * x),
    ];
    const a = [0, 0, alpha * R * sign * APART, alpha * R * SHARED];
    const apart = (APART * R) ** 2 * rest;
    const near = D * D * p * rest;
    const turn = [
      [0, 0, 0, 0],
      [0, 0, 1, 0],
      [0, 1, 0, 0],
      [1, 0, 0, 0],
    ];
    const own = [0, 1, 2, 3].map((column) =>
      [0, 1, 2, 3].map((line) => {
        let twice = 0;
        for (let k = 0; k < 4; k++) {
          const sigma = (line === 1 && k === 1 ? apart : 0) + near * towards[line] * towards[k];
          twice += sigma * turn[k][column];
        }
        return one * ((line === column ? 1 : 0) + y[0][line] * a[column]) + alpha * twice;
      }),
    );
    const row = {
      a,
      g: dot(a, a),
      keys: [
        { p: (N / 2 - 1) * one, y: y[0] },
        { p: (N / 2) * one, y: y[1] },
        { p, y: y[2] },
      ],
      own,
    };
    const norm = Math.max(...STARTS.map((start) => ascended(row, start)));
    const spread = Math.max(apart, near);
    const query = alpha * R;
    const distance = rest * (Math.hypot(APART * R, D * p) + p * D);
    return { p, norm, local: alpha * spread + Math.min(Math.sqrt(1 + query * query * spread), 1 + query * distance) };
  }

  function all(N, R, alpha, s, every) {
    const [up, down] = [1, -1].map((sign) => ofSign(N, R, alpha, s, sign, every));
    const L = alpha * Math.max(R, s) ** 2;
    return {
      mass: Math.min(up.p, down.p),
      norm: Math.max(up.norm, down.norm, 1),
      local: Math.max(up.local, down.local, 1),
      sharp: L + Math.hypot(1, L),
      simple: 1 + 2 * L,
    };
  }

  explore.forms.lipschitz = ({ tokens, radius, form, outlier, attended }) => {
    const every = attended === "every";
    const byLength = LENGTHS.map((length) => all(tokens, radius, form, length * radius, every));
    const byTokens = TOKENS.map((N) => all(N, radius, form, outlier * radius, every));
    const here = all(tokens, radius, form, outlier * radius, every);
    const L = form * radius ** 2 * Math.max(1, outlier) ** 2;
    const castin = (N) => Math.sqrt(3 * (L * L * (4 * (N + 1) + 1) + N + 1));
    const series = {};
    for (const name of ["norm", "local", "sharp", "simple"]) {
      series[`${name}-length`] = { x: LENGTHS, y: byLength.map((each) => each[name]) };
      series[`${name}-tokens`] = { x: TOKENS, y: byTokens.map((each) => each[name]) };
    }
    series["castin-tokens"] = { x: TOKENS, y: TOKENS.map(castin) };
    series["here-length"] = { x: [outlier], y: [here.norm] };
    series["here-tokens"] = { x: [tokens], y: [here.norm] };
    const { mass, norm, local, sharp } = here;
    return { series, readouts: { mass, norm, local, sharp, castin: castin(tokens) } };
  };
})();
