// Few lanes of a key head, as of one row: keys and values go from where they are stored through registers into
// the products. With more lanes it is quicker to arrange them once in memory.
#pragma once
#include "attention_pairs.hpp"

namespace slipstream {
namespace {

constexpr int FEW_LANES = 6;  // five and six take the same keys twice

// scores[COUNT lanes][16 keys], a lane's KEY_BLOCK apart, of keys at `rows` and `offset` bytes behind. Not
// inline: what it adds must stay where subnormals are flushed.
template <int COUNT, bool HAS_CODES, typename Pace>
__attribute__((noinline)) void score_rows(const uint8_t* const* rows, int64_t offset, const uint8_t* queries,
                                          int dim, float* scores, const Pace& pace) {
    const size_t stride = size_t(4) * dim;
    __m512 sums[COUNT];
    for (__m512& sum : sums) sum = _mm512_setzero_ps();
    for (int d = 0; d < dim; d += 32, queries += 128) {
        __m512i keys[16];
        arrange_keys<HAS_CODES>(rows, offset, d, keys);
        pace();
        __m512 links[2][COUNT][2];
        for (auto& chain : links)
            for (auto& lane : chain) lane[0] = lane[1] = _mm512_setzero_ps();
#pragma GCC unroll 2
        for (int chain = 0; chain < 2; chain++)
#pragma GCC unroll 8
            for (int i = 0; i < CHAIN; i++)
#pragma GCC unroll 4
                for (int lane = 0; lane < COUNT; lane++)
#pragma GCC unroll 2
                    for (int part = 0; part < 2; part++) {
                        const uint8_t* at = queries + lane * stride + 64 * part + 4 * (CHAIN * chain + i);
                        __m512& link = links[chain][lane][part];
                        link = dot(link, keys[CHAIN * chain + i], splat_pair(at));
                    }
        pace();
#pragma GCC unroll 4
        for (int lane = 0; lane < COUNT; lane++)
#pragma GCC unroll 2
            for (int part = 0; part < 2; part++)
                sums[lane] = _mm512_add_ps(sums[lane],
                                           _mm512_add_ps(links[0][lane][part], links[1][lane][part]));
    }
#pragma GCC unroll 4
    for (int lane = 0; lane < COUNT; lane++) _mm512_store_ps(scores + KEY_BLOCK * lane, sums[lane]);
}

// Mix blocks of values at `rows`, 16 * PARTS dims of them from d on, for COUNT lanes. Calls `next(b)` for each.
template <int COUNT, int PARTS, bool HAS_CODES, typename Next, typename Pace>
__attribute__((noinline)) void mix_rows(const uint8_t* weights, const uint8_t* const* rows, int64_t offset,
                                        int count, int d, int dim, float* mixed, const Next& next,
                                        const Pace& pace) {
    __m512 sums[COUNT][PARTS];
    for (auto& lane : sums)
        for (__m512& sum : lane) sum = _mm512_setzero_ps();
    for (int b = 0; b < count; b++, weights += TILE, rows += KEY_BLOCK) {
        next(b);
        __m512 links[2][COUNT][PARTS];
#pragma GCC unroll 2
        for (int chain = 0; chain < 2; chain++) {
            for (auto& lane : links[chain])
                for (__m512& link : lane) link = _mm512_setzero_ps();
#pragma GCC unroll 8
            for (int i = 0; i < CHAIN; i++) {
                const int at = CHAIN * chain + i;
                __m512i v[PARTS];
#pragma GCC unroll 2
                for (int part = 0; part < PARTS; part += 2) {
                    const __m512i x = load_row<HAS_CODES>(rows[pair_of(at).low] + offset, d + 16 * part);
                    const __m512i y = load_row<HAS_CODES>(rows[pair_of(at).high] + offset, d + 16 * part);
                    v[part] = _mm512_unpacklo_epi16(x, y);
                    v[part + 1] = _mm512_unpackhi_epi16(x, y);
                }
#pragma GCC unroll 4
                for (int lane = 0; lane < COUNT; lane++) {
                    const __m512i w = splat_pair(weights + 64 * lane + 4 * at);
#pragma GCC unroll 4
                    for (int part = 0; part < PARTS; part++)
                        links[chain][lane][part] = dot(links[chain][lane][part], v[part], w);
                }
                if (i % 2) pace();
            }
        }
#pragma GCC unroll 4
        for (int lane = 0; lane < COUNT; lane++)
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++)
                sums[lane][part] = _mm512_add_ps(sums[lane][part],
                                                 _mm512_add_ps(links[0][lane][part], links[1][lane][part]));
    }
#pragma GCC unroll 4
    for (int lane = 0; lane < COUNT; lane++)
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++)
            _mm512_store_ps(mixed + lane * dim + 16 * part, sums[lane][part]);
}

}  // namespace
}  // namespace slipstream
