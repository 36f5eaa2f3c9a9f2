// What the units on AMX tiles share.
#pragma once
#include <immintrin.h>

#include "kernels.hpp"

namespace slipstream {
namespace {

struct __attribute__((packed)) TileConfig {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

// Tiles 0-3 accumulate, 4-5 hold left operands, of `num_rows` rows each; 6-7 hold right ones, of
// `depth` rows: words of 32 bits in a row of a left one.
inline void configure_tiles(int num_rows, int depth = 16) {
    TileConfig config;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int t = 0; t < 8; t++) {
        config.rows[t] = uint8_t(t < 6 ? num_rows : depth);
        config.row_bytes[t] = uint16_t(t == 4 || t == 5 ? 4 * depth : 64);
    }
    // GCC's own function tells it of eight of these bytes only.
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
}

// 16 x 16 numbers of 32 bits, in place.
inline void transpose(__m512i r[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}

}  // namespace
}  // namespace slipstream
