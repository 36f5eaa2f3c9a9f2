// Gumbel noise, sixteen tokens at a time.
#pragma once
#include "draw.hpp"
#include "simd.hpp"

namespace slipstream {
namespace {

SL_INLINE u32x16 hash(NoiseKey key, u32x16 token_ids) {
    u32x16 h = token_ids ^ key.first;
    h = (h ^ (h >> 16)) * 0x7FEB352Du;
    h = (h ^ (h >> 15)) + key.second;
    h = h * 0x846CA68Bu;
    return h ^ (h >> 16);
}

// Natural logarithm of normal positive numbers, within 1e-7 of it or of 1 where it is larger.
SL_INLINE f32x16 log(f32x16 x) {
    // x = 2^n m with m in [sqrt(1/2), sqrt(2))
    const u32x16 shifted = bits_of(x) - 0x3f3504f3u;
    const f32x16 n = to_float(cast<i32x16>(shifted) >> 23);
    const f32x16 r = of_bits((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    const f32x16 z = r * r;
    f32x16 p = splat(7.0376836292e-2f);
    p = fma(p, r, splat(-1.1514610310e-1f));
    p = fma(p, r, splat(1.1676998740e-1f));
    p = fma(p, r, splat(-1.2420140846e-1f));
    p = fma(p, r, splat(1.4249322787e-1f));
    p = fma(p, r, splat(-1.6668057665e-1f));
    p = fma(p, r, splat(2.0000714765e-1f));
    p = fma(p, r, splat(-2.4999993993e-1f));
    p = fma(p, r, splat(3.3333331174e-1f));
    f32x16 tail = fma(n, splat(-2.12194440e-4f), p * r * z);
    tail = fma(z, splat(-0.5f), tail);
    return fma(n, splat(0.693359375f), r + tail);
}

SL_INLINE f32x16 gumbel(u32x16 h) {
    // v = (h + 1/2) / 2^32 and 1 - v, both to their own last bit.
    const f32x16 v = (to_float(h) + 0.5f) * 0x1p-32f;
    const f32x16 rest = (to_float(~h) + 0.5f) * 0x1p-32f;
    // -log1p(-v) = -log(u) v / (1 - u) with u = 1 - v rounded, where v is small (Kahan).
    const f32x16 u = 1.0f - v, lost = 1.0f - u;
    const f32x16 log_rest = log(select(v < 0.5f, u, rest));
    const f32x16 small = select(lost > 0.0f, v / lost * log_rest, -v);
    return -log(select(v < 0.5f, -small, -log_rest));
}

}  // namespace
}  // namespace slipstream
