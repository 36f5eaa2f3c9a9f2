// The draft's tokens that a request is most likely to draw, of one row of logits.
#pragma once
#include "kernels.hpp"

namespace slipstream {

constexpr int MAX_CANDIDATES = 16;

// How a request draws; see SamplingParams. Filters look at the draft's own tokens alone.
struct Drawing {
    float temperature;  // 0 = greedy
    float top_p, min_p;
    int32_t top_k;  // 0 = all
    uint64_t seed;
};

// One row of logits, and what is added to them.
struct Scores {
    const float* logits;
    const float* bias;  // or null
    int32_t count;
    uint32_t num_drawable;      // target tokens from here on cannot be drawn
    const uint32_t* token_ids;  // [count] target token of each
};

struct Candidate {
    int32_t index;  // of the draft's token
    float score;    // logit / temperature + noise; of a greedy request the logit
};

// The `most` (at most MAX_CANDIDATES) best by score, best first; of equal ones the lower index.
// `position` addresses the noise that the target will add; see sampling/noise.py.
// `memory`: [count] floats of the caller. Returns: how many there are; none where logits are no numbers.
int best_candidates_avx512(const Scores& scores, const Drawing& drawing, int64_t position, int most,
                           float* memory, Candidate* found);
int best_candidates_portable(const Scores& scores, const Drawing& drawing, int64_t position, int most,
                             float* memory, Candidate* found);

}  // namespace slipstream
