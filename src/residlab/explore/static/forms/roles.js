/* The explorable "roles": recorded inferences by role and format, looked up. The twin of residlab/explore/roles.py; a test
   compares the two on every state. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  const explore = (residlab.explore = residlab.explore || {});
  explore.forms = explore.forms || Object.create(null);

  const ROLES = ["q", "a", "w", "r", "all"];

  explore.forms.roles = ({ role, format, other }, data, options) => {
    const [, formats, blocks] = data.relative.shape;
    const column = options.format.indexOf(format);
    const beside = options.other.indexOf(other);
    const line = (array, start) => Float64Array.from(array.values.subarray(start * blocks, (start + 1) * blocks));
    const x = Float64Array.from({ length: blocks }, (_, i) => i + 1);
    const series = {};
    ROLES.forEach((name, i) => {
      series[name] = { x, y: line(data.relative, i * formats + column) };
    });
    const end = (values) => values[blocks - 1];
    const singles = ROLES.slice(0, 4).map((name) => end(series[name].y));
    const total = singles.reduce((sum, each) => sum + each, 0);
    const root = Math.sqrt(singles.reduce((sum, each) => sum + each * each, 0));
    const last = line(data.others, beside);
    series.chosen = { x, y: series[role].y };
    series.other = { x, y: last };
    series.bars = { x: Float64Array.from({ length: 7 }, (_, i) => i), y: [...singles, root, total, end(series.all.y)] };
    series["other-end"] = { x: [-0.5, 6.5], y: [end(last), end(last)] };
    const at = (ROLES.indexOf(role) * formats + column) * 3;
    const [added, divergence, agreement] = data.ends.values.subarray(at, at + 3);
    return {
      series,
      readouts: {
        error: end(series[role].y),
        added,
        divergence,
        agreement,
        root,
        total,
        "other-error": end(last),
        "other-added": data.otherEnds.values[beside * 3],
      },
    };
  };
})();
