// Rounding to a format, sums and products, for CPU tensors: what reference.py and summation.py define, bit for bit.
//
// The headers precede this text. Nothing is contracted (-ffp-contract=off): each operation rounds as it is written.

template <class Carrier>
struct Bits;
template <>
struct Bits<float> {
    using Unsigned = uint32_t;
    using Signed = int32_t;
    static constexpr int stored = 23;
    static constexpr float whole = 0x1p23f;  // from here on, the last bit counts ones
};
template <>
struct Bits<double> {
    using Unsigned = uint64_t;
    using Signed = int64_t;
    static constexpr int stored = 52;
    static constexpr double whole = 0x1p52;
};

enum Mode : int64_t { NEAREST = 0, TOWARD_ZERO = 1, UP = 2, DOWN = 3, STOCHASTIC = 4 };

// What Python hands over (ctypes, same order); see Layout in reference.py.
struct Layout {
    int64_t drop, least, unit, plain, smallest, half, normal, counting, flush, largest, above, below, infinite;
};

struct Elementwise {
    int64_t count, threads, mode, key;
    Layout layout;
    const void *a, *b;  // b null: round a, else a + b
    void *y;
};

struct Product {
    int64_t rows, inner, columns, threads, mode, key;
    int64_t block;   // terms summed one after the other before their sum joins the others; 0: pairwise
    int64_t native;  // the carrier's own arithmetic is the format's
    Layout layout;
    const void *a, *b;  // (rows, inner), (inner, columns)
    void *y;            // (rows, columns)
};

// While it lives, this thread's processor flushes no subnormal number, whatever it was set to.
class Gradual {
#if defined(__SSE__)
    unsigned before = __builtin_ia32_stmxcsr();

  public:
    Gradual() { __builtin_ia32_ldmxcsr(before & ~0x8040u); }  // results to zero, operands to zero
    ~Gradual() { __builtin_ia32_ldmxcsr(before); }
#elif defined(__aarch64__)
    uint64_t before;

  public:
    Gradual() {
        asm volatile("mrs %0, fpcr" : "=r"(before));
        asm volatile("msr fpcr, %0" ::"r"(before & ~(uint64_t(1) << 24)) : "memory");
    }
    ~Gradual() { asm volatile("msr fpcr, %0" ::"r"(before) : "memory"); }
#else
  public:
    Gradual() {}
    ~Gradual() {}
#endif
    Gradual(const Gradual &) = delete;
};

