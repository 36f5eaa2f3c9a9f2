// Attention of rows over stored keys and values. A row at position p reads the slots of positions
// 0..p of its branch, or the last `window` of them.
#pragma once
#include <atomic>

#include "kernels.hpp"

namespace slipstream {

constexpr int KEY_BLOCK = 32;  // positions [32 b, 32 b + 32): blocks are fixed by position

enum KvFormat : int32_t { KV_F32 = 0, KV_BF16 = 1 };

struct AttentionShape {
    int32_t num_heads, kv_heads, head_dim;  // head_dim a multiple of 16
    int32_t kv_format;
    float scale;
};

// Consecutive rows of one branch.
struct Tile {
    int64_t first_row;   // in AttentionPlan::rows and positions
    int64_t num_rows;    // 1 to MAX_TILE_ROWS
    int64_t first_slot;  // in AttentionPlan::slots: the branch's position 0
};
constexpr int MAX_TILE_ROWS = 16;

struct AttentionPlan {
    const Tile* tiles;
    const int64_t* rows;       // flat row of each
    const int64_t* positions;  // ascending in a tile
    const int64_t* slots;
    int32_t num_tiles;
    int32_t window;  // 0 = all
};

struct Attention {
    const AttentionShape* shape;
    const AttentionPlan* plan;
    const float* queries;  // [rows, q_stride], heads one after the other
    const void* keys;      // [slots, kv_heads, head_dim]
    const void* values;
    void* out;  // [rows, num_heads * head_dim] float32 or bf16
    int64_t q_stride;
    int32_t store;  // TO_F32 or TO_BF16
};

// `next`: zero before the team starts; who draws a number computes that (tile, key head).
// AMX: keys and values in bf16 and head_dim a multiple of 32 only.
void attend_amx(const Attention& a, std::atomic<int>* next);
void attend_avx512(const Attention& a, std::atomic<int>* next);
void attend_portable(const Attention& a, std::atomic<int>* next);

using Attend = void (*)(const Attention&, std::atomic<int>*);

// Chosen by the shape and the instruction set, never by the rows.
Attend attend_for(int isa, const AttentionShape& shape);

}  // namespace slipstream
