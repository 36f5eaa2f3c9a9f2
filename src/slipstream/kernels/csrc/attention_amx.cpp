// Attention on AMX tiles, for keys and values in bf16. Lanes (a row's heads that share a key head) are
// the columns of the scores, so the softmax needs no sums across a vector. Queries enter as two bf16
// numbers each, of 16 bits together; weights as one, and their sum is that of the rounded ones.
// A lane's column is computed by itself: blocks in order of position, positions that it does not see
// weigh exactly zero, and the order of TDPBF16PS is the same for every column.
#include <immintrin.h>

#include "attention.hpp"
#include "amx.hpp"
#include "simd.hpp"

namespace slipstream {
namespace {

constexpr int LANES = 16;
constexpr int TILE = 1024;

// Working memory for one tile of rows; `lane_tiles` of 16 lanes.
struct Work {
    uint8_t* keys[2];    // of a block and the next: [32 keys][dim] bf16
    uint8_t* values[2];  // likewise: [dim / 16][16 key pairs][16 dims][2] bf16
    uint8_t* queries;  // [lane tiles][dim / 32][high, low][16 dim pairs][16 lanes][2] bf16
    float* mixed;      // [lane tiles][dim / 16][16 lanes][16 dims]
    float* max;        // [lane tiles][16]
    float* total;      // [lane tiles][16]
    float* scores[2];  // of a lane tile and the next: [32 keys][16 lanes], for powers of 2
    uint8_t* weights;  // [16 lanes][32 keys] bf16
    int32_t* first;    // [lane tiles][16] first position that a lane sees
    int32_t* last;     // [lane tiles][16] last one; -1 for lanes that only fill a tile
};

// 2^x for x <= 0, relative error below 5e-6 (bf16 weights need 2e-3); exactly 0 below -150.
SL_INLINE __m512 power_of_two(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-200.0f));
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(9.6181291e-3f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

// A row's scaled queries, as high and low parts, into a lane's column.
void pack_query(const float* query, float scale, int dim, int lane, uint8_t* packed) {
    uint16_t* to = reinterpret_cast<uint16_t*>(packed);
    for (int d = 0; d < dim; d++) {
        const float q = query[d] * scale;
        const uint16_t high = round_bf16(q);
        const uint16_t low = round_bf16(q - widen(high));
        uint16_t* tile = to + size_t(d / 32) * TILE + 32 * (d % 32 / 2) + 2 * lane + (d & 1);
        tile[0] = high;
        tile[TILE / 2] = low;
    }
}

// Copy a block's keys; interleave its values by pairs of keys. Past `count` come zeros.
void fetch_block(const Attention& a, const int64_t* slots, int head, int count, const Work& work,
                 int buffer) {
    const int dim = a.shape->head_dim;
    const int64_t stride = int64_t(a.shape->kv_heads) * dim;
    const uint16_t* keys = static_cast<const uint16_t*>(a.keys) + int64_t(head) * dim;
    const uint16_t* values = static_cast<const uint16_t*>(a.values) + int64_t(head) * dim;
    for (int j = 0; j < KEY_BLOCK; j++) {
        uint8_t* to = work.keys[buffer] + size_t(j) * dim * 2;
        if (j < count)
            memcpy(to, keys + slots[j] * stride, size_t(dim) * 2);
        else
            memset(to, 0, size_t(dim) * 2);
    }
    for (int pair = 0; pair < 16; pair++) {
        const int j = 2 * pair;
        const uint16_t* even = values + (j < count ? slots[j] : 0) * stride;
        const uint16_t* odd = values + (j + 1 < count ? slots[j + 1] : 0) * stride;
        for (int d = 0; d < dim; d += LANES) {
            const __m256i zero = _mm256_setzero_si256();
            const __m256i x = j < count ? _mm256_loadu_si256((const __m256i*)(even + d)) : zero;
            const __m256i y = j + 1 < count ? _mm256_loadu_si256((const __m256i*)(odd + d)) : zero;
            const __m512i both = _mm512_or_si512(_mm512_cvtepu16_epi32(x),
                                                 _mm512_slli_epi32(_mm512_cvtepu16_epi32(y), 16));
            _mm512_store_si512(work.values[buffer] + size_t(d / LANES) * TILE + 64 * pair, both);
        }
    }
}

void prefetch_block(const Attention& a, const int64_t* slots, int head, int count) {
    const int dim = a.shape->head_dim;
    const int64_t stride = int64_t(a.shape->kv_heads) * dim;
    for (int j = 0; j < count; j++) {
        const int64_t at = slots[j] * stride + int64_t(head) * dim;
        for (int d = 0; d < dim; d += 32) {
            _mm_prefetch((const char*)(static_cast<const uint16_t*>(a.keys) + at + d), _MM_HINT_T0);
            _mm_prefetch((const char*)(static_cast<const uint16_t*>(a.values) + at + d), _MM_HINT_T0);
        }
    }
}

// scores[32 keys][16 lanes] of a lane tile.
void score(const uint8_t* keys, const uint8_t* queries, int dim, float* scores) {
    _tile_zero(0);
    _tile_zero(1);
    for (int d = 0; d < dim; d += 32, queries += 2 * TILE) {
        _tile_loadd(4, keys + 2 * d, 2 * dim);
        _tile_loadd(5, keys + 2 * d + size_t(32) * dim, 2 * dim);
        _tile_loadd(6, queries, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        _tile_loadd(7, queries + TILE, 64);
        _tile_dpbf16ps(0, 4, 7);
        _tile_dpbf16ps(1, 5, 7);
    }
    _tile_stored(0, scores, 64);
    _tile_stored(1, scores + 256, 64);
}

// From scores to bf16 weights; gives the factor on what was mixed before.
__m512 weigh(const Work& work, const float* scores, int lane_tile, int start, bool is_masked) {
    const __m512 hidden = _mm512_set1_ps(-INFINITY);
    __m512 s[KEY_BLOCK];
#pragma GCC unroll 32
    for (int j = 0; j < KEY_BLOCK; j++) s[j] = _mm512_load_ps(scores + 16 * j);
    if (is_masked) {
        const __m512i first = _mm512_load_si512(work.first + 16 * lane_tile);
        const __m512i last = _mm512_load_si512(work.last + 16 * lane_tile);
        for (int j = 0; j < KEY_BLOCK; j++) {
            const __m512i at = _mm512_set1_epi32(start + j);
            const __mmask16 seen = _mm512_cmpge_epi32_mask(at, first) & _mm512_cmple_epi32_mask(at, last);
            s[j] = _mm512_mask_blend_ps(seen, hidden, s[j]);
        }
    }
    __m512 top[4] = {s[0], s[1], s[2], s[3]};
    for (int j = 4; j < KEY_BLOCK; j++) top[j & 3] = _mm512_max_ps(top[j & 3], s[j]);
    const __m512 before = _mm512_load_ps(work.max + 16 * lane_tile);
    const __m512 now = _mm512_max_ps(
        before, _mm512_max_ps(_mm512_max_ps(top[0], top[1]), _mm512_max_ps(top[2], top[3])));
    _mm512_store_ps(work.max + 16 * lane_tile, now);
    // A lane that has seen nothing yet has weights of 2^-inf.
    const __mmask16 is_blind = _mm512_cmp_ps_mask(now, hidden, _CMP_EQ_OQ);
    const __m512 base = _mm512_mask_blend_ps(is_blind, now, _mm512_setzero_ps());
    const __m512 shrink = power_of_two(_mm512_sub_ps(before, base));

    const __m512i upper = _mm512_set1_epi32(int(0xffff0000u));
    __m512i order = _mm512_setr_epi32(0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005,
                                      0x160006, 0x170007, 0x180008, 0x190009, 0x1a000a, 0x1b000b,
                                      0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f);
    __m512 sums[4];
    for (__m512& sum : sums) sum = _mm512_setzero_ps();
    __m512i pairs[16];
#pragma GCC unroll 16
    for (int j = 0; j < KEY_BLOCK; j += 2) {
        const __m512 even = power_of_two(_mm512_sub_ps(s[j], base));
        const __m512 odd = power_of_two(_mm512_sub_ps(s[j + 1], base));
        const __m512i pair =
            _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
        sums[j & 2] = _mm512_add_ps(sums[j & 2], (__m512)_mm512_slli_epi32(pair, 16));
        sums[(j & 2) + 1] = _mm512_add_ps(sums[(j & 2) + 1], (__m512)_mm512_and_si512(pair, upper));
        pairs[j / 2] = pair;
    }
    const __m512 sum = _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
    const __m512 total = _mm512_mul_ps(_mm512_load_ps(work.total + 16 * lane_tile), shrink);
    _mm512_store_ps(work.total + 16 * lane_tile, _mm512_add_ps(total, sum));
    transpose(pairs);  // [key pairs][lanes] to [lanes][key pairs]
#pragma GCC unroll 16
    for (int lane = 0; lane < 16; lane++)
        _mm512_store_si512(work.weights + 64 * lane, pairs[lane]);
    return shrink;
}

void mix(const Work& work, const uint8_t* block_values, int lane_tile, __m512 shrink, int dim) {
    float* mixed = work.mixed + size_t(lane_tile) * 16 * dim;
    if (_mm512_cmp_ps_mask(shrink, _mm512_set1_ps(1.0f), _CMP_NEQ_UQ)) {
        alignas(64) float factors[16];
        _mm512_store_ps(factors, shrink);
        for (int d = 0; d < dim; d += LANES)
            for (int lane = 0; lane < 16; lane++) {
                float* at = mixed + 16 * d + 16 * lane;
                store(at, load(at) * factors[lane]);
            }
    }
    _tile_loadd(4, work.weights, 64);
    int d = 0;
    for (; d + 4 * LANES <= dim; d += 4 * LANES) {
        float* to = mixed + 16 * d;
        const uint8_t* values = block_values + size_t(d / LANES) * TILE;
        _tile_loadd(0, to, 64);
        _tile_loadd(1, to + 256, 64);
        _tile_loadd(2, to + 512, 64);
        _tile_loadd(3, to + 768, 64);
        _tile_loadd(6, values, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, values + TILE, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(6, values + 2 * TILE, 64);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(7, values + 3 * TILE, 64);
        _tile_dpbf16ps(3, 4, 7);
        _tile_stored(0, to, 64);
        _tile_stored(1, to + 256, 64);
        _tile_stored(2, to + 512, 64);
        _tile_stored(3, to + 768, 64);
    }
    for (; d < dim; d += LANES) {
        _tile_loadd(0, mixed + 16 * d, 64);
        _tile_loadd(6, block_values + size_t(d / LANES) * TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_stored(0, mixed + 16 * d, 64);
    }
}

void put_lane(const Attention& a, const Work& work, int lane, int64_t at) {
    const int dim = a.shape->head_dim;
    const float* mixed = work.mixed + size_t(lane / 16) * 16 * dim + 16 * (lane % 16);
    const float total = work.total[lane];
    for (int d = 0; d < dim; d += LANES) {
        const f32x16 v = load(mixed + 16 * d) / total;
        if (a.store == TO_BF16)
            store(static_cast<uint16_t*>(a.out) + at + d, v);
        else
            store(static_cast<float*>(a.out) + at + d, v);
    }
}

void attend_tile(const Attention& a, const Tile& tile, int kv_head, const Work& work) {
    const AttentionShape& shape = *a.shape;
    const AttentionPlan& plan = *a.plan;
    const int dim = shape.head_dim, group = shape.num_heads / shape.kv_heads;
    const int num_rows = static_cast<int>(tile.num_rows), lanes = num_rows * group;
    const int lane_tiles = ceil_div(lanes, 16);
    const int64_t* rows = plan.rows + tile.first_row;
    const int64_t* positions = plan.positions + tile.first_row;
    const int64_t* slots = plan.slots + tile.first_slot;
    const size_t query_bytes = size_t(dim / 32) * 2 * TILE;
    memset(work.queries, 0, lane_tiles * query_bytes);
    memset(work.mixed, 0, sizeof(float) * lane_tiles * 16 * dim);
    for (int lane = 0; lane < 16 * lane_tiles; lane++) {
        work.max[lane] = -INFINITY;
        work.total[lane] = 0.0f;
        work.first[lane] = 0;
        work.last[lane] = -1;
        if (lane >= lanes) continue;
        const int row = lane / group;
        const int64_t position = positions[row];
        const bool is_cut = plan.window && position >= plan.window;
        work.first[lane] = is_cut ? int32_t(position - plan.window + 1) : 0;
        work.last[lane] = static_cast<int32_t>(position);
        pack_query(a.queries + rows[row] * a.q_stride + (int64_t(kv_head) * group + lane % group) * dim,
                   shape.scale * 1.44269504f, dim, lane % 16, work.queries + lane / 16 * query_bytes);
    }
    const int newest = static_cast<int>(positions[num_rows - 1]);
    const auto length = [&](int start) {
        const int left = newest + 1 - start;
        return left < KEY_BLOCK ? left : KEY_BLOCK;
    };
    // Scores of a step (a block and a lane tile) are computed before the weights of the one before it:
    // tiles and vectors then work at the same time.
    const int first_block = work.first[0] / KEY_BLOCK, end_block = newest / KEY_BLOCK + 1;
    const auto prepare = [&](int step) {
        const int block = first_block + step / lane_tiles, t = step % lane_tiles;
        const int start = block * KEY_BLOCK, buffer = block & 1;
        if (t == 0) {
            if (lane_tiles == 1 && block + 1 < end_block)  // many rows find the block in a cache
                prefetch_block(a, slots + start + KEY_BLOCK, kv_head, length(start + KEY_BLOCK));
            fetch_block(a, slots + start, kv_head, length(start), work, buffer);
        }
        score(work.keys[buffer], work.queries + t * query_bytes, dim, work.scores[step & 1]);
    };
    const int num_steps = (end_block - first_block) * lane_tiles;
    prepare(0);
    for (int step = 0; step < num_steps; step++) {
        if (step + 1 < num_steps) prepare(step + 1);
        const int block = first_block + step / lane_tiles, t = step % lane_tiles;
        const int start = block * KEY_BLOCK;
        const int last_lane = 16 * t + 15 < lanes ? 16 * t + 15 : lanes - 1;
        if (work.last[last_lane] < start) continue;
        const bool is_masked =
            work.last[16 * t] < start + KEY_BLOCK - 1 || work.first[last_lane] > start;
        const __m512 shrink = weigh(work, work.scores[step & 1], t, start, is_masked);
        mix(work, work.values[block & 1], t, shrink, dim);
    }
    for (int lane = 0; lane < lanes; lane++)
        put_lane(a, work, lane,
                 (rows[lane / group] * shape.num_heads + int64_t(kv_head) * group + lane % group) * dim);
}

}  // namespace

void attend_amx(const Attention& a, std::atomic<int>* next) {
    const AttentionShape& shape = *a.shape;
    const int dim = shape.head_dim, group = shape.num_heads / shape.kv_heads;
    const size_t lane_tiles = ceil_div(MAX_TILE_ROWS * group, 16);
    const size_t block_bytes = size_t(64) * dim, lane_bytes = lane_tiles * 64;
    const size_t sizes[] = {block_bytes, block_bytes, block_bytes, block_bytes,
                            lane_tiles * (dim / 32) * 2 * TILE, lane_tiles * 64 * dim, lane_bytes,
                            lane_bytes, 2 * TILE, 2 * TILE, TILE, lane_bytes, lane_bytes};
    constexpr int NUM_PARTS = sizeof(sizes) / sizeof(sizes[0]);
    size_t bytes = 0;
    for (size_t size : sizes) bytes += size;
    uint8_t* memory = static_cast<uint8_t*>(scratch(4, bytes));
    uint8_t* parts[NUM_PARTS];
    for (int i = 0; i < NUM_PARTS; memory += sizes[i++]) parts[i] = memory;
    const auto floats = [&](int i) { return reinterpret_cast<float*>(parts[i]); };
    const auto numbers = [&](int i) { return reinterpret_cast<int32_t*>(parts[i]); };
    const Work work{{parts[0], parts[1]},
                    {parts[2], parts[3]},
                    parts[4],
                    floats(5),
                    floats(6),
                    floats(7),
                    {floats(8), floats(9)},
                    parts[10],
                    numbers(11),
                    numbers(12)};
    configure_tiles(16);
    const int num_units = a.plan->num_tiles * shape.kv_heads;
    for (int unit; (unit = next->fetch_add(1)) < num_units;)
        attend_tile(a, a.plan->tiles[unit / shape.kv_heads], unit % shape.kv_heads, work);
    _tile_release();
}

}  // namespace slipstream
