// One row in vectors of sixteen outputs. For so few products, loading and storing AMX tiles would take
// longer than all arithmetic, and tiles ask the memory for less at a time. The order is that of
// linear_vector.cpp.
#pragma once
#include <immintrin.h>

#include "linear_parts.hpp"

namespace slipstream {
namespace {

// The row in float32, [steps][32], and the sum of each step's inputs.
struct Row {
    const float* x;
    const float* sums;
    int num_steps;
};

// Sums of products with the codes of one tile of each strip, by even and odd inputs.
template <int NUM>
struct Links {
    __m512 even[NUM], odd[NUM];

    SL_INLINE Links() {
        for (int s = 0; s < NUM; s++) even[s] = odd[s] = _mm512_setzero_ps();
    }
};

template <int NUM>
SL_INLINE void link_words(const uint8_t* tile, size_t strip_bytes, const float* x, Ahead& ahead,
                          Links<NUM>& links) {
    const __m512i upper = _mm512_set1_epi32(int(0xffff0000u));
#pragma GCC unroll 16
    for (int pair = 0; pair < 16; pair++) {
        const __m512 x_even = _mm512_set1_ps(x[2 * pair]), x_odd = _mm512_set1_ps(x[2 * pair + 1]);
        ahead.fetch(LINE);
#pragma GCC unroll 8
        for (int s = 0; s < NUM; s++) {
            const __m512i words = _mm512_loadu_si512(tile + s * strip_bytes + 64 * pair);
            links.even[s] = _mm512_fmadd_ps(__m512(_mm512_slli_epi32(words, 16)), x_even, links.even[s]);
            links.odd[s] = _mm512_fmadd_ps(__m512(_mm512_and_si512(words, upper)), x_odd, links.odd[s]);
        }
    }
}

template <int NUM>
SL_INLINE void link_bytes(const uint8_t* codes, size_t strip_bytes, const float* x, Ahead& ahead,
                          Links<NUM>& links) {
#pragma GCC unroll 16
    for (int pair = 0; pair < 16; pair++) {
        if (pair % 2 == 0) ahead.fetch(LINE);
        const __m512 x_even = _mm512_set1_ps(x[2 * pair]), x_odd = _mm512_set1_ps(x[2 * pair + 1]);
#pragma GCC unroll 8
        for (int s = 0; s < NUM; s++) {
            const uint8_t* at = codes + s * strip_bytes + 32 * pair;
            const auto number = [&](int odd) {
                return _mm512_cvtepi32_ps(
                    _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(at + 16 * odd))));
            };
            links.even[s] = _mm512_fmadd_ps(number(0), x_even, links.even[s]);
            links.odd[s] = _mm512_fmadd_ps(number(1), x_odd, links.odd[s]);
        }
    }
}

template <int NUM>
SL_INLINE void link_nibbles(const uint8_t* codes, size_t strip_bytes, __m512 numbers, const float* x,
                            Ahead& ahead, Links<NUM>& links) {
    const auto number = [&](__m512i words) { return _mm512_permutexvar_ps(words, numbers); };
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++, x += 8) {
        ahead.fetch(LINE);
#pragma GCC unroll 8
        for (int s = 0; s < NUM; s++) {
            const uint8_t* at = codes + s * strip_bytes + 64 * i;
            const auto pairs = [&](int from, __m512& link, int first) {
#pragma GCC unroll 2
                for (int j = 0; j < 2; j++) {
                    // A load one byte on is a shift by eight bits; it may read three bytes too many.
                    const __m512i words = _mm512_loadu_si512(at + from + j);
                    link = _mm512_fmadd_ps(number(words), _mm512_set1_ps(x[first + 4 * j]), link);
                    link = _mm512_fmadd_ps(number(_mm512_srli_epi32(words, 4)),
                                           _mm512_set1_ps(x[first + 4 * j + 2]), link);
                }
            };
            pairs(0, links.even[s], 0);
            pairs(2, links.odd[s], 1);
        }
    }
}

