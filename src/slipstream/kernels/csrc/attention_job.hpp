// One unit of attention in bf16, and the parts that need no products: see attention_bf16.cpp.
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

// Values come last: those of heads that share a tile are written past its end (see mix in attention_tiles.hpp).
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
    const uint8_t** key_rows;    // [SECTION] where positions' keys lie; past the newest one its own
    const uint8_t** value_rows;  // likewise; past the newest one zeros
    uint8_t* zeros;              // of a slot's values
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

    // Of 16 or 32 positions from `start` on; a head's come `head * head_bytes` later.
    const uint8_t* const* keys_from(int start) const { return key_rows + start % SECTION; }
    const uint8_t* const* values_from(int start) const { return value_rows + start % SECTION; }
    // Of a unit's key heads from h on, those that share its tile.
    int heads_of(const Unit& unit, int h) const {
        return h + bundle < unit.num_heads ? bundle : unit.num_heads - h;
    }
    // Where lanes of a unit's key head h begin in its tile.
    int shift_of(int h) const { return h % bundle * lanes; }
    // How many of a block's positions are there.
    int stored_of(int block) const {
        const int left = newest + 1 - block * KEY_BLOCK;
        return left < KEY_BLOCK ? left : KEY_BLOCK;
    }
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
    // A key head's lanes in tile t.
    int lanes_of(int t) const { return last_lane(t) - 16 * t + 1; }
};

SL_INLINE __m512 widen_half(__m256i h) {
    return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
}

// Scores are for powers of 2.
SL_INLINE __m512 query_scale(const Job& job) {
    return _mm512_set1_ps(job.a.shape->scale * 1.44269504f);
}

// 32 numbers of a query, scaled, as the sum of two in bf16.
SL_INLINE void split_query(const float* query, __m512 scale, __m512i& high, __m512i& low) {
    const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(query), scale);
    const __m512 y = _mm512_mul_ps(_mm512_loadu_ps(query + 16), scale);
    high = (__m512i)_mm512_cvtne2ps_pbh(y, x);
    low = (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(y, widen_half(_mm512_extracti64x4_epi64(high, 1))),
                                       _mm512_sub_ps(x, widen_half(_mm512_castsi512_si256(high))));
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

// Two keys of a block, whose weights and values are multiplied together.
struct Pair {
    int low, high;
};

// Where keys and values of a section's blocks lie.
void find_rows(const Job& job, Blocks blocks) {
    const auto* keys = static_cast<const uint8_t*>(job.a.keys);
    const auto* values = static_cast<const uint8_t*>(job.a.values);
    for (int i = blocks.begin * KEY_BLOCK; i < blocks.end * KEY_BLOCK; i++) {
        const int64_t at = job.slots[i <= job.newest ? i : job.newest] * job.slot_bytes;
        job.key_rows[i % SECTION] = keys + at;
        job.value_rows[i % SECTION] = i <= job.newest ? values + at : job.zeros;
    }
}

// Interleave a block's values by pairs of keys.
template <bool HAS_CODES, typename Pace>
SL_INLINE void interleave_values(const Job& job, int start, int head, uint8_t* to, Pair (*pair_of)(int),
                                 const Pace& pace) {
    const uint8_t* const* rows = job.values_from(start);
    const int64_t offset = head * job.head_bytes;
    for (int i = 0; i < KEY_BLOCK / 2; i++, to += 64) {
        if (i % 2 == 0) pace();
        const uint8_t *low = rows[pair_of(i).low] + offset, *high = rows[pair_of(i).high] + offset;
        for (int d = 0; d < job.dim; d += 32) {
            const __m512i x = load_row<HAS_CODES>(low, d), y = load_row<HAS_CODES>(high, d);
            uint8_t* tiles = to + size_t(d / LANES) * TILE;
            _mm512_store_si512(tiles, _mm512_unpacklo_epi16(x, y));
            _mm512_store_si512(tiles + TILE, _mm512_unpackhi_epi16(x, y));
        }
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
    // By the weights: where all scores are NaN, their maximum is that of none.
    const __mmask16 is_seen = _mm512_cmp_ps_mask(_mm512_load_ps(part.total), _mm512_setzero_ps(), _CMP_NEQ_UQ);
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
