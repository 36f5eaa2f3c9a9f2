// The parts of attention on AMX tiles: see attention_amx.cpp.
#pragma once
#include "attention_softmax.hpp"

namespace slipstream {
namespace {

// What 16 lanes have mixed so far or in one section; as in Units::partials.
struct Mix {
    float* max;     // [16] of the scores, for powers of 2; -inf: nothing was seen
    float* total;   // [16] of the weights
    float* values;  // [16][dim], the dims of every 32 as unpacking leaves them (see put_lane)
};

// Values come last: those of heads that share a tile are written past its end (see mix_section).
SL_INLINE Mix mix_at(float* memory) { return {memory, memory + 16, memory + 32}; }

// Blocks [begin, end) of a section.
struct Blocks {
    int begin, end;
};

// Positions that a tile sees.
struct Seen {
    int first, newest;
};

inline Seen seen_by(const AttentionPlan& plan, const Tile& tile) {
    const int64_t* positions = plan.positions + tile.first_row;
    const bool is_cut = plan.window && positions[0] >= plan.window;
    return {is_cut ? static_cast<int>(positions[0] - plan.window + 1) : 0,
            static_cast<int>(positions[tile.num_rows - 1])};
}

// Blocks of a section that a tile sees.
inline Blocks blocks_of(Seen seen, int section) {
    const int first = seen.first / KEY_BLOCK, end = seen.newest / KEY_BLOCK + 1;
    const int begin = section * SECTION_BLOCKS;
    return {first > begin ? first : begin, end < begin + SECTION_BLOCKS ? end : begin + SECTION_BLOCKS};
}

// One unit's rows, and the thread's working memory.
struct Job {
    Attention a;
    const int64_t* rows;
    const int64_t* positions;
    const int64_t* slots;
    int dim, group, newest;
    Seen seen;
    int lanes, lane_tiles;  // of a key head
    int bundle;        // key heads whose lanes share one tile, head by head; 1 where they fill it
    uint8_t* keys;     // [blocks][32 keys][dim] bf16, of blocks that cannot be read where they are
    uint8_t* values;   // of a section: [blocks][dim / 16][16 key pairs][16 dims][2] bf16
    uint8_t* queries;  // [heads][lane tiles][dim / 32][high, low][16 dim pairs][16 lanes][2] bf16
    float* scores;     // [heads][lane tiles][blocks][32 keys][16 lanes], for powers of 2
    uint8_t* weights;  // [blocks][16 lanes][32 keys] bf16
    float* mixed;      // [heads][lane tiles] Mix
    float* part;       // Mix of a section
    int32_t* first;    // [lane tiles][16] first position that a lane sees
    int32_t* last;     // [lane tiles][16] last one; -1 for lanes that only fill a tile
    float* key_scales;    // [SECTION] of codes, of one head
    float* value_scales;  // likewise, then their inverses

    bool has_codes;
    int64_t head_bytes, slot_bytes;

    // A slot's key or value of a head.
    const uint8_t* row(const void* stored, int64_t slot, int head) const {
        return static_cast<const uint8_t*>(stored) + slot * slot_bytes + head * head_bytes;
    }
    // Of a unit's key heads from h on, those that share its tile.
    int heads_of(const Unit& unit, int h) const {
        return h + bundle < unit.num_heads ? bundle : unit.num_heads - h;
    }
    // Where lanes of a unit's key head h begin in its tile.
    int shift_of(int h) const { return h % bundle * lanes; }
    // How many of the positions [begin, end) are there.
    int stored(int begin, int end) const { return (end <= newest ? end : newest + 1) - begin; }
    size_t query_bytes() const { return size_t(dim / 32) * 2 * TILE; }
    int64_t mix_size() const { return 16 * (dim + 2); }
    float* scores_at(int head, int t) const {
        return scores + size_t(head * lane_tiles + t) * SECTION_BLOCKS * BLOCK_SCORES;
    }
    uint8_t* queries_at(int head, int t) const {
        return queries + (head * lane_tiles + t) * query_bytes();
    }
    int last_lane(int t) const { return 16 * t + 15 < lanes ? 16 * t + 15 : lanes - 1; }
    bool sees(int t, int begin, int end) const {
        return first[16 * t] < end && last[last_lane(t)] >= begin;
    }
};

SL_INLINE __m512 widen_half(__m256i h) {
    return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
}

// Queries of a key head, scaled, as high and low parts, from column `shift` of a tile on.
void pack_queries(const Job& job, int kv_head, int shift, uint8_t* packed) {
    const __m512 scale = _mm512_set1_ps(job.a.shape->scale * 1.44269504f);
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
                const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(query), scale);
                const __m512 y = _mm512_mul_ps(_mm512_loadu_ps(query + 16), scale);
                high[i] = (__m512i)_mm512_cvtne2ps_pbh(y, x);
                low[i] = (__m512i)_mm512_cvtne2ps_pbh(
                    _mm512_sub_ps(y, widen_half(_mm512_extracti64x4_epi64(high[i], 1))),
                    _mm512_sub_ps(x, widen_half(_mm512_castsi512_si256(high[i]))));
            }
            transpose(high);
            transpose(low);
            for (int i = 0; i < 16; i++) {
                _mm512_store_si512(packed + 64 * i, high[i]);
                _mm512_store_si512(packed + TILE + 64 * i, low[i]);
            }
        }
}

