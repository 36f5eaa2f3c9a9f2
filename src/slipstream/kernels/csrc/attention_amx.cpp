// Attention on AMX tiles, for keys and values in bf16 or codes. Lanes (a row's heads that share a key head) are
// the columns of the scores, so the softmax needs no sums across a vector. Queries enter as two bf16
// numbers each, of 16 bits together; weights as one, and their sum is that of the rounded ones.
// A lane's column is computed by itself: in a section all scores, their maximum, the weights, and the
// mix of values block by block; then sections are added in order of position. Positions that it does
// not see weigh exactly zero, and the order of TDPBF16PS is the same for every column.
#include "attention_tiles.hpp"

namespace slipstream {
namespace {

constexpr int MAX_STREAMED = 9;  // lane tiles of a unit

// What a unit sees of a section.
Blocks blocks_of(const Job& job, int section) {
    const int first = job.first[0] / KEY_BLOCK, end = job.newest / KEY_BLOCK + 1;
    const int begin = section * SECTION_BLOCKS;
    return {first > begin ? first : begin, end < begin + SECTION_BLOCKS ? end : begin + SECTION_BLOCKS};
}

// Few rows wait for memory and read all keys of a section in order; many find them in a cache.
bool is_streamed(const Job& job, const Unit& unit) { return unit.num_heads * job.lane_tiles <= MAX_STREAMED; }

// Bring a job to a unit: what its lanes see, their queries.
void begin(Job& job, const Unit& unit) {
    const AttentionPlan& plan = *job.a.plan;
    const Tile& tile = plan.tiles[unit.tile];
    const int num_rows = static_cast<int>(tile.num_rows);
    job.rows = plan.rows + tile.first_row;
    job.positions = plan.positions + tile.first_row;
    job.slots = plan.slots + tile.first_slot;
    job.lanes = num_rows * job.group;
    job.lane_tiles = ceil_div(job.lanes, 16);
    job.newest = static_cast<int>(job.positions[num_rows - 1]);
    for (int lane = 0; lane < 16 * job.lane_tiles; lane++) {
        const int64_t position = lane < job.lanes ? job.positions[lane / job.group] : -1;
        const bool is_cut = plan.window && position >= plan.window;
        job.first[lane] = is_cut ? int32_t(position - plan.window + 1) : 0;
        job.last[lane] = static_cast<int32_t>(position);
    }
    const int start = blocks_of(job, unit.first_section).begin * KEY_BLOCK;
    if (is_streamed(job, unit)) job.prefetch(job.a.keys, start, start + KEY_BLOCK, unit);
    for (int h = 0; h < unit.num_heads; h++)
        pack_queries(job, unit.first_head + h, job.queries_at(h, 0));
}

// Scores of all heads and lane tiles.
template <bool HAS_CODES>
void score_all(const Job& job, const Unit& unit, Blocks blocks) {
    for (int b = blocks.begin; b < blocks.end; b++) {
        const int start = b * KEY_BLOCK;
        if (b + 1 < blocks.end) job.prefetch(job.a.keys, start + KEY_BLOCK, start + 2 * KEY_BLOCK, unit);
        for (int h = 0; h < unit.num_heads; h++) {
            const Keys lower = keys_of<HAS_CODES>(job, start, unit.first_head + h, job.keys);
            const Keys upper = keys_of<HAS_CODES>(job, start + 16, unit.first_head + h, job.keys + size_t(32) * job.dim);
            for (int t = 0; t < job.lane_tiles; t++)
                if (job.sees(t, start, start + KEY_BLOCK))
                    score(lower, upper, job.queries_at(h, t), job.dim,
                          job.scores_at(h, t) + b % SECTION_BLOCKS * BLOCK_SCORES);
        }
    }
}

// Mixes of a unit's section, each to where `to(head, lane tile)` says, then `done(head, lane tile)`.
template <bool HAS_CODES, typename To, typename Done>
void attend_section(const Job& job, const Unit& unit, int section, const To& to, const Done& done) {
    const Blocks blocks = blocks_of(job, section);
    const bool is_scored = is_streamed(job, unit);
    if (is_scored) {
        score_all<HAS_CODES>(job, unit, blocks);
        if (unit.group < 0)
            job.prefetch(job.a.keys, blocks.end * KEY_BLOCK, (blocks.end + 1) * KEY_BLOCK, unit);
    }
    Keys keys[2 * SECTION_BLOCKS];
    for (int h = 0; h < unit.num_heads; h++) {
        if constexpr (HAS_CODES)
            fetch_scales(job, blocks.begin * KEY_BLOCK, blocks.end * KEY_BLOCK, unit.first_head + h);
        for (int b = blocks.begin; b < blocks.end; b++) {
            const int at = b % SECTION_BLOCKS, start = b * KEY_BLOCK;
            fetch_values<HAS_CODES>(job, start, unit.first_head + h, job.values + size_t(at) * job.dim * 64);
            if (is_scored) continue;
            uint8_t* copy = job.keys + size_t(at) * job.dim * 64;
            keys[2 * at] = keys_of<HAS_CODES>(job, start, unit.first_head + h, copy);
            keys[2 * at + 1] = keys_of<HAS_CODES>(job, start + 16, unit.first_head + h, copy + size_t(32) * job.dim);
        }
        for (int t = 0; t < job.lane_tiles; t++) {
            float* scores = is_scored ? job.scores_at(h, t) : job.scores;
            const Blocks mine = seen(job, t, blocks);
            for (int b = mine.begin; b < mine.end && !is_scored; b++) {
                const int at = b % SECTION_BLOCKS;
                score(keys[2 * at], keys[2 * at + 1], job.queries_at(h, t), job.dim,
                      scores + at * BLOCK_SCORES);
            }
            mix_section(job, mine, t, scores, to(h, t));
            done(h, t);
        }
    }
}

int lanes_of(const Job& job, int t) { return job.last_lane(t) - 16 * t + 1; }

void put(const Job& job, const Unit& unit, int h, int t, const Mix& mixed) {
    int row = 16 * t / job.group, head = 16 * t % job.group;
    for (int i = 0; i < lanes_of(job, t); i++) {
        const int at = (unit.first_head + h) * job.group + head;
        put_lane(job, mixed, i, (job.rows[row] * job.a.shape->num_heads + at) * job.dim);
        if (++head == job.group) head = 0, row++;
    }
}

void clear(const Mix& mixed, int dim) {
    memset(mixed.values, 0, sizeof(float) * 16 * dim);
    _mm512_store_ps(mixed.max, _mm512_set1_ps(-INFINITY));
    _mm512_store_ps(mixed.total, _mm512_setzero_ps());
}

// All sections of a tile, by one thread.
template <bool HAS_CODES>
void attend_whole(const Job& job, const Unit& unit) {
    const Mix part = mix_at(job.part, job.dim);
    const auto mixed = [&](int h, int t) {
        return mix_at(job.mixed + (h * job.lane_tiles + t) * job.mix_size(), job.dim);
    };
    const int num_mixes = unit.num_heads * job.lane_tiles;
    for (int i = 0; i < num_mixes; i++) clear(mixed(0, i), job.dim);
    for (int s = 0; s < unit.num_sections; s++)
        attend_section<HAS_CODES>(
            job, unit, unit.first_section + s, [&](int, int) { return part; },
            [&](int h, int t) { add(mixed(h, t), part, lanes_of(job, t), job.dim); });
    for (int i = 0; i < num_mixes; i++)
        put(job, unit, i / job.lane_tiles, i % job.lane_tiles, mixed(0, i));
}

// One section of a tile; who is the last of a group adds them up.
template <bool HAS_CODES>
void attend_part(const Job& job, const Unit& unit, float* partials, std::atomic<int>* finished) {
    const int num_mixes = unit.num_heads * job.lane_tiles;
    const auto part = [&](int p, int h, int t) {
        return mix_at(partials + (p * num_mixes + h * job.lane_tiles + t) * job.mix_size(), job.dim);
    };
    attend_section<HAS_CODES>(
        job, unit, unit.first_section, [&](int h, int t) { return part(unit.part, h, t); },
        [](int, int) {});
    if (finished->fetch_add(1) + 1 < unit.num_parts) return;
    const Mix mixed = mix_at(job.mixed, job.dim);
    for (int h = 0; h < unit.num_heads; h++)
        for (int t = 0; t < job.lane_tiles; t++) {
            clear(mixed, job.dim);
            for (int p = 0; p < unit.num_parts; p++)
                add(mixed, part(p, h, t), lanes_of(job, t), job.dim);
            put(job, unit, h, t, mixed);
        }
}

template <bool HAS_CODES>
void attend_unit(const Job& job, const Unit& unit, const Units& units, std::atomic<int>* counters) {
    if (unit.group < 0) return attend_whole<HAS_CODES>(job, unit);
    attend_part<HAS_CODES>(job, unit, units.partials + unit.partial, counters + 1 + unit.group);
}

}  // namespace

void attend_amx(const Attention& a, const Units& units, std::atomic<int>* counters) {
    const AttentionShape& shape = *a.shape;
    const size_t dim = shape.head_dim, group = shape.num_heads / shape.kv_heads;
    const bool has_codes = shape.kv_format == KV_INT8;
    const int64_t head_bytes = has_codes ? dim : 2 * dim;
    size_t heads = 1, tiles = ceil_div(MAX_TILE_ROWS * int(group), 16);
    for (int i = 0; i < units.num_units; i++)
        heads = size_t(units.units[i].num_heads) > heads ? units.units[i].num_heads : heads;
    const size_t sizes[] = {SECTION_BLOCKS * 64 * dim,
                            SECTION_BLOCKS * 64 * dim,
                            heads * tiles * (dim / 32) * 2 * TILE,
                            heads * tiles * SECTION_BLOCKS * BLOCK_SCORES * 4,
                            SECTION_BLOCKS * TILE,
                            heads * tiles * 64 * (dim + 2),
                            64 * (dim + 2),
                            tiles * 64,
                            tiles * 64,
                            4 * SECTION,
                            8 * SECTION};
    constexpr int NUM_PARTS = sizeof(sizes) / sizeof(sizes[0]);
    size_t bytes = 0;
    for (size_t size : sizes) bytes += size;
    uint8_t* memory = static_cast<uint8_t*>(scratch(4, bytes));
    uint8_t* at[NUM_PARTS];
    for (int i = 0; i < NUM_PARTS; memory += sizes[i++]) at[i] = memory;
    const auto floats = [&](int i) { return reinterpret_cast<float*>(at[i]); };
    const auto numbers = [&](int i) { return reinterpret_cast<int32_t*>(at[i]); };
    Job job{a,     nullptr,   nullptr, nullptr,   int(dim),  int(group), 0,          0,         0,
            at[0], at[1],     at[2],   floats(3), at[4],     floats(5),  floats(6), numbers(7), numbers(8), floats(9),
            floats(10), has_codes, head_bytes, head_bytes * shape.kv_heads};
    configure_tiles(16);
    for (int i; (i = counters[0].fetch_add(1)) < units.num_units;) {
        const Unit& unit = units.units[i];
        begin(job, unit);
        if (has_codes)
            attend_unit<true>(job, unit, units, counters);
        else
            attend_unit<false>(job, unit, units, counters);
    }
    _tile_release();
}

}  // namespace slipstream
