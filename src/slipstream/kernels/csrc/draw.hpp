// Drawing tokens: the noise of (seed, position, token), and the best of a row with it.
// Source of the rules: sampling/noise.py, sampling/draw.py, sampling/transforms.py.
#pragma once
#include "kernels.hpp"

namespace slipstream {

// What a row's position contributes to the hashes of its tokens.
struct NoiseKey {
    uint32_t first, second;
};

inline uint64_t mix64(uint64_t v) {
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9u;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBu;
    return v ^ (v >> 31);
}

inline NoiseKey noise_key(uint64_t seed, uint64_t position) {
    constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15u;
    const uint64_t mixed = mix64(mix64(seed + GOLDEN) + position * GOLDEN);
    return {uint32_t(mixed >> 32), uint32_t(mixed)};
}

// A row to draw from, and those of the nodes that may follow it.
struct Draw {
    const float* logits;         // [size], never written; a node's lie `node + 1` strides further
    const int64_t* edit_places;  // [num_edits] where the request changes a logit,
    const float* edit_values;    // and to what
    const int64_t* seen;         // [num_seen] tokens that penalties are about, before any edit,
    const float* seen_counts;    // and how often each was drawn; of one that is there twice the last counts
    const int32_t* nodes;        // [2, num_nodes] tokens of a tree, then parents; -1 = this row
    int32_t* places;             // [(1 + num_nodes) * count] takes columns, see DrawCall
    uint64_t seed, position;     // of this row; a node's is as much further as it lies deep
    double top_p;                // 1 = off
    float temperature;           // 0 = the best logit, without noise and filters
    float min_weight;            // least log-weight that min_p keeps; the least finite one = off
    float repetition, presence, frequency;  // penalties
    int32_t top_k;               // 0 = off
    int32_t num_edits, num_seen, num_nodes;
};
static_assert(sizeof(Draw) == 120, "kernels/structs.py packs it by hand");

// Of each row the `count` best columns are taken. Where count is 1, the walk goes on at the child that
// carries the token, if there is one. The columns that are missing are -1: a row has fewer, its logits
// have no finite maximum, or rounding could decide; then numpy, whose rounding is the rule, has to say.
struct DrawCall {
    const Draw* draws;          // [num_draws]
    const uint32_t* token_ids;  // [size] ascending, of the columns; null = 0, 1, ...
    float* probs;               // [num_draws, count] takes columns' share of what may be drawn; or null
    int64_t stride;             // columns from one row of logits to the next
    int32_t num_draws, size, count;
};

constexpr int MAX_DRAW_COUNT = 64;

#define SL_DECLARE_DRAW(variant)                                                        \
    /* Noise of `count` tokens, each within 4e-6 of the rule's */                       \
    void noise_##variant(NoiseKey key, const uint32_t* token_ids, int count, float* out); \
    void draw_##variant(const DrawCall& call, int index);

SL_DECLARE_DRAW(avx512)
SL_DECLARE_DRAW(portable)

}  // namespace slipstream
