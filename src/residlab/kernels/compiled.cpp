// Every norm of residlab as one fused pass over each token (row), forward and backward, for CPU.
//
// Each operator is y_i = gamma_i t_i + beta_i, where t_i = a x_i (RMSNorm) or tanh(a x_i) (DyT, BHyT), and the scale a
// depends on the row. So every backward has one form: with u_i = dL/dy_i gamma_i dt_i/d(a x_i) and S = dL/da = sum u_i x_i,
//
//     dL/dx_i = a u_i + c x_i + e,
//
// where the numbers c and e of a row carry what flows through its measured statistics. See `backward_row`.
//
// The numerators and denominators of tanh precede this text: LONG_P, LONG_Q, SHORT_P, SHORT_Q, LONG_BOUND, SHORT_BOUND.

enum Norm : int32_t { RMS = 0, DYT = 1, MEASURED = 2, MEASURED_CENTRED = 3, GIVEN = 4, GIVEN_CENTRED = 5 };

// What Python hands over (ctypes, same order). "compute" is double for double, else float. Null: absent, or not wanted.
struct Call {
    int64_t rows, width, threads;
    double kappa, eps;
    const void *x, *residual;           // (rows, width) storage
    const void *gamma, *beta, *scalar;  // (width,), (width,), () compute; scalar is lambda or alpha
    void *spread, *mean;                // (rows,) compute; written by the measuring norms, read by the others
    void *y, *z;                        // (rows, width) storage
    const void *grad_y, *grad_z;        // (rows, width) storage
    const void *grad_measured_spread, *grad_measured_mean;  // (rows,) compute
    void *grad_x;                                           // (rows, width) storage
    void *grad_gamma, *grad_beta, *grad_scalar;             // (width,), (width,), () compute
    void *grad_spread, *grad_mean;                          // (rows,) compute
};

// --- storage -----------------------------------------------------------------------------------------------------------

struct Bfloat16 {
    uint16_t bits;
};

inline float load(float value) { return value; }
inline double load(double value) { return value; }
inline float load(Bfloat16 value) { return std::bit_cast<float>(uint32_t(value.bits) << 16); }

template <class Storage, class Compute>
inline Storage store(Compute value) {
    return Storage(value);
}
template <>
inline Bfloat16 store<Bfloat16, float>(float value) {  // to nearest, ties to even; NaN stays NaN
    uint32_t bits = std::bit_cast<uint32_t>(value);
    uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    return {uint16_t((value != value ? 0x7fc00000u : rounded) >> 16)};
}

#ifdef __FLT16_MANT_DIG__
using Half = _Float16;
inline float load(Half value) { return float(value); }
#endif

// --- tanh --------------------------------------------------------------------------------------------------------------

// What a polynomial exceeds its constant term, 1, by.
template <int N>
inline float horner(float square, const float (&coefficients)[N]) {
    float value = coefficients[N - 1];
    for (int k = N - 2; k > 0; --k) value = value * square + coefficients[k];
    return value * square;
}

// As in rational_tanh.py. Clamping makes infinities finite; a comparison with NaN is false, so NaN passes.
inline float clamp(float x, float bound) {
    x = x > bound ? bound : x;
    return x < -bound ? -bound : x;
}

template <class Storage>
struct Tanh {  // 16-bit storage: fewer terms; up to 4 x 2^-24 beyond 1, which rounding to 16 bits takes away
    static inline float of(float x) {
        x = clamp(x, SHORT_BOUND);
        float square = x * x, p = horner(square, SHORT_P), q = horner(square, SHORT_Q);
        return (x + x * p) / (1 + q);
    }
};
template <>
struct Tanh<float> {
    static inline float of(float x) {
        x = clamp(x, LONG_BOUND);
        float square = x * x, p = horner(square, LONG_P), q = horner(square, LONG_Q), above = x + x * p;
        float y = (above + above * q) / (q * (q + 2) + above * (0.25f * above) + 1);
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
        return y;  // never exceeds 1: every float32 was tried
#else
        return clamp(y, 1);
#endif
    }
};
template <>
struct Tanh<double> {
    static inline double of(double x) { return std::tanh(x); }
};

// Ask for a row that is read later, so that it arrives while this one is computed.
template <class Storage>
inline void prefetch(const Storage *row, int64_t width) {
    for (int64_t i = 0; i < width; i += 64 / int64_t(sizeof(Storage))) __builtin_prefetch(row + i);
}

