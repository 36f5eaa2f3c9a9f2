// Attention of rows over stored keys and values. A row at position p reads the slots of positions
// 0..p of its branch, or the last `window` of them.
#pragma once
#include <atomic>

#include "kernels.hpp"

namespace slipstream {

constexpr int KEY_BLOCK = 32;  // positions [32 b, 32 b + 32): blocks are fixed by position
constexpr int SECTION = 128;   // positions [128 s, 128 s + 128): each is summed by itself, then added
constexpr int SECTION_BLOCKS = SECTION / KEY_BLOCK;

// KV_INT8: codes of -127 to 127 and one scale for each slot and key head.
enum KvFormat : int32_t { KV_F32 = 0, KV_BF16 = 1, KV_INT8 = 2 };

struct AttentionShape {
    int32_t num_heads, kv_heads, head_dim;  // head_dim a multiple of 16
    int32_t kv_format;
    float scale;
};

// From a slot's keys to the next one's, in numbers. A slot's keys of all heads and then its values lie
// together, as kv/storage.py has them: reading a request's pages then takes half as many jumps.
inline int64_t slot_stride(const AttentionShape& shape) {
    return 2 * int64_t(shape.kv_heads) * shape.head_dim;
}

// The same in bytes.
inline int64_t slot_bytes(const AttentionShape& shape) {
    const int size = shape.kv_format == KV_F32 ? 4 : shape.kv_format == KV_BF16 ? 2 : 1;
    return size * slot_stride(shape);
}

// Consecutive rows of one branch.
struct Tile {
    int64_t first_row;   // in AttentionPlan::rows and positions
    int64_t num_rows;    // 1 to MAX_TILE_ROWS
    int64_t first_slot;  // in AttentionPlan::slots: the branch's position 0
};
constexpr int MAX_TILE_ROWS = 32;

struct AttentionPlan {
    const Tile* tiles;
    const int64_t* rows;       // flat row of each
    const int64_t* positions;  // ascending in a tile
    const int64_t* slots;
    int32_t num_tiles;
    int32_t window;  // 0 = all
};

constexpr int MAX_PLANS = 8;  // of a pass: one for each window
constexpr int OWN_BUFFER = 12 + 2 * MAX_PLANS;  // see cut_units and pass.cpp

struct Attention {
    const AttentionShape* shape;
    const AttentionPlan* plan;
    const float* queries;  // [rows, q_stride], heads one after the other
    const void* keys;      // [slots, kv_heads, head_dim], slots `slot_stride` apart
    const void* values;
    void* out;  // [rows, num_heads * head_dim] float32 or bf16
    int64_t q_stride;
    int32_t store;  // TO_F32 or TO_BF16
    const float* key_scales;  // [slots, kv_heads], of codes
    const float* value_scales;
};

// Key heads whose lanes fit into one tile of sixteen.
inline int heads_of_tile(const AttentionShape& shape, int num_rows) {
    const int lanes = num_rows * (shape.num_heads / shape.kv_heads);
    return lanes > 8 ? 1 : 16 / lanes;
}

struct Range {
    int begin, end;
};

// Work for one thread: steps of a tile's sections and key heads, which are taken section by section, and in
// a section bundle by bundle of heads that fit into one tile. So memory is read from end to end.
struct Unit {
    int32_t tile, first_head, num_heads;
    int32_t first_section, num_sections;  // of the tile
    int32_t bundle;                       // key heads of a step
    int32_t begin, end;                   // steps; all of them, or one of a group's shares
    int32_t group;                        // in Units::groups, or -1
    int32_t thread;                       // that should take it

    int num_bundles() const { return ceil_div(num_heads, bundle); }
    // The heads, from first_head on, of steps in a section.
    Range heads_of(int section) const {
        const int first = section * num_bundles(), last = end - first, start = begin - first;
        const int to = last < num_bundles() ? last * bundle : num_heads;
        return {start > 0 ? start * bundle : 0, to < num_heads ? to : num_heads};
    }
    // The sections of a head in which it has steps.
    Range sections_of(int head) const {
        const int count = num_bundles(), at = head / bundle;
        return {begin > at ? ceil_div(begin - at, count) : 0, end > at ? ceil_div(end - at, count) : 0};
    }
};

// Units that share a tile's steps. What they compute of a head is added up by the last of them. The first
// one's sum is part 0, each section of others is a part of its own.
struct Group {
    int32_t first_unit, num_units;
    int32_t finished;  // the first of num_heads counters
    int64_t partial;   // where the parts lie in Units::partials
};

// All work of one plan. Any cut gives the same bits: sections are added in order of position.
struct Units {
    const Unit* units;
    const Group* groups;
    int32_t num_units, num_groups;
    int32_t num_counters;  // one for each unit: whether it is taken; then those of groups
    float* partials;

    // Those of a group that have steps of a head.
    int num_parts_of(const Group& group, int head) const {
        int count = 0;
        for (int i = 0; i < group.num_units; i++) {
            const Range sections = units[group.first_unit + i].sections_of(head);
            count += sections.begin < sections.end;
        }
        return count;
    }
    // Sections of a head that part 0 holds.
    int first_sum_of(const Group& group, int head) const {
        for (int i = 0;; i++) {
            const Range sections = units[group.first_unit + i].sections_of(head);
            if (sections.begin == 0 && sections.end > 0) return sections.end;
        }
    }
};

// Where a thread begins: its own first unit, or the last one.
inline int first_unit(const Units& units, int thread) {
    int at = 0;
    while (at + 1 < units.num_units && units.units[at].thread < thread) at++;
    return at;
}

// Hands a thread its own units, then those that others have not begun.
class Taker {
public:
    Taker(const Units& units, std::atomic<int>* counters, int thread)
        : units_(units), counters_(counters), left_(units.num_units), at_(first_unit(units, thread)) {}

    // The next one; null where there is none.
    const Unit* take() {
        while (left_ > 0) {
            const int index = at_;
            left_--;
            at_ = at_ + 1 < units_.num_units ? at_ + 1 : 0;
            if (!counters_[index].load(std::memory_order_relaxed) && !counters_[index].exchange(1))
                return &units_.units[index];
        }
        return nullptr;
    }

private:
    const Units& units_;
    std::atomic<int>* counters_;
    int left_, at_;
};

// Results of a lane in Units::partials: what was mixed, not normalised.
inline int64_t partial_size(const AttentionShape& shape, int num_rows, int num_heads) {
    const int lanes = ceil_div(num_rows * (shape.num_heads / shape.kv_heads), 16) * 16;
    return int64_t(num_heads) * lanes * (shape.head_dim + 2);
}

// Uses buffers `which` and `which + 1` of the calling thread.
Units cut_units(const AttentionShape& shape, const AttentionPlan& plan, int num_threads, int which);

// `counters`: [num_counters] zeros before the team starts.
// AMX and AVX512_BF16, with the same bits: keys and values in bf16 or codes, and head_dim a multiple of 32 only.
void attend_amx(const Attention& a, const Units& units, std::atomic<int>* counters, int thread);
void attend_avx512_bf16(const Attention& a, const Units& units, std::atomic<int>* counters, int thread);
void attend_avx512(const Attention& a, const Units& units, std::atomic<int>* counters, int thread);
void attend_portable(const Attention& a, const Units& units, std::atomic<int>* counters, int thread);

using Attend = void (*)(const Attention&, const Units&, std::atomic<int>*, int);

// Chosen by the shape and the instruction set, never by the rows.
Attend attend_for(int isa, const AttentionShape& shape);

}  // namespace slipstream
