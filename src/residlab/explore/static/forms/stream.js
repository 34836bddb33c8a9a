/* The explorable "stream": recorded counts and profiles, looked up. The twin of residlab/explore/stream.py; a test compares
   the two on every state. */
"use strict";
(() => {
  const LOW = -3;
  const WIDTH = 0.1;

  /** The frame of one state: what the figure's moving traces and the readouts become. */
  function stream({ layer, token }, data, options) {
    const [layers, tokens, bins] = data.counts.shape;
    const column = options.token.indexOf(token);
    const at = layer * tokens + column;
    const profile = (array) => Float64Array.from({ length: layers }, (_, l) => array.values[l * tokens + column]);
    const counts = data.counts.values.subarray(at * bins, (at + 1) * bins);
    const rms = profile(data.rms);
    const largest = profile(data.largest);
    const depth = Float64Array.from({ length: layers }, (_, l) => l);
    return {
      series: {
        histogram: {
          x: Float64Array.from({ length: bins }, (_, i) => 10 ** (LOW + WIDTH * (i + 0.5))),
          y: Float64Array.from(counts, (c) => (c > 0 ? c : NaN)),
        },
        rms: { x: depth, y: rms },
        largest: { x: depth, y: largest },
        here: { x: [layer, layer], y: [rms[layer], largest[layer]] },
      },
      readouts: {
        rms: rms[layer],
        largest: largest[layer],
        crest: largest[layer] / rms[layer],
        channel: data.channel.values[at],
        kurtosis: data.kurtosis.values[at],
      },
    };
  }

  const residlab = (window.residlab = window.residlab || {});
  residlab.explore = residlab.explore || {};
  residlab.explore.forms = residlab.explore.forms || Object.create(null);
  residlab.explore.forms.stream = stream;
})();
