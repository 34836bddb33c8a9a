/* The closed form of the explorable "architect", the twin of residlab/explore/architect.py; a test compares the two. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  const explore = (residlab.explore = residlab.explore || {});
  explore.forms = explore.forms || Object.create(null);

  const finite = (values) => values.filter(Number.isFinite);
  const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : NaN);

  function median(values) {
    if (!values.length) return NaN;
    const sorted = [...values].sort((a, b) => a - b);
    const half = sorted.length >> 1;
    return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  }

  /** Ranks less their mean; equal values share the mean of their ranks. */
  function ranks(values) {
    const middle = (values.length + 1) / 2;
    return values.map((value) => {
      const below = values.filter((other) => other < value).length;
      const equal = values.filter((other) => other === value).length;
      return below + (equal + 1) / 2 - middle;
    });
  }

  function rankCorrelation(first, second) {
    const [one, two] = [ranks(first), ranks(second)];
    const sum = (product) => one.reduce((total, _, i) => total + product(i), 0);
    const scale = Math.sqrt(sum((i) => one[i] ** 2) * sum((i) => two[i] ** 2));
    return scale > 0 ? sum((i) => one[i] * two[i]) / scale : NaN;
  }

  explore.forms.architect = ({ arithmetic, network, measure }, data, options) => {
    const [count, seeds, columns] = data.losses.shape;
    const rows = Array.from({ length: count }, (_, i) => i);
    const loss = (row, column) =>
      finite(Array.from({ length: seeds }, (_, s) => data.losses.values[(row * seeds + s) * columns + column]));
    const column = 1 + options.arithmetic.indexOf(arithmetic);
    const full = rows.map((row) => mean(loss(row, 0)));
    const each = rows.map((row) => loss(row, column));
    const under = each.map(mean);
    const added = under.map((value, row) => value - full[row]);
    const width = data.measures.shape[1];
    const against = rows.map((row) => data.measures.values[row * width + options.measure.indexOf(measure)]);
    const residual = rows.map((row) => data.residual.values[row] > 0.5);
    const one = options.network.indexOf(network);
    const known = rows.filter((row) => Number.isFinite(under[row]));
    const best = known.length ? Math.min(...known.map((row) => under[row])) : NaN;
    const only = (values, wanted) => values.map((value, row) => (residual[row] === wanted ? value : NaN));
    const some = (wanted) => known.filter((row) => residual[row] === wanted).map((row) => added[row]);
    const correlation = (wanted) =>
      rankCorrelation(
        wanted.map((row) => against[row]),
        wanted.map((row) => added[row]),
      );
    return {
      series: {
        full: { x: full, y: rows },
        residual: { x: only(under, true), y: rows },
        free: { x: only(under, false), y: rows },
        span: {
          x: each.flatMap((values) => (values.length ? [Math.min(...values), Math.max(...values), NaN] : [NaN, NaN, NaN])),
          y: rows.flatMap((row) => [row, row, row]),
        },
        best: { x: [best, best], y: [-0.9, count - 0.5] },
        mine: { x: [under[one]], y: [one] },
        "added-residual": { x: against, y: only(added, true) },
        "added-free": { x: against, y: only(added, false) },
        "added-mine": { x: [against[one]], y: [added[one]] },
      },
      readouts: {
        full: full[one],
        under: under[one],
        added: added[one],
        place: known.includes(one) ? 1 + known.filter((row) => under[row] < under[one]).length : NaN,
        count: known.length,
        behind: under[one] - best,
        "added-residual": median(some(true)),
        "added-free": median(some(false)),
        correlation: correlation(known),
        "correlation-residual": correlation(known.filter((row) => residual[row])),
      },
    };
  };
})();
