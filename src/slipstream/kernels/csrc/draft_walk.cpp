// What drafting with block nets and chain nets has in common.
#include "draft.hpp"

namespace slipstream {

Walk::Walk(const DraftNet& net, const DraftRequest* requests, int num_requests, bool is_vector)
    : net_(net), requests_(requests), best_candidates_(best_candidates_portable),
      vocab_(net.pass.head.num_out), num_scored_(vocab_), rank_(net.markov_in ? net.markov_in->num_in : 0),
      num_found_(std::min(MAX_CANDIDATES, std::max(net.rules.num_children, net.rules.num_rivals))) {
#if defined(__x86_64__)
    if (is_vector) best_candidates_ = best_candidates_avx512;
#else
    (void)is_vector;
#endif
    while (num_scored_ > 0 && net.token_ids[num_scored_ - 1] >= net.num_drawable) num_scored_--;
    for (int i = 0; i < num_requests; i++) trees.emplace_back(requests[i], net.rules);
}

void Walk::reserve() {
    const size_t count = places.size();
    found_ = draft_scratch<Candidate>(FOUND, count * (MAX_CANDIDATES + 2));
    counts_ = reinterpret_cast<int*>(found_ + count * MAX_CANDIDATES);
    trusts_ = reinterpret_cast<double*>(counts_ + (count + 1) / 2 * 2);
    if (!rank_) return;
    markov_ = draft_scratch<float>(MARKOV, count * rank_);
    markov_rows_ = draft_scratch<uint16_t>(MARKOV_ROWS, count * rank_);
    bias_ = draft_scratch<float>(BIAS, count * vocab_);
}

void Walk::look(const float* logits, const uint16_t* normed, const Member& member) const {
    const int count = static_cast<int>(places.size());
    const Share share = share_of(count, member.thread, member.num_threads);
    if (rank_) {
        for (int i = share.begin; i < share.end; i++) {
            const int64_t token = trees[places[i].request].token(places[i].node);
            float* embedded = markov_ + size_t(i) * rank_;
            read_row(*net_.markov_in, static_cast<int>(token), embedded);
            for (int j = 0; j < rank_; j++) markov_rows_[size_t(i) * rank_ + j] = round_bf16(embedded[j]);
        }
        team_barrier();
        member.multiply(net_.markov_out, markov_rows_, rank_, bias_, count, TO_F32);
    }
    for (int i = share.begin; i < share.end; i++) look_at(i, logits, normed, member);
    team_barrier();
}

void Walk::look_at(int index, const float* logits, const uint16_t* normed, const Member&) const {
    const Place& place = places[index];
    const Scores scores{logits + size_t(place.row) * vocab_,
                        rank_ ? bias_ + size_t(index) * vocab_ : nullptr, num_scored_, net_.num_drawable,
                        net_.token_ids};
    const Growth& tree = trees[place.request];
    counts_[index] = best_candidates_(scores, requests_[place.request].drawing,
                                      tree.next_position(place.node), num_found_,
                                      draft_scratch<float>(PICK_MEMORY, vocab_),
                                      found_ + size_t(index) * MAX_CANDIDATES);
    trusts_[index] = -1.0;
    if (!net_.confidence) return;
    const int hidden = net_.pass.hidden_size;
    const uint16_t* row = normed + size_t(place.row) * hidden;
    float sums[8] = {};
    for (int i = 0; i + 8 <= hidden; i += 8)
        for (int j = 0; j < 8; j++) sums[j] += widen(row[i + j]) * net_.confidence[i + j];
    for (int i = hidden / 8 * 8; i < hidden; i++) sums[0] += widen(row[i]) * net_.confidence[i];
    double logit = net_.confidence_bias;
    for (int j = 0; j < 8; j++) logit += sums[j];
    if (net_.confidence_reads_markov)
        for (int i = 0; i < rank_; i++)
            logit += double(markov_[size_t(index) * rank_ + i]) * net_.confidence[hidden + i];
    logit *= net_.confidence_scales[tree.depth(place.node)];
    trusts_[index] = 1.0 / (1.0 + std::exp(-logit));
}

void Walk::grow() {
    for (size_t i = 0; i < places.size(); i++) {
        const Place& place = places[i];
        trees[place.request].add_children(place.node, found_ + i * MAX_CANDIDATES, counts_[i],
                                          net_.token_ids, trusts_[i]);
    }
    for (Growth& tree : trees) tree.take_frontier();
}

void read_taps(const DraftNet& net, const CommittedRows& rows, uint16_t* out, const Member& member) {
    const size_t size = net.tap_size, width = size * net.num_taps;
    const bool is_normed = net.fusion_norm.weight && net.fusion_norm.size == int(width);
    std::vector<float> joined(is_normed ? width : 0);
    rows.each(share_of(rows.num_rows(), member.thread, member.num_threads), [&](int row, size_t from) {
        uint16_t* to = out + row * width;
        for (int tap = 0; tap < net.num_taps; tap++) {
            const float* states = rows.taps[tap] + from * size;
            if (is_normed)
                memcpy(joined.data() + tap * size, states, sizeof(float) * size);
            else
                for (size_t d = 0; d < size; d++) to[tap * size + d] = round_bf16(states[d]);
        }
        if (is_normed) member.kernels.normalise(net.fusion_norm, joined.data(), to, {0, 1});
    });
    team_barrier();
}

void draft_logits(const DraftNet& net, const uint16_t* normed, int num_rows, float* logits,
                  const Member& member) {
    member.multiply(net.pass.head, normed, net.pass.hidden_size, logits, num_rows, TO_F32);
    if (net.logit_scale == 1.0f && net.logit_cap == 0.0f) return;
    const size_t count = size_t(num_rows) * net.pass.head.num_out;
    const size_t begin = count * member.thread / member.num_threads;
    const size_t end = count * (member.thread + 1) / member.num_threads;
    for (size_t i = begin; i < end; i++) {
        const float scaled = logits[i] * net.logit_scale;
        logits[i] = net.logit_cap == 0.0f ? scaled : net.logit_cap * std::tanh(scaled / net.logit_cap);
    }
    team_barrier();
}

}  // namespace slipstream
