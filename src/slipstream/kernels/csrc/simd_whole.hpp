// Sixteen lanes where a register holds them: vectors of the compiler.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace slipstream {
namespace {

constexpr bool HAS_WIDE_REGISTERS = true;

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));

SL_INLINE f32x16 splat(float a) { return f32x16(_mm512_set1_ps(a)); }
SL_INLINE u32x16 splat(uint32_t a) { return u32x16(_mm512_set1_epi32(int(a))); }

// The same bits as other numbers.
template <typename To, typename From>
SL_INLINE To cast(From a) {
    return reinterpret_cast<To>(a);
}
// The same numbers in another type.
template <typename To, typename From>
SL_INLINE To convert(From a) {
    return __builtin_convertvector(a, To);
}

SL_INLINE f32x16 select(i32x16 mask, f32x16 a, f32x16 b) { return mask ? a : b; }

// Sixteen numbers of memory, made 32 bits wide.
SL_INLINE u32x16 load_wide(const uint16_t* p) {
    return u32x16(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)));
}
SL_INLINE i32x16 load_wide(const int8_t* p) {
    return i32x16(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
// Their lower bits to memory.
SL_INLINE void store_narrow(int8_t* p, u32x16 a) {
    _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(__m512i(a)));
}
SL_INLINE void store_narrow(uint16_t* p, u32x16 a) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(__m512i(a)));
}

SL_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
    return f32x16(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
}

// The second one where one is NaN.
SL_INLINE f32x16 max(f32x16 a, f32x16 b) { return f32x16(_mm512_max_ps(__m512(a), __m512(b))); }
SL_INLINE f32x16 min(f32x16 a, f32x16 b) { return f32x16(_mm512_min_ps(__m512(a), __m512(b))); }

// Bit i is set where lane i of a comparison holds.
SL_INLINE uint32_t mask_of(i32x16 a) { return _mm512_movepi32_mask(__m512i(a)); }

template <typename V, typename T>
SL_INLINE V load_as(const T* p) {
    V v;
    memcpy(&v, p, 64);
    return v;
}
template <typename V, typename T>
SL_INLINE void store_as(T* p, V v) {
    memcpy(p, &v, 64);
}

template <int... I>
SL_INLINE f32x16 permute(f32x16 a) {
    return __builtin_shufflevector(a, a, I...);
}

// All lanes by halves, quarters, pairs. simd_parts.hpp has this order.
template <typename Op>
SL_INLINE float reduce(f32x16 a) {
    a = Op::of(a, permute<8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7>(a));
    a = Op::of(a, permute<4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11>(a));
    a = Op::of(a, permute<2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13>(a));
    return Op::of(a[0], a[1]);
}

// What is left of a vector to be added up by `sums_of`.
typedef f32x16 Folded;
SL_INLINE Folded fold(f32x16 a) { return a; }

// Sum over the lanes of each of sixteen vectors, as `sum` adds.
SL_INLINE f32x16 sums_of(const Folded* p) {
    f32x16 s[8], t[4], u[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        s[i] = __builtin_shufflevector(p[i], p[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21,
                                       22, 23) +
               __builtin_shufflevector(p[i], p[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27,
                                       28, 29, 30, 31);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        t[i] = __builtin_shufflevector(s[i], s[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25,
                                       26, 27) +
               __builtin_shufflevector(s[i], s[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28,
                                       29, 30, 31);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        u[i] = __builtin_shufflevector(t[i], t[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13,
                                       28, 29) +
               __builtin_shufflevector(t[i], t[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14,
                                       15, 30, 31);
    return __builtin_shufflevector(u[0], u[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14,
                                   30) +
           __builtin_shufflevector(u[0], u[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15,
                                   31);
}

}  // namespace
}  // namespace slipstream
