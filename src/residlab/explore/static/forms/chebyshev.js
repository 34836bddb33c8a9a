/* The closed form of the explorable "chebyshev", the twin of residlab/explore/chebyshev.py and of the laws in
   residlab.theory; a test compares the two on random states. Laws have mean 0 and variance 1. */
"use strict";
(() => {
  const BIN = 0.125;
  const REACH = 6.5;
  const FLOOR = 1e-8;
  const CEILING = 1.9;
  const SIDE = Math.round(REACH / BIN);
  const FINE = 20; // recorded bins per unit of |x|/r

  const CENTRES = Float64Array.from({ length: 2 * SIDE }, (_, i) => (i - SIDE + 0.5) * BIN);

  /** Complementary error function for x >= 0, to about 1e-14 relative, far tail included. */
  function erfc(x) {
    const gauss = Math.exp(-x * x);
    if (x < 2) {
      // erf x = 2/sqrt(pi) e^{-x^2} sum 2^n x^{2n+1} / (2n+1)!!, all terms positive
      let term = x;
      let sum = x;
      for (let n = 1; term > 1e-17 * sum; n += 1) {
        term *= (2 * x * x) / (2 * n + 1);
        sum += term;
      }
      return 1 - (2 / Math.sqrt(Math.PI)) * gauss * sum;
    }
    // Laplace's continued fraction x + (1/2)/(x + 1/(x + (3/2)/(x + ...))), from the far end
    let fraction = x;
    for (let n = 100; n >= 1; n -= 1) fraction = x + n / 2 / fraction;
    return gauss / (Math.sqrt(Math.PI) * fraction);
  }

  /** y - sin y for y >= 0, without cancellation near zero. */
  function yMinusSin(y) {
    if (y > 0.5) return y - Math.sin(y);
    let term = y;
    let sum = 0;
    for (let n = 1; n <= 8; n += 1) {
      term *= (-y * y) / (2 * n * (2 * n + 1));
      sum -= term;
    }
    return sum;
  }

  /** Two-sided tails P(|X| >= k), k >= 0. */
  const TAILS = new Map([
    ["gaussian", (k) => erfc(k / Math.SQRT2)],
    ["laplace", (k) => Math.exp(-Math.SQRT2 * k)],
    // (2/pi)(a - sin a cos a) with tan a = 1/k
    ["student-t3", (k) => yMinusSin(2 * Math.atan2(1, k)) / Math.PI],
  ]);

  /** Share in each drawn bin, from the one-sided tails of x below and above zero. */
  function binned(below, above, scale) {
    const shares = new Float64Array(2 * SIDE);
    for (const [tail, place] of [
      [below, (i) => SIDE - 1 - i],
      [above, (i) => SIDE + i],
    ]) {
      let inner = tail(0);
      for (let i = 0; i < SIDE; i += 1) {
        const outer = i + 1 < SIDE ? tail(((i + 1) * BIN) / scale) : 0;
        shares[place(i)] = inner - outer;
        inner = outer;
      }
    }
    return shares;
  }

  /** One-sided tail of a recorded histogram whose bins are listed outwards, linear within each bin. */
  function recordedTail(outwards) {
    const beyond = new Float64Array(outwards.length + 1);
    for (let i = outwards.length - 1; i >= 0; i -= 1) beyond[i] = beyond[i + 1] + outwards[i];
    return (u) => {
      const position = u * FINE;
      if (position >= outwards.length) return 0;
      const i = Math.floor(position);
      return beyond[i] + (position - i) * (beyond[i + 1] - beyond[i]);
    };
  }

  /** The law that attains Chebyshev's bound: atoms at -lam, 0 and lam; the outer ones lie on the gates. */
  function extremal(lam, share) {
    const shares = new Float64Array(2 * SIDE);
    const i = Math.min(Math.floor((lam + 1e-9) / BIN), SIDE - 1);
    shares[SIDE] += (1 - share) / 2;
    shares[SIDE - 1] += (1 - share) / 2;
    shares[SIDE + i] += share / 2;
    shares[SIDE - 1 - i] += share / 2;
    return shares;
  }

  function measured(state, data, sites) {
    const row = sites.indexOf(state.site);
    const kappas = data.kappas.values;
    const survival = data.survival.values.subarray(row * kappas.length, (row + 1) * kappas.length);
    const bins = data.histogram.shape[1];
    const histogram = data.histogram.values.subarray(row * bins, (row + 1) * bins);
    return {
      share: survival[Math.round((state.kappa - kappas[0]) * 4)],
      shares: binned(
        recordedTail(histogram.slice(0, bins / 2).reverse()),
        recordedTail(histogram.subarray(bins / 2)),
        state.lam / state.kappa,
      ),
      curve: { x: Float64Array.from(kappas), y: Float64Array.from(survival, (s) => (s > 0 ? s : NaN)) },
    };
  }

  function chosen(state, data, options, bound) {
    const { lam, kappa } = state;
    if (state.law === "measured") return measured(state, data, options.site);
    if (state.law === "three-point") {
      const curve = { x: [1, kappa, kappa], y: [bound, bound, FLOOR] };
      return { share: bound, shares: extremal(lam, bound), curve };
    }
    const tail = TAILS.get(state.law);
    const half = (u) => tail(u) / 2;
    const x = Float64Array.from(data.curve.values);
    return { share: tail(kappa), shares: binned(half, half, lam / kappa), curve: { x, y: x.map(tail) } };
  }

  /** The frame of one state: what the figure's moving traces and the readouts become. */
  function chebyshev(state, data, options) {
    const { lam, kappa } = state;
    const bound = 1 / Math.max(kappa, 1) ** 2;
    const { share, shares, curve } = chosen(state, data, options, bound);
    const outside = (i) => Math.abs(CENTRES[i]) - BIN / 2 >= lam - 1e-9;
    return {
      series: {
        inside: { x: CENTRES, y: shares.map((s, i) => (outside(i) ? NaN : s)) },
        outside: { x: CENTRES, y: shares.map((s, i) => (outside(i) ? s : NaN)) },
        beyond: {
          x: [-REACH, -lam, -lam, -REACH, NaN, lam, REACH, REACH, lam],
          y: [FLOOR, FLOOR, CEILING, CEILING, NaN, FLOOR, FLOOR, CEILING, CEILING],
        },
        gates: { x: [-lam, -lam, NaN, lam, lam], y: [FLOOR, CEILING, NaN, FLOOR, CEILING] },
        law: curve,
        here: { x: [kappa, kappa], y: [bound, share > 0 ? share : NaN] },
      },
      readouts: { share, bound, ratio: share / bound, rms: lam / kappa, gate: Math.tanh(lam) },
    };
  }

  const residlab = (window.residlab = window.residlab || {});
  residlab.explore = residlab.explore || {};
  residlab.explore.forms = residlab.explore.forms || Object.create(null);
  residlab.explore.forms.chebyshev = chebyshev;
})();
