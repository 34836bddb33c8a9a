/* Random numbers that the kernel and a page draw alike: the twin of residlab/explore/random_numbers.py. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  const explore = (residlab.explore = residlab.explore || {});

  /** The number in [0, 1) of the generator mulberry32 at a count. */
  function uniform(counter) {
    let t = Math.imul(counter + 1, 0x6d2b79f5);
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  }

  /** Two normal numbers for a count (Box and Muller). */
  function normals(pair) {
    const radius = Math.sqrt(-2 * Math.log(1 - uniform(2 * pair)));
    const angle = 2 * Math.PI * uniform(2 * pair + 1);
    return [radius * Math.cos(angle), radius * Math.sin(angle)];
  }

  explore.random = { uniform, normals };
})();
