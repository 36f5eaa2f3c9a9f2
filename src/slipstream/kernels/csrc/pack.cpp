// From stored weights to tiles. A tile of bf16 is [16 pairs of inputs][16 outputs][2]. In a tile of a
// quantised format come the 16 outputs' scales, then their minima (Q4_1), then the codes: in Q8_0
// [16 pairs][2][16 outputs]; in four bits [4][16 outputs][2] words of 16 bits, which hold the codes of
// four successive pairs from the lowest bits up. Codes for 8-bit inputs lie by quads of inputs,
// [8 quads][16 outputs][4]; in four bits [4][16 outputs][4] bytes, the upper half of each for the quad
// four further on. For VDPBF16PS (linear_words.hpp) a tile of bf16 is [16 words][16 outputs] of 32 bits, and four
// bits are [4][16 outputs][2] words of 16 bits, the codes of four successive words from the lowest bits up.
// An output past the end is all zero.
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

// Where the number of input i and output n is in a tile.
struct Place {
    size_t byte;
    int shift;
};

Place place_of(const Matrix& m, int n, int i) {
    const size_t header = header_bytes(m.format);
    const int word = i / 4 * 2 + (i & 1), half = i / 2 & 1;  // where inputs are paired: the first half is upper
    if (m.format == BF16 && m.inputs == PAIRED_INPUTS) return {size_t(64 * word + 4 * n + 2 * (1 - half)), 0};
    if (m.format == BF16) return {size_t(64 * (i / 2) + 4 * n + 2 * (i & 1)), 0};
    if (m.inputs == INT8_INPUTS) {
        const int quad = i / 4, byte = 4 * n + (i & 3);
        if (m.format == Q8_0) return {header + 64 * quad + byte, 0};
        return {header + 64 * (quad & 3) + byte, 4 * (quad / 4)};
    }
    if (m.format == Q8_0) return {header + 32 * (i / 2) + 16 * (i & 1) + n, 0};
    if (m.inputs == PAIRED_INPUTS)
        return {header + 64 * (word / 4) + 4 * n + 2 * (1 - half) + (word & 3) / 2, 4 * (word & 1)};
    const int pair = i / 2;
    return {header + 64 * (pair / 4) + 4 * n + 2 * (i & 1) + (pair & 3) / 2, 4 * (pair & 1)};
}

void pack_block(const Matrix& m, int n, const uint8_t* block, uint8_t* tile) {
    memcpy(tile + 2 * n, block, 2);
    if (m.format == Q4_1) memcpy(tile + 32 + 2 * n, block + 2, 2);
    uint8_t codes[32];
    read_codes(m.format, block, codes);
    for (int i = 0; i < TILE_IN; i++) {
        const Place place = place_of(m, n, i);
        tile[place.byte] |= uint8_t(codes[i] << place.shift);
    }
}

uint16_t half_at(const uint8_t* p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return h;
}

// The 32 numbers of output n in a tile, before scaling.
void read_numbers(const Matrix& m, const uint8_t* tile, int n, float* numbers) {
    const int offset = m.format == Q4_0 ? 8 : 0;
    for (int i = 0; i < TILE_IN; i++) {
        const Place place = place_of(m, n, i);
        if (m.format == BF16)
            numbers[i] = widen(half_at(tile + place.byte));
        else if (m.format == Q8_0)
            numbers[i] = float(int8_t(tile[place.byte]));
        else
            numbers[i] = float((tile[place.byte] >> place.shift & 15) - offset);
    }
}

}  // namespace

void read_row(const Matrix& m, int row, float* out) {
    const int num_steps = ceil_div(m.num_in, TILE_IN), n = row % TILE_OUT;
    const uint8_t* tile = m.tiles + size_t(row / TILE_OUT) * num_steps * tile_bytes(m.format);
    float numbers[TILE_IN];
    for (int k = 0; k < num_steps; k++, tile += tile_bytes(m.format), out += TILE_IN) {
        const int left = m.num_in - k * TILE_IN, count = left < TILE_IN ? left : TILE_IN;
        read_numbers(m, tile, n, numbers);
        const float scale = m.format == BF16 ? 1.0f : half_to_float(half_at(tile + 2 * n));
        const float minimum = m.format == Q4_1 ? half_to_float(half_at(tile + 32 + 2 * n)) : 0.0f;
        for (int i = 0; i < count; i++)
            out[i] = m.format == Q4_1 ? numbers[i] * scale + minimum : numbers[i] * scale;
    }
}

void pack_matrix(const Matrix& m, const uint8_t* source, uint8_t* tiles) {
    const int num_steps = ceil_div(m.num_in, TILE_IN);
    const size_t block_bytes = m.format == Q8_0 ? 34 : m.format == Q4_0 ? 18 : 20;
#pragma omp parallel for schedule(static)
    for (int t = 0; t < ceil_div(m.num_out, TILE_OUT); t++) {
        uint8_t* strip = tiles + size_t(t) * num_steps * tile_bytes(m.format);
        memset(strip, 0, num_steps * tile_bytes(m.format));
        for (int n = 0; n < TILE_OUT && t * TILE_OUT + n < m.num_out; n++) {
            const size_t out = size_t(t) * TILE_OUT + n;
            if (m.format == BF16) {
                for (int i = 0; i < m.num_in; i++)
                    memcpy(strip + i / TILE_IN * 1024 + place_of(m, n, i % TILE_IN).byte,
                           source + 2 * (out * m.num_in + i), 2);
                continue;
            }
            for (int k = 0; k < num_steps; k++)
                pack_block(m, n, source + (out * num_steps + k) * block_bytes,
                           strip + k * tile_bytes(m.format));
        }
    }
}

}  // namespace slipstream
