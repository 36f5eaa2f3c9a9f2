// What the units on AMX tiles share.
#pragma once
#include <immintrin.h>

#include "kernels.hpp"
#include "transpose.hpp"

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

}  // namespace
}  // namespace slipstream
