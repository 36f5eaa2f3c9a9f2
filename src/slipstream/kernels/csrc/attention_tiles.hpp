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
    uint8_t* keys;     // [heads][16 keys of a section][dim] bf16, where they cannot be read where they are
    uint8_t* values;   // of a section and two heads: [blocks][dim / 16][16 key pairs][16 dims][2] bf16
    uint8_t* queries;  // [heads][lane tiles][dim / 32][high, low][16 dim pairs][16 lanes][2] bf16
    float* scores;     // of a section: [blocks][32 keys][16 lanes], for powers of 2
    uint8_t* weights;  // of a section: [blocks][16 lanes][32 keys] bf16
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
    float* scores_at(int block) const { return scores + block % SECTION_BLOCKS * BLOCK_SCORES; }
    uint8_t* weights_at(int block) const { return weights + block % SECTION_BLOCKS * TILE; }
    uint8_t* values_at(int head, int block) const {
        return values + size_t(head % 2 * SECTION_BLOCKS + block % SECTION_BLOCKS) * dim * 64;
    }
    uint8_t* queries_at(int head, int t) const {
        return queries + (head * lane_tiles + t) * query_bytes();
    }
    int last_lane(int t) const { return 16 * t + 15 < lanes ? 16 * t + 15 : lanes - 1; }
};

SL_INLINE __m512 widen_half(__m256i h) {
    return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
}

// Queries of a key head, scaled, as high and low parts, from column `shift` of a tile on. `pace` is called
// between pieces of work.
template <typename Pace>
void pack_queries(const Job& job, int kv_head, int shift, uint8_t* packed, const Pace& pace) {
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
            pace();
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
constexpr int SECTION_KEYS = SECTION / 16;  // of a section and a head

// Keys of positions [start, start + 16) of a head; copied where slots do not follow each other.
template <bool HAS_CODES, typename Pace>
Keys keys_of(const Job& job, int start, int head, uint8_t* copy, const Pace& pace) {
    const int64_t* slots = job.slots + start;
    const int count = job.newest + 1 - start < 16 ? job.newest + 1 - start : 16;
    bool is_run = count == 16 && !HAS_CODES;
    for (int j = 1; is_run && j < 16; j++) is_run = slots[j] == slots[0] + j;
    const size_t width = size_t(job.dim) * 2;
    if (is_run) return {job.row(job.a.keys, slots[0], head), size_t(job.slot_bytes)};
    for (int j = 0; j < 16; j++) {
        if (j % 2) pace();
        for (int d = 0; d < job.dim; d += 32)
            _mm512_storeu_si512(copy + j * width + 2 * d,
                                j < count ? load_row<HAS_CODES>(job.row(job.a.keys, slots[j], head), d)
                                          : _mm512_setzero_si512());
    }
    return {copy, width};
}

// Interleave a block's values by pairs of keys. Past the newest position come zeros.
template <bool HAS_CODES, typename Pace>
SL_INLINE void fetch_values(const Job& job, int start, int head, uint8_t* to, const Pace& pace) {
    const int64_t* slots = job.slots + start;
    const int count = job.newest + 1 - start;
    for (int j = 0; j < KEY_BLOCK; j += 2, to += 64) {
        if (j % 4 == 0) pace();
        const uint8_t* even = job.row(job.a.values, j < count ? slots[j] : 0, head);
        const uint8_t* odd = job.row(job.a.values, j + 1 < count ? slots[j + 1] : 0, head);
        for (int d = 0; d < job.dim; d += 32) {
            const __m512i zero = _mm512_setzero_si512();
            const __m512i x = j < count ? load_row<HAS_CODES>(even, d) : zero;
            const __m512i y = j + 1 < count ? load_row<HAS_CODES>(odd, d) : zero;
            uint8_t* tiles = to + size_t(d / LANES) * TILE;
            _mm512_store_si512(tiles, _mm512_unpacklo_epi16(x, y));
            _mm512_store_si512(tiles + TILE, _mm512_unpackhi_epi16(x, y));
        }
    }
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

// Mix `count` blocks of values for 16 lanes. `next(b)` is called once for each, in between.
template <typename Next>
SL_INLINE void mix(const uint8_t* weights, const uint8_t* values, int count, int dim, float* mixed,
                   const Next& next) {
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

// What lane tile t sees of blocks.
Blocks seen(const Job& job, int t, Blocks blocks) {
    const int first = job.first[16 * t] / KEY_BLOCK, last = job.last[job.last_lane(t)] / KEY_BLOCK;
    return {first > blocks.begin ? first : blocks.begin, last + 1 < blocks.end ? last + 1 : blocks.end};
}

// A lane tile's weights of a section's blocks, and their greatest scores and sums to `to`.
template <typename Pace>
void weigh_section(const Job& job, Blocks blocks, int t, const Mix& to, const Pace& pace) {
    const __m512i limits[2] = {_mm512_load_si512(job.first + 16 * t), _mm512_load_si512(job.last + 16 * t)};
    const __m512 hidden = _mm512_set1_ps(-INFINITY);
    __m512 max = hidden, total = _mm512_setzero_ps();
    for (int b = blocks.begin; b < blocks.end; b++) {
        pace();
        const int start = b * KEY_BLOCK;
        const bool is_masked =
            job.last[16 * t] < start + KEY_BLOCK - 1 || job.first[job.last_lane(t)] > start;
        const float* scales = job.has_codes ? job.key_scales + start % SECTION : nullptr;
        max = _mm512_max_ps(
            max, greatest(job.scores_at(b), scales, is_masked ? limits : nullptr, start));
    }
    // A lane that sees nothing has weights of 2^-inf.
    const __mmask16 is_blind = _mm512_cmp_ps_mask(max, hidden, _CMP_EQ_OQ);
    const __m512 base = _mm512_mask_blend_ps(is_blind, max, _mm512_setzero_ps());
    for (int b = blocks.begin; b < blocks.end; b++) {
        pace();
        const float* scales = job.value_scales + b % SECTION_BLOCKS * KEY_BLOCK;
        total = job.has_codes
                    ? weigh<true>(job.scores_at(b), scales, base, total, job.weights_at(b))
                    : weigh<false>(job.scores_at(b), scales, base, total, job.weights_at(b));
    }
    _mm512_store_ps(to.max, max);
    _mm512_store_ps(to.total, total);
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
