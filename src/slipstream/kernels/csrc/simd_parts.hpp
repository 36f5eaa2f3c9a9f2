// Sixteen lanes for machines without 512-bit registers. Compilers hold a vector that is wider than the
// registers in memory, whatever is done with it; so it is a few vectors as wide as they are.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace slipstream {
namespace {

constexpr bool HAS_WIDE_REGISTERS = false;
#if defined(__AVX2__)
constexpr int REGISTER_BYTES = 32;
#else
constexpr int REGISTER_BYTES = 16;
#endif

#define SL_INLINED_LAMBDA __attribute__((always_inline))
#define SL_OPERATOR(op)                                                                           \
    friend SL_INLINE Lanes operator op(const Lanes& a, const Lanes& b) {                          \
        return of([&](int i) SL_INLINED_LAMBDA { return a.part[i] op b.part[i]; });               \
    }
#define SL_COMPARISON(op)                                                                         \
    friend SL_INLINE Lanes<int32_t> operator op(const Lanes& a, const Lanes& b) {                 \
        return Lanes<int32_t>::of([&](int i) SL_INLINED_LAMBDA { return a.part[i] op b.part[i]; }); \
    }

// Numbers of 32 bits. Operators are those of the compiler's vectors: a comparison gives ones or zeros.
template <typename T>
class Lanes {
public:
    typedef T Part __attribute__((vector_size(REGISTER_BYTES)));
    static constexpr int WIDTH = REGISTER_BYTES / 4, PARTS = 16 / WIDTH;

    Part part[PARTS];

    Lanes() = default;
    SL_INLINE Lanes(T a) {
        *this = of([&](int) SL_INLINED_LAMBDA {
            if constexpr (WIDTH == 8)
                return Part{a, a, a, a, a, a, a, a};
            else
                return Part{a, a, a, a};
        });
    }

    // f(part) for each.
    template <typename F>
    static SL_INLINE Lanes of(const F& f) {
        Lanes r;
        r.part[0] = f(0);
        r.part[1] = f(1);
        if constexpr (PARTS == 4) {
            r.part[2] = f(2);
            r.part[3] = f(3);
        }
        return r;
    }

    SL_INLINE T operator[](int i) const {
        T held[16];  // a copy: what is read at a variable place has to lie in memory
        memcpy(held, part, sizeof held);
        return held[i];
    }

    SL_OPERATOR(+)
    SL_OPERATOR(-)
    SL_OPERATOR(*)
    SL_OPERATOR(/)
    SL_OPERATOR(&)
    SL_OPERATOR(|)
    SL_OPERATOR(^)
    SL_COMPARISON(<)
    SL_COMPARISON(<=)
    SL_COMPARISON(>)
    SL_COMPARISON(>=)
    SL_COMPARISON(==)
    SL_COMPARISON(!=)

