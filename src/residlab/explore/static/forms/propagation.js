/* The closed form of the explorable "propagation", the twin of residlab/explore/propagation.py and of
   residlab.theory.propagation; a test compares the two on random states. 128 tokens, heads of 32, width 128. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  const explore = (residlab.explore = residlab.explore || {});
  explore.forms = explore.forms || Object.create(null);

  const T = 128;
  const HEAD = 32;
  const WIDTH = 128;
  const ten = Math.sqrt(10);
  const nodes = [-Math.sqrt(5 + ten), -Math.sqrt(5 - ten), 0, Math.sqrt(5 - ten), Math.sqrt(5 + ten)];
  const weights = [(7 - 2 * ten) / 60, (7 + 2 * ten) / 60, 8 / 15, (7 + 2 * ten) / 60, (7 - 2 * ten) / 60];
  const spread = Math.sqrt(2 / HEAD - 2 / WIDTH);
  const factors = nodes.map((x) => Math.max(1 + x * spread, 0.05));

  /** Mean cosine of the rotary angles, r positions apart. */
  const rho = Array.from({ length: T }, (_, r) => {
    let sum = 0;
    for (let i = 0; i < HEAD; i += 2) sum += Math.cos(r * 10000 ** (-i / HEAD));
    return sum / (HEAD / 2);
  });

  const logAdd = (a, b) => Math.max(a, b) + Math.log1p(Math.exp(-Math.abs(a - b)));

  function logSum(sigma, logM) {
    const critical = Math.sqrt(2 * logM);
    return sigma < critical ? logM + (sigma * sigma) / 2 : sigma * critical;
  }

  /** Weight on the token itself and participation, by position. */
  function rows(c, s, shared) {
    const own = [1];
    const participation = [1];
    if (!shared) {
      const noise = s * Math.sqrt(1 - c);
      for (let m = 1; m < T; m += 1) {
        const logM = Math.log(m + 1);
        own.push(1 / (m + 1));
        participation.push(Math.exp(Math.min(logSum(2 * noise, logM) - 2 * logSum(noise, logM), 0)));
      }
      return { own, participation };
    }
    for (let m = 1; m < T; m += 1) {
      own.push(0);
      participation.push(0);
    }
    factors.forEach((u, n) => {
      const self = s * Math.sqrt(HEAD) * u;
      const noise = s * Math.sqrt((1 - c) * u);
      let [one, two] = [NaN, NaN];
      for (let m = 1; m < T; m += 1) {
        const logit = self * c * rho[m];
        one = m === 1 ? logit : logAdd(one, logit);
        two = m === 1 ? 2 * logit : logAdd(two, 2 * logit);
        const logM = Math.log(m);
        const first = one - logM + logSum(noise, logM);
        const second = two - logM + logSum(2 * noise, logM);
        const p = 1 / (1 + Math.exp(Math.min(Math.max(first - self, -700), 700)));
        const others = Math.exp(Math.min(second - 2 * first, 0));
        own[m] += weights[n] * p;
        participation[m] += weights[n] * (p * p + (1 - p) ** 2 * others);
      }
    });
    return { own, participation };
  }

  /** Cosines after attention whose rows are flat but for the token itself, and the noise on the diagonal. */
  function mixed(gram, { own, participation }, mean) {
    const half = [];
    const sums = new Float64Array(T);
    const flat = own.map((p, t) => (1 - p) / Math.max(t, 1));
    for (let t = 0; t < T; t += 1) {
      const line = new Float64Array(T);
      for (let s = 0; s < T; s += 1) {
        sums[s] += gram[t][s];
        line[s] = (own[t] - flat[t]) * gram[t][s] + flat[t] * sums[s];
      }
      half.push(line);
    }
    return half.map((line, t) => {
      const out = new Float64Array(T);
      let sum = 0;
      for (let s = 0; s < T; s += 1) {
        sum += line[s];
        out[s] = (own[s] - flat[s]) * line[s] + flat[s] * sum;
      }
      out[t] += (1 - mean) * Math.max(participation[t] - own[t] ** 2 - t * flat[t] ** 2, 0);
      return out;
    });
  }

  /** The recorded lines of a run with these settings, before training and after it; empty if there is none. */
  function recordedLines(wanted, settings, recorded) {
    const [runs, width] = settings.shape;
    const [, , deepest] = recorded.shape;
    for (let run = 0; run < runs; run += 1) {
      if (wanted.every((value, i) => Math.abs(settings.values[run * width + i] - value) < 1e-6)) {
        const line = (look) => {
          const from = (2 * run + look) * deepest;
          return Float64Array.from(recorded.values.subarray(from, from + wanted[3]));
        };
        return [line(0), line(1)];
      }
    }
    return [new Float64Array(0), new Float64Array(0)];
  }

  explore.forms.propagation = ({ start, feedforward, scale, beta, depth, initial }, data, options) => {
    const { high, low } = data;
    const wanted = feedforward === "gelu" ? [start === "shared" ? 1 : 0, scale, beta, depth] : [NaN, NaN, NaN, NaN];
    const [before, after] = recordedLines(wanted, data.settings, data.recorded);
    const terms = high.shape[1];
    const from = options.feedforward.indexOf(feedforward) * terms;
    const coefficients = Array.from({ length: terms }, (_, k) => high.values[from + k] + low.values[from + k]);
    const kernel = (c) => coefficients.reduceRight((sum, b) => sum * c + b, 0);
    const slope = coefficients.reduce((sum, b, k) => sum + k * b, 0);
    let gram = Array.from({ length: T }, (_, t) => Float64Array.from({ length: T }, (__, s) => (s === t ? 1 : initial)));
    const similarity = [initial];
    const participation = [];
    let gradient = 1;
    for (let layer = 1; layer <= depth; layer += 1) {
      const c = similarity[layer - 1];
      const found = rows(c, scale * beta ** layer, start === "shared");
      const inner = mixed(gram, found, c);
      const size = inner.map((line, t) => Math.sqrt(line[t]));
      let sum = 0;
      gram = inner.map((line, t) =>
        line.map((value, s) => {
          if (s === t) return 1;
          const cosine = kernel(Math.min(Math.max(value / (size[t] * size[s]), 0), 1));
          sum += cosine;
          return cosine;
        }),
      );
      const pi = found.participation.reduce((a, b) => a + b, 0) / T;
      gradient *= (slope * pi) / (c + (1 - c) * pi);
      similarity.push(sum / (T * (T - 1)));
      participation.push(pi);
    }
    const layers = Array.from({ length: depth + 1 }, (_, l) => l);
    return {
      series: {
        similarity: { x: layers, y: similarity },
        participation: { x: layers.slice(1), y: participation },
        critical: { x: [0, depth], y: [1 / slope, 1 / slope] },
        before: { x: layers.slice(0, before.length), y: before },
        after: { x: layers.slice(0, after.length), y: after },
      },
      readouts: {
        end: similarity[depth],
        first: participation[0],
        last: participation[depth - 1],
        critical: 1 / slope,
        gradient: Math.sqrt(gradient),
        before: before.length ? before[depth - 1] : NaN,
        after: after.length ? after[depth - 1] : NaN,
      },
    };
  };
})();
