// The layers of a pass, as the target's pass and those of draft nets run them: inside a team, every
// thread calling the same.
#pragma once
#include "pass.hpp"
#include "team.hpp"

namespace slipstream {

// What one instruction set offers; see pointwise.hpp, attention.hpp and linear.hpp.
struct Kernels {
    decltype(&normalise_portable) normalise;
    decltype(&normalise_add_portable) normalise_add;
    decltype(&rotate_and_store_portable) rotate_and_store;
    decltype(&gate_portable) gate;
    Multiply multiply[NUM_INPUTS];
};

Kernels kernels_for(int isa);

// The work of attention in each plan, and counters of each layer.
struct AttentionCut {
    Units units[MAX_PLANS];
    std::atomic<int>* counters;
    int num_counters;
};

// For the plans that a pass names, by one thread.
AttentionCut cut_attention(const Pass& pass, int num_threads);

struct Member {
    const Kernels& kernels;
    int thread, num_threads;
    void* shared;
    Attend attend;
    const AttentionCut* cut;

    // Rows [num_rows, num_in] times matrices that lie one below the other; complete when it returns.
    // `next`: what is multiplied after them, if that is known; `upcoming`: keys and values read after them.
    void multiply(const Matrices& m, const uint16_t* x, int num_in, float* out, int num_rows, int store,
                  const Matrices* next = nullptr, const Upcoming* upcoming = nullptr) const;
};

struct Buffers {
    float *qkv, *gate_up, *output;
    uint16_t *normed, *mixed, *gated;
};

// Memory for the rows of a pass, and the residual stream; by one thread.
Buffers take_buffers(Pass& pass, size_t most_rows);

// Bytes of Member::shared that the products of a pass need.
size_t shared_bytes_of(const Pass& pass);

// The first layer reads the embeddings of the pass's tokens. A scale is a product of bf16 numbers.
void embed(const Pass& pass, Share rows);

// One layer; afterwards all rows of the residual stream are complete.
// `input`: [num_rows, input_size] what queries, keys and values are made of; null = the residual stream
// behind the layer's first norm.
void run_layer(const Pass& pass, int index, const Buffers& buffers, const Member& member,
               Stopwatch& watch, const uint16_t* input = nullptr, int input_size = 0);

}  // namespace slipstream
