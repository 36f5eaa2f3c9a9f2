// Draft nets: one call learns of committed rows, one drafts for all requests of a step. Their layers
// are those of a pass; rows that are not committed lie in spare slots behind the target's.
#pragma once
#include "draft_tree.hpp"
#include "layers.hpp"

namespace slipstream {

// A net's weights and where it keeps its rows. What a kind of net lacks is null or 0.
struct DraftNet {
    Pass pass;               // its layers, ends and storage; what changes with every pass is filled in
    Matrices fusion;         // [hidden, num_taps * tap_size]; a chain net without reads one tap's norm
    Norm fusion_norm;        // of taps (chain nets) or of what comes out (block nets)
    const Matrices* context;  // by layer, keys and values of what was fused (block nets)
    const uint32_t* token_ids;  // [draft vocabulary] target's token of each
    const Matrix* markov_in;    // [vocabulary, rank]
    Matrices markov_out;        // [draft vocabulary, rank]
    const float* confidence;    // [hidden, and rank if the previous token is read]
    const float* confidence_scales;  // [drafts] factor on the estimate's logit, by depth
    Norm embedding_norm, hidden_norm;  // of the two halves that a chain net's first layer reads
    Matrices joining;  // [hidden, 2 * hidden] from both to what it reads and adds to; null: it reads both
    float* newest_hidden;       // [seats, hidden] state of the newest committed row
    uint16_t* newest_normed;    // [seats, hidden] the same behind the final norm
    int64_t first_spare_slot;
    int64_t mask_token;
    DraftRules rules;
    float confidence_bias, logit_scale, logit_cap;  // no cap: 0
    uint32_t num_drawable;      // target tokens from here on cannot be drawn
    int32_t num_taps, tap_size, seat_slots;  // spare slots of a request
    int32_t block_len, first_draft_row;
    int32_t confidence_reads_markov, has_normed_residual, recycles_normed;
};

// Rows of one request that the target has read and that stay.
struct Committed {
    const int64_t* slots;        // of every position so far, these rows last
    const int64_t* rows;         // [num_rows] rows of the taps; null: they follow first_row
    const int64_t* next_tokens;  // [num_rows] token behind each (chain nets)
    int64_t first_row;
    int32_t first_position, num_rows;
    int32_t seat, is_newest_known;  // what was kept of the row in front (chain nets)
};

struct CommittedRows {
    const Committed* requests;
    const float* const* taps;  // by tap, [rows of the pass, tap_size]
    int32_t num_requests;

    int num_rows() const {
        int count = 0;
        for (int i = 0; i < num_requests; i++) count += requests[i].num_rows;
        return count;
    }

    // Calls f(row, its row of the taps) for each row of a share.
    template <typename F>
    void each(Share share, const F& f) const {
        int row = 0;
        for (int i = 0; i < num_requests; i++) {
            const Committed& request = requests[i];
            for (int j = 0; j < request.num_rows; j++, row++)
                if (row >= share.begin && row < share.end)
                    f(row, size_t(request.rows ? request.rows[j] : request.first_row + j));
        }
    }
};

// Buffers of these calls, besides those of a pass.
enum DraftScratch : int {
    FLAT = DRAFT_SCRATCH, TAPS, FUSED, FUSED_NORMED, CONTEXT_KV, PLANS, LOGITS, NORMED_ROWS, MARKOV,
    MARKOV_ROWS, BIAS, FOUND, PICK_MEMORY, STATES, INPUTS
};

template <typename T>
T* draft_scratch(DraftScratch which, size_t count) {
    return static_cast<T*>(scratch(which, sizeof(T) * count));
}

// What drafting does at one depth: candidates of places, then the trees' next nodes.
struct Place {
    int32_t request, node;
    int32_t row;  // of the logits
};

class Walk {
public:
    Walk(const DraftNet& net, const DraftRequest* requests, int num_requests, bool is_vector);

    // By one thread: the places of all frontiers; `row_of(request, node)` finds their logits.
    template <typename RowOf>
    void take_places(const RowOf& row_of) {
        places.clear();
        for (size_t i = 0; i < trees.size(); i++)
            for (const int node : trees[i].frontier)
                places.push_back({int(i), node, row_of(int(i), node)});
        reserve();
    }

    // By all threads, each a share of the places. `normed`: [rows, hidden] what the head has read.
    void look(const float* logits, const uint16_t* normed, const Member& member) const;

    // By one thread: children of all places, then new frontiers.
    void grow();

    void write(const DraftTrees& out) const {
        for (size_t i = 0; i < trees.size(); i++) trees[i].write(out, int(i));
    }

    std::vector<Growth> trees;
    std::vector<Place> places;

private:
    void reserve();
    void look_at(int place, const float* logits, const uint16_t* normed, const Member& member) const;

    const DraftNet& net_;
    const DraftRequest* requests_;
    decltype(&best_candidates_portable) best_candidates_;
    int vocab_, num_scored_, rank_, num_found_;  // scored: without padding at the end
    Candidate* found_ = nullptr;
    int* counts_ = nullptr;
    double* trusts_ = nullptr;
    float *bias_ = nullptr, *markov_ = nullptr;
    uint16_t* markov_rows_ = nullptr;
};

// By all threads: taps of all rows side by side in bf16, behind their norm if there is one.
void read_taps(const DraftNet& net, const CommittedRows& rows, uint16_t* out, const Member& member);

// By all threads: the head's logits of [num_rows, hidden] rows.
void draft_logits(const DraftNet& net, const uint16_t* normed, int num_rows, float* logits,
                  const Member& member);

void inject_rows(int isa, int num_threads, const DraftNet& net, const CommittedRows& rows);
void draft_blocks(int isa, int num_threads, const DraftNet& net, const DraftRequest* requests,
                  int num_requests, const DraftTrees& trees);
void absorb_rows(int isa, int num_threads, const DraftNet& net, const CommittedRows& rows);
void draft_chains(int isa, int num_threads, const DraftNet& net, const DraftRequest* requests,
                  int num_requests, const DraftTrees& trees);

}  // namespace slipstream
