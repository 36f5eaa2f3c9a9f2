// Attention in bf16 by VDPBF16PS, for sections of any number of lanes: see attention_pairs.hpp.
#pragma once
#include "attention_few.hpp"

namespace slipstream {
namespace {

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

// Whether a section's keys and values are used where they lie.
SL_INLINE bool reads_rows(const Job& job) { return job.lanes <= FEW_LANES; }

// Lanes at once: those of rows share what it takes to bring them, the others have both chains of all their
// products in registers.
constexpr int MOST_OF_ROWS = 4, MOST_OF_ARRANGED = 2;

// 16 keys: [dim / 32][16 pairs][16 keys][2].
struct Keys {
    const uint8_t* at;
};
constexpr int SECTION_KEYS = SECTION / 16;  // of a section and a head

// Keys of positions [start, start + 16) of a head, brought to `packed`.
template <bool HAS_CODES, typename Pace>
Keys keys_of(const Job& job, int start, int head, uint8_t* packed, const Pace& pace) {
    const uint8_t* const* rows = job.keys_from(start);
    const int64_t offset = head * job.head_bytes;
    for (int d = 0; d < job.dim; d += 32) {
        __m512i r[16];
        arrange_keys<HAS_CODES>(rows, offset, d, r);
        for (int i = 0; i < 2; i++) pace();
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++) _mm512_store_si512(packed + size_t(d) * 32 + 64 * j, r[j]);
    }
    return {packed};
}

template <bool HAS_CODES, typename Pace>
SL_INLINE void fetch_values(const Job& job, int start, int head, uint8_t* to, const Pace& pace) {
    interleave_values<HAS_CODES>(job, start, head, to, pair_of, pace);
}

// scores[COUNT lanes][32 keys] of a block. Not inline: what it adds must stay where subnormals are flushed.
template <int COUNT>
__attribute__((noinline)) void score_lanes(const Keys* keys, const uint8_t* queries, int dim, float* scores) {
    const size_t stride = size_t(4) * dim;
    __m512 sums[COUNT][2];
    for (auto& lane : sums) lane[0] = lane[1] = _mm512_setzero_ps();
    for (size_t at = 0; at < size_t(dim) * 32; at += TILE, queries += 128) {
        __m512 links[2][COUNT][2][2];
        for (auto& chain : links)
            for (auto& lane : chain)
                for (auto& part : lane) part[0] = part[1] = _mm512_setzero_ps();
#pragma GCC unroll 8
        for (int i = 0; i < CHAIN; i++)
#pragma GCC unroll 2
            for (int chain = 0; chain < 2; chain++) {
                const int pair = CHAIN * chain + i;
                const __m512i x = _mm512_load_si512(keys[0].at + at + 64 * pair);
                const __m512i y = _mm512_load_si512(keys[1].at + at + 64 * pair);
#pragma GCC unroll 2
                for (int lane = 0; lane < COUNT; lane++)
#pragma GCC unroll 2
                    for (int part = 0; part < 2; part++) {
                        const __m512i q = splat_pair(queries + lane * stride + 64 * part + 4 * pair);
                        __m512(&link)[2] = links[chain][lane][part];
                        link[0] = dot(link[0], x, q);
                        link[1] = dot(link[1], y, q);
                    }
            }
#pragma GCC unroll 2
        for (int lane = 0; lane < COUNT; lane++)
#pragma GCC unroll 2
            for (int part = 0; part < 2; part++)
#pragma GCC unroll 2
                for (int half = 0; half < 2; half++)
                    sums[lane][half] =
                        _mm512_add_ps(sums[lane][half], _mm512_add_ps(links[0][lane][part][half],
                                                                      links[1][lane][part][half]));
    }
#pragma GCC unroll 2
    for (int lane = 0; lane < COUNT; lane++) {
        _mm512_store_ps(scores + 32 * lane, sums[lane][0]);
        _mm512_store_ps(scores + 32 * lane + 16, sums[lane][1]);
    }
}

// Scores of lane tile t for heads h and following of a unit; 0 for lanes that only fill it.
template <bool HAS_CODES, bool IS_STREAMED, typename Pace>
void score_section(const Job& job, const Unit& unit, int h, int t, Blocks blocks, const Keys* keys, bool,
                   const Pace& pace) {
    const FlushSubnormals flush;
    const int heads = job.heads_of(unit, h), lanes = job.lanes_of(t);
    alignas(64) float scores[16 * KEY_BLOCK];
    memset(scores, 0, sizeof scores);
    for (int b = blocks.begin; b < blocks.end; b++) {
        for (int next = 0; next < heads; next++) {
            const int shift = job.shift_of(next);
            const uint8_t* queries = job.queries_at(h + next, t) + size_t(shift) * 4 * job.dim;
            const int64_t offset = (unit.first_head + h + next) * job.head_bytes;
            pace();
            const auto queries_of = [&](int lane) { return queries + size_t(lane) * 4 * job.dim; };
            float* to = scores + shift * KEY_BLOCK;
            if (reads_rows(job))
                for_lanes<MOST_OF_ROWS>(lanes, [&](auto count, int lane) {
                    for (int half = 0; half < 2; half++)
                        score_rows<count(), HAS_CODES>(job.keys_from(b * KEY_BLOCK + 16 * half), offset,
                                                       queries_of(lane), job.dim,
                                                       to + lane * KEY_BLOCK + 16 * half, pace);
                });
            else
                for_lanes<MOST_OF_ARRANGED>(lanes, [&](auto count, int lane) {
                    score_lanes<count()>(keys + next * SECTION_KEYS + b % SECTION_BLOCKS * 2, queries_of(lane),
                                         job.dim, to + lane * KEY_BLOCK);
                });
        }
        if (t == 0) pace.read(job.stored_of(b), heads);
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

// Mix `count` blocks of values, 16 * PARTS dims of them, for COUNT lanes.
template <int COUNT, int PARTS>
__attribute__((noinline)) void mix_lanes(const uint8_t* weights, const uint8_t* values, int count, int dim,
                                         float* mixed) {
    __m512 sums[COUNT][PARTS];
    for (auto& lane : sums)
        for (__m512& sum : lane) sum = _mm512_setzero_ps();
    for (int b = 0; b < count; b++, weights += TILE, values += size_t(dim) * 64) {
        __m512 links[2][COUNT][PARTS];
        for (auto& chain : links)
            for (auto& lane : chain)
                for (__m512& link : lane) link = _mm512_setzero_ps();
#pragma GCC unroll 8
        for (int i = 0; i < CHAIN; i++)
#pragma GCC unroll 2
            for (int chain = 0; chain < 2; chain++) {
                const int pair = CHAIN * chain + i;
                __m512i v[PARTS];
#pragma GCC unroll 4
                for (int part = 0; part < PARTS; part++)
                    v[part] = _mm512_load_si512(values + part * TILE + 64 * pair);
#pragma GCC unroll 2
                for (int lane = 0; lane < COUNT; lane++) {
                    const __m512i w = splat_pair(weights + 64 * lane + 4 * pair);
#pragma GCC unroll 4
                    for (int part = 0; part < PARTS; part++)
                        links[chain][lane][part] = dot(links[chain][lane][part], v[part], w);
                }
            }
#pragma GCC unroll 2
        for (int lane = 0; lane < COUNT; lane++)
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++)
                sums[lane][part] =
                    _mm512_add_ps(sums[lane][part], _mm512_add_ps(links[0][lane][part], links[1][lane][part]));
    }
#pragma GCC unroll 2
    for (int lane = 0; lane < COUNT; lane++)
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++)
            _mm512_store_ps(mixed + lane * dim + 16 * part, sums[lane][part]);
}

// Mix a section's blocks of values of a head, also arranged at `values`, for its lanes in tile t. `next(b)` is
// called once for each block.
template <bool HAS_CODES, typename Next, typename Pace>
SL_INLINE void mix(const Job& job, Blocks blocks, int head, int t, uint8_t* weights, const uint8_t* values,
                   float* mixed, const Next& next, const Pace& pace) {
    const int count = blocks.end - blocks.begin, lanes = job.lanes_of(t);
    for (int b = 0; b < count; b++) {
        if (!reads_rows(job)) next(b);
        for (int lane = 0; lane < lanes; lane++) {
            uint8_t* at = weights + b * TILE + 64 * lane;
            _mm512_store_si512(at, paired(_mm512_load_si512(at)));
        }
    }
    const FlushSubnormals flush;
    const auto by_dims = [&](const auto& mix_dims) {
        int d = 0;
        for (; d + 64 <= job.dim; d += 64) mix_dims(std::integral_constant<int, 4>(), d);
        if (d < job.dim) mix_dims(std::integral_constant<int, 2>(), d);
    };
    if (reads_rows(job))
        for_lanes<MOST_OF_ROWS>(lanes, [&](auto of_lanes, int lane) {
            by_dims([&](auto parts, int d) {
                mix_rows<of_lanes(), parts(), HAS_CODES>(
                    weights + 64 * lane, job.values_from(blocks.begin * KEY_BLOCK), head * job.head_bytes, count,
                    d, job.dim, mixed + lane * job.dim + d,
                    [&](int b) {
                        if (lane == 0 && d == 0) next(b);
                    },
                    pace);
            });
        });
    else
        for_lanes<MOST_OF_ARRANGED>(lanes, [&](auto of_lanes, int lane) {
            by_dims([&](auto parts, int d) {
                mix_lanes<of_lanes(), parts()>(weights + 64 * lane, values + size_t(d / LANES) * TILE, count,
                                               job.dim, mixed + lane * job.dim + d);
            });
        });
}

struct Products {
    Products() {}
};

}  // namespace
}  // namespace slipstream
