// Attention in bf16, for keys and values in bf16 or codes: on AMX tiles, or in vectors with the same bits
// (attention_tiles.hpp, attention_vectors.hpp). Lanes (a row's heads that share a key head) are
// the columns of the scores, so the softmax needs no sums across a vector. Queries enter as two bf16
// numbers each, of 16 bits together; weights as one, and their sum is that of the rounded ones.
// A lane's column is computed by itself: in a section all scores, their maximum, the weights, and the
// mix of values block by block; then sections are added in order of position. Positions that it does
// not see weigh exactly zero, and the order of TDPBF16PS is the same for every column.
#include "attention_reader.hpp"

namespace slipstream {
namespace {

// Bring a job to a unit: what its lanes see, their queries. Those were written by all threads and come one by
// one from other cores, so the unit's first rows are brought near meanwhile.
void begin(Job& job, const Unit& unit, Reader& reader) {
    const AttentionPlan& plan = *job.a.plan;
    const Tile& tile = plan.tiles[unit.tile];
    const int num_rows = static_cast<int>(tile.num_rows);
    job.rows = plan.rows + tile.first_row;
    job.positions = plan.positions + tile.first_row;
    job.slots = plan.slots + tile.first_slot;
    job.lanes = num_rows * job.group;
    job.lane_tiles = ceil_div(job.lanes, 16);
    job.bundle = job.has_codes ? 1 : heads_of_tile(*job.a.shape, num_rows);
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
        pack_queries(job, unit.first_head + h, job.shift_of(h), job.queries_at(h, 0),
                     [&] { reader.bring(ROWS_AT_PACKING); });
}

// Where a section's keys lie for the heads of a bundle.
template <bool HAS_CODES, typename Pace>
void find_keys(const Job& job, int first_head, int num_heads, Blocks blocks, Keys* keys, const Pace& pace) {
    const size_t size = size_t(32) * job.dim;
    for (int h = 0; h < num_heads; h++)
        for (int i = 2 * blocks.begin; i < 2 * blocks.end; i++) {
            const int at = h * SECTION_KEYS + i % SECTION_KEYS;
            keys[at] = keys_of<HAS_CODES>(job, 16 * i, first_head + h, job.keys + at * size, pace);
        }
}

// Lanes of tile t from key head h of a unit on.
int lanes_of(const Job& job, const Unit& unit, int h, int t) {
    return job.bundle > 1 ? job.heads_of(unit, h) * job.lanes : job.lanes_of(t);
}

// Where a section's mixes of a head go.
struct Target {
    float* mixes;  // of the first lane tile
    int64_t step;  // to that of the next one
    float* sums;   // what they are added to, or null
};

// Another core read these lines last: have them sent back while there is something else to compute.
void fetch_to_write(const float* at, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(at + i, 1);
}

// Mixes of a unit's section, to `target_of(head)`, then `done(head)`. One bundle of heads and tile after the
// other, so that what belongs to it stays in the first-level cache.
template <bool HAS_CODES, bool IS_STREAMED, typename TargetOf, typename Done>
void attend_section(const Job& job, const Unit& unit, int section, Reader& reader,
                    const TargetOf& target_of, const Done& done) {
    const Blocks blocks = blocks_of(job.seen, unit.first_section + section);
    const Range range = unit.heads_of(section);
    const Pace<IS_STREAMED> pace{reader};
    find_rows(job, blocks);
    const bool is_arranged = !reads_rows(job);
    Keys keys[16 * SECTION_KEYS];
    // Every second thread goes from the last head to the first: neighbours then share the adding up.
    const int count = ceil_div(range.end - range.begin, job.bundle), is_back = unit.thread % 2;
    for (int i = 0; i < count; i++) {
        const int h = range.begin + (is_back ? count - 1 - i : i) * job.bundle;
        const int head = unit.first_head + h, heads = job.heads_of(unit, h);
        const auto fetch = [&](int next, int b) {
            if (is_arranged)
                fetch_values<HAS_CODES>(job, b * KEY_BLOCK, head + next, job.values_at(next, b), pace);
        };
        if (is_arranged) find_keys<HAS_CODES>(job, head, heads, blocks, keys, pace);
        if constexpr (HAS_CODES) fetch_scales(job, blocks.begin * KEY_BLOCK, blocks.end * KEY_BLOCK, head);
        const Target target = target_of(h);
        for (int t = 0; t < job.lane_tiles; t++) {
            const Blocks mine = seen(job, t, blocks);
            const Mix mixed = mix_at(target.mixes + t * target.step);
            if (!IS_STREAMED && t == 0)
                for (int b = blocks.begin; b < blocks.end; b++) fetch(0, b);
            const bool is_far = IS_STREAMED && t == 0 && heads == 1;
            if (!target.sums) fetch_to_write(target.mixes + t * target.step, job.mix_size());
            score_section<HAS_CODES, IS_STREAMED>(job, unit, h, t, mine, keys, is_far, pace);
            // Early, because tiles that were written just before are slow to read.
            if (IS_STREAMED && t == 0)
                for (int b = blocks.begin; b < blocks.end; b++) fetch(0, b);
            weigh_section(job, mine, t, mixed, pace);
            if (mine.begin >= mine.end) memset(mixed.values, 0, sizeof(float) * 16 * job.dim);
            for (int next = 0; next < heads && mine.begin < mine.end; next++) {
                const int shift = job.shift_of(next);
                mix<HAS_CODES>(
                    job, mine, head + next, t, job.weights_at(mine.begin) + 64 * shift,
                    job.values_at(next, mine.begin), mixed.values + shift * job.dim,
                    [&](int b) {
                        if (t == 0) pace.read(job.stored_of(mine.begin + b), 1);
                        if (next + 1 < heads) fetch(next + 1, mine.begin + b);
                    },
                    pace);
            }
            if (t == 0)
                for (int b = blocks.begin; b < blocks.end; b++)
                    if (b < mine.begin || b >= mine.end) pace.read(2 * job.stored_of(b), heads);
            if (target.sums)
                add(mix_at(target.sums + t * job.mix_size()), mixed, lanes_of(job, unit, h, t), job.dim);
        }
        done(h);
    }
}

// What all lanes of a bundle have mixed, to the results.
void put(const Job& job, const Unit& unit, int h, float* mixes) {
    for (int t = 0; t < job.lane_tiles; t++)
        for (int i = 0; i < lanes_of(job, unit, h, t); i++) {
            const int lane = job.bundle > 1 ? i % job.lanes : 16 * t + i;
            const int kv_head = unit.first_head + h + (job.bundle > 1 ? i / job.lanes : 0);
            const int at = kv_head * job.group + lane % job.group;
            put_lane(job, mix_at(mixes + t * job.mix_size()), i,
                     (job.rows[lane / job.group] * job.a.shape->num_heads + at) * job.dim);
        }
}

// A unit's steps; heads that it shares with others are added up by the last of them.
template <bool HAS_CODES, bool IS_STREAMED>
void attend_unit(const Job& job, const Unit& unit, Reader& reader, const Units& units,
                 std::atomic<int>* counters) {
    const Group* group = unit.group < 0 ? nullptr : &units.groups[unit.group];
    const int64_t size = job.lane_tiles * job.mix_size();
    const auto part = [&](int section, int h) {
        return units.partials + group->partial + (section * unit.num_heads + h) * size;
    };
    const auto sums_of = [&](int h, Range sections) {
        return sections.end - sections.begin == unit.num_sections ? job.mixed + h * size : part(0, h);
    };
    for (int s = unit.begin / unit.num_bundles(); s * unit.num_bundles() < unit.end; s++) {
        const auto target_of = [&](int h) -> Target {
            const Range sections = unit.sections_of(h);
            if (s == 0) return {sums_of(h, sections), job.mix_size(), nullptr};
            if (sections.begin > 0) return {part(s, h), job.mix_size(), nullptr};
            return {job.part, 0, sums_of(h, sections)};
        };
        const auto done = [&](int h) {
            const Range sections = unit.sections_of(h);
            if (s + 1 < sections.end) return;
            float* sums = sums_of(h, sections);
            if (sections.end - sections.begin < unit.num_sections) {
                if (counters[group->finished + h].fetch_add(1) + 1 < units.num_parts_of(*group, h)) return;
                for (int i = units.first_sum_of(*group, h); i < unit.num_sections; i++)
                    for (int t = 0; t < job.lane_tiles; t++)
                        add(mix_at(sums + t * job.mix_size()), mix_at(part(i, h) + t * job.mix_size()),
                            lanes_of(job, unit, h, t), job.dim);
            }
            put(job, unit, h, sums);
        };
        attend_section<HAS_CODES, IS_STREAMED>(job, unit, s, reader, target_of, done);
    }
}

}  // namespace

void SL_NAME(attend)(const Attention& a, const Units& units, std::atomic<int>* counters, int thread) {
    const AttentionShape& shape = *a.shape;
    const size_t dim = shape.head_dim, group = shape.num_heads / shape.kv_heads;
    const bool has_codes = shape.kv_format == KV_INT8;
    const int64_t head_bytes = has_codes ? dim : 2 * dim;
    size_t heads = 1, tiles = ceil_div(MAX_TILE_ROWS * int(group), 16);
    for (int i = 0; i < units.num_units; i++)
        heads = size_t(units.units[i].num_heads) > heads ? units.units[i].num_heads : heads;
    const size_t sizes[] = {heads * SECTION_BLOCKS * 64 * dim,
                            2 * SECTION_BLOCKS * 64 * dim,
                            heads * tiles * (dim / 32) * 2 * TILE,
                            SECTION_BLOCKS * BLOCK_SCORES * 4,
                            (SECTION_BLOCKS + 1) * TILE,
                            (heads * tiles + 1) * 64 * (dim + 2),
                            2 * 64 * (dim + 2),
                            tiles * 64,
                            tiles * 64,
                            4 * SECTION,
                            8 * SECTION,
                            sizeof(uint8_t*) * SECTION,
                            sizeof(uint8_t*) * SECTION,
                            size_t(ceil_div(int(slot_bytes(shape)), 64)) * 64};
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
    job.slot_bytes = slot_bytes(shape);
    job.key_rows = reinterpret_cast<const uint8_t**>(at[11]);
    job.value_rows = reinterpret_cast<const uint8_t**>(at[12]);
    job.zeros = static_cast<uint8_t*>(memset(at[13], 0, sizes[13]));
    Reader reader(a, Taker(units, counters, thread), head_bytes, job.slot_bytes);
    const Products products;
    while (const Unit* unit = reader.take()) {
        begin(job, *unit, reader);
        const bool streams = is_streamed(a, *unit);
        const auto attend = has_codes ? streams ? attend_unit<true, true> : attend_unit<true, false>
                            : streams ? attend_unit<false, true>
                                      : attend_unit<false, false>;
        attend(job, *unit, reader, units, counters);
    }
}

}  // namespace slipstream
