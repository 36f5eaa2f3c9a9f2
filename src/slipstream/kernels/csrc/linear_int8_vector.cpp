// Products with 8-bit inputs on vectors of sixteen outputs; compiled once for AVX-512 VNNI and once for
// any machine.
#include "linear_int8.hpp"

namespace slipstream {
namespace {

#if defined(__AVX512VNNI__)
constexpr int MAX_ROWS = 8;
#elif defined(__AVX2__)
constexpr int MAX_ROWS = 4;
#else
constexpr int MAX_ROWS = 2;
#endif

// Sums of a tile's products, [rows] of sixteen outputs. `x`: [rows][32]; `added`: see Int8Rows.
#if defined(__AVX512VNNI__)

// Codes of weights are the unsigned operand.
constexpr int offset_of(int format) { return format == Q8_0 ? 128 : format == Q4_0 ? 8 : 0; }

template <int FORMAT, int NUM_ROWS>
SL_INLINE void multiply_tile(const uint8_t* codes, const int8_t* x, const int32_t* added, i32x16* dots) {
    __m512i sums[NUM_ROWS];
#pragma GCC unroll 8
    for (int m = 0; m < NUM_ROWS; m++) sums[m] = _mm512_set1_epi32(added[m]);
    const auto add = [&](__m512i quads, int i) {
#pragma GCC unroll 8
        for (int m = 0; m < NUM_ROWS; m++) {
            int32_t quad;
            memcpy(&quad, x + m * TILE_IN + 4 * i, 4);
            sums[m] = _mm512_dpbusd_epi32(sums[m], quads, _mm512_set1_epi32(quad));
        }
    };
    if constexpr (FORMAT == Q8_0) {
        const __m512i sign = _mm512_set1_epi8(-128);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) add(_mm512_xor_si512(_mm512_loadu_si512(codes + 64 * i), sign), i);
    } else {
        const __m512i four_bits = _mm512_set1_epi8(15);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const __m512i both = _mm512_loadu_si512(codes + 64 * i);
            add(_mm512_and_si512(both, four_bits), i);
            add(_mm512_and_si512(_mm512_srli_epi16(both, 4), four_bits), i + 4);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < NUM_ROWS; m++) dots[m] = reinterpret_cast<i32x16>(sums[m]);
}

#elif defined(__AVX2__)

constexpr int offset_of(int format) { return format == Q4_0 ? 8 : 0; }

// Pairs of products fit 16 bits: |code of a weight| <= 128 and |code of x| <= 127. Of four-bit codes
// a whole block's do.
template <int FORMAT, int NUM_ROWS>
SL_INLINE void multiply_tile(const uint8_t* codes, const int8_t* x, const int32_t* added, i32x16* dots) {
    const __m256i ones = _mm256_set1_epi16(1), four_bits = _mm256_set1_epi8(15);
    const auto quad = [&](int m, int i) {
        int32_t quad;
        memcpy(&quad, x + m * TILE_IN + 4 * i, 4);
        return _mm256_set1_epi32(quad);
    };
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++, codes += 32) {
        const auto weights = [&](int i) { return _mm256_loadu_si256((const __m256i*)(codes + 64 * i)); };
        __m256i sums[NUM_ROWS], pairs[NUM_ROWS];
#pragma GCC unroll 4
        for (int m = 0; m < NUM_ROWS; m++) sums[m] = _mm256_set1_epi32(added[m]);
        if constexpr (FORMAT == Q8_0) {
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                const __m256i w = weights(i), size = _mm256_abs_epi8(w);
#pragma GCC unroll 4
                for (int m = 0; m < NUM_ROWS; m++) {
                    pairs[m] = _mm256_maddubs_epi16(size, _mm256_sign_epi8(quad(m, i), w));
                    sums[m] = _mm256_add_epi32(sums[m], _mm256_madd_epi16(pairs[m], ones));
                }
            }
        } else {
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                const __m256i both = weights(i), low = _mm256_and_si256(both, four_bits);
                const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), four_bits);
#pragma GCC unroll 4
                for (int m = 0; m < NUM_ROWS; m++) {
                    const __m256i lower = _mm256_maddubs_epi16(low, quad(m, i));
                    pairs[m] = i ? _mm256_add_epi16(pairs[m], lower) : lower;
                    pairs[m] = _mm256_add_epi16(pairs[m], _mm256_maddubs_epi16(high, quad(m, i + 4)));
                }
            }