    friend SL_INLINE Lanes operator-(const Lanes& a) {
        return of([&](int i) SL_INLINED_LAMBDA { return -a.part[i]; });
    }
    friend SL_INLINE Lanes operator~(const Lanes& a) {
        return of([&](int i) SL_INLINED_LAMBDA { return ~a.part[i]; });
    }
    friend SL_INLINE Lanes operator<<(const Lanes& a, int count) {
        return of([&](int i) SL_INLINED_LAMBDA { return a.part[i] << count; });
    }
    friend SL_INLINE Lanes operator>>(const Lanes& a, int count) {
        return of([&](int i) SL_INLINED_LAMBDA { return a.part[i] >> count; });
    }
    SL_INLINE Lanes& operator+=(const Lanes& a) { return *this = *this + a; }
    SL_INLINE Lanes& operator|=(const Lanes& a) { return *this = *this | a; }
};

#undef SL_OPERATOR
#undef SL_COMPARISON

typedef Lanes<float> f32x16;
typedef Lanes<int32_t> i32x16;
typedef Lanes<uint32_t> u32x16;

// The same bits as other numbers.
template <typename To, typename From>
SL_INLINE To cast(const From& a) {
    return To::of([&](int i) SL_INLINED_LAMBDA { return reinterpret_cast<typename To::Part>(a.part[i]); });
}
// The same numbers in another type.
template <typename To, typename From>
SL_INLINE To convert(const From& a) {
    return To::of(
        [&](int i) SL_INLINED_LAMBDA { return __builtin_convertvector(a.part[i], typename To::Part); });
}

SL_INLINE f32x16 splat(float a) { return a; }
SL_INLINE u32x16 splat(uint32_t a) { return a; }

SL_INLINE f32x16 select(const i32x16& mask, const f32x16& a, const f32x16& b) {
    return f32x16::of([&](int i) SL_INLINED_LAMBDA { return mask.part[i] ? a.part[i] : b.part[i]; });
}

// Sixteen numbers of memory, made 32 bits wide.
SL_INLINE u32x16 load_wide(const uint16_t* p) {
    return u32x16::of([&](int i) SL_INLINED_LAMBDA {
#if defined(__AVX2__)
        return u32x16::Part(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(p + 8 * i))));
#else
        typedef uint16_t Narrow __attribute__((vector_size(8)));
        Narrow narrow;
        memcpy(&narrow, p + 4 * i, sizeof narrow);
        return __builtin_convertvector(narrow, u32x16::Part);
#endif
    });
}
SL_INLINE i32x16 load_wide(const int8_t* p) {
    return i32x16::of([&](int i) SL_INLINED_LAMBDA {
#if defined(__AVX2__)
        return i32x16::Part(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8 * i))));
#else
        const int8_t* q = p + 4 * i;
        return i32x16::Part{q[0], q[1], q[2], q[3]};
#endif
    });
}
// Their lower bits to memory.
template <typename T>
SL_INLINE void store_narrow(T* p, const u32x16& a) {
    for (int i = 0; i < u32x16::PARTS; i++) {
        typedef T Narrow __attribute__((vector_size(sizeof(T) * u32x16::WIDTH)));
        const Narrow narrow = __builtin_convertvector(a.part[i], Narrow);
        memcpy(p + i * u32x16::WIDTH, &narrow, sizeof narrow);
    }
}

SL_INLINE f32x16 fma(const f32x16& a, const f32x16& b, const f32x16& c) {
    return f32x16::of([&](int i) SL_INLINED_LAMBDA {
#if defined(__AVX2__) && defined(__FMA__)
        return f32x16::Part(_mm256_fmadd_ps(__m256(a.part[i]), __m256(b.part[i]), __m256(c.part[i])));
#elif defined(__ARM_NEON) && defined(__ARM_FEATURE_FMA)
        return f32x16::Part(
            vfmaq_f32(float32x4_t(c.part[i]), float32x4_t(a.part[i]), float32x4_t(b.part[i])));
#else
        f32x16::Part r;
        for (int n = 0; n < f32x16::WIDTH; n++)
            r[n] = __builtin_fmaf(a.part[i][n], b.part[i][n], c.part[i][n]);
        return r;
#endif
    });
}

// The second one where one is NaN.
SL_INLINE f32x16 max(const f32x16& a, const f32x16& b) {
    return f32x16::of([&](int i) SL_INLINED_LAMBDA {
#if defined(__AVX2__)
        return f32x16::Part(_mm256_max_ps(__m256(a.part[i]), __m256(b.part[i])));
#else
        return a.part[i] > b.part[i] ? a.part[i] : b.part[i];
#endif
    });
}
SL_INLINE f32x16 min(const f32x16& a, const f32x16& b) {
    return f32x16::of([&](int i) SL_INLINED_LAMBDA {
#if defined(__AVX2__)
        return f32x16::Part(_mm256_min_ps(__m256(a.part[i]), __m256(b.part[i])));
#else
        return a.part[i] < b.part[i] ? a.part[i] : b.part[i];
#endif
    });
}

