/* The closed form of the explorable "isometry", the twin of residlab/explore/isometry.py and of residlab.theory.isometry;
   a test compares the two on random states. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  const explore = (residlab.explore = residlab.explore || {});
  explore.forms = explore.forms || Object.create(null);

  const grid = [...new Set(Array.from({ length: 49 }, (_, i) => Math.round(10 ** (i / 16))))].sort((a, b) => a - b);

  const edge = (m, a, b) => (a * m - 1) / (m * (1 + b * m) ** 2);

  /** sigma_1 / sigma_n of U + t G; NaN from t = 1 on, where it is infinite. */
  function isotropicSpread(t) {
    if (t === 0) return 1;
    if (t >= 1) return NaN;
    const b = t * t;
    const a = 1 - b;
    const root = Math.sqrt(9 * b * b + 8 * a * b);
    const low = Math.sqrt(Math.max(edge(-2 / (3 * b - root), a, b), 0));
    const high = Math.sqrt(edge(-2 / (3 * b + root), a, b));
    return low > 0 ? high / low : NaN;
  }

  function shapes(step, steps, width) {
    const moved = step * steps;
    const t = step * Math.sqrt(steps);
    const strength = moved * Math.sqrt(width);
    const b = t * t;
    const c = strength * strength;
    const sum = Math.sqrt(2 + c + 2);
    const difference = Math.sqrt(Math.max(2 + c - 2, 0));
    const largest = (sum + difference) / 2;
    return {
      spread: [moved < 1 ? (1 + moved) / (1 - moved) : NaN, isotropicSpread(t), largest * largest],
      defect: [
        (Math.sqrt(2) * moved) / (1 + moved * moved),
        Math.sqrt(2 * b + b * b) / (1 + b),
        Math.sqrt(Math.max(1 + (4 * c + c * c) / width - (1 + c / width) ** 2, 0)) / (1 + c / width),
      ],
    };
  }

  explore.forms.isometry = ({ step, steps, width }) => {
    const kinds = ["coherent", "isotropic", "aligned"];
    const curves = grid.map((k) => shapes(step, k, width));
    const here = shapes(step, steps, width);
    const series = {};
    const readouts = {};
    for (const what of ["spread", "defect"]) {
      kinds.forEach((kind, n) => {
        series[`${what} ${kind}`] = { x: grid, y: curves.map((each) => each[what][n]) };
        readouts[`${what}-${kind}`] = here[what][n];
      });
      series[`${what} here`] = { x: [steps, steps, steps], y: here[what] };
    }
    return { series, readouts };
  };
})();
