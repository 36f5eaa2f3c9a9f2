// Drawing tokens: the noise of (seed, position, token), and the best of a row with it.
// Source of the rules: sampling/noise.py, sampling/draw.py, sampling/transforms.py.
#pragma once
#include "kernels.hpp"

namespace slipstream {

// What a row's position contributes to the hashes of its tokens.
struct NoiseKey {
    uint32_t first, second;
};

inline uint64_t mix64(uint64_t v) {
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9u;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBu;
    return v ^ (v >> 31);
}

inline NoiseKey noise_key(uint64_t seed, uint64_t position) {
    constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15u;
    const uint64_t mixed = mix64(mix64(seed + GOLDEN) + position * GOLDEN);
    return {uint32_t(mixed >> 32), uint32_t(mixed)};
}

#define SL_DECLARE_DRAW(variant)                                                        \
    /* Noise of `count` tokens, each within 4e-6 of the rule's */                       \
    void noise_##variant(NoiseKey key, const uint32_t* token_ids, int count, float* out);

SL_DECLARE_DRAW(avx512)
SL_DECLARE_DRAW(portable)

}  // namespace slipstream