// Bit i is set where lane i of a comparison holds.
SL_INLINE uint32_t mask_of(const i32x16& a) {
    uint32_t mask = 0;
    for (int i = 0; i < i32x16::PARTS; i++) {
#if defined(__AVX2__)
        mask |= uint32_t(_mm256_movemask_ps(__m256(a.part[i]))) << (8 * i);
#elif defined(__SSE2__)
        mask |= uint32_t(_mm_movemask_ps(__m128(a.part[i]))) << (4 * i);
#else
        for (int n = 0; n < 4; n++) mask |= uint32_t(a.part[i][n] & 1) << (4 * i + n);
#endif
    }
    return mask;
}

template <typename V, typename T>
SL_INLINE V load_as(const T* p) {
    return V::of([&](int i) SL_INLINED_LAMBDA {
        typename V::Part part;
        memcpy(&part, p + i * V::WIDTH, sizeof part);
        return part;
    });
}
template <typename V, typename T>
SL_INLINE void store_as(T* p, const V& v) {
#pragma GCC unroll 4
    for (int i = 0; i < V::PARTS; i++) memcpy(p + i * V::WIDTH, &v.part[i], sizeof v.part[i]);
}

// The lanes of one register: halves and quarters are added, in the order of simd_whole.hpp's `reduce`.
typedef f32x16::Part Folded;

template <typename Op>
SL_INLINE Folded fold_by(const f32x16& a) {
#if defined(__AVX2__)
    return Op::of(a.part[0], a.part[1]);
#else
    return Op::of(Op::of(a.part[0], a.part[2]), Op::of(a.part[1], a.part[3]));
#endif
}
SL_INLINE Folded fold(const f32x16& a) { return fold_by<Plus>(a); }

template <typename Op>
SL_INLINE float reduce(const f32x16& a) {
    const Folded folded = fold_by<Op>(a);
#if defined(__AVX2__)
    const auto four = Op::of(__builtin_shufflevector(folded, folded, 0, 1, 2, 3),
                             __builtin_shufflevector(folded, folded, 4, 5, 6, 7));
#else
    const auto four = folded;
#endif
    const auto pairs = Op::of(four, __builtin_shufflevector(four, four, 2, 3, 0, 1));
    return Op::of(pairs[0], pairs[1]);
}

// Sums of as many vectors as a register has lanes.
SL_INLINE Folded sums_of_part(const Folded* p) {
#if defined(__AVX2__)
    Folded t[4], u[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        t[i] = __builtin_shufflevector(p[i], p[i + 4], 0, 1, 2, 3, 8, 9, 10, 11) +
               __builtin_shufflevector(p[i], p[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        u[i] = __builtin_shufflevector(t[i], t[i + 2], 0, 1, 8, 9, 4, 5, 12, 13) +
               __builtin_shufflevector(t[i], t[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(u[0], u[1], 0, 8, 2, 10, 4, 12, 6, 14) +
           __builtin_shufflevector(u[0], u[1], 1, 9, 3, 11, 5, 13, 7, 15);
#else
    Folded u[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        u[i] = __builtin_shufflevector(p[i], p[i + 2], 0, 1, 4, 5) +
               __builtin_shufflevector(p[i], p[i + 2], 2, 3, 6, 7);
    return __builtin_shufflevector(u[0], u[1], 0, 4, 2, 6) + __builtin_shufflevector(u[0], u[1], 1, 5, 3, 7);
#endif
}

// Sum over the lanes of each of sixteen vectors, as `sum` adds.
SL_INLINE f32x16 sums_of(const Folded* p) {
    return f32x16::of([&](int i) SL_INLINED_LAMBDA { return sums_of_part(p + i * f32x16::WIDTH); });
}

}  // namespace
}  // namespace slipstream
