// What the kernels' translation units share. Every kernel runs inside a team of threads and takes its
// own share of the work by index; shares cut columns, rows or heads, never a sum.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace slipstream {

constexpr int TILE_OUT = 16;  // outputs of a weight tile
constexpr int TILE_IN = 32;   // inputs of a weight tile; one link of the accumulation chain
constexpr int TILE_ROWS = 16;

enum Format : int32_t { BF16 = 0, Q8_0 = 1, Q4_0 = 2, Q4_1 = 3 };
enum Isa : int32_t { PORTABLE = 0, AVX512 = 1, AMX = 2 };
enum Store : int32_t { TO_F32 = 0, TO_BF16 = 1, ADD_F32 = 2 };

// Tiles that are neighbours along the outputs lie together, so that a thread that multiplies them at
// once reads one stream: [group of 4 out tiles][in tile][out tile of the group][tile bytes].
constexpr int GROUP_TILES = 4;

// A packed matrix.
struct Matrix {
    const uint8_t* tiles;
    const float* bias;  // or null
    int32_t format;
    int32_t num_out;
    int32_t num_in;
};

struct Product {
    Matrix matrix;
    const uint16_t* x;  // [rows, x_stride] bf16
    void* out;          // [rows, out_stride] float32 or bf16
    int64_t x_stride;
    int64_t out_stride;
    int32_t num_rows;
    int32_t store;
};

struct Share {
    int begin, end;
};

inline Share share_of(int count, int thread, int num_threads) {
    return {static_cast<int>(int64_t(count) * thread / num_threads),
            static_cast<int>(int64_t(count) * (thread + 1) / num_threads)};
}

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

inline size_t tile_bytes(int format) {
    switch (format) {
        case Q8_0: return 32 + 512;
        case Q4_0: return 32 + 256;
        case Q4_1: return 64 + 256;
        default: return 1024;
    }
}

inline float widen(uint16_t h) {
    uint32_t u = uint32_t(h) << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

inline uint16_t round_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000) return uint16_t((u >> 16) | 0x40);
    return uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

// Where the tiles of one row of tiles are: begin + k * stride.
struct Strip {
    size_t begin, stride;
};

inline Strip strip_of(int format, int num_out, int num_in, int out_tile) {
    const size_t bytes = tile_bytes(format), num_steps = ceil_div(num_in, TILE_IN);
    const int first = out_tile / GROUP_TILES * GROUP_TILES, left = ceil_div(num_out, TILE_OUT) - first;
    const int size = left < GROUP_TILES ? left : GROUP_TILES;
    return {(first * num_steps + (out_tile - first)) * bytes, size * bytes};
}

// A buffer of the calling thread that only grows.
void* scratch(int which, size_t bytes);

}  // namespace slipstream