// --- one row -----------------------------------------------------------------------------------------------------------

template <class Compute>
struct Row {
    Compute spread = 0, mean = 0;
};

// The scale of a row and its derivatives.
template <class Compute>
struct Scale {
    Compute a, by_scalar = 0, by_spread = 0, by_mean = 0;
};

template <Norm norm, class Compute>
inline Scale<Compute> scale_of(Row<Compute> row, Compute scalar, Compute kappa, Compute eps) {
    if constexpr (norm == RMS) {
        Compute a = 1 / std::sqrt(row.spread + eps);
        return {a, 0, -a * a * a / 2, 0};
    } else if constexpr (norm == DYT) {
        return {scalar, 1, 0, 0};
    } else {
        Compute root = std::sqrt(row.spread + eps);
        Compute bound = kappa * root + std::abs(row.mean), a = scalar / bound;
        Compute sign = Compute(row.mean > 0) - Compute(row.mean < 0);
        return {a, 1 / bound, -a * kappa / (2 * root * bound), -a * sign / bound};
    }
}

// The sum of (x - centre)^power, power 1 or 2. Four sums at a time: one alone waits for its own last addition.
template <int power, class Storage, class Compute>
inline Compute sum_of_powers(const Storage *x, Compute centre, int64_t width) {
    const int64_t quarter = width / 4;
    const Storage *x1 = x + quarter, *x2 = x1 + quarter, *x3 = x2 + quarter;
    Compute sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
    auto term = [centre](Storage value) {
        Compute deviation = load(value) - centre;
        return power == 1 ? deviation : deviation * deviation;
    };
#pragma omp simd reduction(+ : sum0, sum1, sum2, sum3)
    for (int64_t i = 0; i < quarter; ++i) {
        sum0 += term(x[i]);
        sum1 += term(x1[i]);
        sum2 += term(x2[i]);
        sum3 += term(x3[i]);
    }
    for (int64_t i = 4 * quarter; i < width; ++i) sum0 += term(x[i]);
    return (sum0 + sum1) + (sum2 + sum3);
}

template <Norm norm, class Storage, class Compute>
inline Row<Compute> measure(const Storage *x, int64_t width) {
    Row<Compute> row;
    if constexpr (norm == MEASURED_CENTRED) row.mean = sum_of_powers<1>(x, Compute(0), width) / Compute(width);
    row.spread = sum_of_powers<2>(x, row.mean, width) / Compute(width);
    return row;
}

template <Norm norm, bool has_beta, class Storage, class Compute>
inline void forward_row(const Storage *x, const Compute *gamma, const Compute *beta, Compute a, Storage *y, int64_t width) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
        Compute t = a * load(x[i]);
        if constexpr (norm != RMS) t = Tanh<Storage>::of(t);
        t *= gamma[i];
        if constexpr (has_beta) t += beta[i];
        y[i] = store<Storage>(t);
    }
}

// First half of the backward: u into `slope`, the sums over rows that belong to gamma and beta; returns S.
template <Norm norm, class Storage, class Compute>
inline Compute slopes_row(const Storage *x, const Storage *grad_y, const Compute *gamma, Compute a, Compute *slope,
                          Compute *sum_gamma, Compute *sum_beta, int64_t width) {
    Compute total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < width; ++i) {
        Compute value = load(x[i]), g = load(grad_y[i]), t = a * value, u = g * gamma[i];
        if constexpr (norm != RMS) {
            t = Tanh<Storage>::of(t);
            u -= u * t * t;
        }
        sum_gamma[i] += g * t;
        slope[i] = u;
        total += u * value;
    }
    if (sum_beta) {
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) sum_beta[i] += load(grad_y[i]);
    }
    return total;
}

template <class Storage, class Compute>
inline void grad_row(const Storage *x, const Compute *slope, const Storage *grad_z, Compute a, Compute c, Compute e,
                     Storage *grad_x, int64_t width) {
    if (grad_z) {
#pragma omp simd
        for (int64_t i = 0; i < width; ++i)
            grad_x[i] = store<Storage>(a * slope[i] + (c * load(x[i]) + (e + load(grad_z[i]))));
    } else {
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) grad_x[i] = store<Storage>(a * slope[i] + (c * load(x[i]) + e));
    }
}

// --- all rows ----------------------------------------------------------------------------------------------------------

