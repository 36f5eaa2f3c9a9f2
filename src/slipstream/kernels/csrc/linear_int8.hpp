// Rows in 8 bit, for matrices whose inputs enter as such. Of a row's 32 inputs x of a block, with
//   a = the largest |x|, scale = a / 127, code = round(x * (127 / a)),
// products with the block's codes c and sums of x's codes are whole numbers, exact in any order; then
//   sum = fma(weight_scale * scale, float(sum of code c), sum), and in Q4_1
//   sum = fma(minimum, scale * float(sum of code), sum) after that,
// in float32, each operation rounded to nearest even with subnormals flushed to zero. Inputs below
// 2^-100 are zero; a block with an infinity or NaN makes the row NaN. Twin: kernels/twins.py.
#pragma once
#include "linear_parts.hpp"

namespace slipstream {
namespace {

// Tiles of rows, each [step][HEIGHT]; what lies past the last row is zero.
struct Int8Rows {
    int8_t* codes;   // 32 of each
    float* scales;
    float* sums;     // scale * sum of codes
    int32_t* added;  // to sums of products: what takes an offset of the weights' codes away
};

template <int HEIGHT>
struct Int8Tiles {
    int num_steps, num_tiles;

    Int8Tiles(const Product& p)
        : num_steps(p.matrix.num_in / TILE_IN), num_tiles(ceil_div(p.num_rows, HEIGHT)) {}

    size_t count() const { return size_t(num_tiles) * num_steps * HEIGHT; }
    size_t bytes() const { return count() * (TILE_IN + 12); }

    Int8Rows rows_in(void* memory) const {
        int8_t* codes = static_cast<int8_t*>(memory);
        float* scales = reinterpret_cast<float*>(codes + count() * TILE_IN);
        float* sums = scales + count();
        return {codes, scales, sums, reinterpret_cast<int32_t*>(sums + count())};
    }

    // Of the rows of one tile, from a step on.
    Int8Rows at(const Int8Rows& rows, int tile, int step) const {
        const size_t first = (size_t(tile) * num_steps + step) * HEIGHT;
        return {rows.codes + first * TILE_IN, rows.scales + first, rows.sums + first, rows.added + first};
    }
};

struct Int8Block {
    float scale;
    int32_t sum;  // of the codes
};

constexpr uint32_t SMALLEST = 0x0d800000, INFINITE = 0x7f800000;  // 2^-100, by their bits

// Of a block whose largest |x| has these bits; in whole numbers, NaN is larger than infinity.
SL_INLINE bool is_ordinary(uint32_t bits) { return bits >= SMALLEST && bits < INFINITE; }

SL_INLINE Int8Block without_codes(uint32_t bits, int8_t* codes) {
    memset(codes, 0, TILE_IN);
    return {bits < SMALLEST ? 0.0f : __builtin_nanf(""), 0};
}

// 32 inputs to `codes`.
#if defined(__AVX512F__)
SL_INLINE Int8Block quantise(const uint16_t* x, int8_t* codes) {
    const __m512i numbers = _mm512_loadu_si512(x);
    const __m512i sizes = _mm512_and_si512(numbers, _mm512_set1_epi16(0x7fff));
    const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(sizes),
                                          _mm512_extracti64x4_epi64(sizes, 1));
    const __m128i quarter = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(quarter, _mm_set1_epi16(-1)));
    const uint32_t bits = uint32_t(uint16_t(~_mm_cvtsi128_si32(least))) << 16;
    if (__builtin_expect(!is_ordinary(bits), 0)) return without_codes(bits, codes);
    float most;
    memcpy(&most, &bits, 4);
    const __m512 inverse = _mm512_set1_ps(127.0f / most);
    const auto code = [&](__m256i h) {
        const __m512 v = __m512(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
        return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(v, inverse)));
    };
    const __m128i low = code(_mm512_castsi512_si256(numbers));
    const __m128i high = code(_mm512_extracti64x4_epi64(numbers, 1));
    _mm_storeu_si128((__m128i*)codes, low);
    _mm_storeu_si128((__m128i*)(codes + 16), high);
    // Sums of unsigned bytes, by eight.
    const __m128i sign = _mm_set1_epi8(-128), zero = _mm_setzero_si128();
    const __m128i sums = _mm_add_epi64(_mm_sad_epu8(_mm_xor_si128(low, sign), zero),
                                       _mm_sad_epu8(_mm_xor_si128(high, sign), zero));
    return {most / 127.0f, _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 128 * TILE_IN};
}
#else
SL_INLINE Int8Block quantise(const uint16_t* x, int8_t* codes) {
    uint16_t size = 0;
    for (int i = 0; i < TILE_IN; i++) size = (x[i] & 0x7fff) > size ? x[i] & 0x7fff : size;
    const uint32_t bits = uint32_t(size) << 16;
    if (!is_ordinary(bits)) return without_codes(bits, codes);
    const float most = widen(size), inverse = 127.0f / most;
    int32_t sum = 0;
    for (int i = 0; i < TILE_IN; i++) {
        // Adding 1.5 * 2^23 rounds to an integer.
        const int32_t code = int32_t(widen(x[i]) * inverse + 12582912.0f - 12582912.0f);
        codes[i] = int8_t(code);
        sum += code;
    }
    return {most / 127.0f, sum};
}
#endif

// One row, or zeros past the last one. `offset`: what the unsigned codes of weights have too much.
template <int HEIGHT>
void quantise_row(const Product& p, int row, int offset, const Int8Tiles<HEIGHT>& tiles,
                  const Int8Rows& rows) {
    const int m = row % HEIGHT;
    Int8Rows to = tiles.at(rows, row / HEIGHT, 0);
    for (int k = 0; k < tiles.num_steps; k++, to = tiles.at(to, 0, 1)) {
        int8_t* codes = to.codes + m * TILE_IN;
        const Int8Block block = row < p.num_rows ? quantise(p.x + row * p.x_stride + k * TILE_IN, codes)
                                                 : without_codes(0, codes);
        to.scales[m] = block.scale;
        to.sums[m] = block.scale * float(block.sum);
        to.added[m] = -offset * block.sum;
    }
}

constexpr int MAX_OWN_ROWS = 16;  // that every thread quantises for itself, which costs less than waiting

template <int HEIGHT>
Int8Rows quantise_rows(const Product& p, int offset, const Int8Tiles<HEIGHT>& tiles, int thread,
                       int num_threads, void* shared, Barrier barrier) {
    const int num_rows = tiles.num_tiles * HEIGHT;
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
