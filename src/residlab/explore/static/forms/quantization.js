/* The closed form of the explorable "quantization", the twin of residlab/explore/quantization.py and of the functions in
   residlab.theory that it calls; a test compares the two on random states. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  const explore = (residlab.explore = residlab.explore || {});
  explore.forms = explore.forms || Object.create(null);

  const BITS = Array.from({ length: 11 }, (_, i) => i + 2);
  const PEAKS = Array.from({ length: 31 }, (_, i) => Math.round(10 ** (i / 10) * 100) / 100);

  /** The nearest whole number, ties to even, of a number that is not negative. */
  const rint = (x) => {
    const down = Math.floor(x);
    const rest = x - down;
    return rest > 0.5 || (rest === 0.5 && down % 2) ? down + 1 : down;
  };

  explore.forms.quantization = ({ bits, peak, law }, data) => {
    const sizes = data[law].values;

    /** Both signs of the magnitudes below a peak, and the peak: entries, energy, crest factor. */
    const sample = (top) => {
      const kept = sizes.filter((x) => x < top);
      let energy = top * top;
      for (const x of kept) energy += 2 * x * x;
      const entries = 2 * kept.length + 1;
      return { top, kept, energy, entries, crest: top / Math.sqrt(energy / entries) };
    };
    const predicted = (b, { crest }) => 10 * Math.log10(3) + 20 * Math.log10((2 ** b - 2) / crest);
    const floor = (b, { crest, entries }) =>
      Math.max(20 * Math.log10((2 ** b - 2) / crest), 0, -10 * Math.log10(Math.min(1, Math.max(0, 1 - crest ** 2 / entries))));
    const measured = (b, { top, kept, energy }) => {
      const step = top / ((2 ** b - 2) / 2);
      let lost = 0;
      for (const x of kept) lost += 2 * (x - rint(x / step) * step) ** 2;
      return 10 * Math.log10(energy / lost);
    };

    const own = sample(peak);
    const others = PEAKS.map(sample);
    const rules = { law: predicted, floor, sample: measured };
    const series = {};
    for (const [name, rule] of Object.entries(rules)) {
      series[`${name}-bits`] = { x: BITS, y: BITS.map((b) => rule(b, own)) };
      series[`${name}-peak`] = { x: PEAKS, y: others.map((each) => rule(bits, each)) };
    }
    const sampled = measured(bits, own);
    const half = peak / (2 ** bits - 2);
    let zeros = 0;
    for (const x of own.kept) if (x <= half) zeros += 2;
    series["here-bits"] = { x: [bits], y: [sampled] };
    series["here-peak"] = { x: [peak], y: [sampled] };
    return {
      series,
      readouts: {
        crest: 20 * Math.log10(own.crest),
        "law-sqnr": predicted(bits, own),
        sampled,
        floor: floor(bits, own),
        zero: (zeros + (peak <= half ? 1 : 0)) / own.entries,
      },
    };
  };
})();
