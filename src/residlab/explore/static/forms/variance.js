/* The closed form of the explorable "variance", the twin of residlab/explore/variance.py and of the recursion in
   residlab.theory; a test compares the two on random states. Gains and the initial variance are 1. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  const explore = (residlab.explore = residlab.explore || {});
  explore.forms = explore.forms || Object.create(null);

  /** Variance of the stream after layers 0..depth; second(l) is the second moment of layer l's normalised input. */
  function trajectory(depth, rho, second) {
    const v = [1];
    for (let l = 1; l <= depth; l += 1) {
      const branch = second(l);
      v.push((Math.sqrt(v[l - 1]) + rho * Math.sqrt(branch)) ** 2 + (1 - rho) * (1 + rho) * branch);
    }
    return v;
  }

  explore.forms.variance = ({ lam, kappa, depth, rho }) => {
    const ratio = lam / kappa;
    const layers = Array.from({ length: depth + 1 }, (_, l) => l);
    const preln = trajectory(depth, rho, () => 1);
    const lns = trajectory(depth, rho, (l) => 1 / l);
    const bhyt = trajectory(depth, rho, () => ratio * ratio);
    const first = layers.findIndex((l) => bhyt[l] > lns[l]);
    let harmonic = 0;
    let roots = 0;
    for (let l = 1; l <= depth; l += 1) {
      harmonic += 1 / l;
      roots += 1 / Math.sqrt(l);
    }
    return {
      series: {
        preln: { x: layers, y: preln },
        lns: { x: layers, y: lns },
        bhyt: { x: layers, y: bhyt },
        exceeds: { x: [first < 0 ? NaN : first], y: [first < 0 ? NaN : bhyt[first]] },
        here: { x: [depth], y: [ratio] },
      },
      readouts: {
        ratio,
        paper: 1 / Math.sqrt(depth),
        every: roots / depth,
        uncorrelated: Math.sqrt(harmonic / depth),
        first: first < 0 ? NaN : first,
        end: bhyt[depth] / lns[depth],
      },
    };
  };
})();