#pragma GCC unroll 4
            for (int m = 0; m < NUM_ROWS; m++)
                sums[m] = _mm256_add_epi32(sums[m], _mm256_madd_epi16(pairs[m], ones));
        }
#pragma GCC unroll 4
        for (int m = 0; m < NUM_ROWS; m++) dots[m].part[half] = i32x16::Part(sums[m]);
    }
}

#else

constexpr int offset_of(int format) { return format == Q4_0 ? 8 : 0; }

template <int FORMAT, int NUM_ROWS>
void multiply_tile(const uint8_t* codes, const int8_t* x, const int32_t* added, i32x16* dots) {
    for (int m = 0; m < NUM_ROWS; m++) {
        int32_t held[TILE_OUT];
        for (int n = 0; n < TILE_OUT; n++) {
            int32_t sum = added[m];
            for (int i = 0; i < TILE_IN; i++) {
                const int at = 64 * (FORMAT == Q8_0 ? i / 4 : i / 4 % 4) + 4 * n + i % 4;
                const int code = FORMAT == Q8_0 ? int8_t(codes[at]) : codes[at] >> 4 * (i / 16) & 15;
                sum += code * x[m * TILE_IN + i];
            }
            held[n] = sum;
        }
        dots[m] = load_as<i32x16>(held);
    }
}

#endif

template <int FORMAT, int NUM_ROWS>
void run(const Product& p, int thread, int num_threads, void* shared, Barrier barrier) {
    const FlushSubnormals flush;
    const Int8Tiles<NUM_ROWS> tiles(p);
    const Int8Rows rows =
        quantise_rows(p, offset_of(FORMAT), tiles, thread, num_threads, shared, barrier);
    const Share outs = share_of(ceil_div(p.matrix.num_out, TILE_OUT), thread, num_threads);
    constexpr size_t BYTES = tile_bytes(FORMAT);
    const uint8_t* strip = p.matrix.tiles + size_t(outs.begin) * tiles.num_steps * BYTES;
    for (int out = outs.begin; out < outs.end; out++, strip += tiles.num_steps * BYTES) {
        for (int t = 0; t < tiles.num_tiles; t++) {
            Int8Rows x = tiles.at(rows, t, 0);
            const uint8_t* tile = strip;
            f32x16 sums[NUM_ROWS] = {};
            for (int k = 0; k < tiles.num_steps; k++, tile += BYTES) {
                if (t == 0) prefetch(tile + PREFETCH, BYTES);
                i32x16 dots[NUM_ROWS];
                multiply_tile<FORMAT, NUM_ROWS>(tile + header_bytes(FORMAT), x.codes, x.added, dots);
                const f32x16 scale = halves(tile);
#pragma GCC unroll 8
                for (int m = 0; m < NUM_ROWS; m++)
                    sums[m] = fma(scale * x.scales[m], to_float(dots[m]), sums[m]);
                if constexpr (FORMAT == Q4_1) {
                    const f32x16 minimum = halves(tile + 32);
#pragma GCC unroll 8
                    for (int m = 0; m < NUM_ROWS; m++)
                        sums[m] = fma(minimum, splat(x.sums[m]), sums[m]);
                }
                x = tiles.at(x, 0, 1);
            }
#pragma GCC unroll 8
            for (int m = 0; m < NUM_ROWS; m++)
                if (t * NUM_ROWS + m < p.num_rows) put(p, t * NUM_ROWS + m, out * TILE_OUT, sums[m]);
        }
    }
}

// In as few passes over the weights as fit, of equal numbers of rows.
template <int FORMAT>
void run_rows(const Product& p, int thread, int num_threads, void* shared, Barrier barrier) {
    const int num_tiles = ceil_div(p.num_rows, MAX_ROWS);
    by_number<1, MAX_ROWS>(ceil_div(p.num_rows, num_tiles), [&](auto num_rows) {
        run<FORMAT, decltype(num_rows)::value>(p, thread, num_threads, shared, barrier);
    });
}

}  // namespace

void SL_NAME(multiply_int8)(const Product& p, int thread, int num_threads, void* shared,
                            Barrier barrier) {
    switch (p.matrix.format) {
        case Q8_0: return run_rows<Q8_0>(p, thread, num_threads, shared, barrier);
        case Q4_0: return run_rows<Q4_0>(p, thread, num_threads, shared, barrier);
        default: return run_rows<Q4_1>(p, thread, num_threads, shared, barrier);
    }
}

}  // namespace slipstream
