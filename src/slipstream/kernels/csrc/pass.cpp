#include "layers.hpp"

namespace slipstream {
namespace {

void run_head(const Pass& pass, uint16_t* normed, const Member& member, Stopwatch& watch) {
    const size_t width = pass.hidden_size;
    const Share share = share_of(pass.num_logit_rows, member.thread, member.num_threads);
    for (int i = share.begin; i < share.end; i++)
        member.kernels.normalise(pass.final_norm, pass.hidden + pass.logit_rows[i] * width,
                                 normed + i * width, {0, 1});
    team_barrier();
    watch.mark(NORMS);
    member.multiply(pass.head, normed, pass.hidden_size, pass.logits, pass.num_logit_rows, TO_F32);
    watch.mark(HEAD);
}

}  // namespace

void run_pass(int isa, int num_threads, Pass pass) {
    const Kernels kernels = kernels_for(isa);
    const Attend attend = attend_for(isa, pass.shape);
    const int most_rows = pass.num_logit_rows > pass.num_rows ? pass.num_logit_rows : pass.num_rows;
    const Buffers buffers = take_buffers(pass, most_rows);
    void* shared = scratch(3, shared_bytes_of(pass));
    const AttentionCut cut = cut_attention(pass, num_threads);
    TeamBarrier barrier;
#pragma omp parallel num_threads(num_threads)
    {
        team = &barrier;
        const Member member{kernels, team_thread(), team_size(), shared, attend, &cut};
        Stopwatch watch(pass.stage_ns, member.thread);
        embed(pass, share_of(pass.num_rows, member.thread, member.num_threads));
        team_barrier();
        watch.mark(EMBEDDING);
        for (int i = 0; i < pass.num_layers; i++) run_layer(pass, i, buffers, member, watch);
        if (pass.num_logit_rows) run_head(pass, buffers.normed, member, watch);
    }
}

}  // namespace slipstream
