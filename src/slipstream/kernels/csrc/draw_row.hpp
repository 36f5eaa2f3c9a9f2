// One row in the making of a draw: its blocks, and the search for its highest scores.
#pragma once
#include "noise.hpp"

namespace slipstream {
namespace {

constexpr int LANES = 16;
constexpr int BLOCK = 64;                // columns that are passed over together
constexpr float INFINITE = __builtin_inff();
constexpr float MOST_NOISE = 22.9f;      // above that of the hash 0
constexpr double SCORE_MARGIN = 1e-5;    // five times the rounding of two scores

// The last column that is kept, in the order of log-weights descending, columns ascending.
struct Limit {
    float weight;
    int place;
    bool keeps(float w, int i) const { return w > weight || (w == weight && i <= place); }
};

// Runs `f(lane)` for every bit that is set.
template <typename F>
SL_INLINE void for_lanes(uint32_t mask, F f) {
    for (; mask; mask &= mask - 1) f(__builtin_ctz(mask));
}

// A row's processed logits by blocks; the last block is padded with -inf.
class Row {
public:
    Row(const float* logits, const DrawCall& call)
        : size(call.size), num_blocks(ceil_div(call.size, BLOCK)), logits_(logits),
          ids_(call.token_ids) {
        const int whole = size / BLOCK * BLOCK;
        for (int i = 0; i < BLOCK; i++) {
            const bool is_here = whole + i < size;
            tail_[i] = is_here ? logits_[whole + i] : -INFINITE;
            tail_ids_[i] = is_here && ids_ ? ids_[whole + i] : 0;
        }
        block_best_ = static_cast<float*>(scratch(DRAW_SCRATCH + 1, sizeof(float) * num_blocks));
        scan();
    }

    const int size, num_blocks;
    float shift = 0.0f, temperature = 1.0f;
    float best;  // largest logit; not finite if any logit is NaN
    int best_block;

    SL_INLINE f32x16 logits(int i) const {
        return load(i / BLOCK * BLOCK + BLOCK <= size ? logits_ + i : tail_ + i % BLOCK);
    }
    SL_INLINE u32x16 ids(int i) const {
        if (!ids_) return cast<u32x16>(lane_numbers() + i);
        return load(i / BLOCK * BLOCK + BLOCK <= size ? ids_ + i : tail_ids_ + i % BLOCK);
    }
    SL_INLINE f32x16 weights(int i) const {
        const f32x16 w = logits(i) - shift;
        return temperature == 1.0f ? w : w / temperature;
    }
    float block_weight(int block) const {
        const float w = block_best_[block] - shift;
        return temperature == 1.0f ? w : w / temperature;
    }
    // First column of the largest logit.
    int first_best() const {
        for (int i = best_block * BLOCK;; i += LANES)
            if (const uint32_t mask = mask_of(logits(i) == best)) return i + __builtin_ctz(mask);
    }

private:
    const float* logits_;
    const uint32_t* ids_;
    float* block_best_;
    alignas(64) float tail_[BLOCK];
    alignas(64) uint32_t tail_ids_[BLOCK];

    void scan() {
        best = -INFINITE;
        best_block = 0;
        i32x16 is_nan = {};
        for (int block = 0; block < num_blocks; block++) {
            f32x16 greatest = splat(-INFINITE);
            for (int i = block * BLOCK; i < (block + 1) * BLOCK; i += LANES) {
                const f32x16 x = logits(i);
                is_nan |= x != x;
                greatest = max(greatest, x);
            }
            block_best_[block] = max(greatest);
            if (block_best_[block] > best) {
                best = block_best_[block];
                best_block = block;
            }
        }
        if (mask_of(is_nan)) best = INFINITE;
    }
};

// The highest scores so far, and how close the next ones came.
class Leaders {
public:
    explicit Leaders(int count) : count_(count) {}
    int num = 0;
    int places[MAX_DRAW_COUNT];
    float weights[MAX_DRAW_COUNT];

    // Whoever scores less changes nothing.
    float threshold() const {
        if (num < count_) return -INFINITE;
        const double score = scores_[num - 1];
        return float(score - 10 * SCORE_MARGIN - 1e-6 * std::fabs(score));  // sums of float32 round
    }
    void offer(double score, int place, float weight) {
        if (num == count_) {
            const double last = scores_[num - 1], lower = score < last ? score : last;
            missed_ = lower > missed_ ? lower : missed_;
            if (score <= last) return;
            num--;
        }
        int at = num++;
        for (; at > 0 && scores_[at - 1] < score; at--) {
            scores_[at] = scores_[at - 1];
            places[at] = places[at - 1];
            weights[at] = weights[at - 1];
        }
        scores_[at] = score;
        places[at] = place;
        weights[at] = weight;
    }
    bool are_clear() const {
        for (int i = 0; i < num; i++)
            if (scores_[i] - (i + 1 < num ? scores_[i + 1] : missed_) <= SCORE_MARGIN) return false;
        return true;
    }

private:
    int count_;
    double missed_ = -INFINITE;
    double scores_[MAX_DRAW_COUNT];
};

void visit(const Row& row, NoiseKey key, Limit limit, int block, Leaders& leaders) {
    // G <= -log v, and log2 of a float is at least exponent + fraction: its bits as a number.
    constexpr float LOG2 = 0.693147181f, PER_BIT = LOG2 * 0x1p-23f;
    float threshold = leaders.threshold();
    for (int i = block * BLOCK; i < (block + 1) * BLOCK; i += LANES) {
        const f32x16 w = row.weights(i);
        const u32x16 h = hash(key, row.ids(i));
        const i32x16 bits = cast<i32x16>(to_float(h));
        const f32x16 most = w + fma(to_float(bits), splat(-PER_BIT),
                                    splat((32 + 127) * LOG2));
        const uint32_t mask = mask_of((most >= threshold) & (w >= limit.weight));
        for_lanes(mask, [&](int lane) {
            if (!limit.keeps(w[lane], i + lane)) return;
            const double v = (h[lane] + 0.5) * 0x1p-32;
            leaders.offer(w[lane] - std::log(-std::log1p(-v)), i + lane, w[lane]);
        });
        if (mask) threshold = leaders.threshold();
    }
}

void lead(const Row& row, NoiseKey key, Limit limit, Leaders& leaders) {
    visit(row, key, limit, row.best_block, leaders);
    for (int block = 0; block < row.num_blocks; block++) {
        const float w = row.block_weight(block);
        if (block == row.best_block || w < limit.weight) continue;
        if (w + MOST_NOISE >= leaders.threshold()) visit(row, key, limit, block, leaders);
    }
}

}  // namespace
}  // namespace slipstream
