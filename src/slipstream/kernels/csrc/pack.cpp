// From stored weights to tiles. In each tile of a quantised format come the 16 outputs' scales, then
// their minima (Q4_1), then the codes; an output past the end is all zero.
#include "linear.hpp"

namespace slipstream {
namespace {

// Codes of one block in order of inputs: [32].
void read_codes(int format, const uint8_t* block, uint8_t* codes) {
    if (format == Q8_0) {
        memcpy(codes, block + 2, 32);
        return;
    }
    const uint8_t* nibbles = block + (format == Q4_1 ? 4 : 2);
    for (int j = 0; j < 16; j++) {
        codes[j] = nibbles[j] & 15;
        codes[j + 16] = nibbles[j] >> 4;
    }
}

void pack_bf16_row(int isa, int n, const uint8_t* source, int count, uint8_t* tile) {
    for (int i = 0; i < count; i++) {
        const int at = isa == AMX ? 32 * n + i : 32 * (i / 2) + 2 * n + (i & 1);
        memcpy(tile + 2 * at, source + 2 * i, 2);
    }
}

void pack_block(int format, int isa, int n, const uint8_t* block, uint8_t* tile) {
    memcpy(tile + 2 * n, block, 2);
    if (format == Q4_1) memcpy(tile + 32 + 2 * n, block + 2, 2);
    uint8_t* to = tile + (format == Q4_1 ? 64 : 32);
    uint8_t codes[32];
    read_codes(format, block, codes);
    if (format == Q8_0) {
        for (int i = 0; i < 32; i++)
            to[isa == AMX ? 32 * n + i : 32 * (i / 2) + 16 * (i & 1) + n] = codes[i];
        return;
    }
    if (isa == AMX) {  // outputs 2i and 2i + 1 share bytes
        for (int j = 0; j < 32; j++) to[16 * (n & ~1) + j] |= uint8_t(codes[j] << (n & 1 ? 4 : 0));
        return;
    }
    for (int j = 0; j < 16; j++) to[16 * j + n] = uint8_t(codes[2 * j] | codes[2 * j + 1] << 4);
}

float half_to_float(uint16_t h) {
    const uint32_t fraction = h & 1023, exponent = (h >> 10) & 31;
    float f;
    if (exponent == 0) {
        f = float(fraction) * 5.9604644775390625e-8f;  // 2^-24
    } else {
        const uint32_t u = (exponent == 31 ? 0xff : exponent + 112) << 23 | fraction << 13;
        memcpy(&f, &u, 4);
    }
    return h & 0x8000 ? -f : f;
}

int code_at(int format, int isa, const uint8_t* codes, int n, int i) {
    if (format == Q8_0) return int8_t(codes[isa == AMX ? 32 * n + i : 32 * (i / 2) + 16 * (i & 1) + n]);
    const int offset = format == Q4_0 ? 8 : 0;
    if (isa == AMX) return (codes[16 * (n & ~1) + i] >> (n & 1 ? 4 : 0) & 15) - offset;
    return (codes[16 * (i / 2) + n] >> (i & 1 ? 4 : 0) & 15) - offset;
}

uint16_t half_at(const uint8_t* tile, int index) {
    uint16_t h;
    memcpy(&h, tile + 2 * index, 2);
    return h;
}

}  // namespace

void read_row(const Matrix& m, int isa, int row, float* out) {
    const int num_steps = ceil_div(m.num_in, TILE_IN), n = row % TILE_OUT;
    const Strip strip = strip_of(m.format, m.num_out, m.num_in, row / TILE_OUT);
    const uint8_t* tile = m.tiles + strip.begin;
    for (int k = 0; k < num_steps; k++, tile += strip.stride) {
        const int left = m.num_in - k * TILE_IN, count = left < TILE_IN ? left : TILE_IN;
        for (int i = 0; i < count; i++) {
            if (m.format == BF16) {
                out[k * TILE_IN + i] =
                    widen(half_at(tile, isa == AMX ? 32 * n + i : 32 * (i / 2) + 2 * n + (i & 1)));
                continue;
            }
            const float minimum = m.format == Q4_1 ? half_to_float(half_at(tile, 16 + n)) : 0.0f;
            const int code = code_at(m.format, isa, tile + (m.format == Q4_1 ? 64 : 32), n, i);
            const float value = float(code) * half_to_float(half_at(tile, n)) + minimum;
            out[k * TILE_IN + i] = widen(round_bf16(value));
        }
    }
}

void pack_matrix(int format, int isa, int num_out, int num_in, const uint8_t* source, uint8_t* tiles) {
    const int out_tiles = ceil_div(num_out, TILE_OUT), num_steps = ceil_div(num_in, TILE_IN);
    const size_t bytes = tile_bytes(format);
    const size_t block_bytes = format == Q8_0 ? 34 : format == Q4_0 ? 18 : 20;
#pragma omp parallel for schedule(static)
    for (int t = 0; t < out_tiles; t++) {
        const Strip strip = strip_of(format, num_out, num_in, t);
        for (int k = 0; k < num_steps; k++) memset(tiles + strip.begin + k * strip.stride, 0, bytes);
        for (int n = 0; n < TILE_OUT && t * TILE_OUT + n < num_out; n++) {
            const size_t out = size_t(t) * TILE_OUT + n;
            for (int k = 0; k < num_steps; k++) {
                uint8_t* tile = tiles + strip.begin + k * strip.stride;
                const int left = num_in - k * TILE_IN;
                if (format == BF16)
                    pack_bf16_row(isa, n, source + 2 * (out * num_in + k * TILE_IN),
                                  left < TILE_IN ? left : TILE_IN, tile);
                else
                    pack_block(format, isa, n, source + (out * num_steps + k) * block_bytes, tile);
            }
        }
    }
}

}  // namespace slipstream
