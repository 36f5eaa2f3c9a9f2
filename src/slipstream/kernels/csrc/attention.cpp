// Online softmax in float32. Per row and head: blocks in order of position; in a block the dot
// products, their maximum, the weights' sum and the mix of values each have one order, and positions
// that the row does not see take no part. So nothing depends on the other rows of a tile.
#include "attention.hpp"
#include "simd.hpp"

namespace slipstream {
namespace {

constexpr int LANES = 16;

// Sum over the lanes of each of sixteen vectors: halves, quarters, pairs, as `sum` does.
SL_INLINE f32x16 sums_of(const f32x16* p) {
    f32x16 s[8], t[4], u[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        s[i] = __builtin_shufflevector(p[i], p[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21,
                                       22, 23) +
               __builtin_shufflevector(p[i], p[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27,
                                       28, 29, 30, 31);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        t[i] = __builtin_shufflevector(s[i], s[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25,
                                       26, 27) +
               __builtin_shufflevector(s[i], s[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28,
                                       29, 30, 31);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        u[i] = __builtin_shufflevector(t[i], t[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13,
                                       28, 29) +
               __builtin_shufflevector(t[i], t[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14,
                                       15, 30, 31);
    return __builtin_shufflevector(u[0], u[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14,
                                   30) +
           __builtin_shufflevector(u[0], u[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15,
                                   31);
}

// Dot products of a query with the block's keys of one half, [16][dim].
template <int DIM>
SL_INLINE f32x16 scores_of(const float* query, const float* keys, int dim) {
    const int width = DIM ? DIM : dim;
    f32x16 p[16];
#pragma GCC unroll 16
    for (int j = 0; j < 16; j++) p[j] = load(query) * load(keys + j * width);
    for (int d = LANES; d < width; d += LANES) {
        const f32x16 q = load(query + d);
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++) p[j] = fma(q, load(keys + j * width + d), p[j]);
    }
    return sums_of(p);
}

// mixed[h] += weights[h][j] * values[j] for j in [begin, end), in order.
template <int HEADS, int PARTS>
SL_INLINE void mix(const float* weights, const float* values, int dim, int begin, int end,
                   float* mixed) {
    f32x16 sums[HEADS][PARTS];
#pragma GCC unroll 4
    for (int h = 0; h < HEADS; h++)
#pragma GCC unroll 4
        for (int i = 0; i < PARTS; i++) sums[h][i] = load(mixed + h * dim + LANES * i);
    for (int j = begin; j < end; j++) {
        f32x16 v[PARTS];
#pragma GCC unroll 4
        for (int i = 0; i < PARTS; i++) v[i] = load(values + j * dim + LANES * i);
#pragma GCC unroll 4
        for (int h = 0; h < HEADS; h++) {
            const f32x16 w = splat(weights[h * KEY_BLOCK + j]);
#pragma GCC unroll 4
            for (int i = 0; i < PARTS; i++) sums[h][i] = fma(w, v[i], sums[h][i]);
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < HEADS; h++)
#pragma GCC unroll 4
        for (int i = 0; i < PARTS; i++) store(mixed + h * dim + LANES * i, sums[h][i]);
}

template <int PARTS>
void mix_part(int heads, const float* weights, const float* values, int dim, int begin, int end,
              float* mixed) {
    for (; heads >= 4; heads -= 4, weights += 4 * KEY_BLOCK, mixed += 4 * dim)
        mix<4, PARTS>(weights, values, dim, begin, end, mixed);
    if (heads == 3) mix<3, PARTS>(weights, values, dim, begin, end, mixed);
    if (heads == 2) mix<2, PARTS>(weights, values, dim, begin, end, mixed);
    if (heads == 1) mix<1, PARTS>(weights, values, dim, begin, end, mixed);
}

// State of one row and head.
struct Softmax {
    float max, total;
};

struct Work {
    float* keys;     // [32][dim]
    float* values;   // [32][dim]
    float* queries;  // [lanes][dim], scaled
    float* mixed;    // [lanes][dim]
    float* weights;  // [group][32]
    Softmax* softmax;  // [lanes]
};

template <typename T>
void fetch(const Attention& a, const void* stored, const int64_t* slots, int head, int count,
           float* to) {
    const int dim = a.shape->head_dim;
    const int64_t stride = int64_t(a.shape->kv_heads) * dim;
    const T* from = static_cast<const T*>(stored) + int64_t(head) * dim;
    for (int j = 0; j < count; j++) {
        const T* row = from + slots[j] * stride;
        for (int d = 0; d < dim; d += LANES) store(to + j * dim + d, load(row + d));
    }
}

void fetch_block(const Attention& a, const int64_t* slots, int head, int count, const Work& work) {
    if (a.shape->kv_format == KV_BF16) {
        fetch<uint16_t>(a, a.keys, slots, head, count, work.keys);
        fetch<uint16_t>(a, a.values, slots, head, count, work.values);
    } else {
        fetch<float>(a, a.keys, slots, head, count, work.keys);
        fetch<float>(a, a.values, slots, head, count, work.values);
    }
}

// One row's heads of a group over the positions [begin, end) of a block.
template <int DIM>
void attend_block(int group, int head_dim, int lane, int begin, int end, const Work& work) {
    const int dim = DIM ? DIM : head_dim;
    i32x16 index;
    for (int i = 0; i < 16; i++) index[i] = i;
    const f32x16 hidden = splat(-INFINITY);
    for (int h = 0; h < group; h++) {
        const float* query = work.queries + (lane + h) * dim;
        f32x16 scores[2];
        for (int half = 0; half < 2; half++) {
            const i32x16 at = index + 16 * half;
            if (begin < 16 * half + 16 && end > 16 * half) {
                const f32x16 s = scores_of<DIM>(query, work.keys + 16 * half * dim, dim);
                scores[half] = (at >= begin) & (at < end) ? s : hidden;
            } else {
                scores[half] = hidden;
            }
        }
        Softmax& state = work.softmax[lane + h];
        const float block_max = max(max(scores[0], scores[1]));
        float* mixed = work.mixed + (lane + h) * dim;
        if (block_max > state.max) {
            const f32x16 shrink = exp(splat(state.max - block_max));
            state.max = block_max;
            state.total = state.total * shrink[0];
            for (int d = 0; d < dim; d += LANES) store(mixed + d, load(mixed + d) * shrink);
        }
        const f32x16 first = exp(scores[0] - state.max), second = exp(scores[1] - state.max);
        state.total = state.total + sum(first + second);
        store(work.weights + h * KEY_BLOCK, first);
        store(work.weights + h * KEY_BLOCK + 16, second);
    }
    float* mixed = work.mixed + lane * dim;
    int d = 0;
    for (; d + 4 * LANES <= dim; d += 4 * LANES)
        mix_part<4>(group, work.weights, work.values + d, dim, begin, end, mixed + d);
    for (; d < dim; d += LANES)
        mix_part<1>(group, work.weights, work.values + d, dim, begin, end, mixed + d);
}

template <int DIM>
void attend_tile(const Attention& a, const Tile& tile, int kv_head, const Work& work) {
    const AttentionShape& shape = *a.shape;
    const AttentionPlan& plan = *a.plan;
    const int dim = shape.head_dim, group = shape.num_heads / shape.kv_heads;
    const int num_rows = static_cast<int>(tile.num_rows), lanes = num_rows * group;
    const int64_t* rows = plan.rows + tile.first_row;
    const int64_t* positions = plan.positions + tile.first_row;
    const int64_t* slots = plan.slots + tile.first_slot;
    for (int r = 0; r < num_rows; r++) {
        const float* query = a.queries + rows[r] * a.q_stride + int64_t(kv_head) * group * dim;
        float* scaled = work.queries + r * group * dim;
        for (int d = 0; d < group * dim; d += LANES) store(scaled + d, load(query + d) * shape.scale);
    }
    memset(work.mixed, 0, sizeof(float) * lanes * dim);
    for (int i = 0; i < lanes; i++) work.softmax[i] = {-INFINITY, 0.0f};

    const int64_t newest = positions[num_rows - 1];
    const auto first_seen = [&](int r) {
        return plan.window && positions[r] >= plan.window ? positions[r] - plan.window + 1 : 0;
    };
    for (int64_t start = first_seen(0) / KEY_BLOCK * KEY_BLOCK; start <= newest; start += KEY_BLOCK) {
        const int64_t left = newest + 1 - start;
        fetch_block(a, slots + start, kv_head, left < KEY_BLOCK ? int(left) : KEY_BLOCK, work);
        for (int r = 0; r < num_rows; r++) {
            const int64_t begin = first_seen(r) - start, end = positions[r] + 1 - start;
            const int from = begin > 0 ? int(begin < KEY_BLOCK ? begin : KEY_BLOCK) : 0;
            const int to = end < KEY_BLOCK ? int(end) : KEY_BLOCK;
            if (from < to) attend_block<DIM>(group, dim, r * group, from, to, work);
        }
    }
    for (int r = 0; r < num_rows; r++) {
        const int64_t at = (rows[r] * shape.num_heads + int64_t(kv_head) * group) * dim;
        for (int d = 0; d < group * dim; d += LANES) {
            const f32x16 v =
                load(work.mixed + r * group * dim + d) / work.softmax[r * group + d / dim].total;
            if (a.store == TO_BF16)
                store(static_cast<uint16_t*>(a.out) + at + d, v);
            else
                store(static_cast<float*>(a.out) + at + d, v);
        }
    }
}

}  // namespace

void SL_NAME(attend)(const Attention& a, std::atomic<int>* next) {
    const AttentionShape& shape = *a.shape;
    const int dim = shape.head_dim, group = shape.num_heads / shape.kv_heads;
    const int lanes = MAX_TILE_ROWS * group;
    const size_t floats = size_t(2 * KEY_BLOCK + 2 * lanes) * dim + size_t(group) * KEY_BLOCK;
    float* memory = static_cast<float*>(scratch(4, sizeof(float) * (floats + 2 * lanes)));
    Work work;
    work.keys = memory;
    work.values = work.keys + KEY_BLOCK * dim;
    work.queries = work.values + KEY_BLOCK * dim;
    work.mixed = work.queries + lanes * dim;
    work.weights = work.mixed + lanes * dim;
    work.softmax = reinterpret_cast<Softmax*>(work.weights + group * KEY_BLOCK);
    const int num_units = a.plan->num_tiles * shape.kv_heads;
    for (int unit; (unit = next->fetch_add(1)) < num_units;) {
        const Tile& tile = a.plan->tiles[unit / shape.kv_heads];
        switch (dim) {
            case 64: attend_tile<64>(a, tile, unit % shape.kv_heads, work); break;
            case 128: attend_tile<128>(a, tile, unit % shape.kv_heads, work); break;
            default: attend_tile<0>(a, tile, unit % shape.kv_heads, work); break;
        }
    }
}

}  // namespace slipstream
