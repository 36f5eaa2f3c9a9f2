// See candidates.hpp. A row is scanned once: what cannot reach the best so far costs no logarithm.
#include "candidates.hpp"

#include <algorithm>
#include <functional>

#include "noise.hpp"

namespace slipstream {
namespace {

constexpr int LANES = 16;
constexpr float NUCLEUS_REACH = 8.0f;  // nearly every nucleus lies above e^-8 of the best token

// Of one hash, as sampling/noise.py has it.
float exact_noise(uint32_t h) {
    const double v = (double(h) + 0.5) * 0x1p-32;
    return float(-std::log(-std::log1p(-v)));
}

// At least the noise of each hash: -log(v), as a line between powers of two gives it.
SL_INLINE f32x16 most_noise(u32x16 hashes) {
    const f32x16 v = to_float(hashes) + 0.5f;  // times 2^32
    const f32x16 log2 = to_float(cast<i32x16>(v)) * 0x1p-23f;
    return (splat(127.0f + 32.0f) - log2) * 0.6931473f + 1e-3f;
}

// The lanes of a that are greater, as bits.
SL_INLINE uint32_t greater(f32x16 a, f32x16 b) {
    return mask_of(a > b);
}

// Sixteen logits with their bias; past the end -inf.
SL_INLINE f32x16 values_at(const Scores& s, int i) {
    if (i + LANES <= s.count) {
        const f32x16 v = load(s.logits + i);
        return s.bias ? v + load(s.bias + i) : v;
    }
    float v[LANES];
    for (int j = 0; j < LANES; j++)
        v[j] = i + j < s.count ? s.logits[i + j] + (s.bias ? s.bias[i + j] : 0.0f) : -INFINITY;
    return load(v);
}

// The best so far, best first.
class Best {
public:
    Best(Candidate* found, int most) : found_(found), most_(most) {}

    // What must be exceeded.
    float threshold() const { return count_ < most_ ? -INFINITY : found_[most_ - 1].score; }

    void add(int index, float score) {
        if (!(score > threshold())) return;
        int at = count_ < most_ ? count_++ : most_ - 1;
        for (; at > 0 && found_[at - 1].score < score; at--) found_[at] = found_[at - 1];
        found_[at] = {index, score};
    }

    int count() const { return count_; }

private:
    Candidate* found_;
    int most_, count_ = 0;
};

float greatest(const Scores& s) {
    f32x16 best = splat(-INFINITY);
    for (int i = 0; i < s.count; i += LANES) best = max(values_at(s, i), best);
    return max(best);
}

// The least logit that the filters keep.
float least_kept(const Scores& s, const Drawing& d, float* memory) {
    const bool has_top_k = 0 < d.top_k && d.top_k < s.count;
    if (!has_top_k && d.top_p >= 1.0f && d.min_p <= 0.0f) return -INFINITY;
    const float best = greatest(s);
    float least = d.min_p > 0.0f ? best + d.temperature * std::log(d.min_p) : -INFINITY;
    double total = 0.0;
    int count = 0;
    if (has_top_k) {
        for (int i = 0; i < s.count; i++) memory[i] = s.logits[i] + (s.bias ? s.bias[i] : 0.0f);
        std::nth_element(memory, memory + d.top_k - 1, memory + s.count, std::greater<float>());
        least = std::max(least, memory[d.top_k - 1]);
    }
    if (d.top_p >= 1.0f) return least;
    const float inverse = 1.0f / d.temperature;
    f32x16 sums = {};
    for (int i = 0; i < s.count; i += LANES) {
        const f32x16 v = values_at(s, i);
        sums = sums + select(v >= least, exp((v - best) * inverse), f32x16{});
    }
    total = sum(sums);
    for (float reach = NUCLEUS_REACH;; reach = INFINITY) {
        const float from = std::max(least, best - reach * d.temperature);
        count = 0;
        for (int i = 0; i < s.count; i++) {
            const float v = s.logits[i] + (s.bias ? s.bias[i] : 0.0f);
            if (v >= from) memory[count++] = v;
        }
        std::sort(memory, memory + count, std::greater<float>());
        double reached = 0.0;
        for (int i = 0; i < count; i++) {
            reached += std::exp((memory[i] - best) * inverse);
            if (reached >= d.top_p * total) return memory[i];
        }
        if (std::isinf(reach)) return least;
    }
}

void draw(const Scores& s, const Drawing& d, int64_t position, float* memory, Best& best) {
    const NoiseKey key = noise_key(d.seed, position);
    const float least = least_kept(s, d, memory), inverse = 1.0f / d.temperature;
    for (int i = 0; i < s.count; i += LANES) {
        uint32_t some[LANES] = {};
        if (i + LANES > s.count) memcpy(some, s.token_ids + i, sizeof(uint32_t) * (s.count - i));
        const u32x16 tokens = load(i + LANES > s.count ? some : s.token_ids + i);
        const f32x16 values = values_at(s, i);
        const u32x16 hashes = hash(key, tokens);
        const f32x16 bounds = values * inverse + most_noise(hashes);
        uint32_t lanes = greater(bounds, splat(best.threshold()));
        for (; lanes; lanes &= lanes - 1) {
            const int j = __builtin_ctz(lanes);
            if (values[j] < least || tokens[j] >= s.num_drawable) continue;
            best.add(i + j, values[j] * inverse + exact_noise(hashes[j]));
        }
    }
}

}  // namespace

int SL_NAME(best_candidates)(const Scores& s, const Drawing& d, int64_t position, int most,
                             float* memory, Candidate* found) {
    Best best(found, most < MAX_CANDIDATES ? most : MAX_CANDIDATES);
    if (d.temperature > 0.0f) {
        draw(s, d, position, memory, best);
    } else {
        for (int i = 0; i < s.count; i += LANES) {
            const f32x16 values = values_at(s, i);
            uint32_t lanes = greater(values, splat(best.threshold()));
            for (; lanes; lanes &= lanes - 1) {
                const int j = __builtin_ctz(lanes);
                if (s.token_ids[i + j] < s.num_drawable) best.add(i + j, values[j]);
            }
        }
    }
    const bool are_numbers = best.count() && std::isfinite(found[0].score);
    return are_numbers ? best.count() : 0;
}

}  // namespace slipstream
