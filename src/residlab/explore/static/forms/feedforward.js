/* The explorable "feedforward": looks up what residlab/explore/feedforward.py computed; a test compares all states. */
"use strict";
(() => {
  const residlab = (window.residlab = window.residlab || {});
  const explore = (residlab.explore = residlab.explore || {});
  explore.forms = explore.forms || Object.create(null);

  const ARGUMENTS = Array.from({ length: 97 }, (_, i) => (i - 64) / 8);
  const CONDITIONS = ["value", "relative", "absolute"];
  const ERRORS = ["measured", "bound"];

  explore.forms.feedforward = ({ x, form, format }, data) => {
    const rows = {};
    for (const key of CONDITIONS) rows[key] = data[`${form}-${key}`].values;
    for (const key of ERRORS) rows[key] = data[`${form}-${format}-${key}`].values;
    const here = ARGUMENTS.indexOf(x);
    const series = {};
    for (const key of ["relative", "absolute", ...ERRORS]) series[key] = { x: ARGUMENTS, y: Array.from(rows[key]) };
    series.here = { x: [x, x], y: [rows.relative[here], rows.absolute[here]] };
    series["error-here"] = { x: [x, x], y: [rows.measured[here], rows.bound[here]] };
    const readouts = {};
    for (const key of [...CONDITIONS, ...ERRORS]) readouts[key] = rows[key][here];
    return { series, readouts };
  };
})();
