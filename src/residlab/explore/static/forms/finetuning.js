/* The closed form of the explorable "finetuning", the twin of residlab/explore/finetuning.py and of the functions in
   residlab.theory that it calls; a test compares the two on random states. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  const explore = (residlab.explore = residlab.explore || {});
  explore.forms = explore.forms || Object.create(null);

  const AXES = 64;
  const GRID = [0, ...new Set(Array.from({ length: 45 }, (_, i) => Math.round(2 ** (i / 4))))];
  const PRICES = Array.from({ length: 61 }, (_, i) => 10 ** ((i - 30) / 10));

  explore.forms.finetuning = ({ rate, steps, overlap, decay }) => {
    const fresh = Array.from({ length: AXES }, (_, i) => (i + 1) ** -decay);
    const old = fresh.map((h, i) => overlap * h + (1 - overlap) * fresh[AXES - 1 - i]);
    const squared = 2 / fresh.reduce((sum, h) => sum + h, 0);

    /** What remains and what is forgotten, for the share of the way along axis i. */
    const losses = (share) => {
      let [left, lost] = [0, 0];
      for (let i = 0; i < AXES; i += 1) {
        const s = share(i);
        left += fresh[i] * squared * (1 - s) ** 2;
        lost += old[i] * squared * s ** 2;
      }
      return [left / 2, lost / 2];
    };
    const descended = (eta, t) => losses((i) => 1 - (1 - eta * fresh[i]) ** t);
    const split = (pairs) => ({ x: pairs.map(([left]) => left), y: pairs.map(([, lost]) => lost) });

    const path = GRID.map((t) => descended(rate, t));
    const best = PRICES.map((price) => losses((i) => fresh[i] / (fresh[i] + price * old[i])));
    const here = descended(rate, steps);
    const halved = descended(rate / 2, 2 * steps);
    return {
      series: {
        path: split(path),
        best: split(best),
        here: split([here]),
        halved: split([halved]),
        remaining: { x: GRID.slice(1), y: path.slice(1).map(([left]) => left) },
        forgotten: { x: GRID.slice(1), y: path.slice(1).map(([, lost]) => lost) },
        now: { x: [steps, steps], y: here },
      },
      readouts: {
        remaining: here[0],
        forgotten: here[1],
        "remaining-halved": halved[0],
        "forgotten-halved": halved[1],
      },
    };
  };
})();
