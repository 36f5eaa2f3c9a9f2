// The products of attention_bf16.cpp in vectors, with the bits of those on AMX tiles. VDPBF16PS adds two
// products to a sum, that of the upper halves first, each with one rounding. So two chains of it over 32
// numbers x, with x0 above x2, x4 above x6 and so on, and with x1 above x3 and so on, are the even and the
// odd products in order as TDPBF16PS adds them: see docs/decisions/0005-one-order-of-addition.md.
#pragma once
#include <type_traits>

#include "attention_job.hpp"

namespace slipstream {
namespace {

constexpr int CHAIN = 8;  // pairs of even numbers; as many of odd ones follow

constexpr Pair pair_of(int i) {
    return {i % CHAIN * 4 + i / CHAIN + 2, i % CHAIN * 4 + i / CHAIN};
}

// 32 numbers in bf16, in pairs.
SL_INLINE __m512i paired(__m512i numbers) {
    alignas(64) static constexpr struct Order {
        uint16_t at[32];
        constexpr Order() : at() {
            for (int i = 0; i < 16; i++) {
                at[2 * i] = uint16_t(pair_of(i).low);
                at[2 * i + 1] = uint16_t(pair_of(i).high);
            }
        }
    } order;
    return _mm512_permutexvar_epi16(_mm512_load_si512(order.at), numbers);
}

// Queries of a key head, scaled, from lane `shift` of a tile on: [lanes][dim / 32][high, low][16 pairs].
template <typename Pace>
void pack_queries(const Job& job, int kv_head, int shift, uint8_t* packed, const Pace& pace) {
    const __m512 scale = query_scale(job);
    packed += size_t(shift) * 4 * job.dim;
    for (int lane = 0; lane < job.lanes; lane++) {
        const float* query = job.a.queries + job.rows[lane / job.group] * job.a.q_stride +
                             int64_t(kv_head * job.group + lane % job.group) * job.dim;
        for (int d = 0; d < job.dim; d += 32, packed += 128) {
            __m512i high, low;
            split_query(query + d, scale, high, low);
            _mm512_store_si512(packed, paired(high));
            _mm512_store_si512(packed + 64, paired(low));
            if (lane % 16 == 0) pace();
        }
    }
}

// 16 keys: [dim / 32][16 pairs][16 keys][2].
struct Keys {
    const uint8_t* at;
};
constexpr int SECTION_KEYS = SECTION / 16;  // of a section and a head

// Keys of positions [start, start + 16) of a head, brought to `packed`. Past the newest position it comes
// again: no lane sees that.
template <bool HAS_CODES, typename Pace>
Keys keys_of(const Job& job, int start, int head, uint8_t* packed, const Pace& pace) {
    const uint8_t* rows[16];
    for (int j = 0; j < 16; j++) {
        const int position = start + j <= job.newest ? start + j : job.newest;
        rows[j] = job.row(job.a.keys, job.slots[position], head);
        if (j % 4 == 3) pace();
    }
    for (int d = 0; d < job.dim; d += 32) {
        __m512i r[16];
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++) r[j] = paired(load_row<HAS_CODES>(rows[j], d));
        transpose(r);
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++) _mm512_store_si512(packed + size_t(d) * 32 + 64 * j, r[j]);
    }
    return {packed};
}

template <bool HAS_CODES, typename Pace>
SL_INLINE void fetch_values(const Job& job, int start, int head, uint8_t* to, const Pace& pace) {
    interleave_values<HAS_CODES>(job, start, head, to, pair_of, pace);
}

SL_INLINE __m512i splat_pair(const uint8_t* at) {
    int32_t pair;
    memcpy(&pair, at, 4);
    return _mm512_set1_epi32(pair);
}