// 32 numbers of a stored row from dim d on, in bf16. Codes are whole numbers, which bf16 holds.
template <bool HAS_CODES>
SL_INLINE __m512i load_row(const uint8_t* row, int d) {
    if constexpr (!HAS_CODES) return _mm512_loadu_si512(row + 2 * d);
    const __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(row + d)));
    const __m512i high = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(row + d + 16)));
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low));
}

// Scales of a head at positions [begin, end) of a section.
void fetch_scales(const Job& job, int begin, int end, int head) {
    constexpr float SMALLEST = 1e-30f;  // the inverse must be finite; a row of zeros has 0
    for (int i = begin; i < end; i++) {
        const int64_t at = i <= job.newest ? job.slots[i] * job.a.shape->kv_heads + head : -1;
        const float scale = at < 0 ? 0.0f : job.a.value_scales[at];
        job.key_scales[i % SECTION] = at < 0 ? 0.0f : job.a.key_scales[at];
        job.value_scales[i % SECTION] = scale < SMALLEST ? SMALLEST : scale;
        job.value_scales[SECTION + i % SECTION] = 1.0f / job.value_scales[i % SECTION];
    }
}

// Where 16 keys lie, `stride` bytes apart.
struct Keys {
    const uint8_t* at;
    size_t stride;
};

// Keys of positions [start, start + 16) of a head; copied where slots do not follow each other.
template <bool HAS_CODES>
Keys keys_of(const Job& job, int start, int head, uint8_t* copy) {
    const int64_t* slots = job.slots + start;
    const int count = job.newest + 1 - start < 16 ? job.newest + 1 - start : 16;
    bool is_run = count == 16 && !HAS_CODES;
    for (int j = 1; is_run && j < 16; j++) is_run = slots[j] == slots[0] + j;
    const size_t width = size_t(job.dim) * 2;
    if (is_run) return {job.row(job.a.keys, slots[0], head), size_t(job.slot_bytes)};
    for (int j = 0; j < 16; j++)
        for (int d = 0; d < job.dim; d += 32)
            _mm512_storeu_si512(copy + j * width + 2 * d,
                                j < count ? load_row<HAS_CODES>(job.row(job.a.keys, slots[j], head), d)
                                          : _mm512_setzero_si512());
    return {copy, width};
}

// Interleave `dims` of a block's values from dim `first` on by pairs of keys. Past the newest position come zeros.
template <bool HAS_CODES, typename Pace>
SL_INLINE void fetch_values(const Job& job, int start, int head, int first, int dims, uint8_t* to,
                            const Pace& pace) {
    const int64_t* slots = job.slots + start;
    const int count = job.newest + 1 - start;
    for (int j = 0; j < KEY_BLOCK; j += 2, to += 64) {
        if (j % 4 == 0) pace();
        const uint8_t* even = job.row(job.a.values, j < count ? slots[j] : 0, head);
        const uint8_t* odd = job.row(job.a.values, j + 1 < count ? slots[j + 1] : 0, head);
        for (int d = first; d < first + dims; d += 32) {
            const __m512i zero = _mm512_setzero_si512();
            const __m512i x = j < count ? load_row<HAS_CODES>(even, d) : zero;
            const __m512i y = j + 1 < count ? load_row<HAS_CODES>(odd, d) : zero;
            uint8_t* tiles = to + size_t(d / LANES) * TILE;
            _mm512_store_si512(tiles, _mm512_unpacklo_epi16(x, y));
            _mm512_store_si512(tiles + TILE, _mm512_unpackhi_epi16(x, y));
        }
    }
}

