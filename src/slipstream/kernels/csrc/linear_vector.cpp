// Products on vectors of sixteen outputs; compiled once for AVX-512 and once for any machine.
#include "linear.hpp"
#include "simd.hpp"

namespace slipstream {
namespace {

#if defined(__AVX512F__)
constexpr int MAX_ROWS = 6;
#else
constexpr int MAX_ROWS = 2;
#endif

float half_to_float(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
    if (exponent == 0) {
        const float f = std::ldexp(float(fraction), -24);
        return sign ? -f : f;
    }
    const uint32_t u = sign | (exponent == 31 ? 0x7f800000 : (exponent + 112) << 23) | fraction << 13;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

// One packed tile to [16 pairs of inputs][16 outputs][2] bf16.
void widen_tile(int format, const uint8_t* tile, uint16_t* wide) {
    uint16_t halves[32];
    memcpy(halves, tile, format == Q4_1 ? 64 : 32);
    alignas(64) float scales[16], minima[16];
    for (int n = 0; n < 16; n++) scales[n] = half_to_float(halves[n]);
    for (int n = 0; n < 16; n++) minima[n] = format == Q4_1 ? half_to_float(halves[16 + n]) : 0.0f;
    const uint8_t* codes = tile + (format == Q4_1 ? 64 : 32);
    for (int j = 0; j < 16; j++) {
        alignas(64) float even[16], odd[16];
        for (int n = 0; n < 16; n++) {
            if (format == Q8_0) {
                even[n] = float(int8_t(codes[32 * j + n])) * scales[n];
                odd[n] = float(int8_t(codes[32 * j + 16 + n])) * scales[n];
            } else {
                const int low = codes[16 * j + n] & 15, high = codes[16 * j + n] >> 4;
                const int offset = format == Q4_0 ? 8 : 0;
                even[n] = float(low - offset) * scales[n] + minima[n];
                odd[n] = float(high - offset) * scales[n] + minima[n];
            }
        }
        uint16_t low[16], high[16];
        store(low, load(even));
        store(high, load(odd));
        for (int n = 0; n < 16; n++) {
            wide[32 * j + 2 * n] = low[n];
            wide[32 * j + 2 * n + 1] = high[n];
        }
    }
}

// sums[row] += the tile's products; x: [rows][32 inputs] float32, `x_stride` floats apart.
template <int NUM_ROWS>
SL_INLINE void add_tile(const uint16_t* tile, const float* x, size_t x_stride, f32x16* sums) {
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
    for (int m = 0; m < NUM_ROWS; m++) sums[m] = sums[m] + (even[m] + odd[m]);
}

void put(const Product& p, int row, int first_out, f32x16 sums) {
    alignas(64) float v[16];
    store(v, sums);
    const int left = p.matrix.num_out - first_out, count = left < 16 ? left : 16;
    if (p.matrix.bias)
        for (int n = 0; n < count; n++) v[n] += p.matrix.bias[first_out + n];
    const int64_t at = row * p.out_stride + first_out;
    if (p.store == TO_BF16) {
        uint16_t* out = static_cast<uint16_t*>(p.out) + at;
        for (int n = 0; n < count; n++) out[n] = round_bf16(v[n]);
    } else {
        float* out = static_cast<float*>(p.out) + at;
        for (int n = 0; n < count; n++) out[n] = p.store == ADD_F32 ? out[n] + v[n] : v[n];
    }
}

template <int NUM_ROWS>
void multiply_rows(const Product& p, int row, int out_tile, const uint8_t* strip, size_t stride,
                   const float* x) {
    const int num_steps = ceil_div(p.matrix.num_in, TILE_IN);
    const size_t x_stride = size_t(num_steps) * TILE_IN;
    f32x16 sums[NUM_ROWS] = {};
    for (int k = 0; k < num_steps; k++)
        add_tile<NUM_ROWS>(reinterpret_cast<const uint16_t*>(strip + k * stride),
                           x + row * x_stride + k * TILE_IN, x_stride, sums);
    for (int m = 0; m < NUM_ROWS; m++) put(p, row + m, out_tile * TILE_OUT, sums[m]);
}

#if defined(__SSE__)
struct FlushSubnormals {
    unsigned saved = _mm_getcsr();
    FlushSubnormals() { _mm_setcsr(saved | 0x8040); }
    ~FlushSubnormals() { _mm_setcsr(saved); }
};
#else
struct FlushSubnormals {
    FlushSubnormals() {}
};
#endif

}  // namespace

void SL_NAME(multiply)(const Product& p, int thread, int num_threads, void* shared, Barrier barrier) {
    const int num_steps = ceil_div(p.matrix.num_in, TILE_IN);
    const size_t x_stride = size_t(num_steps) * TILE_IN;
    float* x = static_cast<float*>(shared);
    const Share rows = share_of(p.num_rows, thread, num_threads);
    for (int row = rows.begin; row < rows.end; row++)
        for (size_t k = 0; k < x_stride; k++)
            x[row * x_stride + k] =
                k < size_t(p.matrix.num_in) ? widen(p.x[row * p.x_stride + k]) : 0.0f;
    barrier();
    const FlushSubnormals flush;
    uint16_t* wide = static_cast<uint16_t*>(scratch(2, size_t(num_steps) * 1024));
    const Share outs = share_of(ceil_div(p.matrix.num_out, TILE_OUT), thread, num_threads);
    for (int tile = outs.begin; tile < outs.end; tile++) {
        const Strip packed = strip_of(p.matrix.format, p.matrix.num_out, p.matrix.num_in, tile);
        const uint8_t* strip = p.matrix.tiles + packed.begin;
        size_t stride = packed.stride;
        if (p.matrix.format != BF16) {
            for (int k = 0; k < num_steps; k++)
                widen_tile(p.matrix.format, strip + k * stride, wide + size_t(k) * 512);
            strip = reinterpret_cast<const uint8_t*>(wide);
            stride = 1024;
        }
        int row = 0;
        for (; row + MAX_ROWS <= p.num_rows; row += MAX_ROWS)
            multiply_rows<MAX_ROWS>(p, row, tile, strip, stride, x);
        for (; row + 2 <= p.num_rows; row += 2) multiply_rows<2>(p, row, tile, strip, stride, x);
        for (; row < p.num_rows; row++) multiply_rows<1>(p, row, tile, strip, stride, x);
    }
}

}  // namespace slipstream