SL_INLINE __m512 dot(__m512 sum, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

// One chain for each of COUNT lanes, the high and low part of their queries, and two times 16 keys.
template <int COUNT>
SL_INLINE void score_chains(const Keys* keys, size_t at, const uint8_t* queries, size_t stride,
                            __m512 (&sums)[COUNT][2][2]) {
#pragma GCC unroll 4
    for (int lane = 0; lane < COUNT; lane++)
        for (int part = 0; part < 2; part++)
            sums[lane][part][0] = sums[lane][part][1] = _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int i = 0; i < CHAIN; i++) {
        const __m512i x = _mm512_load_si512(keys[0].at + at * 64 + 64 * i);
        const __m512i y = _mm512_load_si512(keys[1].at + at * 64 + 64 * i);
#pragma GCC unroll 4
        for (int lane = 0; lane < COUNT; lane++)
#pragma GCC unroll 2
            for (int part = 0; part < 2; part++) {
                const __m512i q = splat_pair(queries + lane * stride + 64 * part + 4 * i);
                sums[lane][part][0] = dot(sums[lane][part][0], x, q);
                sums[lane][part][1] = dot(sums[lane][part][1], y, q);
            }
    }
}

// scores[COUNT lanes][32 keys] of a block. Not inline: what it adds must stay where subnormals are flushed.
template <int COUNT>
__attribute__((noinline)) void score_lanes(const Keys* keys, const uint8_t* queries, int dim, float* scores) {
    const size_t stride = size_t(4) * dim;
    __m512 sums[COUNT][2];
    for (int lane = 0; lane < COUNT; lane++) sums[lane][0] = sums[lane][1] = _mm512_setzero_ps();
    for (int d = 0; d < dim; d += 32, queries += 128) {
        __m512 even[COUNT][2][2], odd[COUNT][2][2];
        score_chains<COUNT>(keys, size_t(d) / 2, queries, stride, even);
        score_chains<COUNT>(keys, size_t(d) / 2 + CHAIN, queries + 4 * CHAIN, stride, odd);
#pragma GCC unroll 4
        for (int lane = 0; lane < COUNT; lane++)
#pragma GCC unroll 2
            for (int part = 0; part < 2; part++)
#pragma GCC unroll 2
                for (int half = 0; half < 2; half++)
                    sums[lane][half] = _mm512_add_ps(
                        sums[lane][half], _mm512_add_ps(even[lane][part][half], odd[lane][part][half]));
    }
#pragma GCC unroll 4
    for (int lane = 0; lane < COUNT; lane++) {
        _mm512_store_ps(scores + 32 * lane, sums[lane][0]);
        _mm512_store_ps(scores + 32 * lane + 16, sums[lane][1]);
    }
}

// Calls run(number of lanes as a type, first lane) until all `lanes` had their turn.
template <typename Run>
SL_INLINE void for_lanes(int lanes, const Run& run) {
    int lane = 0;
    for (; lane + 4 <= lanes; lane += 4) run(std::integral_constant<int, 4>(), lane);
    if (lanes - lane == 3) run(std::integral_constant<int, 3>(), lane);
    if (lanes - lane == 2) run(std::integral_constant<int, 2>(), lane);
    if (lanes - lane == 1) run(std::integral_constant<int, 1>(), lane);
}

// Scores of lane tile t for heads h and following of a unit; 0 for lanes that only fill it.
template <bool IS_STREAMED, typename Pace>
void score_section(const Job& job, const Unit& unit, int h, int t, Blocks blocks, const Keys* keys, bool,
                   const Pace& pace) {
    const FlushSubnormals flush;
    const int heads = job.heads_of(unit, h), lanes = job.lanes_of(t);
    alignas(64) float scores[16 * KEY_BLOCK];
    memset(scores, 0, sizeof scores);
    for (int b = blocks.begin; b < blocks.end; b++) {
        for (int next = 0; next < heads; next++) {
            const int shift = job.shift_of(next);
            const Keys* of_block = keys + next * SECTION_KEYS + b % SECTION_BLOCKS * 2;
            const uint8_t* queries = job.queries_at(h + next, t) + size_t(shift) * 4 * job.dim;
            pace();
            for_lanes(lanes, [&](auto count, int lane) {
                score_lanes<count()>(of_block, queries + size_t(lane) * 4 * job.dim, job.dim,
                                     scores + (shift + lane) * KEY_BLOCK);
            });
        }
        for (int half = 0; half < 2; half++) {
            __m512i r[16];
#pragma GCC unroll 16
            for (int lane = 0; lane < 16; lane++)
                r[lane] = _mm512_load_si512(scores + lane * KEY_BLOCK + 16 * half);
            transpose(r);
#pragma GCC unroll 16
            for (int j = 0; j < 16; j++)
                _mm512_store_si512(job.scores_at(b) + 16 * (16 * half + j), r[j]);
        }
    }
}

