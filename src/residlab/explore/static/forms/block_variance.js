/* The closed form of the explorable "block-variance", the twin of residlab/explore/block_variance.py and of the functions
   in residlab.theory that it calls; a test compares the two on random states. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  const explore = (residlab.explore = residlab.explore || {});
  explore.forms = explore.forms || Object.create(null);

  const POSITIONS = [...new Set(Array.from({ length: 49 }, (_, i) => Math.round(2 ** (i / 4))))];

  /** E tanh(ratio G)^2 for a standard Gaussian G and ratio <= 1: the trapezoidal rule, exact to rounding. */
  function gaussianSecondMoment(ratio) {
    let sum = 0;
    for (let i = -80; i <= 80; i += 1) {
      const g = i / 4;
      sum += Math.exp((-g * g) / 2) * Math.tanh(ratio * g) ** 2;
    }
    return sum / 4 / Math.sqrt(2 * Math.PI);
  }

  explore.forms.block_variance = ({ ratio, tokens, position, shared, focus, gain }) => {
    const t = POSITIONS.filter((p) => p <= tokens);
    const here = t.indexOf(Math.min(position, tokens));
    const second = gaussianSecondMoment(ratio);
    const attended = t.map((p) => Math.max(1, Math.ceil(focus * p)));
    const paper = t.map(() => (gain * ratio * ratio) / tokens);
    const causal = t.map((p) => (gain * ratio * ratio) / p);
    const truth = attended.map((n) => gain * second * ((1 - shared) / n + shared));
    const error = (estimate) => estimate.map((v, i) => Math.sqrt((1 + v) / (1 + truth[i])) - 1);
    const [paperError, causalError] = [error(paper), error(causal)];
    const at = [t[here], t[here]];
    return {
      series: {
        paper: { x: t, y: paper },
        causal: { x: t, y: causal },
        true: { x: t, y: truth },
        here: { x: at, y: [paper[here], truth[here]] },
        "error-paper": { x: t, y: paperError },
        "error-causal": { x: t, y: causalError },
        "error-here": { x: at, y: [paperError[here], causalError[here]] },
      },
      readouts: {
        at: t[here],
        effective: attended[here],
        paper: paper[here],
        true: truth[here],
        times: truth[here] / paper[here],
        error: paperError[here],
        causal: causalError[here],
      },
    };
  };
})();
