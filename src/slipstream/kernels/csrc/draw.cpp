// See draw.hpp.
#include "noise.hpp"

namespace slipstream {
namespace {

constexpr int LANES = 16;

}  // namespace

void SL_NAME(noise)(NoiseKey key, const uint32_t* token_ids, int count, float* out) {
    int i = 0;
    for (; i + LANES <= count; i += LANES) store(out + i, gumbel(hash(key, load(token_ids + i))));
    if (i == count) return;
    uint32_t ids[LANES] = {};
    float rest[LANES];
    memcpy(ids, token_ids + i, sizeof(uint32_t) * (count - i));
    store(rest, gumbel(hash(key, load(ids))));
    memcpy(out + i, rest, sizeof(float) * (count - i));
}

}  // namespace slipstream