template <Norm norm, class Storage, class Compute>
void forward(const Call &call) {
    constexpr bool measuring = norm == RMS || norm == MEASURED || norm == MEASURED_CENTRED;
    const int64_t width = call.width;
    const auto *gamma = static_cast<const Compute *>(call.gamma), *beta = static_cast<const Compute *>(call.beta);
    const Compute scalar = call.scalar ? *static_cast<const Compute *>(call.scalar) : Compute(1);
    auto *spread = static_cast<Compute *>(call.spread), *mean = static_cast<Compute *>(call.mean);
#pragma omp parallel for num_threads(call.threads) if (call.threads > 1) schedule(static)
    for (int64_t r = 0; r < call.rows; ++r) {
        const Storage *x = static_cast<const Storage *>(call.x) + r * width;
        Storage *y = static_cast<Storage *>(call.y) + r * width;
        if (call.residual) {
            const Storage *residual = static_cast<const Storage *>(call.residual) + r * width;
            Storage *z = static_cast<Storage *>(call.z) + r * width;
#pragma omp simd
            for (int64_t i = 0; i < width; ++i) z[i] = store<Storage>(load(x[i]) + load(residual[i]));
            x = z;
        }
        Row<Compute> row;
        if constexpr (measuring) {
            row = measure<norm, Storage, Compute>(x, width);
            spread[r] = row.spread;
            if constexpr (norm == MEASURED_CENTRED) mean[r] = row.mean;
        } else if constexpr (norm != DYT) {
            row = {spread[r], norm == GIVEN_CENTRED ? mean[r] : Compute(0)};
        }
        const Compute a = scale_of<norm, Compute>(row, scalar, Compute(call.kappa), Compute(call.eps)).a;
        if constexpr (norm == MEASURED || norm == MEASURED_CENTRED)
            if (r + 1 < call.rows) prefetch(static_cast<const Storage *>(call.x) + (r + 1) * width, width);
        if (norm == DYT && beta)
            forward_row<norm, norm == DYT>(x, gamma, beta, a, y, width);
        else
            forward_row<norm, false>(x, gamma, beta, a, y, width);
    }
}

// Rows are dealt to at most BLOCKS blocks, whatever the number of threads: sums over rows do not depend on it. Within a
// block they are kept in the compute type for at most RUN rows, then added up in double.
constexpr int64_t BLOCKS = 64, RUN = 32;

template <class Compute>
void flush(std::vector<Compute> &run, double *total) {
    for (size_t i = 0; i < run.size(); ++i) {
        total[i] += run[i];
        run[i] = 0;
    }
}

inline void add_up(const std::vector<double> &parts, int64_t blocks, int64_t width, auto *result) {
    std::vector<double> total(width, 0.0);
    for (int64_t b = 0; b < blocks; ++b)
        for (int64_t i = 0; i < width; ++i) total[i] += parts[b * width + i];
    for (int64_t i = 0; i < width; ++i) result[i] = total[i];
}

