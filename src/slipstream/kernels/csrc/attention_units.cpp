// How attention is cut into work for threads. Where tiles are many, each is a unit of work, for key heads
// that lie side by side in memory. Where they are few, the steps of all tiles stand in one row that is cut
// into equal shares: a thread adds up what it has of a head, and only heads that a cut goes through are
// added up from parts, which is dear because one core has to fetch what another has written.
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

// Fills units in order of their threads: whole tiles by spans of heads, or all steps in equal shares.
class Cutter {
public:
    Cutter(const AttentionShape& shape, const AttentionPlan& plan, Unit* units, Group* groups)
        : shape_(shape), plan_(plan), units_(units), groups_(groups) {}

    // Taken as they come.
    void cut_by_tiles(int span) {
        for (int i = 0; i < plan_.num_tiles; i++)
            for (int head = 0; head < shape_.kv_heads; head += span) {
                const int left = shape_.kv_heads - head;
                Unit& unit = add(i, head, left < span ? left : span, 0);
                unit.end = unit.num_sections * unit.num_bundles();
            }
    }

    void cut_by_steps(int num_threads) {
        int64_t total = 0, begin = 0;
        for_steps([&](int, int, int64_t weight) { total += weight; });
        for_steps([&](int tile, int step, int64_t weight) {
            const int thread = static_cast<int>((2 * begin + weight) * num_threads / (2 * total));
            begin += weight;
            const bool is_new = step == 0 || units_[num_units_ - 1].thread != thread;
            Unit& unit = is_new ? add(tile, 0, shape_.kv_heads, thread) : units_[num_units_ - 1];
            if (is_new) unit.begin = step;
            unit.end = step + 1;
        });
        for (int first = 0, end; first < num_units_; first = end) {
            for (end = first + 1; end < num_units_ && units_[end].begin > 0;) end++;
            if (end - first > 1) join(first, end);
        }
    }

    // Without memory for its parts.
    Units result() const {
        return {units_, groups_, num_units_, num_groups_, num_units_ + num_finished_, nullptr};
    }
    int64_t partial_floats() const { return partial_; }

private:
    Unit& add(int tile, int first_head, int num_heads, int thread) {
        const Sections sections = sections_of(plan_, plan_.tiles[tile]);
        const int bundle = heads_of_tile(shape_, static_cast<int>(plan_.tiles[tile].num_rows));
        Unit& unit = units_[num_units_++];
        unit = {tile, first_head, num_heads, sections.first, sections.count, bundle, 0, 0, -1, thread};
        return unit;
    }

    // Calls visit(tile, step of the tile, blocks of tiles to be computed).
    template <typename Visit>
    void for_steps(const Visit& visit) const {
        for (int i = 0; i < plan_.num_tiles; i++) {
            const Tile& tile = plan_.tiles[i];
            const int num_rows = static_cast<int>(tile.num_rows), bundle = heads_of_tile(shape_, num_rows);
            const int64_t lanes = int64_t(num_rows) * (shape_.num_heads / shape_.kv_heads) * bundle;
            const Sections sections = sections_of(plan_, tile);
            const int last = static_cast<int>(plan_.positions[tile.first_row + num_rows - 1] % SECTION);
            for (int s = 0, step = 0; s < sections.count; s++)
                for (int head = 0; head < shape_.kv_heads; head += bundle, step++)
                    visit(i, step, (s + 1 < sections.count ? SECTION_BLOCKS : last / KEY_BLOCK + 1) *
                                       (lanes / 16 + 1));
        }
    }

    void join(int first, int end) {
        const Unit& unit = units_[first];
        groups_[num_groups_] = {first, end - first, num_units_ + num_finished_, partial_};
        for (int i = first; i < end; i++) units_[i].group = num_groups_;
        num_groups_++;
        num_finished_ += unit.num_heads;
        const int num_rows = static_cast<int>(plan_.tiles[unit.tile].num_rows);
        partial_ += unit.num_sections * partial_size(shape_, num_rows, unit.num_heads);
    }

    const AttentionShape& shape_;
    const AttentionPlan& plan_;
    Unit* units_;
    Group* groups_;
    int num_units_ = 0, num_groups_ = 0, num_finished_ = 0;
    int64_t partial_ = 0;
};

}  // namespace

Units cut_units(const AttentionShape& shape, const AttentionPlan& plan, int num_threads, int which) {
    int64_t floats = 0;
    for (int i = 0; i < plan.num_tiles; i++)
        floats += sections_of(plan, plan.tiles[i]).count *
                  partial_size(shape, int(plan.tiles[i].num_rows), shape.kv_heads);
    int span = SPAN_FLOATS / shape.head_dim;
    span = span < 1 ? 1 : span < shape.kv_heads ? span : shape.kv_heads;
    const int num_spans = ceil_div(shape.kv_heads, span);
    const bool is_split = num_threads > 1 && floats <= MAX_PARTIALS &&
                          plan.num_tiles * num_spans < 4 * num_threads;
    const size_t most = is_split ? plan.num_tiles + num_threads : plan.num_tiles * num_spans;
    Unit* units = static_cast<Unit*>(scratch(which, (sizeof(Unit) + sizeof(Group)) * most));
    Cutter cutter(shape, plan, units, reinterpret_cast<Group*>(units + most));
    if (is_split)
        cutter.cut_by_steps(num_threads);
    else
        cutter.cut_by_tiles(span);
    Units result = cutter.result();
    if (const int64_t size = cutter.partial_floats())
        result.partials = static_cast<float*>(scratch(which + 1, sizeof(float) * size));
    return result;
}

}  // namespace slipstream
