// A few rows in vectors of sixteen outputs, which take each weight from memory once for all of them. For
// so few products, loading and storing AMX tiles would take longer than all arithmetic, and tiles ask the
// memory for less at a time. The order is that of linear_vector.cpp.
#pragma once
#include <immintrin.h>

#include "linear_parts.hpp"

namespace slipstream {
namespace {

// The rows in float32, [steps][rows][32], and the sums of each step's inputs, [steps][rows].
struct FewRows {
    const float* x;
    const float* sums;
    int num_steps;
};

// Sums of products of ROWS rows with the codes of one tile of each of NUM strips, by even and odd inputs.
template <int NUM, int ROWS>
struct Links {
    __m512 even[NUM][ROWS], odd[NUM][ROWS];

    SL_INLINE Links() {
        for (int s = 0; s < NUM; s++)
            for (int m = 0; m < ROWS; m++) even[s][m] = odd[s][m] = _mm512_setzero_ps();
    }
    SL_INLINE __m512 sum(int s, int m) const { return _mm512_add_ps(even[s][m], odd[s][m]); }
};

// Adds the products of one input of each row, of which the first row's is at `x`.
template <int ROWS>
SL_INLINE void link_input(__m512 weights, const float* x, __m512* links) {
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; m++)
        links[m] = _mm512_fmadd_ps(weights, _mm512_set1_ps(x[m * TILE_IN]), links[m]);
}

template <int NUM, int ROWS>
SL_INLINE void link_words(const uint8_t* tile, size_t strip_bytes, const float* x, Ahead& ahead,
                          Links<NUM, ROWS>& links) {
    const __m512i upper = _mm512_set1_epi32(int(0xffff0000u));
#pragma GCC unroll 16
    for (int pair = 0; pair < 16; pair++) {
        ahead.fetch(LINE);
#pragma GCC unroll 8
        for (int s = 0; s < NUM; s++) {
            const __m512i words = _mm512_loadu_si512(tile + s * strip_bytes + 64 * pair);
            link_input<ROWS>(__m512(_mm512_slli_epi32(words, 16)), x + 2 * pair, links.even[s]);
            link_input<ROWS>(__m512(_mm512_and_si512(words, upper)), x + 2 * pair + 1, links.odd[s]);
        }
    }
}

template <int NUM, int ROWS>
SL_INLINE void link_bytes(const uint8_t* codes, size_t strip_bytes, const float* x, Ahead& ahead,
                          Links<NUM, ROWS>& links) {
#pragma GCC unroll 16
    for (int pair = 0; pair < 16; pair++) {
        if (pair % 2 == 0) ahead.fetch(LINE);
#pragma GCC unroll 8
        for (int s = 0; s < NUM; s++) {
            const uint8_t* at = codes + s * strip_bytes + 32 * pair;
            const auto number = [&](int odd) {
                return _mm512_cvtepi32_ps(
                    _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(at + 16 * odd))));
            };
            link_input<ROWS>(number(0), x + 2 * pair, links.even[s]);
            link_input<ROWS>(number(1), x + 2 * pair + 1, links.odd[s]);
        }
    }
}

template <int NUM, int ROWS>
SL_INLINE void link_nibbles(const uint8_t* codes, size_t strip_bytes, __m512 numbers, const float* x,
                            Ahead& ahead, Links<NUM, ROWS>& links) {
    const auto number = [&](__m512i words) { return _mm512_permutexvar_ps(words, numbers); };
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++, x += 8) {
        ahead.fetch(LINE);
#pragma GCC unroll 8
        for (int s = 0; s < NUM; s++) {
            const uint8_t* at = codes + s * strip_bytes + 64 * i;
            const auto pairs = [&](int from, __m512* link, int first) {
#pragma GCC unroll 2
                for (int j = 0; j < 2; j++) {
                    // A load one byte on is a shift by eight bits; it may read three bytes too many.
                    const __m512i words = _mm512_loadu_si512(at + from + j);
                    link_input<ROWS>(number(words), x + first + 4 * j, link);
                    link_input<ROWS>(number(_mm512_srli_epi32(words, 4)), x + first + 4 * j + 2, link);
                }
            };
            pairs(0, links.even[s], 0);
            pairs(2, links.odd[s], 1);
        }
    }
}

