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

// Work for one thread: some sections of a tile for some key heads.
struct Unit {
    int32_t tile, first_head, num_heads;
    int32_t first_section, num_sections;
    int32_t group;            // units of one group are sections of the same rows and heads; -1: alone
    int32_t part, num_parts;  // of the group
    int64_t partial;          // where the group's results lie in Units::partials, by part
};

// All work of one plan. Any cut gives the same bits: sections are added in order of position.
struct Units {
    const Unit* units;
    int32_t num_units, num_groups;
    float* partials;
};

// Results of a lane in Units::partials: what was mixed, not normalised.
inline int64_t partial_size(const AttentionShape& shape, int num_rows, int num_heads) {
    const int lanes = ceil_div(num_rows * (shape.num_heads / shape.kv_heads), 16) * 16;
    return int64_t(num_heads) * lanes * (shape.head_dim + 2);
}

// Uses buffers `which` and `which + 1` of the calling thread.
Units cut_units(const AttentionShape& shape, const AttentionPlan& plan, int num_threads, int which);

// `counters`: [1 + num_groups] zeros before the team starts: the next unit, then finished ones by group.
// AMX: keys and values in bf16 or codes, and head_dim a multiple of 32 only.
void attend_amx(const Attention& a, const Units& units, std::atomic<int>* counters);
void attend_avx512(const Attention& a, const Units& units, std::atomic<int>* counters);
void attend_portable(const Attention& a, const Units& units, std::atomic<int>* counters);

using Attend = void (*)(const Attention&, const Units&, std::atomic<int>*);

// Chosen by the shape and the instruction set, never by the rows.
Attend attend_for(int isa, const AttentionShape& shape);

}  // namespace slipstream