// scores[32 keys][16 lanes] of a block and a lane tile. Heads that share the tile have zeros in each
// other's columns, and adding their products changes nothing. `keys`: two of each head; `queries`: one
// head's after the other. `done` is called after every 32 dims of a head.
template <typename Done>
SL_INLINE void score(const Keys* keys, int num_heads, const uint8_t* queries, int dim, float* scores,
                     const Done& done) {
    _tile_zero(0);
    _tile_zero(1);
    for (int h = 0; h < num_heads; h++)
        for (int d = 0; d < dim; d += 32, queries += 2 * TILE) {
            _tile_loadd(4, keys[2 * h].at + 2 * d, keys[2 * h].stride);
            _tile_loadd(6, queries, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(5, keys[2 * h + 1].at + 2 * d, keys[2 * h + 1].stride);
            _tile_dpbf16ps(1, 5, 6);
            _tile_loadd(7, queries + TILE, 64);
            _tile_dpbf16ps(0, 4, 7);
            _tile_dpbf16ps(1, 5, 7);
            done();
        }
    _tile_stored(0, scores, 64);
    _tile_stored(1, scores + BLOCK_SCORES / 2, 64);
}

// Mix `count` blocks of values for 16 lanes. `fetch(block, d, dims)` is called before a block's tiles are
// read, a block early: tiles that were written just before are slow to read.
template <typename Fetch>
SL_INLINE void mix(const uint8_t* weights, const uint8_t* values, int count, int dim, float* mixed,
                   const Fetch& fetch) {
    const size_t block = size_t(dim) * 64;
    const int stride = 4 * dim;
    int d = 0;
    for (; d + 64 <= dim; d += 64) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        fetch(0, d, 64);
        for (int b = 0; b < count; b++) {
            if (b + 1 < count) fetch(b + 1, d, 64);
            const uint8_t* v = values + b * block + size_t(d / LANES) * TILE;
            _tile_loadd(4, weights + b * TILE, 64);
            _tile_loadd(6, v, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, v + TILE, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(6, v + 2 * TILE, 64);
            _tile_dpbf16ps(2, 4, 6);
            _tile_loadd(7, v + 3 * TILE, 64);
            _tile_dpbf16ps(3, 4, 7);
        }
        _tile_stored(0, mixed + d, stride);
        _tile_stored(1, mixed + d + 16, stride);
        _tile_stored(2, mixed + d + 32, stride);
        _tile_stored(3, mixed + d + 48, stride);
    }
    if (d < dim)
        for (int b = 0; b < count; b++) fetch(b, d, dim - d);
    for (; d < dim; d += LANES) {
        _tile_zero(0);
        for (int b = 0; b < count; b++) {
            _tile_loadd(4, weights + b * TILE, 64);
            _tile_loadd(6, values + b * block + size_t(d / LANES) * TILE, 64);
            _tile_dpbf16ps(0, 4, 6);
        }
        _tile_stored(0, mixed + d, stride);
    }
}

// What lane tile t sees of blocks.
Blocks seen(const Job& job, int t, Blocks blocks) {
    const int first = job.first[16 * t] / KEY_BLOCK, last = job.last[job.last_lane(t)] / KEY_BLOCK;
    return {first > blocks.begin ? first : blocks.begin, last + 1 < blocks.end ? last + 1 : blocks.end};
}

// A lane tile's weights of a section's blocks, and their greatest scores and sums to `to`. `scores`: of
// the whole section.
template <typename Pace>
void weigh_section(const Job& job, Blocks blocks, int t, float* scores, const Mix& to,
                   const Pace& pace) {
    const __m512i limits[2] = {_mm512_load_si512(job.first + 16 * t), _mm512_load_si512(job.last + 16 * t)};
    const __m512 hidden = _mm512_set1_ps(-INFINITY);
    __m512 max = hidden, total = _mm512_setzero_ps();
    for (int b = blocks.begin; b < blocks.end; b++) {
        pace();
        const int start = b * KEY_BLOCK;
        const bool is_masked =
            job.last[16 * t] < start + KEY_BLOCK - 1 || job.first[job.last_lane(t)] > start;
        const float* scales = job.has_codes ? job.key_scales + start % SECTION : nullptr;
        max = _mm512_max_ps(max, greatest(scores + b % SECTION_BLOCKS * BLOCK_SCORES, scales,
                                          is_masked ? limits : nullptr, start));
    }
    // A lane that sees nothing has weights of 2^-inf.
    const __mmask16 is_blind = _mm512_cmp_ps_mask(max, hidden, _CMP_EQ_OQ);
    const __m512 base = _mm512_mask_blend_ps(is_blind, max, _mm512_setzero_ps());
    const int first = blocks.begin % SECTION_BLOCKS, count = blocks.end - blocks.begin;
    for (int i = 0; i < count; i++) {
        pace();
        const float* scales = job.value_scales + (first + i) * KEY_BLOCK;
        const float* of_block = scores + (first + i) * BLOCK_SCORES;
        uint8_t* weights = job.weights + i * TILE;
        total = job.has_codes ? weigh<true>(of_block, scales, base, total, weights)
                                : weigh<false>(of_block, scales, base, total, weights);
    }
    _mm512_store_ps(to.max, max);
    _mm512_store_ps(to.total, total);
}

// A lane tile's mix of a section, to `to`, from lane `shift` on. Lanes of other heads that follow are
// written too; these come next and write theirs. `fetch`: see mix, by block of the section.
template <typename Fetch>
SL_INLINE void mix_section(const Job& job, Blocks blocks, int shift, const Mix& to, const Fetch& fetch) {
    const int count = blocks.end - blocks.begin;
    const uint8_t* values = job.values + size_t(blocks.begin % SECTION_BLOCKS) * job.dim * 64;
    if (count > 0)
        mix(job.weights + 64 * shift, values, count, job.dim, to.values + shift * job.dim,
            [&](int b, int d, int dims) { fetch(blocks.begin + b, d, dims); });
}

// Add a section's mix to what came before it.
void add(const Mix& to, const Mix& part, int lanes, int dim) {
    const __m512 before = _mm512_load_ps(to.max), added = _mm512_load_ps(part.max);
    const __mmask16 is_seen = _mm512_cmp_ps_mask(added, _mm512_set1_ps(-INFINITY), _CMP_NEQ_UQ);
    const __m512 now = _mm512_max_ps(before, added);
    alignas(64) float shrink[16], grow[16];
    const __m512 s = power_of_two(_mm512_sub_ps(before, now));
    const __m512 g = power_of_two(_mm512_sub_ps(added, now));
    _mm512_store_ps(shrink, s);
    _mm512_store_ps(grow, g);
    const __m512 total = _mm512_fmadd_ps(_mm512_load_ps(part.total), g,
                                         _mm512_mul_ps(_mm512_load_ps(to.total), s));
    _mm512_mask_store_ps(to.total, is_seen, total);
    _mm512_mask_store_ps(to.max, is_seen, now);
    for (int lane = 0; lane < lanes; lane++) {
        if (!(is_seen >> lane & 1)) continue;
        float* at = to.values + lane * dim;
        for (int d = 0; d < dim; d += LANES)
            store(at + d, fma(load(part.values + lane * dim + d), splat(grow[lane]),
                              load(at + d) * shrink[lane]));
    }
}

void put_lane(const Job& job, const Mix& mixed, int lane, int64_t at) {
    const __m512i lower = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i upper = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    const float* values = mixed.values + lane * job.dim;
    const float inverse = 1.0f / mixed.total[lane];
    for (int d = 0; d < job.dim; d += 32) {
        const __m512 x = _mm512_loadu_ps(values + d), y = _mm512_loadu_ps(values + d + 16);
        const f32x16 v[2] = {f32x16(_mm512_permutex2var_ps(x, lower, y)) * inverse,
                             f32x16(_mm512_permutex2var_ps(x, upper, y)) * inverse};
        for (int i = 0; i < 2; i++)
            if (job.a.store == TO_BF16)
                store(static_cast<uint16_t*>(job.a.out) + at + d + 16 * i, v[i]);
            else
                store(static_cast<float*>(job.a.out) + at + d + 16 * i, v[i]);
    }
}

}  // namespace
}  // namespace slipstream
