// Sixteen float lanes, the same arithmetic whatever the registers: results do not depend on the
// instruction set, because every operation is a correctly rounded one on each lane.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__SSE__)
#include <immintrin.h>
#endif

#include "kernels.hpp"

// Entry points carry the name of the build that they are compiled in: multiply_avx512.
#define SL_JOIN_(a, b) a##_##b
#define SL_JOIN(a, b) SL_JOIN_(a, b)
#define SL_NAME(name) SL_JOIN(name, SL_VARIANT)

#define SL_INLINE inline __attribute__((always_inline))

namespace slipstream {
namespace {

// Of two numbers or vectors.
struct Plus {
    template <typename V>
    static SL_INLINE V of(V a, V b) { return a + b; }
};
struct Greater {  // the second one where one is NaN
    template <typename V>
    static SL_INLINE V of(V a, V b) { return a > b ? a : b; }
};

}  // namespace
}  // namespace slipstream

#if defined(__AVX512F__)
#include "simd_whole.hpp"
#else
#include "simd_parts.hpp"
#endif

namespace slipstream {
namespace {

SL_INLINE u32x16 bits_of(const f32x16& a) { return cast<u32x16>(a); }
SL_INLINE f32x16 of_bits(const u32x16& a) { return cast<f32x16>(a); }
SL_INLINE f32x16 to_float(const i32x16& a) { return convert<f32x16>(a); }
SL_INLINE f32x16 to_float(const u32x16& a) { return convert<f32x16>(a); }

SL_INLINE float sum(const f32x16& a) { return reduce<Plus>(a); }
SL_INLINE float max(const f32x16& a) { return reduce<Greater>(a); }

// 0 to 15.
SL_INLINE i32x16 lane_numbers() {
    alignas(64) static constexpr int32_t NUMBERS[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return load_as<i32x16>(NUMBERS);
}

SL_INLINE f32x16 load(const float* p) { return load_as<f32x16>(p); }
SL_INLINE u32x16 load(const uint32_t* p) { return load_as<u32x16>(p); }
SL_INLINE f32x16 load(const uint16_t* p) { return of_bits(load_wide(p) << 16); }
SL_INLINE f32x16 load(const int8_t* p) { return to_float(load_wide(p)); }

SL_INLINE void store(float* p, const f32x16& v) { store_as(p, v); }
SL_INLINE void store(uint32_t* p, const u32x16& v) { store_as(p, v); }
// Whole numbers of -127 to 127.
SL_INLINE void store(int8_t* p, const f32x16& v) { store_narrow(p, cast<u32x16>(convert<i32x16>(v))); }

// Round to nearest even; a NaN stays one.
SL_INLINE void store(uint16_t* p, const f32x16& v) {
    const u32x16 u = bits_of(v);
    const u32x16 rounded = u + 0x7fff + ((u >> 16) & 1);
#if defined(__AVX512F__)
    const __mmask16 is_nan = _mm512_cmp_ps_mask(__m512(v), __m512(v), _CMP_UNORD_Q);
    const __m512i words =
        _mm512_mask_or_epi32(__m512i(rounded), is_nan, __m512i(u), _mm512_set1_epi32(0x00400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(words, 16)));
#else
    const f32x16 quiet = of_bits(u | 0x00400000);
    store_narrow(p, bits_of(select(v == v, of_bits(rounded), quiet)) >> 16);
#endif
}

// At most sixteen numbers; zeros stand for the others.
SL_INLINE f32x16 load_some(const float* p, int count) {
    if (count >= 16) return load(p);
    alignas(64) float v[16] = {};
    memcpy(v, p, sizeof(float) * count);
    return load(v);
}

template <typename T>
SL_INLINE void store_some(T* p, f32x16 v, int count) {
    if (count >= 16) return store(p, v);
    alignas(64) T held[16];
    store(held, v);
    memcpy(p, held, sizeof(T) * count);
}

// exp, relative error below 2e-7; exactly 0 below -87, and of -inf. NaN stays NaN.
SL_INLINE f32x16 exp(f32x16 x) {
    const f32x16 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const f32x16 clamped = min(splat(88.0f), max(splat(-87.0f), x));
    f32x16 shifted = fma(clamped, splat(1.44269504f), magic);
    f32x16 n = shifted - magic;
    f32x16 r = fma(n, splat(-0.693359375f), clamped);
    r = fma(n, splat(2.12194440e-4f), r);
    f32x16 p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r) + 1.0f;
    f32x16 scaled = of_bits(bits_of(p) + (bits_of(shifted) << 23));
    return select(x < -87.0f, splat(0.0f), scaled);
}

// While it lives, this thread takes and gives zeros for subnormal numbers, as AMX does.
#if defined(__SSE__)
struct FlushSubnormals {
    unsigned saved = _mm_getcsr();
    FlushSubnormals() { _mm_setcsr(saved | 0x8040); }
    ~FlushSubnormals() { _mm_setcsr(saved); }
};
#else
struct FlushSubnormals {
    FlushSubnormals() {}
};
#endif

}  // namespace
}  // namespace slipstream
