// The gated delta rule, row by row: what models/layers/delta_rule.py says in torch.
#pragma once
#include "kernels.hpp"

namespace slipstream {

// Rows of one sequence. Behind the first `num_taken` of them the state goes to `target`, unless that
// is 0; the rows that follow are drafts, whose state is thrown away.
struct DeltaSpan {
    int64_t first;
    int32_t num_rows, num_taken;
    int32_t source, target;
    int32_t first_snapshot, num_snapshots;
};

// A copy of the state behind a span's first `num_rows` rows.
struct DeltaSnapshot {
    int32_t num_rows, state;
};

// All numbers are float32; key_dim is 16, 32, 64, 128 or 256.
struct Delta {
    const float* queries;  // [rows, heads, key_dim], as keys
    const float* keys;
    const float* values;  // [rows, heads, value_dim], as outputs
    const float* decays;  // [rows, heads], as rates
    const float* rates;
    float* outputs;
    float* matrices;  // [states, heads, value_dim, key_dim]
    const DeltaSpan* spans;
    const DeltaSnapshot* snapshots;
    int32_t num_spans, num_heads, value_dim, key_dim;
};

#define SL_DECLARE_DELTA(variant)                                   \
    /* One head of one span; `spare` is a matrix of this thread */ \
    void take_in_##variant(const Delta& delta, const DeltaSpan& span, int head, float* spare);

SL_DECLARE_DELTA(avx512)
SL_DECLARE_DELTA(portable)

}  // namespace slipstream
