/* The explorable "profiles": recorded streams by norm, depth and step, looked up. The twin of residlab/explore/profiles.py;
   a test compares the two on every state. */
"use strict";
(() => {
  /** The frame of one state: what the figure's moving traces and the readouts become. */
  function profiles({ norm, depth, step, quantity }, data, options) {
    const stream = quantity === "mean-abs" ? data.mean : data.variance;
    const [, depths, steps, sites] = stream.shape;
    const blocks = data.deviation.shape[3];
    const row = data.depths.values.indexOf(depth);
    const column = data.steps.values.indexOf(step);
    const run = (n) => (n * depths + row) * steps + column;
    const line = (array, width, n, count) => array.values.subarray(run(n) * width, run(n) * width + count);
    const layer = Float64Array.from({ length: 2 * depth + 1 }, (_, i) => i / 2);
    const block = Float64Array.from({ length: depth }, (_, i) => i + 1);
    const series = {};
    options.norm.forEach((name, n) => {
      series[`${name} stream`] = { x: layer, y: Float64Array.from(line(stream, sites, n, 2 * depth + 1)) };
      series[`${name} block`] = { x: block, y: Float64Array.from(line(data.deviation, blocks, n, depth)) };
    });
    const profile = series[`${norm} stream`].y;
    const deviation = series[`${norm} block`].y;
    const whole = (_, i) => i % 2 === 0;
    series["chosen stream"] = { x: layer.filter(whole), y: profile.filter(whole) };
    series["chosen block"] = { x: block, y: deviation };
    const first = profile[0];
    const last = profile[2 * depth];
    return {
      series,
      readouts: {
        first,
        last,
        growth: last / first,
        middle: deviation[Math.floor((depth - 1) / 2)],
        deepest: deviation[depth - 1],
        loss: data.loss.values[run(options.norm.indexOf(norm))],
      },
    };
  }

  const residlab = (window.residlab = window.residlab || {});
  residlab.explore = residlab.explore || {};
  residlab.explore.forms = residlab.explore.forms || Object.create(null);
  residlab.explore.forms.profiles = profiles;
})();