// One chain for each of COUNT lanes and PARTS times 16 dims.
template <int COUNT, int PARTS>
SL_INLINE void mix_chains(const uint8_t* weights, const uint8_t* values, __m512 (&sums)[COUNT][PARTS]) {
#pragma GCC unroll 4
    for (int lane = 0; lane < COUNT; lane++)
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++) sums[lane][part] = _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int i = 0; i < CHAIN; i++) {
        __m512i v[PARTS];
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++)
            v[part] = _mm512_load_si512(values + part * TILE + 64 * i);
#pragma GCC unroll 4
        for (int lane = 0; lane < COUNT; lane++) {
            const __m512i w = splat_pair(weights + 64 * lane + 4 * i);
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++) sums[lane][part] = dot(sums[lane][part], v[part], w);
        }
    }
}

// Mix `count` blocks of values, 16 * PARTS dims of them, for COUNT lanes.
template <int COUNT, int PARTS>
__attribute__((noinline)) void mix_lanes(const uint8_t* weights, const uint8_t* values, int count, int dim,
                                         float* mixed) {
    __m512 sums[COUNT][PARTS];
#pragma GCC unroll 4
    for (int lane = 0; lane < COUNT; lane++)
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++) sums[lane][part] = _mm512_setzero_ps();
    for (int b = 0; b < count; b++, weights += TILE, values += size_t(dim) * 64) {
        __m512 even[COUNT][PARTS], odd[COUNT][PARTS];
        mix_chains<COUNT, PARTS>(weights, values, even);
        mix_chains<COUNT, PARTS>(weights + 4 * CHAIN, values + 64 * CHAIN, odd);
#pragma GCC unroll 4
        for (int lane = 0; lane < COUNT; lane++)
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++)
                sums[lane][part] = _mm512_add_ps(sums[lane][part],
                                                 _mm512_add_ps(even[lane][part], odd[lane][part]));
    }
#pragma GCC unroll 4
    for (int lane = 0; lane < COUNT; lane++)
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++)
            _mm512_store_ps(mixed + lane * dim + 16 * part, sums[lane][part]);
}

// Mix `count` blocks of values for as many lanes as there are. `next(b)` is called once for each block.
template <typename Next>
SL_INLINE void mix(uint8_t* weights, const uint8_t* values, int count, int lanes, int dim, float* mixed,
                   const Next& next) {
    for (int b = 0; b < count; b++) {
        next(b);
        for (int lane = 0; lane < lanes; lane++) {
            uint8_t* at = weights + b * TILE + 64 * lane;
            _mm512_store_si512(at, paired(_mm512_load_si512(at)));
        }
    }
    const FlushSubnormals flush;
    for_lanes(lanes, [&](auto lanes_at_once, int lane) {
        constexpr int COUNT = lanes_at_once();
        int d = 0;
        for (; d + 64 <= dim; d += 64)
            mix_lanes<COUNT, 4>(weights + 64 * lane, values + size_t(d / LANES) * TILE, count, dim,
                                mixed + lane * dim + d);
        if (d < dim)
            mix_lanes<COUNT, 2>(weights + 64 * lane, values + size_t(d / LANES) * TILE, count, dim,
                                mixed + lane * dim + d);
    });
}

struct Products {
    Products() {}
};

}  // namespace
}  // namespace slipstream
