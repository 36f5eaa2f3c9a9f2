// How attention is cut into work for threads. Few tiles are cut into sections of positions, many are
// not: a thread then adds up the sections itself. Neighbouring key heads stay together, because their
// keys lie side by side in memory.
#include "attention.hpp"

namespace slipstream {
namespace {

constexpr int SPAN_FLOATS = 256;                // of key heads that stay together
constexpr int64_t MAX_PARTIALS = int64_t(8) << 20;  // floats

struct Sections {
    int first, count;
};

Sections sections_of(const AttentionPlan& plan, const Tile& tile) {
    const int64_t* positions = plan.positions + tile.first_row;
    const int64_t oldest = plan.window && positions[0] >= plan.window ? positions[0] - plan.window + 1 : 0;
    const int first = static_cast<int>(oldest / SECTION);
    return {first, static_cast<int>(positions[tile.num_rows - 1] / SECTION) - first + 1};
}

}  // namespace

Units cut_units(const AttentionShape& shape, const AttentionPlan& plan, int num_threads, int which) {
    int num_sections = 0;
    int64_t floats = 0;
    for (int i = 0; i < plan.num_tiles; i++) {
        const int count = sections_of(plan, plan.tiles[i]).count;
        num_sections += count;
        floats += count * partial_size(shape, int(plan.tiles[i].num_rows), shape.kv_heads);
    }
    int span = SPAN_FLOATS / shape.head_dim;
    if (num_sections < 2 * num_threads || span < 1) span = 1;
    if (span > shape.kv_heads) span = shape.kv_heads;
    const int num_spans = ceil_div(shape.kv_heads, span);
    const bool is_split = num_threads > 1 && floats <= MAX_PARTIALS &&
                          plan.num_tiles * num_spans < 4 * num_threads;
    const int most = num_spans * (is_split ? num_sections : plan.num_tiles);
    Unit* units = static_cast<Unit*>(scratch(which, sizeof(Unit) * most));
    Units result{units, 0, 0, nullptr};
    int64_t partial = 0;
    for (int i = 0; i < plan.num_tiles; i++) {
        const Sections sections = sections_of(plan, plan.tiles[i]);
        const bool is_alone = !is_split || sections.count == 1;
        const int parts = is_alone ? 1 : sections.count;
        for (int part = 0; part < parts; part++)
            for (int s = 0, head = 0; s < num_spans; s++, head += span) {
                Unit& unit = units[result.num_units++];
                unit.tile = i;
                unit.first_head = head;
                unit.num_heads = head + span < shape.kv_heads ? span : shape.kv_heads - head;
                unit.first_section = sections.first + part;
                unit.num_sections = is_alone ? sections.count : 1;
                unit.group = is_alone ? -1 : result.num_groups + s;
                unit.part = part;
                unit.num_parts = parts;
                unit.partial = partial + head * parts * partial_size(
                    shape, static_cast<int>(plan.tiles[i].num_rows), 1);
            }
        if (is_alone) continue;
        result.num_groups += num_spans;
        partial += parts * partial_size(shape, int(plan.tiles[i].num_rows), shape.kv_heads);
    }
    if (partial) result.partials = static_cast<float*>(scratch(which + 1, sizeof(float) * partial));
    return result;
}

}  // namespace slipstream
