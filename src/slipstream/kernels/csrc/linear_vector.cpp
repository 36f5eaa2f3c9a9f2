// Products on vectors of sixteen outputs; compiled once for AVX-512 and once for any machine.
#include "linear_parts.hpp"

namespace slipstream {
namespace {

#if defined(__AVX512F__)
constexpr int MAX_ROWS = 6;
#else
constexpr int MAX_ROWS = 2;
#endif

// Codes of a tile as bf16 numbers, [16 pairs][16 outputs][2].
void widen_codes(int format, const uint8_t* tile, uint16_t* wide) {
    const uint8_t* codes = tile + header_bytes(format);
    for (int pair = 0; pair < 16; pair++, wide += 32) {
        if (format == Q8_0) {
            for (int n = 0; n < 16; n++) {
                wide[2 * n] = round_bf16(float(int8_t(codes[32 * pair + n])));
                wide[2 * n + 1] = round_bf16(float(int8_t(codes[32 * pair + 16 + n])));
            }
            continue;
        }
        const int shift = 4 * (pair & 3), first = format == Q4_0 ? -8 : 0;
        uint16_t words[32];
        memcpy(words, codes + 64 * (pair / 4), 64);
        for (int i = 0; i < 32; i++) wide[i] = round_bf16(float((words[i] >> shift & 15) + first));
    }
}

// The tile's products by row; x: [rows][32 inputs] float32, `x_stride` floats apart.
template <int NUM_ROWS>
SL_INLINE void link_tile(const uint16_t* tile, const float* x, size_t x_stride, f32x16* links) {
    f32x16 even[NUM_ROWS] = {}, odd[NUM_ROWS] = {};
#pragma GCC unroll 4
    for (int j = 0; j < 16; j++) {
        u32x16 pairs;
        memcpy(&pairs, tile + 32 * j, 64);
        const f32x16 low = of_bits(pairs << 16), high = of_bits(pairs & 0xffff0000u);
#pragma GCC unroll 8
        for (int m = 0; m < NUM_ROWS; m++) {
            even[m] = fma(low, splat(x[m * x_stride + 2 * j]), even[m]);
            odd[m] = fma(high, splat(x[m * x_stride + 2 * j + 1]), odd[m]);
        }
    }
    for (int m = 0; m < NUM_ROWS; m++) links[m] = even[m] + odd[m];
}

// Rows as the products read them.
struct Inputs {
    const float* x;         // [rows][steps][32]
    const float* row_sums;  // [rows][steps]
    int num_steps;
};

// One strip of tiles for all rows: its codes as bf16, and its scales and minima by step.
struct Strip {
    const uint16_t* tiles;
    const f32x16* scales;
    const f32x16* minima;
};

template <int NUM_ROWS>
void multiply_rows(const Product& p, int row, int out_tile, const Strip& strip, const Inputs& inputs) {
    f32x16 sums[NUM_ROWS] = {}, links[NUM_ROWS];
    for (int k = 0; k < inputs.num_steps; k++) {
        const size_t stride = size_t(inputs.num_steps) * TILE_IN;
        link_tile<NUM_ROWS>(strip.tiles + size_t(k) * 512, inputs.x + row * stride + k * TILE_IN, stride,
                            links);
        for (int m = 0; m < NUM_ROWS; m++) {
            sums[m] = p.matrix.format == BF16 ? sums[m] + links[m]
                                              : fma(strip.scales[k], links[m], sums[m]);
            if (p.matrix.format == Q4_1)
                sums[m] = fma(strip.minima[k],
                              splat(inputs.row_sums[size_t(row + m) * inputs.num_steps + k]), sums[m]);
        }
    }
    for (int m = 0; m < NUM_ROWS; m++) put(p, row + m, out_tile * TILE_OUT, sums[m]);
}

// A row's inputs in float32, and their sum for each step.
void prepare_row(const Product& p, int row, int num_steps, float* x, float* row_sums) {
    for (int k = 0; k < num_steps * TILE_IN; k++)
        x[k] = k < p.matrix.num_in ? widen(p.x[row * p.x_stride + k]) : 0.0f;
    for (int k = 0; k < num_steps; k++) {
        float even = 0.0f, odd = 0.0f;
        for (int i = 0; i < TILE_IN; i += 2) {
            even += x[k * TILE_IN + i];
            odd += x[k * TILE_IN + i + 1];
        }
        row_sums[k] = even + odd;
    }
}

}  // namespace

void SL_NAME(multiply)(const Product& p, int thread, int num_threads, void* shared, Barrier barrier) {
    const FlushSubnormals flush;
    const int num_steps = ceil_div(p.matrix.num_in, TILE_IN);
    const size_t x_stride = size_t(num_steps) * TILE_IN;
    float* x = static_cast<float*>(shared);
    float* row_sums = x + p.num_rows * x_stride;
    const Share rows = share_of(p.num_rows, thread, num_threads);
    for (int row = rows.begin; row < rows.end; row++)
        prepare_row(p, row, num_steps, x + row * x_stride, row_sums + size_t(row) * num_steps);
    barrier();
    const Inputs inputs{x, row_sums, num_steps};
    uint16_t* wide = static_cast<uint16_t*>(scratch(2, size_t(num_steps) * 1024));
    f32x16* scales = static_cast<f32x16*>(scratch(1, size_t(num_steps) * 128));
    const Share outs = share_of(ceil_div(p.matrix.num_out, TILE_OUT), thread, num_threads);
    for (int tile = outs.begin; tile < outs.end; tile++) {
        const uint8_t* packed = p.matrix.tiles + tile * num_steps * tile_bytes(p.matrix.format);
        Strip strip{reinterpret_cast<const uint16_t*>(packed), scales, scales + num_steps};
        if (p.matrix.format != BF16) {
            for (int k = 0; k < num_steps; k++, packed += tile_bytes(p.matrix.format)) {
                widen_codes(p.matrix.format, packed, wide + size_t(k) * 512);
                scales[k] = halves(packed);
                if (p.matrix.format == Q4_1) scales[num_steps + k] = halves(packed + 32);
            }
            strip.tiles = wide;
        }
        int row = 0;
        for (; row + MAX_ROWS <= p.num_rows; row += MAX_ROWS)
            multiply_rows<MAX_ROWS>(p, row, tile, strip, inputs);
        for (; row + 2 <= p.num_rows; row += 2) multiply_rows<2>(p, row, tile, strip, inputs);
        for (; row < p.num_rows; row++) multiply_rows<1>(p, row, tile, strip, inputs);
    }
}

}  // namespace slipstream