// One step of NUM strips, whose tiles start at `tile`, to sums[NUM][ROWS].
template <int FORMAT, int NUM, int ROWS>
SL_INLINE void multiply_tiles(const uint8_t* tile, size_t strip_bytes, __m512 numbers, const FewRows& rows,
                              int k, Ahead& ahead, __m512* sums) {
    const float* x = rows.x + size_t(k) * ROWS * TILE_IN;
    Links<NUM, ROWS> links;
    if (FORMAT != BF16) ahead.fetch(header_bytes(FORMAT));
    if constexpr (FORMAT == BF16)
        link_words<NUM, ROWS>(tile, strip_bytes, x, ahead, links);
    else if constexpr (FORMAT == Q8_0)
        link_bytes<NUM, ROWS>(tile + header_bytes(FORMAT), strip_bytes, x, ahead, links);
    else
        link_nibbles<NUM, ROWS>(tile + header_bytes(FORMAT), strip_bytes, numbers, x, ahead, links);
#pragma GCC unroll 8
    for (int s = 0; s < NUM; s++, tile += strip_bytes) {
#pragma GCC unroll 8
        for (int m = 0; m < ROWS; m++, sums++) {
            *sums = FORMAT == BF16 ? _mm512_add_ps(*sums, links.sum(s, m))
                                   : _mm512_fmadd_ps(__m512(halves(tile)), links.sum(s, m), *sums);
            if constexpr (FORMAT == Q4_1)
                *sums = _mm512_fmadd_ps(__m512(halves(tile + 32)),
                                        _mm512_set1_ps(rows.sums[k * ROWS + m]), *sums);
        }
    }
}

// NUM strips side by side, to sums[NUM][ROWS].
template <int FORMAT, int NUM, int ROWS>
SL_INLINE void multiply_few(const uint8_t* strips, size_t strip_bytes, const FewRows& rows, Ahead ahead,
                            __m512* sums) {
    constexpr float FIRST = FORMAT == Q4_0 ? -8 : 0;
    const __m512 numbers = _mm512_add_ps(
        _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_ps(FIRST));
    // As many strips at once as have their links in registers.
    constexpr int GROUP = NUM < 8 / ROWS ? NUM : 8 / ROWS;
    Ahead nothing;
    for (int i = 0; i < NUM * ROWS; i++) sums[i] = _mm512_setzero_ps();
    for (int k = 0; k < rows.num_steps; k++, strips += tile_bytes(FORMAT)) {
#pragma GCC unroll 4
        for (int s = 0; s < NUM; s += GROUP)
            multiply_tiles<FORMAT, GROUP, ROWS>(strips + s * strip_bytes, strip_bytes, numbers, rows, k,
                                                s ? nothing : ahead, sums + s * ROWS);
    }
}

// The rows in float32, with zeros past their ends, and their sums, to `x` and `sums`.
inline void widen_rows(const Product& p, int num_steps, float* x, float* sums) {
    for (int k = 0; k < num_steps; k++) {
        for (int m = 0; m < p.num_rows; m++, x += TILE_IN, sums++) {
            const int left = p.matrix.num_in - k * TILE_IN;
            const __mmask32 mask = left >= TILE_IN ? ~__mmask32(0) : (__mmask32(1) << left) - 1;
            const __m512i words = _mm512_maskz_loadu_epi16(mask, p.x + m * p.x_stride + k * TILE_IN);
            const auto wide = [&](__m256i half) {
                return __m512(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
            };
            _mm512_store_ps(x, wide(_mm512_castsi512_si256(words)));
            _mm512_store_ps(x + 16, wide(_mm512_extracti64x4_epi64(words, 1)));
            if (p.matrix.format != Q4_1) continue;
            float even = 0.0f, odd = 0.0f;
            for (int i = 0; i < TILE_IN; i += 2) {
                even += x[i];
                odd += x[i + 1];
            }
            *sums = even + odd;
        }
    }
}

// `next`: what to bring near while the strips before a tile are multiplied.
template <int FORMAT, int ROWS, typename Next>
void run_few(const Product& p, Share outs, const Next& next) {
    const int num_steps = ceil_div(p.matrix.num_in, TILE_IN);
    const size_t bytes = strip_bytes(p.matrix);
    float* x = static_cast<float*>(scratch(1, sizeof(float) * num_steps * ROWS * (TILE_IN + 1)));
    float* row_sums = x + num_steps * ROWS * TILE_IN;
    widen_rows(p, num_steps, x, row_sums);
    const FewRows rows{x, row_sums, num_steps};
    by_strips(outs, [&](int tile, auto num) {
        constexpr int NUM = decltype(num)::value;
        __m512 sums[NUM * ROWS];
        multiply_few<FORMAT, NUM, ROWS>(p.matrix.tiles + tile * bytes, bytes, rows, next(tile + NUM), sums);
        for (int s = 0; s < NUM; s++)
            for (int m = 0; m < ROWS; m++) put(p, m, (tile + s) * TILE_OUT, sums[s * ROWS + m]);
    });
}

}  // namespace
}  // namespace slipstream
