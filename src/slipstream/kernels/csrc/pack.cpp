// From stored weights to tiles. A tile of bf16 is [16 pairs of inputs][16 outputs][2]. In a tile of a
// quantised format come the 16 outputs' scales, then their minima (Q4_1), then the codes: in Q8_0
// [16 pairs][2][16 outputs]; in four bits [4][16 outputs][2] words of 16 bits, which hold the codes of
// four successive pairs from the lowest bits up. An output past the end is all zero.
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

Place place_of(int format, int n, int i) {
    const size_t header = header_bytes(format);
    if (format == BF16) return {size_t(64 * (i / 2) + 4 * n + 2 * (i & 1)), 0};
    if (format == Q8_0) return {header + 32 * (i / 2) + 16 * (i & 1) + n, 0};
    const int pair = i / 2, word = 32 * (pair / 4) + 2 * n + (i & 1);
    return {header + 2 * word + (pair & 3) / 2, 4 * (pair & 1)};
}

void pack_block(int format, int n, const uint8_t* block, uint8_t* tile) {
    memcpy(tile + 2 * n, block, 2);
    if (format == Q4_1) memcpy(tile + 32 + 2 * n, block + 2, 2);
    uint8_t codes[32];
    read_codes(format, block, codes);
    for (int i = 0; i < TILE_IN; i++) {
        const Place place = place_of(format, n, i);
        tile[place.byte] |= uint8_t(codes[i] << place.shift);
    }
}

uint16_t half_at(const uint8_t* p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return h;
}

// The 32 numbers of output n in a tile, before scaling.
void read_numbers(int format, const uint8_t* tile, int n, float* numbers) {
    const uint8_t* codes = tile + header_bytes(format);
    if (format == BF16) {
        for (int i = 0; i < TILE_IN; i++)
            numbers[i] = widen(half_at(tile + 64 * (i / 2) + 4 * n + 2 * (i & 1)));
    } else if (format == Q8_0) {
        for (int i = 0; i < TILE_IN; i++)
            numbers[i] = float(int8_t(codes[32 * (i / 2) + 16 * (i & 1) + n]));
    } else {
        const int offset = format == Q4_0 ? 8 : 0;
        for (int i = 0; i < TILE_IN; i++) {
            const int word = half_at(codes + 64 * (i / 8) + 4 * n + 2 * (i & 1));
            numbers[i] = float((word >> 4 * (i / 2 & 3) & 15) - offset);
        }
    }
}

}  // namespace

void read_row(const Matrix& m, int row, float* out) {
    const int num_steps = ceil_div(m.num_in, TILE_IN), n = row % TILE_OUT;
    const uint8_t* tile = m.tiles + size_t(row / TILE_OUT) * num_steps * tile_bytes(m.format);
    float numbers[TILE_IN];
    for (int k = 0; k < num_steps; k++, tile += tile_bytes(m.format), out += TILE_IN) {
        const int left = m.num_in - k * TILE_IN, count = left < TILE_IN ? left : TILE_IN;
        read_numbers(m.format, tile, n, numbers);
        const float scale = m.format == BF16 ? 1.0f : half_to_float(half_at(tile + 2 * n));
        const float minimum = m.format == Q4_1 ? half_to_float(half_at(tile + 32 + 2 * n)) : 0.0f;
        for (int i = 0; i < count; i++)
            out[i] = m.format == Q4_1 ? numbers[i] * scale + minimum : numbers[i] * scale;
    }
}

void pack_matrix(int format, int num_out, int num_in, const uint8_t* source, uint8_t* tiles) {
    const int num_steps = ceil_div(num_in, TILE_IN);
    const size_t block_bytes = format == Q8_0 ? 34 : format == Q4_0 ? 18 : 20;
#pragma omp parallel for schedule(static)
    for (int t = 0; t < ceil_div(num_out, TILE_OUT); t++) {
        uint8_t* strip = tiles + size_t(t) * num_steps * tile_bytes(format);
        memset(strip, 0, num_steps * tile_bytes(format));
        for (int n = 0; n < TILE_OUT && t * TILE_OUT + n < num_out; n++) {
            const size_t out = size_t(t) * TILE_OUT + n;
            if (format == BF16) {
                for (int i = 0; i < num_in; i++)
                    memcpy(strip + i / TILE_IN * 1024 + place_of(BF16, n, i % TILE_IN).byte,
                           source + 2 * (out * num_in + i), 2);
                continue;
            }
            for (int k = 0; k < num_steps; k++)
                pack_block(format, n, source + (out * num_steps + k) * block_bytes,
                           strip + k * tile_bytes(format));
        }
    }
}

}  // namespace slipstream
