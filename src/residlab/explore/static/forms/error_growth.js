/* The explorable "error_growth": recorded errors by block, looked up. The twin of residlab/explore/error_growth.py; a test
   compares the two on every state. */
"use strict";
(() => {
  /** The frame of one state: what the figure's moving traces and the readouts become. */
  function errorGrowth({ vary, model, factor, kind, depth, whole, format }, data, options) {
    const nearest = (stops, value) => stops.findIndex((stop) => Math.abs(stop - value) < 1e-6 * Math.abs(value));
    const bf16 = options.format.indexOf("bf16");
    const chosen = options.format.indexOf(format);
    const deepest = data.depths.values.length - 1;
    // The array, which model of it, which run, the run to compare with, and the format of the run.
    const [array, which, here, other, unit] = {
      factor: () => {
        const { values } = data.factors;
        return [data.swept, options.model.indexOf(model), nearest(values, factor), nearest(values, 1), bf16];
      },
      depth: () => [data.deepened, options.kind.indexOf(kind), nearest(data.depths.values, depth), deepest, bf16],
      format: () => [data.formatted, options.whole.indexOf(whole), chosen, bf16, chosen],
    }[vary]();
    const [, rows, quantities, width] = array.shape;
    const u = data.units.values[unit];
    const lines = (row) => {
      const start = (which * rows + row) * quantities * width;
      let end = width;
      while (end > 0 && !Number.isFinite(array.values[start + end - 1])) end -= 1;
      const line = (_, q) => Float64Array.from(array.values.subarray(start + q * width, start + q * width + end));
      return Array.from({ length: quantities }, line);
    };
    const [relative, predicted, error, size] = lines(here);
    const inUnits = (values, each) => values.map((value) => value / each);
    const compared = inUnits(lines(other)[0], data.units.values[bf16]);
    const blocks = (values) => Float64Array.from(values, (_, i) => i);
    const drawn = {
      relative: inUnits(relative, u),
      predicted: inUnits(predicted, u),
      compared,
      error: inUnits(error, u),
      size,
    };
    const last = relative.length - 1;
    return {
      series: Object.fromEntries(Object.entries(drawn).map(([key, y]) => [key, { x: blocks(y), y }])),
      readouts: {
        first: relative[1],
        last: relative[last],
        foreseen: predicted[last],
        against: relative[last] / u / compared[compared.length - 1],
        error: error[last],
        size: size[last],
      },
    };
  }

  const residlab = (window.residlab = window.residlab || {});
  residlab.explore = residlab.explore || {};
  residlab.explore.forms = residlab.explore.forms || Object.create(null);
  residlab.explore.forms.error_growth = errorGrowth;
})();
