// The products of attention_bf16.cpp in vectors, with the bits of those on AMX tiles. VDPBF16PS adds two
// products to a sum, that of the upper halves first, each with one rounding. So two chains of it over 32
// numbers x, with x0 above x2, x4 above x6 and so on, and with x1 above x3 and so on, are the even and the
// odd products in order as TDPBF16PS adds them: see docs/decisions/0005-one-order-of-addition.md.
#pragma once
#include <type_traits>

#include "attention_job.hpp"

namespace slipstream {
namespace {

constexpr int CHAIN = 8;  // pairs of even numbers; as many of odd ones follow

constexpr Pair pair_of(int i) {
    return {i % CHAIN * 4 + i / CHAIN + 2, i % CHAIN * 4 + i / CHAIN};
}

// 32 numbers in bf16, in pairs.
SL_INLINE __m512i paired(__m512i numbers) {
    alignas(64) static constexpr struct Order {
        uint16_t at[32];
        constexpr Order() : at() {
            for (int i = 0; i < 16; i++) {
                at[2 * i] = uint16_t(pair_of(i).low);
                at[2 * i + 1] = uint16_t(pair_of(i).high);
            }
        }
    } order;
    return _mm512_permutexvar_epi16(_mm512_load_si512(order.at), numbers);
}

// 16 keys at `rows` and `offset` bytes behind, 32 dims of them from d on: [16 pairs][16 keys][2].
template <bool HAS_CODES>
SL_INLINE void arrange_keys(const uint8_t* const* rows, int64_t offset, int d, __m512i (&keys)[16]) {
#pragma GCC unroll 16
    for (int j = 0; j < 16; j++) keys[j] = paired(load_row<HAS_CODES>(rows[j] + offset, d));
    transpose(keys);
}

SL_INLINE __m512i splat_pair(const uint8_t* at) {
    int32_t pair;
    memcpy(&pair, at, 4);
    return _mm512_set1_epi32(pair);
}

SL_INLINE __m512 dot(__m512 sum, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

// Calls run(number of lanes as a type, first lane), with MOST lanes or what is left, until all had their turn.
template <int MOST, typename Run>
SL_INLINE void for_lanes(int lanes, const Run& run, int lane = 0) {
    for (; lane + MOST <= lanes; lane += MOST) run(std::integral_constant<int, MOST>(), lane);
    if constexpr (MOST > 1) for_lanes<MOST - 1>(lanes, run, lane);
}

}  // namespace
}  // namespace slipstream
