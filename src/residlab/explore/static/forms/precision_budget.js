/* The closed form of the explorable "precision_budget", the twin of residlab/explore/precision_budget.py and of
   residlab.theory; a test compares the two on random states. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  const explore = (residlab.explore = residlab.explore || {});
  explore.forms = explore.forms || Object.create(null);

  const BITS = { fp32: 24, tf32: 11, fp16: 11, bf16: 8, e4m3fn: 4 };
  const GAINS = [0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1];
  const ROUNDINGS = 4;
  const STORED = Math.sqrt((2 * Math.LN2) / 9);

  const boundingBits = (largest) => Math.log2(largest / Math.tanh(largest));

  /** The L at which a relative error is 1. */
  function layersUntilNoise(chi, made, first) {
    const growth = chi - 1;
    if (made + chi <= 1) return Infinity;
    if (growth === 0) return (1 - first) / made;
    return Math.log1p((growth * (1 - first)) / (made + growth * first)) / Math.log1p(growth);
  }

  explore.forms.precision_budget = (
    { network, feedforward, format, depth, gain, embedding, crest },
    { high, low },
    options,
  ) => {
    const at = options.feedforward.indexOf(feedforward) * GAINS.length + GAINS.findIndex((g) => Math.abs(g - gain) < 1e-9);
    const chi = high.values[at] + low.values[at];
    const tau = 2 ** -BITS[format] * STORED;
    const beta = Math.sqrt(ROUNDINGS) * tau;
    const residual = [tau];
    const free = [tau];
    let [stream, branch] = [tau * tau, tau * tau];
    let size = embedding ** 2;
    for (let layer = 1; layer <= 2 * depth; layer += 1) {
      const factor = layer % 2 ? 1 : chi;
      const larger = embedding ** 2 + gain ** 2 * layer;
      const kept = size / larger;
      stream = (kept + factor * (1 - kept)) * stream + beta ** 2 * (1 - kept) + tau ** 2;
      branch = factor * branch + beta ** 2 + tau ** 2;
      size = larger;
      if (layer % 2 === 0) {
        residual.push(Math.sqrt(stream));
        free.push(Math.sqrt(branch));
      }
    }
    const [chosen, other] = network === "residual" ? [residual, free] : [free, residual];
    const blocks = Array.from({ length: depth + 1 }, (_, block) => block);
    const bought = boundingBits(gain * crest);
    return {
      series: {
        chosen: { x: blocks, y: chosen },
        other: { x: blocks, y: other },
        nothing: { x: [0, depth], y: [1, 1] },
        bought: { x: GAINS, y: GAINS.map((g) => boundingBits(g * crest)) },
        here: { x: [gain], y: [bought] },
      },
      readouts: {
        end: chosen[depth],
        left: Math.max(0, -Math.log2(chosen[depth])),
        lost: Math.log2(chosen[depth] / chosen[0]),
        noise: layersUntilNoise(chi, (beta ** 2 + tau ** 2) * (1 + chi), tau ** 2),
        bought,
      },
    };
  };
})();