// SplitMix64 at a counter.
inline uint64_t random_bits(uint64_t key, uint64_t counter) {
    uint64_t z = counter * 0x9E3779B97F4A7C15u + key;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// All bits of `yes` where the condition holds, else of `no`: written out, because compilers turn nested choices into jumps,
// and jumps are not vectorised. Magnitudes leave the sign bit free, so that they are compared as signed, which is cheaper.
template <class U>
[[gnu::always_inline]] inline U choose(bool condition, U yes, U no) {
    const U all = U(0) - U(condition);
    return (yes & all) | (no & ~all);
}

// A plain format is the carrier with fewer bits: the carry alone gives infinity, and nothing underflows earlier.
template <class Carrier, Mode mode, bool plain>
struct Arithmetic {
    using U = typename Bits<Carrier>::Unsigned;
    using I = typename Bits<Carrier>::Signed;
    static constexpr int stored = Bits<Carrier>::stored;
    static constexpr U magnitude = ~U(0) >> 1;
    static constexpr I infinity = I((magnitude >> stored) << stored);

    I drop, least, lowest;
    U mask;
    I smallest, normal, flush, largest;
    Carrier counting;
    U above, below, infinite;
    uint64_t key;

    Arithmetic(const Layout &form, int64_t key)
        : drop(form.drop), least(form.least), lowest(form.unit), mask((U(1) << form.drop) - 1), smallest(form.smallest),
          normal(form.normal), flush(form.flush), largest(form.largest), counting(std::bit_cast<Carrier>(U(form.counting))),
          above(form.above), below(form.below), infinite(form.infinite), key(key) {}

    // To nearest without variable shifts: the bits above the first `drop`, or, where the format has fewer, the sum with a
    // constant whose last bit counts the format's smallest numbers, or, to flush them, numbers that are larger.
    [[gnu::always_inline]] Carrier nearest(Carrier x) const {
        const U bits = std::bit_cast<U>(x), size = bits & magnitude, sign = bits & ~magnitude;
        U result = (size + (mask >> 1) + ((size >> drop) & mask & 1)) & ~mask;
        if constexpr (!plain) {
            const Carrier multiple = (std::bit_cast<Carrier>(size) + counting) - counting;
            result = choose<U>(I(size) < normal, std::bit_cast<U>(multiple), result);
            result = choose<U>(I(result) > largest, infinite, result);
        }
        result = choose<U>(I(size) > infinity, size, result);
        return std::bit_cast<Carrier>(U(result | sign));
    }

    [[gnu::always_inline]] Carrier rounded(Carrier x, uint64_t counter) const {
        if constexpr (mode == NEAREST) return nearest(x);
        const U bits = std::bit_cast<U>(x), size = bits & magnitude, sign = bits & ~magnitude;
        const U negative = U(0) - (bits >> (8 * sizeof(U) - 1));
        I d = drop, exponent = 0;
        U unit = mask + 1;
        if constexpr (!plain) {
            exponent = I(size >> stored);
            exponent = I(choose<U>(exponent > 1, exponent, 1));
            d = drop + I(choose<U>(least > exponent, least - exponent, 0));
            d = I(choose<U>(d < stored, d, stored));
            // 2^d, from a number whose exponent is d: shifts of 64 bits by variables are not vectorised.
            const Carrier power = std::bit_cast<Carrier>(U(U(d + (infinity >> (stored + 1))) << stored));
            unit = std::bit_cast<U>(Bits<Carrier>::whole + power) - std::bit_cast<U>(Bits<Carrier>::whole);
        }
        const U dropped = unit - 1;
        U addend = 0;
        bool away = false;
        if constexpr (mode == UP || mode == DOWN) {
            addend = dropped & (mode == UP ? ~negative : negative);
            away = (I(size) > 0) & (addend > 0);  // what is below the smallest number drops bits
        } else if constexpr (mode == STOCHASTIC) {
            const uint64_t random = random_bits(key, counter);
            addend = U(random) & dropped;
            if constexpr (!plain) {
                const U low = size & ((U(1) << stored) - 1);
                const uint64_t significand = choose(size == low, low, low | (U(1) << stored));
                const int64_t shift = 63 - stored + int64_t(exponent) - int64_t(lowest);
                const int64_t left = shift < 0 ? 0 : shift > 63 ? 63 : shift, right = shift > 0 ? 0 : shift < -63 ? 63 : -shift;
                away = int64_t(random >> 1) < int64_t(significand << left >> right);
            }
        }
        U result = (size + addend) & ~dropped;
        if constexpr (!plain) {
            result = choose<U>(I(size) < smallest, choose<U>(away, smallest, 0), result);
            result = choose<U>(I(size) < flush, 0, result);
            result = choose<U>(I(result) > largest, (below & negative) | (above & ~negative), result);
            result = choose<U>(I(size) == infinity, infinite, result);
        }
        result = choose<U>(I(size) > infinity, size, result);
        return std::bit_cast<Carrier>(U(result | sign));
    }

    // a + b, rounded to odd in the carrier first: then nothing is rounded twice.
    [[gnu::always_inline]] Carrier sum(Carrier a, Carrier b, uint64_t counter) const {
        const Carrier total = a + b, part = total - a, error = (a - (total - part)) + (b - part);
        const U off = std::bit_cast<U>(error);
        U bits = std::bit_cast<U>(total);
        const U step = U(I(bits ^ off) >> (8 * sizeof(U) - 1)) | 1, even = (bits & 1) - 1;  // -1 or 1
        const U inexact = U(0) - U(__builtin_islessgreater(error, Carrier(0)));  // not for NaN, which infinities leave
        bits += step & even & inexact;
        if constexpr (mode == TOWARD_ZERO || mode == UP || mode == DOWN) {
            // Instead of an infinity that no term is, the largest number, whose last bit is 1.
            const I left = std::bit_cast<U>(a) & magnitude, right = std::bit_cast<U>(b) & magnitude;
            bits -= U((I(bits & magnitude) == infinity) & (left < infinity) & (right < infinity));
        }
        return rounded(std::bit_cast<Carrier>(bits), counter);
    }

    [[gnu::always_inline]] Carrier accumulated(Carrier sum_so_far, Carrier a, Carrier b, uint64_t counter) const {
        return sum(sum_so_far, a * b, counter);
    }
};

template <class Carrier>
struct Native {
    Native(const Layout &, int64_t) {}
    [[gnu::always_inline]] Carrier rounded(Carrier x, uint64_t) const { return x; }
    [[gnu::always_inline]] Carrier sum(Carrier a, Carrier b, uint64_t) const { return a + b; }
    // Fused: the product need not be one of the carrier's numbers.
    [[gnu::always_inline]] Carrier accumulated(Carrier sum_so_far, Carrier a, Carrier b, uint64_t) const {
        return std::fma(a, b, sum_so_far);
    }
};

// By value: what is stored to y cannot change it, as the compiler must see to keep it in registers.
template <class Carrier, class Arithmetic>
[[gnu::noinline]] void round_span(const Arithmetic arithmetic, const Carrier *__restrict a, Carrier *__restrict y,
                                  int64_t from, int64_t to) {
#pragma omp simd
    for (int64_t i = from; i < to; ++i) y[i] = arithmetic.rounded(a[i], i);
}

template <class Carrier, class Arithmetic>
[[gnu::noinline]] void sum_span(const Arithmetic arithmetic, const Carrier *__restrict a, const Carrier *__restrict b,
                                Carrier *__restrict y, int64_t from, int64_t to) {
#pragma omp simd
    for (int64_t i = from; i < to; ++i) y[i] = arithmetic.sum(a[i], b[i], i);
}

template <class Carrier, Mode mode, bool plain>
void elementwise(const Elementwise &call) {
    constexpr int64_t SPAN = 1 << 14;
    const Arithmetic<Carrier, mode, plain> arithmetic(call.layout, call.key);
    const auto *a = static_cast<const Carrier *>(call.a), *b = static_cast<const Carrier *>(call.b);
    auto *y = static_cast<Carrier *>(call.y);
#pragma omp parallel for num_threads(call.threads) if (call.threads > 1) schedule(static)
    for (int64_t from = 0; from < call.count; from += SPAN) {
        const Gradual underflow;
        const int64_t to = std::min(from + SPAN, call.count);
        b ? sum_span(arithmetic, a, b, y, from, to) : round_span(arithmetic, a, y, from, to);
    }
}

// --- products ----------------------------------------------------------------------------------------------------------

constexpr int64_t ROWS = 32;  // rows that share a packed tile of b

// One row of a times a tile of `width` columns of b, packed (inner, width). Roundings are counted for random bits: a term
// when it is rounded or added to the sum so far has its own index, then come the sums of sums.
template <class Carrier, class Arithmetic, class Width>
[[gnu::always_inline]] inline void blocked_row(const Arithmetic &arithmetic, const Carrier *a, const Carrier *b, Carrier *y,
                                               int64_t inner, int64_t block, Width width, uint64_t first) {
    constexpr int64_t TILE = 256 / sizeof(Carrier);
    alignas(64) Carrier sum[TILE], total[TILE];
    const uint64_t stride = 2 * uint64_t(inner);
    uint64_t merged = inner;
    for (int64_t start = 0; start < inner; start += block) {
        const int64_t stop = std::min(inner, start + block);
        for (int64_t k = start; k < stop; ++k) {
            const Carrier factor = a[k], *other = b + k * width;
            if (k == start) {
#pragma omp simd
                for (int64_t j = 0; j < width; ++j) sum[j] = arithmetic.rounded(factor * other[j], first + j * stride + k);
            } else {
#pragma omp simd
                for (int64_t j = 0; j < width; ++j)
                    sum[j] = arithmetic.accumulated(sum[j], factor, other[j], first + j * stride + k);
            }
        }
        if (start == 0) {
            for (int64_t j = 0; j < width; ++j) total[j] = sum[j];
        } else {
#pragma omp simd
            for (int64_t j = 0; j < width; ++j) total[j] = arithmetic.sum(total[j], sum[j], first + j * stride + merged);
            ++merged;
        }
    }
    for (int64_t j = 0; j < width; ++j) y[j] = total[j];
}

// The stack holds sums of 2^i terms, of falling i: a binary counter.
template <class Carrier, class Arithmetic, class Width>
[[gnu::always_inline]] inline void pairwise_row(const Arithmetic &arithmetic, const Carrier *a, const Carrier *b, Carrier *y,
                                                int64_t inner, Width width, uint64_t first) {
    constexpr int64_t TILE = 256 / sizeof(Carrier);
    alignas(64) Carrier stack[64][TILE];
    const uint64_t stride = 2 * uint64_t(inner);
    uint64_t merged = inner;
    int64_t depth = 0;
    auto merge = [&] {
        Carrier *left = stack[depth - 2], *right = stack[depth - 1];
#pragma omp simd
        for (int64_t j = 0; j < width; ++j) left[j] = arithmetic.sum(left[j], right[j], first + j * stride + merged);
        ++merged;
        --depth;
    };
    for (int64_t k = 0; k < inner; ++k) {
        const Carrier factor = a[k], *other = b + k * width;
        Carrier *top = stack[depth++];
#pragma omp simd
        for (int64_t j = 0; j < width; ++j) top[j] = arithmetic.rounded(factor * other[j], first + j * stride + k);
        for (int64_t full = k + 1; full % 2 == 0; full /= 2) merge();
    }
    while (depth > 1) merge();
    for (int64_t j = 0; j < width; ++j) y[j] = stack[0][j];
}

template <class Carrier, class Arithmetic>
void product(const Product &call) {
    constexpr int64_t TILE = 256 / sizeof(Carrier);
    const Arithmetic arithmetic(call.layout, call.key);
    const int64_t rows = call.rows, inner = call.inner, columns = call.columns;
    const int64_t tiles = (columns + TILE - 1) / TILE, chunks = (rows + ROWS - 1) / ROWS;
    const auto *a = static_cast<const Carrier *>(call.a), *b = static_cast<const Carrier *>(call.b);
    auto *y = static_cast<Carrier *>(call.y);
#pragma omp parallel for num_threads(call.threads) if (call.threads > 1) schedule(static)
    for (int64_t task = 0; task < tiles * chunks; ++task) {
        const Gradual underflow;
        const int64_t from = task / chunks * TILE, width = std::min(TILE, columns - from);
        const int64_t top = task % chunks * ROWS, bottom = std::min(rows, top + ROWS);
        std::vector<Carrier> packed(inner * width);
        for (int64_t k = 0; k < inner; ++k) std::copy_n(b + k * columns + from, width, &packed[k * width]);
        auto rows_of = [&](auto width) {
            for (int64_t i = top; i < bottom; ++i) {
                const uint64_t first = uint64_t(i * columns + from) * 2 * uint64_t(inner);
                if (call.block)
                    blocked_row(arithmetic, a + i * inner, packed.data(), y + i * columns + from, inner, call.block, width, first);
                else
                    pairwise_row(arithmetic, a + i * inner, packed.data(), y + i * columns + from, inner, width, first);
            }
        };
        if (width == TILE)
            rows_of(std::integral_constant<int64_t, TILE>());
        else
            rows_of(width);
    }
}

// --- what Python sees --------------------------------------------------------------------------------------------------

template <class Carrier, Mode mode>
void elementwise_as(const Elementwise &call) {
    call.layout.plain ? elementwise<Carrier, mode, true>(call) : elementwise<Carrier, mode, false>(call);
}

template <class Carrier>
void elementwise_in(const Elementwise &call) {
    switch (call.mode) {
        case NEAREST: return elementwise_as<Carrier, NEAREST>(call);
        case TOWARD_ZERO: return elementwise_as<Carrier, TOWARD_ZERO>(call);
        case UP: return elementwise_as<Carrier, UP>(call);
        case DOWN: return elementwise_as<Carrier, DOWN>(call);
        case STOCHASTIC: return elementwise_as<Carrier, STOCHASTIC>(call);
    }
}

template <class Carrier>
void product_in(const Product &call) {
    if (call.native) return product<Carrier, Native<Carrier>>(call);
    if (call.mode == NEAREST) {
        if (call.layout.plain) return product<Carrier, Arithmetic<Carrier, NEAREST, true>>(call);
        return product<Carrier, Arithmetic<Carrier, NEAREST, false>>(call);
    }
    if (call.layout.plain) return product<Carrier, Arithmetic<Carrier, STOCHASTIC, true>>(call);
    product<Carrier, Arithmetic<Carrier, STOCHASTIC, false>>(call);
}

extern "C" {
void residlab_round_float32(const Elementwise *call) { elementwise_in<float>(*call); }
void residlab_round_float64(const Elementwise *call) { elementwise_in<double>(*call); }
void residlab_product_float32(const Product *call) { product_in<float>(*call); }
void residlab_product_float64(const Product *call) { product_in<double>(*call); }
}
