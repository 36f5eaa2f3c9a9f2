// Block nets (DFlash, DSpark): the target's states become keys and values of committed positions; a
// block of masks behind the anchor is one pass, and a walk over its rows makes the draft.
#include "draft.hpp"

namespace slipstream {
namespace {

enum : int { WHOLE_BLOCK = 0, CAUSAL = 1, NUM_BLOCK_PLANS = 2 };  // as Layer::plan says

// Rows of all blocks, and what they see.
struct Blocks {
    int64_t *tokens, *positions, *slots;
    AttentionPlan plans[NUM_BLOCK_PLANS];
};

Blocks lay_out(const DraftNet& net, const DraftRequest* requests, int num_requests) {
    const int block = net.block_len, num_rows = block * num_requests;
    size_t num_slots = 0;
    for (int i = 0; i < num_requests; i++) num_slots += requests[i].num_slots + block;
    int64_t* memory = draft_scratch<int64_t>(FLAT, 5 * size_t(num_rows) + num_slots);
    const auto take = [&](size_t count) { return memory += count, memory - count; };
    Blocks blocks{};
    blocks.tokens = take(num_rows);
    blocks.positions = take(num_rows);
    blocks.slots = take(num_rows);
    int64_t* rows = take(num_rows);
    int64_t* ends = take(num_rows);  // where every row sees the whole block
    int64_t* seen = take(num_slots);
    Tile* tiles = draft_scratch<Tile>(PLANS, num_requests);
    int64_t first_slot = 0;
    for (int i = 0; i < num_requests; i++) {
        const DraftRequest& request = requests[i];
        memcpy(seen + first_slot, request.slots, sizeof(int64_t) * request.num_slots);
        for (int j = 0; j < block; j++) {
            const int row = i * block + j;
            rows[row] = row;
            blocks.tokens[row] = j ? net.mask_token : request.anchor;
            blocks.positions[row] = request.num_slots + j;
            blocks.slots[row] = net.first_spare_slot + row;
            ends[row] = request.num_slots + block - 1;
            seen[first_slot + request.num_slots + j] = blocks.slots[row];
        }
        tiles[i] = {int64_t(i) * block, block, first_slot};
        first_slot += request.num_slots + block;
    }
    blocks.plans[WHOLE_BLOCK] = {tiles, rows, ends, seen, num_requests, 0};
    blocks.plans[CAUSAL] = {tiles, rows, blocks.positions, seen, num_requests, 0};
    return blocks;
}

// The anchor's row and one of a mask; all other rows of a block are copies of that.
void embed_blocks(const Pass& pass, int block, Share requests) {
    const size_t bytes = sizeof(float) * pass.hidden_size;
    for (int i = requests.begin; i < requests.end; i++) {
        const int first = i * block;
        embed(pass, {first, first + std::min(block, 2)});
        for (int j = 2; j < block; j++)
            memcpy(pass.hidden + size_t(first + j) * pass.hidden_size,
                   pass.hidden + size_t(first + 1) * pass.hidden_size, bytes);
    }
}

size_t most_shared_bytes(const Pass& pass, const DraftNet& net, int num_logits, int num_places) {
    size_t bytes = shared_bytes_of(pass);
    bytes = std::max(bytes, shared_bytes(num_logits, pass.hidden_size));
    return net.markov_in ? std::max(bytes, shared_bytes(num_places, net.markov_in->num_in)) : bytes;
}

}  // namespace

void inject_rows(int isa, int num_threads, const DraftNet& net, const CommittedRows& committed) {
    const Kernels kernels = kernels_for(isa);
    const int num_rows = committed.num_rows(), width = net.num_taps * net.tap_size;
    const int hidden = net.pass.hidden_size;
    AttentionShape shape = net.pass.shape;
    shape.num_heads = 0;  // no queries
    int64_t* positions = draft_scratch<int64_t>(FLAT, 2 * size_t(num_rows));
    int64_t* slots = positions + num_rows;
    for (int i = 0, row = 0; i < committed.num_requests; i++) {
        const Committed& request = committed.requests[i];
        for (int j = 0; j < request.num_rows; j++, row++) {
            positions[row] = request.first_position + j;
            slots[row] = request.slots[request.first_position + j];
        }
    }
    uint16_t* taps = draft_scratch<uint16_t>(TAPS, size_t(num_rows) * width);
    float* fused = draft_scratch<float>(FUSED, size_t(num_rows) * hidden);
    uint16_t* normed = draft_scratch<uint16_t>(FUSED_NORMED, size_t(num_rows) * hidden);
    float* kv = draft_scratch<float>(CONTEXT_KV, size_t(num_rows) * slot_stride(shape));
    void* shared = scratch(3, shared_bytes(num_rows, std::max(width, hidden)));
    TeamBarrier barrier;
#pragma omp parallel num_threads(num_threads)
    {
        team = &barrier;
        const Member member{kernels, team_thread(), team_size(), shared, nullptr, nullptr};
        const Share share = share_of(num_rows, member.thread, member.num_threads);
        read_taps(net, committed, taps, member);
        member.multiply(net.fusion, taps, width, fused, num_rows, TO_F32);
        kernels.normalise(net.fusion_norm, fused, normed, share);
        team_barrier();
        for (int i = 0; i < net.pass.num_layers; i++) {
            const Layer& layer = net.pass.layers[i];
            member.multiply(net.context[i], normed, hidden, kv, num_rows, TO_F32);
            kernels.rotate_and_store({kv, layer.cosines, layer.sines, positions, slots, layer.keys,
                                      layer.values, layer.q_norm, layer.k_norm, layer.key_scales,
                                      layer.value_scales},
                                     shape, share);
            team_barrier();
        }
    }
}

void draft_blocks(int isa, int num_threads, const DraftNet& net, const DraftRequest* requests,
                  int num_requests, const DraftTrees& trees) {
    const Kernels kernels = kernels_for(isa);
    Pass pass = net.pass;
    Blocks blocks = lay_out(net, requests, num_requests);
    pass.tokens = blocks.tokens;
    pass.positions = blocks.positions;
    pass.slots = blocks.slots;
    pass.plans = blocks.plans;
    pass.num_rows = net.block_len * num_requests;
    std::vector<int> logit_rows, first_logit(num_requests);
    int most_len = 0;
    for (int i = 0; i < num_requests; i++) {
        first_logit[i] = static_cast<int>(logit_rows.size());
        most_len = std::max(most_len, requests[i].max_len);
        for (int j = 0; j < requests[i].max_len; j++)
            logit_rows.push_back(i * net.block_len + net.first_draft_row + j);
    }
    const int num_logits = static_cast<int>(logit_rows.size()), hidden = pass.hidden_size;
    const Buffers buffers = take_buffers(pass, pass.num_rows);
    const AttentionCut cut = cut_attention(pass, num_threads);
    float* logits = draft_scratch<float>(LOGITS, size_t(num_logits) * pass.head.num_out);
    uint16_t* normed = draft_scratch<uint16_t>(NORMED_ROWS, size_t(num_logits) * hidden);
    Walk walk(net, requests, num_requests, isa != PORTABLE);
    const auto row_of = [&](int i, int node) { return first_logit[i] + walk.trees[i].depth(node); };
    walk.take_places(row_of);
    const int most_places = num_requests * net.rules.num_children;
    void* shared = scratch(3, most_shared_bytes(pass, net, num_logits, most_places));
    TeamBarrier barrier;
#pragma omp parallel num_threads(num_threads)
    {
        team = &barrier;
        const Member member{kernels, team_thread(), team_size(), shared, attend_for(isa, pass.shape), &cut};
        Stopwatch watch(nullptr, member.thread);
        embed_blocks(pass, net.block_len, share_of(num_requests, member.thread, member.num_threads));
        team_barrier();
        for (int i = 0; i < pass.num_layers; i++) run_layer(pass, i, buffers, member, watch);
        const Share share = share_of(num_logits, member.thread, member.num_threads);
        for (int i = share.begin; i < share.end; i++)
            kernels.normalise(pass.final_norm, pass.hidden + size_t(logit_rows[i]) * hidden,
                              normed + size_t(i) * hidden, {0, 1});
        team_barrier();
        draft_logits(net, normed, num_logits, logits, member);
        for (int depth = 0; depth < most_len; depth++) {
            if (walk.places.empty()) break;
            walk.look(logits, normed, member);
            if (member.thread == 0) {
                walk.grow();
                walk.take_places(row_of);
            }
            team_barrier();
        }
    }
    walk.write(trees);
}

}  // namespace slipstream
