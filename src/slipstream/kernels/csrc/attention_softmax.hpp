// The softmax of attention in bf16: a lane is a column of scores. See attention_bf16.cpp.
#pragma once
#include <immintrin.h>

#include "attention.hpp"
#include "simd.hpp"
#include "transpose.hpp"

namespace slipstream {
namespace {

constexpr int LANES = 16;
constexpr int TILE = 1024;
constexpr int BLOCK_SCORES = KEY_BLOCK * LANES;

// Below it, powers of 2 are 0: an underflow would cost hundreds of cycles.
constexpr float LOWEST = -120.0f;

// 2^x for x <= 0, relative error below 5e-6; exactly 0 below LOWEST.
SL_INLINE __m512 power_of_two(__m512 x) {
    const __mmask16 is_positive = _mm512_cmp_ps_mask(x, _mm512_set1_ps(LOWEST), _CMP_NLT_UQ);
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(9.6181291e-3f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(is_positive, p, n);
}

// The same, relative error below 8e-5, for weights that bf16 rounds by 2e-3.
SL_INLINE __m512 weight_of(__m512 x) {
    const __mmask16 is_positive = _mm512_cmp_ps_mask(x, _mm512_set1_ps(LOWEST), _CMP_NLT_UQ);
    const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_set1_ps(7.802446e-2f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.2606725e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9583351e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.9992522e-1f));
    return _mm512_maskz_scalef_ps(is_positive, p, x);
}

// The greatest of a block's scores for each lane, after scaling those of codes and hiding positions
// that lanes do not see.
SL_INLINE __m512 greatest(float* scores, const float* scales, const __m512i* limits, int start) {
    const __m512 hidden = _mm512_set1_ps(-INFINITY);
    __m512 top[4] = {hidden, hidden, hidden, hidden};
    if (scales)
        for (int j = 0; j < KEY_BLOCK; j++)
            _mm512_store_ps(scores + 16 * j, _mm512_mul_ps(_mm512_load_ps(scores + 16 * j),
                                                           _mm512_set1_ps(scales[j])));
    if (limits)
        for (int j = 0; j < KEY_BLOCK; j++) {
            const __m512i at = _mm512_set1_epi32(start + j);
            const __mmask16 is_seen =
                _mm512_cmpge_epi32_mask(at, limits[0]) & _mm512_cmple_epi32_mask(at, limits[1]);
            _mm512_store_ps(scores + 16 * j,
                            _mm512_mask_blend_ps(is_seen, hidden, _mm512_load_ps(scores + 16 * j)));
        }
#pragma GCC unroll 32
    for (int j = 0; j < KEY_BLOCK; j++)
        top[j & 3] = _mm512_max_ps(top[j & 3], _mm512_load_ps(scores + 16 * j));
    return _mm512_max_ps(_mm512_max_ps(top[0], top[1]), _mm512_max_ps(top[2], top[3]));
}

// From a block's scores to weights in bf16; adds the rounded ones to `total`. Weights of codes enter
// with the scales of values, and `total` without: `inverses` follow after SECTION scales.
template <bool HAS_CODES>
SL_INLINE __m512 weigh(const float* scores, const float* scales, __m512 base, __m512 total,
                       uint8_t* weights) {
    const __m512i order = _mm512_setr_epi32(0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005,
                                            0x160006, 0x170007, 0x180008, 0x190009, 0x1a000a, 0x1b000b,
                                            0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f);
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    __m512i pairs[16];
#pragma GCC unroll 16
    for (int j = 0; j < 16; j++) {
        __m512 even = weight_of(_mm512_sub_ps(_mm512_load_ps(scores + 32 * j), base));
        __m512 odd = weight_of(_mm512_sub_ps(_mm512_load_ps(scores + 32 * j + 16), base));
        if constexpr (HAS_CODES) {
            even = _mm512_mul_ps(even, _mm512_set1_ps(scales[2 * j]));
            odd = _mm512_mul_ps(odd, _mm512_set1_ps(scales[2 * j + 1]));
        }
        pairs[j] = _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
        if constexpr (!HAS_CODES) {
            total = _mm512_dpbf16_ps(total, (__m512bh)pairs[j], ones);
            continue;
        }
        const float* inverses = scales + SECTION + 2 * j;
        const __m512 low = (__m512)_mm512_slli_epi32(pairs[j], 16);
        const __m512 high = (__m512)_mm512_and_si512(pairs[j], _mm512_set1_epi32(int(0xffff0000u)));
        total = _mm512_fmadd_ps(low, _mm512_set1_ps(inverses[0]), total);
        total = _mm512_fmadd_ps(high, _mm512_set1_ps(inverses[1]), total);
    }
    transpose(pairs);  // [key pairs][lanes] to [lanes][key pairs]
#pragma GCC unroll 16
    for (int lane = 0; lane < 16; lane++) _mm512_store_si512(weights + 64 * lane, pairs[lane]);
    return total;
}

}  // namespace
}  // namespace slipstream
