// Attention on AMX tiles, for keys and values in bf16 or codes. Lanes (a row's heads that share a key head) are
// the columns of the scores, so the softmax needs no sums across a vector. Queries enter as two bf16
// numbers each, of 16 bits together; weights as one, and their sum is that of the rounded ones.
// A lane's column is computed by itself: in a section all scores, their maximum, the weights, and the
// mix of values block by block; then sections are added in order of position. Positions that it does
// not see weigh exactly zero, and the order of TDPBF16PS is the same for every column.
#include "attention_reader.hpp"

namespace slipstream {
namespace {

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
    job.bundle = job.lanes > 8 || job.has_codes ? 1 : 16 / job.lanes;
    job.seen = seen_by(plan, tile);
    job.newest = job.seen.newest;
    const int num_lanes = job.bundle * job.lanes;
    for (int lane = 0; lane < 16 * job.lane_tiles; lane++) {
        const int64_t position = lane < num_lanes ? job.positions[lane % job.lanes / job.group] : -1;
        const bool is_cut = plan.window && position >= plan.window;
        job.first[lane] = is_cut ? int32_t(position - plan.window + 1) : 0;
        job.last[lane] = static_cast<int32_t>(position);
    }
    for (int h = 0; h < unit.num_heads; h++)
        pack_queries(job, unit.first_head + h, job.shift_of(h), job.queries_at(h, 0));
}

// Scores of all heads and lane tiles.
template <bool HAS_CODES>
void score_all(const Job& job, const Unit& unit, Blocks blocks, Reader& reader) {
    Keys keys[32];
    const size_t half = size_t(32) * job.dim;
    for (int b = blocks.begin; b < blocks.end; b++) {
        const int start = b * KEY_BLOCK;
        const auto pace = [&] { reader.bring(3); };
        for (int h = 0; h < unit.num_heads; h += job.bundle) {
            const int heads = job.heads_of(unit, h);
            for (int i = 0; i < heads; i++) {
                uint8_t* copy = job.keys + size_t(i) * 2 * half;
                keys[2 * i] = keys_of<HAS_CODES>(job, start, unit.first_head + h + i, copy);
                keys[2 * i + 1] = keys_of<HAS_CODES>(job, start + 16, unit.first_head + h + i, copy + half);
            }
            for (int t = 0; t < job.lane_tiles; t++)
                if (job.sees(t, start, start + KEY_BLOCK))
                    score(keys, heads, job.queries_at(h, t), job.dim,
                          job.scores_at(h, t) + b % SECTION_BLOCKS * BLOCK_SCORES, pace);
        }
        reader.read(job.stored(start, start + KEY_BLOCK) / 2);
    }
}

// Mixes of a unit's section, each to where `to(head, lane tile)` says, then `done(head, lane tile)`.
template <bool HAS_CODES, typename To, typename Done>
void attend_streamed(const Job& job, const Unit& unit, int section, Reader& reader, const To& to,
                     const Done& done) {
    const Blocks blocks = blocks_of(job.seen, section);
    score_all<HAS_CODES>(job, unit, blocks, reader);
    const auto pace = [&] { reader.bring(1); };
    const auto fetch = [&](int h, int b, int d, int dims) {
        const int start = b * KEY_BLOCK, stored = job.stored(start, start + KEY_BLOCK);
        const int count = stored - stored / 2;
        if (d == 0) reader.read(count * (h + 1) / unit.num_heads - count * h / unit.num_heads);
        fetch_values<HAS_CODES>(job, start, unit.first_head + h, d, dims,
                                job.values + size_t(b % SECTION_BLOCKS) * job.dim * 64, pace);
    };
    for (int h = 0; h < unit.num_heads; h += job.bundle) {
        if constexpr (HAS_CODES)
            fetch_scales(job, blocks.begin * KEY_BLOCK, blocks.end * KEY_BLOCK, unit.first_head + h);
        for (int t = 0; t < job.lane_tiles; t++) {
            const Blocks mine = seen(job, t, blocks);
            const Mix mixed = to(h, t);
            weigh_section(job, mine, t, job.scores_at(h, t), mixed, [&] { reader.bring(2); });
            if (job.lane_tiles > 1) {
                for (int b = blocks.begin; b < blocks.end && t == 0; b++) fetch(h, b, 0, job.dim);
                mix_section(job, mine, 0, mixed, [](int, int, int) {});
            } else {
                for (int i = 0; i < job.heads_of(unit, h); i++)
                    mix_section(job, mine, job.shift_of(i), mixed,
                                [&](int b, int d, int dims) { fetch(h + i, b, d, dims); });
            }
            done(h, t);
        }
    }
}

// The same, where rows are many.
template <bool HAS_CODES, typename To, typename Done>
void attend_section(const Job& job, const Unit& unit, int section, Reader& reader, const To& to,
                    const Done& done) {
    if (is_streamed(job.a, unit))
        return attend_streamed<HAS_CODES>(job, unit, section, reader, to, done);
    const Blocks blocks = blocks_of(job.seen, section);
    Keys keys[2 * SECTION_BLOCKS];
    for (int h = 0; h < unit.num_heads; h++) {
        const int head = unit.first_head + h;
        if constexpr (HAS_CODES)
            fetch_scales(job, blocks.begin * KEY_BLOCK, blocks.end * KEY_BLOCK, head);
        for (int b = blocks.begin; b < blocks.end; b++) {
            const int at = b % SECTION_BLOCKS, start = b * KEY_BLOCK;
            fetch_values<HAS_CODES>(job, start, head, 0, job.dim, job.values + size_t(at) * job.dim * 64, [] {});
            uint8_t* copy = job.keys + size_t(at) * job.dim * 64;
            keys[2 * at] = keys_of<HAS_CODES>(job, start, head, copy);
            keys[2 * at + 1] = keys_of<HAS_CODES>(job, start + 16, head, copy + size_t(32) * job.dim);
        }
        for (int t = 0; t < job.lane_tiles; t++) {
            const Blocks mine = seen(job, t, blocks);
            for (int b = mine.begin; b < mine.end; b++) {
                const int at = b % SECTION_BLOCKS;
                score(keys + 2 * at, 1, job.queries_at(h, t), job.dim, job.scores + at * BLOCK_SCORES,
                      [] {});
            }
            const Mix mixed = to(h, t);
            weigh_section(job, mine, t, job.scores, mixed, [] {});
            mix_section(job, mine, 0, mixed, [](int, int, int) {});
            done(h, t);
        }
    }
}

// Lanes of tile t from key head h of a unit on.
int lanes_of(const Job& job, const Unit& unit, int h, int t) {
    return job.bundle > 1 ? job.heads_of(unit, h) * job.lanes : job.last_lane(t) - 16 * t + 1;
}

void put(const Job& job, const Unit& unit, int h, int t, const Mix& mixed) {
    for (int i = 0; i < lanes_of(job, unit, h, t); i++) {
        const int lane = job.bundle > 1 ? i % job.lanes : 16 * t + i;
        const int kv_head = unit.first_head + h + (job.bundle > 1 ? i / job.lanes : 0);
        const int at = kv_head * job.group + lane % job.group;
        put_lane(job, mixed, i, (job.rows[lane / job.group] * job.a.shape->num_heads + at) * job.dim);
    }
}

void clear(const Mix& mixed, int dim) {
    memset(mixed.values, 0, sizeof(float) * 16 * dim);
    _mm512_store_ps(mixed.max, _mm512_set1_ps(-INFINITY));
    _mm512_store_ps(mixed.total, _mm512_setzero_ps());
}

// All sections of a tile, by one thread.
template <bool HAS_CODES>
void attend_whole(const Job& job, const Unit& unit, Reader& reader) {
    const Mix part = mix_at(job.part);
    const auto mixed = [&](int h, int t) {
        return mix_at(job.mixed + (h * job.lane_tiles + t) * job.mix_size());
    };
    const auto for_all = [&](const auto& what) {
        for (int h = 0; h < unit.num_heads; h += job.bundle)
            for (int t = 0; t < job.lane_tiles; t++) what(h, t);
    };
    for_all([&](int h, int t) { clear(mixed(h, t), job.dim); });
    for (int s = 0; s < unit.num_sections; s++)
        attend_section<HAS_CODES>(
            job, unit, unit.first_section + s, reader, [&](int, int) { return part; },
            [&](int h, int t) { add(mixed(h, t), part, lanes_of(job, unit, h, t), job.dim); });
    for_all([&](int h, int t) { put(job, unit, h, t, mixed(h, t)); });
}

// One section of a tile; who is the last of a group adds them up.
template <bool HAS_CODES>
void attend_part(const Job& job, const Unit& unit, Reader& reader, float* partials,
                 std::atomic<int>* finished) {
    const int num_mixes = unit.num_heads * job.lane_tiles;
    const auto part = [&](int p, int h, int t) {
        return mix_at(partials + (p * num_mixes + h * job.lane_tiles + t) * job.mix_size());
    };
    attend_section<HAS_CODES>(
        job, unit, unit.first_section, reader,
        [&](int h, int t) { return part(unit.part, h, t); }, [](int, int) {});
    if (finished->fetch_add(1) + 1 < unit.num_parts) return;
    const Mix mixed = mix_at(job.mixed);
    for (int h = 0; h < unit.num_heads; h += job.bundle)
        for (int t = 0; t < job.lane_tiles; t++) {
            clear(mixed, job.dim);
            for (int p = 0; p < unit.num_parts; p++)
                add(mixed, part(p, h, t), lanes_of(job, unit, h, t), job.dim);
            put(job, unit, h, t, mixed);
        }
}

template <bool HAS_CODES>
void attend_unit(const Job& job, const Unit& unit, Reader& reader, const Units& units,
                 std::atomic<int>* counters) {
    if (unit.group < 0) return attend_whole<HAS_CODES>(job, unit, reader);
    attend_part<HAS_CODES>(job, unit, reader, units.partials + unit.partial, counters + 1 + unit.group);
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
    const size_t blocks = heads > SECTION_BLOCKS ? heads : SECTION_BLOCKS;
    const size_t sizes[] = {blocks * 64 * dim,
                            SECTION_BLOCKS * 64 * dim,
                            heads * tiles * (dim / 32) * 2 * TILE,
                            heads * tiles * SECTION_BLOCKS * BLOCK_SCORES * 4,
                            (SECTION_BLOCKS + 1) * TILE,
                            (heads * tiles + 1) * 64 * (dim + 2),
                            2 * 64 * (dim + 2),
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
    Job job{};
    job.a = a;
    job.dim = static_cast<int>(dim);
    job.group = static_cast<int>(group);
    job.keys = at[0];
    job.values = at[1];
    job.queries = at[2];
    job.scores = floats(3);
    job.weights = at[4];
    job.mixed = floats(5);
    job.part = floats(6);
    job.first = numbers(7);
    job.last = numbers(8);
    job.key_scales = floats(9);
    job.value_scales = floats(10);
    job.has_codes = has_codes;
    job.head_bytes = head_bytes;
    job.slot_bytes = head_bytes / int64_t(dim) * slot_stride(shape);
    Reader reader(a, units, counters, head_bytes, job.slot_bytes);
    configure_tiles(16);
    while (const Unit* unit = reader.take()) {
        begin(job, *unit);
        if (has_codes)
            attend_unit<true>(job, *unit, reader, units, counters);
        else
            attend_unit<false>(job, *unit, reader, units, counters);
    }
    _tile_release();
}

}  // namespace slipstream
