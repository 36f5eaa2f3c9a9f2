// Rows in 8 bit, for matrices whose inputs enter as such. Of a row's 32 inputs x of a block, with
//   a = the largest |x|, scale = a / 127, code = round(x * (127 / a)),
// products with the block's codes c and sums of x's codes are whole numbers, exact in any order; then
//   sum = fma(weight_scale * scale, float(sum of code c), sum), and in Q4_1
//   sum = fma(minimum, scale * float(sum of code), sum) after that,
// in float32, each operation rounded to nearest even with subnormals flushed to zero. Inputs below
// 2^-100 are zero; a block with an infinity or NaN makes the row NaN. Twin: kernels/int8_twin.py.
#pragma once
#include "linear_parts.hpp"

namespace slipstream {
namespace {

typedef int8_t i8x16 __attribute__((vector_size(16)));

// Tiles of rows, each [step][HEIGHT]; what lies past the last row is zero.
struct Int8Rows {
    int8_t* codes;   // 32 of an input block; paired steps: see Int8Tiles
    float* scales;
    float* sums;     // scale * sum of codes
    int32_t* added;  // to sums of products: what takes an offset of the weights' codes away
};

// A tile's layout. PAIRED: two steps' rows are one left operand of depth 64, [2][HEIGHT][64 bytes],
// in which each row has its codes in its own step's half and zeros in the other.
template <int HEIGHT_, bool IS_PAIRED>
struct Int8Tiles {
    static constexpr int HEIGHT = HEIGHT_, BLOCKS = IS_PAIRED ? 2 : 1, WIDTH = BLOCKS * TILE_IN;
    int num_steps, num_tiles;

    Int8Tiles(const Product& p)
        : num_steps(ceil_div(ceil_div(p.matrix.num_in, TILE_IN), BLOCKS) * BLOCKS),
          num_tiles(ceil_div(p.num_rows, HEIGHT)) {}

    size_t count() const { return size_t(num_tiles) * num_steps * HEIGHT; }
    size_t bytes() const { return count() * (WIDTH + 12); }

    Int8Rows rows_in(void* memory) const {
        int8_t* codes = static_cast<int8_t*>(memory);
        float* scales = reinterpret_cast<float*>(codes + count() * WIDTH);
        float* sums = scales + count();
        return {codes, scales, sums, reinterpret_cast<int32_t*>(sums + count())};
    }

    // Of the rows of one tile, from a step on.
    Int8Rows at(const Int8Rows& rows, int tile, int step) const {
        const size_t first = (size_t(tile) * num_steps + step) * HEIGHT;
        return {rows.codes + first * WIDTH, rows.scales + first, rows.sums + first, rows.added + first};
    }
};

SL_INLINE uint32_t largest(u32x16 a) {
    u32x16 b = __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    a = a > b ? a : b;
    b = __builtin_shufflevector(a, a, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3);
    a = a > b ? a : b;
    b = __builtin_shufflevector(a, a, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1);
    a = a > b ? a : b;
    return a[0] > a[1] ? a[0] : a[1];
}

SL_INLINE int32_t total(i32x16 a) {
    a += __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    a += __builtin_shufflevector(a, a, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3);
    a += __builtin_shufflevector(a, a, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1);
    return a[0] + a[1];
}

// 32 inputs to `codes`; returns their scale and the sum of the codes.
struct Int8Block {
    float scale;
    int32_t sum;
};

SL_INLINE Int8Block quantise(const uint16_t* x, int8_t* codes) {
    const f32x16 low = load(x), high = load(x + 16);
    const u32x16 a = bits_of(low) & 0x7fffffff, b = bits_of(high) & 0x7fffffff;
    const uint32_t bits = largest(a > b ? a : b);  // in whole numbers, NaN is larger than infinity
    constexpr uint32_t SMALLEST = 0x0d800000, INFINITE = 0x7f800000;
    if (bits < SMALLEST || bits >= INFINITE) {
        memset(codes, 0, TILE_IN);
        return {bits < SMALLEST ? 0.0f : __builtin_nanf(""), 0};
    }
    float most;
    memcpy(&most, &bits, 4);
    const float inverse = 127.0f / most;
    // Adding 1.5 * 2^23 rounds to an integer, which then is in the lowest bits.
    const auto whole = [&](f32x16 v) {
        return reinterpret_cast<i32x16>(bits_of(v * inverse + 12582912.0f) - 0x4b400000u);
    };
    const i32x16 first = whole(low), second = whole(high);
    const i8x16 c = __builtin_convertvector(first, i8x16), d = __builtin_convertvector(second, i8x16);
    memcpy(codes, &c, 16);
    memcpy(codes + 16, &d, 16);
    return {most / 127.0f, total(first + second)};
}

// One row, or zeros past the last one. `offset`: what the unsigned codes of weights have too much.
template <typename Tiles>
void quantise_row(const Product& p, int row, int offset, const Tiles& tiles, const Int8Rows& rows) {
    for (int k = 0; k < tiles.num_steps; k++) {
        Int8Rows to = tiles.at(rows, row / Tiles::HEIGHT, k);
        const int m = row % Tiles::HEIGHT;
        int8_t* codes = to.codes + m * Tiles::WIDTH;
        if (Tiles::BLOCKS == 2) memset(codes + TILE_IN * (1 - k % 2), 0, TILE_IN);
        codes += TILE_IN * (k % Tiles::BLOCKS);
        Int8Block block{0.0f, 0};
        if (row < p.num_rows && k * TILE_IN < p.matrix.num_in)
            block = quantise(p.x + row * p.x_stride + k * TILE_IN, codes);
        else
            memset(codes, 0, TILE_IN);
        to.scales[m] = block.scale;
        to.sums[m] = block.scale * float(block.sum);
        to.added[m] = -offset * block.sum;
    }
}

constexpr int MAX_OWN_ROWS = 4;  // that every thread quantises for itself, which costs less than waiting

template <typename Tiles>
Int8Rows quantise_rows(const Product& p, int offset, const Tiles& tiles, int thread, int num_threads,
                       void* shared, Barrier barrier) {
    const int num_rows = tiles.num_tiles * Tiles::HEIGHT;
    if (num_rows <= MAX_OWN_ROWS) {
        const Int8Rows rows = tiles.rows_in(scratch(1, tiles.bytes()));
        for (int row = 0; row < num_rows; row++) quantise_row(p, row, offset, tiles, rows);
        return rows;
    }
    const Int8Rows rows = tiles.rows_in(shared);
    const Share share = share_of(num_rows, thread, num_threads);
    for (int row = share.begin; row < share.end; row++) quantise_row(p, row, offset, tiles, rows);
    barrier();
    return rows;
}

}  // namespace
}  // namespace slipstream
