// What the units of products share: reading scales, bringing memory near, storing sums.
#pragma once
#include "linear.hpp"
#include "simd.hpp"

namespace slipstream {
namespace {

constexpr int PREFETCH = 4096;  // bytes ahead in a stream of weights that are widened

inline void prefetch(const uint8_t* p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

// Sixteen half-precision numbers.
SL_INLINE f32x16 halves(const uint8_t* p) {
#if defined(__AVX512F__)
    return f32x16(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)));
#else
    uint16_t h[16];
    memcpy(h, p, 32);
    alignas(64) float v[16];
    for (int n = 0; n < 16; n++) v[n] = half_to_float(h[n]);
    return load(v);
#endif
}

// Store a row's sums of a tile of outputs, or add them to what is there; bias first.
#if defined(__AVX512F__)
SL_INLINE void put(const Product& p, int row, int first_out, f32x16 sums) {
    const int left = p.matrix.num_out - first_out;
    const __mmask16 mask = left >= 16 ? 0xffff : (1 << left) - 1;
    __m512 v = __m512(sums);
    if (p.matrix.bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, p.matrix.bias + first_out));
    const int64_t at = row * p.out_stride + first_out;
    if (p.store == TO_BF16) {
        uint16_t rounded[16];
        store(rounded, f32x16(v));
        _mm256_mask_storeu_epi16(static_cast<uint16_t*>(p.out) + at, mask,
                                 _mm256_loadu_si256((const __m256i*)rounded));
        return;
    }
    float* out = static_cast<float*>(p.out) + at;
    if (p.store == ADD_F32) v = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), v);
    _mm512_mask_storeu_ps(out, mask, v);
}
#else
inline void put(const Product& p, int row, int first_out, f32x16 sums) {
    alignas(64) float v[16];
    store(v, sums);
    const int left = p.matrix.num_out - first_out, count = left < 16 ? left : 16;
    if (p.matrix.bias)
        for (int n = 0; n < count; n++) v[n] += p.matrix.bias[first_out + n];
    const int64_t at = row * p.out_stride + first_out;
    if (p.store == TO_BF16) {
        uint16_t* out = static_cast<uint16_t*>(p.out) + at;
        for (int n = 0; n < count; n++) out[n] = round_bf16(v[n]);
    } else {
        float* out = static_cast<float*>(p.out) + at;
        for (int n = 0; n < count; n++) out[n] = p.store == ADD_F32 ? out[n] + v[n] : v[n];
    }
}
#endif

}  // namespace
}  // namespace slipstream
