// What lies between the matrices: norms, rotary embedding with the store of keys and values, gates.
// All of it is by row; the rows of a share are computed one by one.
#pragma once
#include "attention.hpp"
#include "kernels.hpp"

namespace slipstream {

struct Norm {
    const float* weight;  // [size]; null = the family has no such norm
    float eps;
    int32_t size;
};

enum Gate : int32_t { SILU = 0, GELU_TANH = 1 };

struct Projection {
    float* qkv;  // [rows, (num_heads + 2 kv_heads) * head_dim]; queries are left in place
    const float* cosines;  // of the first half's angles, by position, head_dim apart
    const float* sines;    // likewise
    const int64_t* positions;  // [rows]
    const int64_t* slots;      // [rows]
    void* keys;                // [slots, kv_heads, head_dim]
    void* values;
    Norm q_norm, k_norm;
    float* key_scales;  // [slots, kv_heads], of codes
    float* value_scales;
};

#define SL_DECLARE_POINTWISE(variant)                                                             \
    /* out bf16 = x / sqrt(mean(x^2) + eps) * weight */                                           \
    void normalise_##variant(const Norm& norm, const float* x, uint16_t* out, Share rows);        \
    /* the same in place, to float32, added to `sum` */                                           \
    void normalise_add_##variant(const Norm& norm, const float* x, float* sum, Share rows);       \
    void rotate_and_store_##variant(const Projection& p, const AttentionShape& shape, Share rows); \
    /* [rows, 2 size] float32, gates first -> [rows, size] bf16 */                                \
    void gate_##variant(int kind, const float* gate_up, uint16_t* out, int size, Share rows);

SL_DECLARE_POINTWISE(avx512)
SL_DECLARE_POINTWISE(portable)

}  // namespace slipstream
