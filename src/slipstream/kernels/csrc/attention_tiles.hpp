// The products of attention_bf16.cpp on AMX tiles.
#pragma once
#include "amx.hpp"
#include "attention_job.hpp"

namespace slipstream {
namespace {

// Queries of a key head, scaled, as high and low parts, from column `shift` of a tile on. `pace` is called
// between pieces of work.
template <typename Pace>
void pack_queries(const Job& job, int kv_head, int shift, uint8_t* packed, const Pace& pace) {
    const __m512 scale = query_scale(job);
    for (int t = 0; t < job.lane_tiles; t++)
        for (int d = 0; d < job.dim; d += 32, packed += 2 * TILE) {
            __m512i high[16], low[16];
            int row = 16 * t / job.group, head = 16 * t % job.group;
            for (int i = 0; i < 16; i++) {
                high[i] = low[i] = _mm512_setzero_si512();
                if (i < shift || 16 * t + i - shift >= job.lanes) continue;
                const float* query = job.a.queries + job.rows[row] * job.a.q_stride +
                                     int64_t(kv_head * job.group + head) * job.dim + d;
                if (++head == job.group) head = 0, row++;
                split_query(query, scale, high[i], low[i]);
            }
            pace();
            transpose(high);
            transpose(low);
            for (int i = 0; i < 16; i++) {
                _mm512_store_si512(packed + 64 * i, high[i]);
                _mm512_store_si512(packed + TILE + 64 * i, low[i]);
            }
        }
}

// Where 16 keys lie, `stride` bytes apart.
struct Keys {
    const uint8_t* at;
    size_t stride;
};
constexpr int SECTION_KEYS = SECTION / 16;  // of a section and a head

// Keys of positions [start, start + 16) of a head; copied where slots do not follow each other. Past the newest
// position it comes again: no lane sees that.
template <bool HAS_CODES, typename Pace>
Keys keys_of(const Job& job, int start, int head, uint8_t* copy, const Pace& pace) {
    const uint8_t* const* rows = job.keys_from(start);
    const int64_t offset = head * job.head_bytes;
    bool is_run = start + 16 <= job.newest + 1 && !HAS_CODES;
    for (int j = 1; is_run && j < 16; j++) is_run = rows[j] == rows[0] + j * job.slot_bytes;
    const size_t width = size_t(job.dim) * 2;
    if (is_run) return {rows[0] + offset, size_t(job.slot_bytes)};
    for (int j = 0; j < 16; j++) {
        if (j % 2) pace();
        for (int d = 0; d < job.dim; d += 32)
            _mm512_storeu_si512(copy + j * width + 2 * d, load_row<HAS_CODES>(rows[j] + offset, d));
    }
    return {copy, width};
}

template <bool HAS_CODES, typename Pace>
SL_INLINE void fetch_values(const Job& job, int start, int head, uint8_t* to, const Pace& pace) {
    const auto pair_of = [](int i) -> Pair { return {2 * i, 2 * i + 1}; };
    interleave_values<HAS_CODES>(job, start, head, to, pair_of, pace);
}

// Bring a block's keys from the second-level cache to the first: loads of tiles wait for each line.
SL_INLINE void bring_near(const Job& job, const Keys* keys) {
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 16; j++)
            for (int d = 0; d < job.dim; d += 32)
                _mm_prefetch(reinterpret_cast<const char*>(keys[i].at + j * keys[i].stride + 2 * d), _MM_HINT_T0);
}

// scores[32 keys][16 lanes] of BLOCKS blocks and a lane tile: two blocks' four chains of sums keep the tile
// unit busy. Heads that share a tile have zeros in each other's columns, and adding their products changes
// nothing. `keys`: from the first block on, a head's SECTION_KEYS after those of the one before; `queries`:
// one head's after the other. `pace` is called between loads.
template <int BLOCKS, typename Pace>
SL_INLINE void score(const Job& job, const Keys* keys, int num_heads, const uint8_t* queries, float* scores,
                     const Pace& pace) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (BLOCKS == 2) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int h = 0; h < num_heads; h++, keys += SECTION_KEYS)
        for (int d = 0; d < job.dim; d += 32, queries += 2 * TILE) {
            _tile_loadd(6, queries, 64);
            _tile_loadd(4, keys[0].at + 2 * d, keys[0].stride);
            _tile_dpbf16ps(0, 4, 6);
            pace();
            _tile_loadd(5, keys[1].at + 2 * d, keys[1].stride);
            _tile_dpbf16ps(1, 5, 6);
            pace();
            _tile_loadd(7, queries + TILE, 64);
            _tile_dpbf16ps(0, 4, 7);
            _tile_dpbf16ps(1, 5, 7);
            if constexpr (BLOCKS == 2) {
                _tile_loadd(4, keys[2].at + 2 * d, keys[2].stride);
                _tile_dpbf16ps(2, 4, 6);
                pace();
                _tile_loadd(5, keys[3].at + 2 * d, keys[3].stride);
                _tile_dpbf16ps(3, 5, 6);
                pace();
                _tile_dpbf16ps(2, 4, 7);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
    _tile_stored(0, scores, 64);
    _tile_stored(1, scores + BLOCK_SCORES / 2, 64);
    if constexpr (BLOCKS == 2) {
        _tile_stored(2, scores + BLOCK_SCORES, 64);
        _tile_stored(3, scores + BLOCK_SCORES * 3 / 2, 64);
    }
}

// Scores of lane tile t for heads h and following of a unit. `is_far`: keys are in no first-level cache.
// Two blocks at once are quicker for few tiles, and slower for many, whose keys are near.
template <bool, bool IS_STREAMED, typename Pace>
void score_section(const Job& job, const Unit& unit, int h, int t, Blocks blocks, const Keys* keys,
                   bool is_far, const Pace& pace) {
    const int heads = job.heads_of(unit, h);
    for (int b = blocks.begin, count; b < blocks.end; b += count) {
        const Keys* of_block = keys + b % SECTION_BLOCKS * 2;
        count = IS_STREAMED && b + 1 < blocks.end ? 2 : 1;
        if (is_far)
            for (int i = 2; i < 4 && b + i < blocks.end; i++) bring_near(job, of_block + 2 * i);
        if (count == 2)
            score<2>(job, of_block, heads, job.queries_at(h, t), job.scores_at(b), pace);
        else
            score<1>(job, of_block, heads, job.queries_at(h, t), job.scores_at(b), pace);
        for (int i = 0; i < count && t == 0; i++) pace.read(job.stored_of(b + i), heads);
    }
}

// Tiles are loaded from keys and values as they were arranged.
SL_INLINE bool reads_rows(const Job&) { return false; }

// Mix a section's blocks of values, arranged at `values`, for 16 lanes or as many as there are. `next(b)` is
// called once for each, in between.
template <bool, typename Next, typename Pace>
SL_INLINE void mix(const Job& job, Blocks blocks, int, int, uint8_t* weights, const uint8_t* values, float* mixed,
                   const Next& next, const Pace&) {
    const int count = blocks.end - blocks.begin, dim = job.dim;
    const size_t block = size_t(dim) * 64;
    const int stride = 4 * dim;
    for (int d = 0; d < dim; d += 64) {
        const bool has_more = d + 32 < dim;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int b = 0; b < count; b++) {
            const uint8_t* v = values + b * block + size_t(d / LANES) * TILE;
            _tile_loadd(4, weights + b * TILE, 64);
            _tile_loadd(6, v, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, v + TILE, 64);
            _tile_dpbf16ps(1, 4, 7);
            if (d == 0) next(b);
            if (!has_more) continue;
            _tile_loadd(6, v + 2 * TILE, 64);
            _tile_dpbf16ps(2, 4, 6);
            _tile_loadd(7, v + 3 * TILE, 64);
            _tile_dpbf16ps(3, 4, 7);
        }
        _tile_stored(0, mixed + d, stride);
        _tile_stored(1, mixed + d + 16, stride);
        if (!has_more) continue;
        _tile_stored(2, mixed + d + 32, stride);
        _tile_stored(3, mixed + d + 48, stride);
    }
}

// While it lives, this thread may multiply.
struct Products {
    Products() { configure_tiles(16); }
    ~Products() { _tile_release(); }
};

}  // namespace
}  // namespace slipstream