template <int FORMAT, int NUM>
SL_INLINE void multiply_row(const uint8_t* strips, size_t strip_bytes, const Row& row, Ahead ahead,
                            __m512* sums) {
    constexpr size_t BYTES = tile_bytes(FORMAT);
    constexpr float FIRST = FORMAT == Q4_0 ? -8 : 0;
    const __m512 numbers = _mm512_add_ps(
        _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_ps(FIRST));
    for (int s = 0; s < NUM; s++) sums[s] = _mm512_setzero_ps();
    for (int k = 0; k < row.num_steps; k++) {
        const uint8_t* tile = strips + k * BYTES;
        if (FORMAT != BF16) ahead.fetch(header_bytes(FORMAT));
        Links<NUM> links;
        if constexpr (FORMAT == BF16)
            link_words<NUM>(tile, strip_bytes, row.x + k * TILE_IN, ahead, links);
        else if constexpr (FORMAT == Q8_0)
            link_bytes<NUM>(tile + header_bytes(FORMAT), strip_bytes, row.x + k * TILE_IN, ahead, links);
        else
            link_nibbles<NUM>(tile + header_bytes(FORMAT), strip_bytes, numbers, row.x + k * TILE_IN, ahead,
                              links);
#pragma GCC unroll 8
        for (int s = 0; s < NUM; s++) {
            const uint8_t* header = tile + s * strip_bytes;
            const __m512 link = _mm512_add_ps(links.even[s], links.odd[s]);
            sums[s] = FORMAT == BF16 ? _mm512_add_ps(sums[s], link)
                                     : _mm512_fmadd_ps(__m512(halves(header)), link, sums[s]);
            if constexpr (FORMAT == Q4_1)
                sums[s] = _mm512_fmadd_ps(__m512(halves(header + 32)), _mm512_set1_ps(row.sums[k]), sums[s]);
        }
    }
}

// The row in float32, with zeros past its end, and its sums, to `x` and `sums`.
inline void widen_row(const Product& p, int num_steps, float* x, float* sums) {
    for (int k = 0; k < num_steps * TILE_IN; k += 16) {
        const int left = p.matrix.num_in - k;
        const __mmask16 mask = left >= 16 ? 0xffff : left <= 0 ? 0 : (1 << left) - 1;
        const __m512i words = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p.x + k));
        _mm512_store_ps(x + k, __m512(_mm512_slli_epi32(words, 16)));
    }
    if (p.matrix.format != Q4_1) return;
    for (int k = 0; k < num_steps; k++) {
        float even = 0.0f, odd = 0.0f;
        for (int i = 0; i < TILE_IN; i += 2) {
            even += x[k * TILE_IN + i];
            odd += x[k * TILE_IN + i + 1];
        }
        sums[k] = even + odd;
    }
}

// `next`: what to bring near while the strips before a tile are multiplied.
template <int FORMAT, typename Next>
void run_row(const Product& p, Share outs, const Next& next) {
    const int num_steps = ceil_div(p.matrix.num_in, TILE_IN);
    const size_t bytes = strip_bytes(p.matrix);
    float* x = static_cast<float*>(scratch(1, sizeof(float) * num_steps * (TILE_IN + 1)));
    float* row_sums = x + num_steps * TILE_IN;
    widen_row(p, num_steps, x, row_sums);
    const Row row{x, row_sums, num_steps};
    by_strips(outs, [&](int tile, auto num) {
        constexpr int NUM = decltype(num)::value;
        __m512 sums[NUM];
        multiply_row<FORMAT, NUM>(p.matrix.tiles + tile * bytes, bytes, row, next(tile + NUM), sums);
        for (int s = 0; s < NUM; s++) put(p, 0, (tile + s) * TILE_OUT, sums[s]);
    });
}

}  // namespace
}  // namespace slipstream
