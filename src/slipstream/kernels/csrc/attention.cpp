// Online softmax in float32. Per row and head: sections in order of position, in a section blocks; in a
// block the dot products, their maximum, the weights' sum and the mix of values each have one order, and
// positions that the row does not see take no part. So nothing depends on the other rows of a tile.
#include "attention.hpp"
#include "simd.hpp"

namespace slipstream {
namespace {

constexpr int LANES = 16;
// What is computed side by side has its sums in registers.
constexpr int KEYS_AT_ONCE = HAS_WIDE_REGISTERS ? 16 : 4;
constexpr int MIXED_AT_ONCE = HAS_WIDE_REGISTERS ? 4 : 1;  // vectors of a head's values

// Dot products of a query with the block's keys of one half, [16][dim].
template <int DIM>
SL_INLINE f32x16 scores_of(const float* query, const float* keys, int dim) {
    const int width = DIM ? DIM : dim;
    Folded folded[16];
#pragma GCC unroll 4
    for (int first = 0; first < 16; first += KEYS_AT_ONCE, keys += KEYS_AT_ONCE * width) {
        f32x16 p[KEYS_AT_ONCE];
#pragma GCC unroll 16
        for (int j = 0; j < KEYS_AT_ONCE; j++) p[j] = load(query) * load(keys + j * width);
        for (int d = LANES; d < width; d += LANES) {
            const f32x16 q = load(query + d);
#pragma GCC unroll 16
            for (int j = 0; j < KEYS_AT_ONCE; j++) p[j] = fma(q, load(keys + j * width + d), p[j]);
        }
#pragma GCC unroll 16
        for (int j = 0; j < KEYS_AT_ONCE; j++) folded[first + j] = fold(p[j]);
    }
    return sums_of(folded);
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

// What the lanes (a row's heads of a group, row by row) have mixed so far or in one section.
struct Mix {
    float* values;      // [lanes][dim], not normalised
    Softmax* softmax;  // [lanes]
};

struct Work {
    float* keys;     // [32][dim]
    float* values;   // [32][dim]
    float* queries;  // [lanes][dim], scaled
    float* weights;  // [group][32]
    Mix mixed, part;
};

template <typename T>
void fetch(const Attention& a, const void* stored, const int64_t* slots, int head, int count,
           float* to) {
    const int dim = a.shape->head_dim;
    const int64_t stride = slot_stride(*a.shape);
    const T* from = static_cast<const T*>(stored) + int64_t(head) * dim;
    for (int j = 0; j < count; j++) {
        const T* row = from + slots[j] * stride;
        for (int d = 0; d < dim; d += LANES) store(to + j * dim + d, load(row + d));
    }
}

// Codes, as the numbers that they stand for.
void fetch_codes(const Attention& a, const void* stored, const float* scales, const int64_t* slots,
                 int head, int count, float* to) {
    const int dim = a.shape->head_dim;
    for (int j = 0; j < count; j++) {
        const int64_t at = slots[j] * a.shape->kv_heads + head;
        const int8_t* row =
            static_cast<const int8_t*>(stored) + slots[j] * slot_stride(*a.shape) + int64_t(head) * dim;
        for (int d = 0; d < dim; d += LANES) store(to + j * dim + d, load(row + d) * scales[at]);
    }
}

void fetch_block(const Attention& a, const int64_t* slots, int head, int count, const Work& work) {
    switch (a.shape->kv_format) {
        case KV_INT8:
            fetch_codes(a, a.keys, a.key_scales, slots, head, count, work.keys);
            return fetch_codes(a, a.values, a.value_scales, slots, head, count, work.values);
        case KV_BF16:
            fetch<uint16_t>(a, a.keys, slots, head, count, work.keys);
            return fetch<uint16_t>(a, a.values, slots, head, count, work.values);
        default:
            fetch<float>(a, a.keys, slots, head, count, work.keys);
            fetch<float>(a, a.values, slots, head, count, work.values);
    }
}

// One row's heads of a group over the positions [begin, end) of a block.
template <int DIM>
void attend_block(int group, int head_dim, int lane, int begin, int end, const Work& work,
                  const Mix& mix) {
    const int dim = DIM ? DIM : head_dim;
    const i32x16 index = lane_numbers();
    const f32x16 hidden = splat(-INFINITY);
    for (int h = 0; h < group; h++) {
        const float* query = work.queries + (lane + h) * dim;
        f32x16 scores[2];
        for (int half = 0; half < 2; half++) {
            const i32x16 at = index + 16 * half;
            if (begin < 16 * half + 16 && end > 16 * half) {
                const f32x16 s = scores_of<DIM>(query, work.keys + 16 * half * dim, dim);
                scores[half] = select((at >= begin) & (at < end), s, hidden);
            } else {
                scores[half] = hidden;
            }
        }
        Softmax& state = mix.softmax[lane + h];
        const float block_max = max(max(scores[0], scores[1]));
        float* mixed = mix.values + (lane + h) * dim;
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
    float* mixed = mix.values + lane * dim;
    int d = 0;
    for (; d + MIXED_AT_ONCE * LANES <= dim; d += MIXED_AT_ONCE * LANES)
        mix_part<MIXED_AT_ONCE>(group, work.weights, work.values + d, dim, begin, end, mixed + d);
    for (; d < dim; d += LANES)
        mix_part<1>(group, work.weights, work.values + d, dim, begin, end, mixed + d);
}

// One unit's rows of one key head.
struct Job {
    const Attention& a;
    const Tile& tile;
    const int64_t* rows;
    const int64_t* positions;
    const int64_t* slots;
    int kv_head, dim, group, lanes;

    int64_t first_seen(int r) const {
        const int64_t window = a.plan->window;
        return window && positions[r] >= window ? positions[r] - window + 1 : 0;
    }
};

void clear(const Job& job, const Mix& mix) {
    memset(mix.values, 0, sizeof(float) * job.lanes * job.dim);
    for (int i = 0; i < job.lanes; i++) mix.softmax[i] = {-INFINITY, 0.0f};
}

void scale_queries(const Job& job, float* scaled) {
    const int width = job.group * job.dim;
    for (int r = 0; r < int(job.tile.num_rows); r++, scaled += width) {
        const float* query = job.a.queries + job.rows[r] * job.a.q_stride + int64_t(job.kv_head) * width;
        for (int d = 0; d < width; d += LANES) store(scaled + d, load(query + d) * job.a.shape->scale);
    }
}

// A section, to `mix`.
template <int DIM>
void attend_section(const Job& job, int section, const Work& work, const Mix& mix) {
    const int num_rows = static_cast<int>(job.tile.num_rows);
    int64_t end = job.positions[num_rows - 1] + 1, start = job.first_seen(0) / KEY_BLOCK * KEY_BLOCK;
    if (start < int64_t(section) * SECTION) start = int64_t(section) * SECTION;
    if (end > int64_t(section + 1) * SECTION) end = int64_t(section + 1) * SECTION;
    clear(job, mix);
    for (; start < end; start += KEY_BLOCK) {
        const int count = end - start < KEY_BLOCK ? int(end - start) : KEY_BLOCK;
        fetch_block(job.a, job.slots + start, job.kv_head, count, work);
        for (int r = 0; r < num_rows; r++) {
            const int64_t first = job.first_seen(r) - start, last = job.positions[r] + 1 - start;
            const int from = first > 0 ? int(first < KEY_BLOCK ? first : KEY_BLOCK) : 0;
            const int to = last < KEY_BLOCK ? int(last) : KEY_BLOCK;
            if (from < to) attend_block<DIM>(job.group, job.dim, r * job.group, from, to, work, mix);
        }
    }
}

// Add a section's mix to what came before it.
void add(const Job& job, const Mix& to, const Mix& part) {
    for (int i = 0; i < job.lanes; i++) {
        Softmax& state = to.softmax[i];
        const Softmax& added = part.softmax[i];
        if (added.total == 0.0f) continue;  // the lane sees nothing of the section
        const float now = added.max > state.max ? added.max : state.max;
        const f32x16 shrink = exp(splat(state.max - now)), grow = exp(splat(added.max - now));
        state = {now, state.total * shrink[0] + added.total * grow[0]};
        for (int d = 0; d < job.dim; d += LANES) {
            float* at = to.values + i * job.dim + d;
            store(at, fma(load(part.values + i * job.dim + d), grow, load(at) * shrink));
        }
    }
}

void put(const Job& job, const Mix& mix) {
    const int width = job.group * job.dim;
    for (int r = 0; r < int(job.tile.num_rows); r++) {
        const int64_t at = (job.rows[r] * job.a.shape->kv_heads + job.kv_head) * width;
        for (int d = 0; d < width; d += LANES) {
            const f32x16 v = load(mix.values + r * width + d) / mix.softmax[r * job.group + d / job.dim].total;
            if (job.a.store == TO_BF16)
                store(static_cast<uint16_t*>(job.a.out) + at + d, v);
            else
                store(static_cast<float*>(job.a.out) + at + d, v);
        }
    }
}

// One head of a unit: its sections are added up, by the last of a group.
template <int DIM>
void attend_head(Job& job, const Unit& unit, int head, const Units& units, const Work& work,
                 std::atomic<int>* counters) {
    job.kv_head = unit.first_head + head;
    scale_queries(job, work.queries);
    const Group* group = unit.group < 0 ? nullptr : &units.groups[unit.group];
    const int64_t size = partial_size(*job.a.shape, int(job.tile.num_rows), 1);
    const auto part = [&](int section) {
        float* memory = units.partials + group->partial + (section * unit.num_heads + head) * size;
        return Mix{memory, reinterpret_cast<Softmax*>(memory + job.lanes * job.dim)};
    };
    const Range sections = unit.sections_of(head);
    const bool is_sum = sections.begin == 0, is_whole = is_sum && sections.end == unit.num_sections;
    const Mix sum = is_whole ? work.mixed : part(0);
    if (is_sum) clear(job, sum);
    for (int s = sections.begin; s < sections.end; s++) {
        attend_section<DIM>(job, unit.first_section + s, work, is_sum ? work.part : part(s));
        if (is_sum) add(job, sum, work.part);
    }
    if (!is_whole) {
        if (counters[group->finished + head].fetch_add(1) + 1 < units.num_parts_of(*group, head)) return;
        for (int s = units.first_sum_of(*group, head); s < unit.num_sections; s++) add(job, sum, part(s));
    }
    put(job, sum);
}

template <int DIM>
void attend_unit(const Attention& a, const Unit& unit, const Units& units, const Work& work,
                 std::atomic<int>* counters) {
    const AttentionPlan& plan = *a.plan;
    const Tile& tile = plan.tiles[unit.tile];
    const int group = a.shape->num_heads / a.shape->kv_heads;
    Job job{a, tile, plan.rows + tile.first_row, plan.positions + tile.first_row,
            plan.slots + tile.first_slot, unit.first_head, a.shape->head_dim, group,
            int(tile.num_rows) * group};
    for (int h = 0; h < unit.num_heads; h++) {
        const Range sections = unit.sections_of(h);
        if (sections.begin < sections.end) attend_head<DIM>(job, unit, h, units, work, counters);
    }
}

}  // namespace

void SL_NAME(attend)(const Attention& a, const Units& units, std::atomic<int>* counters,
                     int thread) {
    const AttentionShape& shape = *a.shape;
    const int dim = shape.head_dim, group = shape.num_heads / shape.kv_heads;
    const int lanes = MAX_TILE_ROWS * group;
    const size_t floats = size_t(2 * KEY_BLOCK + 3 * lanes) * dim + size_t(group) * KEY_BLOCK;
    float* memory = static_cast<float*>(scratch(4, sizeof(float) * (floats + 4 * lanes)));
    Work work;
    const auto take = [&](int count) { return memory += count, memory - count; };
    work.keys = take(KEY_BLOCK * dim);
    work.values = take(KEY_BLOCK * dim);
    work.queries = take(lanes * dim);
    work.weights = take(group * KEY_BLOCK);
    work.mixed.values = take(lanes * dim);
    work.part.values = take(lanes * dim);
    work.mixed.softmax = reinterpret_cast<Softmax*>(take(2 * lanes));
    work.part.softmax = reinterpret_cast<Softmax*>(take(2 * lanes));
    Taker taker(units, counters, thread);
    while (const Unit* unit = taker.take()) {
        switch (dim) {
            case 64: attend_unit<64>(a, *unit, units, work, counters); break;
            case 128: attend_unit<128>(a, *unit, units, work, counters); break;
            default: attend_unit<0>(a, *unit, units, work, counters); break;
        }
    }
}

}  // namespace slipstream