template <Norm norm, class Storage, class Compute>
void backward(const Call &call) {
    const int64_t width = call.width, blocks = std::min(BLOCKS, std::max<int64_t>(call.rows, 1));
    const auto *gamma = static_cast<const Compute *>(call.gamma);
    const Compute scalar = call.scalar ? *static_cast<const Compute *>(call.scalar) : Compute(1);
    const auto *spread = static_cast<const Compute *>(call.spread), *mean = static_cast<const Compute *>(call.mean);
    const auto *from_spread = static_cast<const Compute *>(call.grad_measured_spread);
    const auto *from_mean = static_cast<const Compute *>(call.grad_measured_mean);
    auto *grad_spread = static_cast<Compute *>(call.grad_spread), *grad_mean = static_cast<Compute *>(call.grad_mean);
    std::vector<double> gamma_parts(blocks * width, 0.0), beta_parts(call.grad_beta ? blocks * width : 0, 0.0);
    std::vector<double> scalar_parts(blocks, 0.0);
#pragma omp parallel for num_threads(call.threads) if (call.threads > 1) schedule(static)
    for (int64_t block = 0; block < blocks; ++block) {
        std::vector<Compute> slope(width), sum_gamma(width), sum_beta(call.grad_beta ? width : 0);
        const int64_t first = call.rows * block / blocks, last = call.rows * (block + 1) / blocks;
        for (int64_t r = first; r < last; ++r) {
            const Storage *x = static_cast<const Storage *>(call.x) + r * width;
            const Storage *grad_y = static_cast<const Storage *>(call.grad_y) + r * width;
            const Storage *grad_z = call.grad_z ? static_cast<const Storage *>(call.grad_z) + r * width : nullptr;
            Storage *grad_x = static_cast<Storage *>(call.grad_x) + r * width;
            const Row<Compute> row = {spread ? spread[r] : Compute(0), mean ? mean[r] : Compute(0)};
            const auto scale = scale_of<norm, Compute>(row, scalar, Compute(call.kappa), Compute(call.eps));
            const Compute S = slopes_row<norm>(x, grad_y, gamma, scale.a, slope.data(), sum_gamma.data(),
                                               call.grad_beta ? sum_beta.data() : nullptr, width);
            Compute by_spread = S * scale.by_spread, by_mean = S * scale.by_mean, c = 0, e = 0;
            scalar_parts[block] += double(S) * double(scale.by_scalar);
            if constexpr (norm == GIVEN || norm == GIVEN_CENTRED) {
                if (grad_spread) grad_spread[r] = by_spread;
                if (grad_mean) grad_mean[r] = by_mean;
            } else if constexpr (norm != DYT) {
                if (from_spread) by_spread += from_spread[r];
                if (from_mean) by_mean += from_mean[r];
                c = 2 * by_spread / Compute(width);
                e = norm == MEASURED_CENTRED ? by_mean / Compute(width) - c * row.mean : Compute(0);
            }
            grad_row(x, slope.data(), grad_z, scale.a, c, e, grad_x, width);
            if ((r - first) % RUN == RUN - 1 || r == last - 1) {
                flush(sum_gamma, &gamma_parts[block * width]);
                if (call.grad_beta) flush(sum_beta, &beta_parts[block * width]);
            }
        }
    }
    if (call.grad_gamma) add_up(gamma_parts, blocks, width, static_cast<Compute *>(call.grad_gamma));
    if (call.grad_beta) add_up(beta_parts, blocks, width, static_cast<Compute *>(call.grad_beta));
    if (call.grad_scalar) {
        double total = 0;
        for (double part : scalar_parts) total += part;
        *static_cast<Compute *>(call.grad_scalar) = Compute(total);
    }
}

template <class Storage, class Kept>
[[gnu::noinline]] void tanh_buffer(const Kept *x, Kept *y, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) y[i] = store<Kept>(Tanh<Storage>::of(load(x[i])));
    asm volatile("" : : "r"(y) : "memory");  // every repetition is done
}

// --- what Python sees --------------------------------------------------------------------------------------------------

template <class Storage, class Compute>
int32_t run(int32_t norm, int32_t back, const Call *call) {
    switch (norm) {
#define CASE(NAME)                                                                                                     \
    case NAME:                                                                                                         \
        back ? backward<NAME, Storage, Compute>(*call) : forward<NAME, Storage, Compute>(*call);                        \
        return 0;
        CASE(RMS)
        CASE(DYT)
        CASE(MEASURED)
        CASE(MEASURED_CENTRED)
        CASE(GIVEN)
        CASE(GIVEN_CENTRED)
#undef CASE
    }
    return 1;
}

extern "C" {
int32_t residlab_float64(int32_t norm, int32_t back, const Call *call) { return run<double, double>(norm, back, call); }
int32_t residlab_float32(int32_t norm, int32_t back, const Call *call) { return run<float, float>(norm, back, call); }
int32_t residlab_bfloat16(int32_t norm, int32_t back, const Call *call) { return run<Bfloat16, float>(norm, back, call); }
#ifdef __FLT16_MANT_DIG__
int32_t residlab_float16(int32_t norm, int32_t back, const Call *call) { return run<Half, float>(norm, back, call); }
#endif

// tanh alone, for its tests and for the measured cost of the operation.
void residlab_tanh_long(const float *x, float *y, int64_t count, int64_t times) {
    while (times-- > 0) tanh_buffer<float>(x, y, count);
}
void residlab_tanh_short(const float *x, float *y, int64_t count, int64_t times) {
    while (times-- > 0) tanh_buffer<Bfloat16>(x, y, count);
}
void residlab_tanh_bfloat16(const Bfloat16 *x, Bfloat16 *y, int64_t count, int64_t times) {
    while (times-- > 0) tanh_buffer<Bfloat16>(x, y, count);
}
}
