// A decoder's layers in one call: one team of threads goes through all of them.
#pragma once
#include <chrono>

#include "linear.hpp"
#include "pointwise.hpp"

namespace slipstream {

// One matrix, or several one below the other.
struct Matrices {
    const Matrix* parts;
    int32_t num_parts;
    int32_t num_out;
};

// Parts of a pass in the order of their first turn.
enum Stage : int32_t {
    EMBEDDING, NORMS, QKV, ROTARY, ATTENTION, ATTENTION_OUTPUT, GATE_UP, GATE, DOWN, HEAD, NUM_STAGES
};

struct Layer {
    Norm input_norm, q_norm, k_norm, attention_output_norm, mlp_norm, mlp_output_norm;
    Matrices qkv, attention_output, gate_up, down;
    const float* cosines;  // see Projection
    const float* sines;
    void* keys;  // [slots, kv_heads, head_dim]
    void* values;
    float* tap;    // [rows, hidden] takes the layer's output, or null
    int32_t plan;  // index in Pass::plans
    float* key_scales;  // [slots, kv_heads], of codes
    float* value_scales;
};

struct Pass {
    const Layer* layers;
    const AttentionPlan* plans;  // one for each window
    const Matrix* embeddings;    // [vocabulary, hidden_size]
    Norm final_norm;
    Matrices head;
    const int64_t* tokens;      // [rows]
    const int64_t* positions;   // [rows]
    const int64_t* slots;       // [rows]
    const int64_t* logit_rows;  // [num_logit_rows] rows whose logits are wanted
    float* logits;              // [num_logit_rows, vocabulary]
    float* embedding_tap;       // [rows, hidden_size] takes the embeddings, or null
    float* hidden;              // [rows, hidden_size], the residual stream: run_pass gives the memory
    AttentionShape shape;
    float embedding_scale;  // in bf16; 0 = none
    int32_t num_layers, num_rows, num_logit_rows, hidden_size, intermediate_size, gate;
    int64_t* stage_ns;  // [NUM_STAGES] nanoseconds to add to, waiting for the team included; or null
};

// Adds the time since its last mark to a stage. Only the first thread's does so: it writes at barriers,
// where all are done.
class Stopwatch {
public:
    Stopwatch(int64_t* stage_ns, int thread) : stage_ns_(thread == 0 ? stage_ns : nullptr) {
        if (stage_ns_) last_ = std::chrono::steady_clock::now();
    }
    void mark(Stage stage) {
        if (!stage_ns_) return;
        const auto now = std::chrono::steady_clock::now();
        stage_ns_[stage] += std::chrono::duration_cast<std::chrono::nanoseconds>(now - last_).count();
        last_ = now;
    }

private:
    int64_t* stage_ns_;
    std::chrono::steady_clock::time_point last_;
};

}  // namespace slipstream
