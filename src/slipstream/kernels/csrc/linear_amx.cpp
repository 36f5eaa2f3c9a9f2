// Products on AMX tiles. Weights are the left operand (16 outputs x 32 inputs), rows of activations
// the right one, so a tile of a 4-bit format is one block per output. TDPBF16PS adds, for every
// element by itself, sum(even products in order) + sum(odd products in order) to the accumulator:
// the order of linear_vector.cpp. The number of rows in a tile cannot change it.
#include <immintrin.h>

#include "amx.hpp"
#include "linear.hpp"

namespace slipstream {
namespace {

constexpr int TILE = 1024;
constexpr int PREFETCH = 4096;  // bytes ahead in a stream of weights

// [<= 16 rows] of x to [in tiles][16 pairs][16 rows][2].
void pack_rows(const Product& p, int first_row, uint8_t* packed) {
    const int num_rows = p.num_rows - first_row < 16 ? p.num_rows - first_row : 16;
    const int num_in = p.matrix.num_in;
    for (int k = 0; k < num_in; k += TILE_IN) {
        const int width = num_in - k < TILE_IN ? num_in - k : TILE_IN;
        const __mmask32 mask = width == 32 ? ~__mmask32(0) : (__mmask32(1) << width) - 1;
        __m512i r[16];
        for (int m = 0; m < 16; m++)
            r[m] = m < num_rows
                       ? _mm512_maskz_loadu_epi16(mask, p.x + (first_row + m) * p.x_stride + k)
                       : _mm512_setzero_si512();
        transpose(r);
        for (int i = 0; i < 16; i++) _mm512_storeu_si512(packed + 64 * i, r[i]);
        packed += TILE;
    }
}

template <int FORMAT>
inline void widen_tile(const uint8_t* tile, uint8_t* wide) {
    alignas(64) float scales[16];
    _mm512_store_ps(scales, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)tile)));
    if constexpr (FORMAT == Q8_0) {
        const uint8_t* codes = tile + 32;
#pragma GCC unroll 4
        for (int n = 0; n < 16; n++) {
            const __m512 scale = _mm512_set1_ps(scales[n]);
            const __m128i low = _mm_loadu_si128((const __m128i*)(codes + 32 * n));
            const __m128i high = _mm_loadu_si128((const __m128i*)(codes + 32 * n + 16));
            const __m512 a = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(low)), scale);
            const __m512 b = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(high)), scale);
            _mm512_store_si512(wide + 64 * n, (__m512i)_mm512_cvtne2ps_pbh(b, a));
        }
    } else {
        // A block has sixteen values: they are made once and looked up by code. A table holds those
        // of two outputs, whose codes share bytes: the first output's are in the low halves.
        const __m512 steps = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        const __m512 centred = _mm512_sub_ps(steps, _mm512_set1_ps(8));
        const __m512i low_bits = _mm512_set1_epi16(15), second_half = _mm512_set1_epi16(16);
        alignas(64) float minima[16];
        if constexpr (FORMAT == Q4_1)
            _mm512_store_ps(minima, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(tile + 32))));
        const uint8_t* codes = tile + (FORMAT == Q4_1 ? 64 : 32);
        const auto values = [&](int n) {
            const __m512 scale = _mm512_set1_ps(scales[n]);
            return FORMAT == Q4_1 ? _mm512_fmadd_ps(scale, steps, _mm512_set1_ps(minima[n]))
                                  : _mm512_mul_ps(scale, centred);
        };
#pragma GCC unroll 8
        for (int n = 0; n < 16; n += 2) {
            const __m512i table = (__m512i)_mm512_cvtne2ps_pbh(values(n), values(n + 1));
            const __m512i bytes =
                _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)(codes + 16 * n)));
            // (bytes & 15) | 16
            const __m512i first = _mm512_ternarylogic_epi32(bytes, low_bits, second_half, 0xea);
            const __m512i second = _mm512_srli_epi16(bytes, 4);
            _mm512_store_si512(wide + 64 * n, _mm512_permutexvar_epi16(first, table));
            _mm512_store_si512(wide + 64 * n + 64, _mm512_permutexvar_epi16(second, table));
        }
    }
}

inline void prefetch(const uint8_t* p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch((const char*)(p + PREFETCH + i), _MM_HINT_T1);
}

// Sums of NUM_OUT neighbouring weight tiles, steps `stride` apart, with one tile of rows, to
// sums[NUM_OUT][16 outputs][width rows].
template <int FORMAT, int NUM_OUT>
void multiply_narrow(const uint8_t* tiles, size_t stride, int num_steps, const uint8_t* x, int width,
                     float* sums, uint8_t* wide) {
    constexpr size_t BYTES = FORMAT == Q8_0 ? 544 : FORMAT == Q4_0 ? 288 : FORMAT == Q4_1 ? 320 : 1024;
    const size_t x_step = width == 16 ? TILE : 64;
    _tile_zero(0);
    if constexpr (NUM_OUT > 1) _tile_zero(1);
    if constexpr (NUM_OUT > 2) _tile_zero(2);
    if constexpr (NUM_OUT > 3) _tile_zero(3);
    if constexpr (FORMAT != BF16)
        for (int i = 0; i < NUM_OUT; i++) widen_tile<FORMAT>(tiles + i * BYTES, wide + i * TILE);
    for (int k = 0; k < num_steps; k++) {
        const uint8_t* a = tiles;
        prefetch(tiles, NUM_OUT * BYTES);
        if constexpr (FORMAT != BF16) {
            a = wide + (k & 3) * NUM_OUT * TILE;
            if (k + 1 < num_steps) {
                uint8_t* next = wide + ((k + 1) & 3) * NUM_OUT * TILE;
                for (int i = 0; i < NUM_OUT; i++)
                    widen_tile<FORMAT>(tiles + stride + i * BYTES, next + i * TILE);
            }
        }
        _tile_loadd(6, x, 4 * width);
        _tile_loadd(4, a, 64);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (NUM_OUT > 1) {
            _tile_loadd(5, a + TILE, 64);
            _tile_dpbf16ps(1, 5, 6);
        }
        if constexpr (NUM_OUT > 2) {
            _tile_loadd(4, a + 2 * TILE, 64);
            _tile_dpbf16ps(2, 4, 6);
        }
        if constexpr (NUM_OUT > 3) {
            _tile_loadd(5, a + 3 * TILE, 64);
            _tile_dpbf16ps(3, 5, 6);
        }
        tiles += stride;
        x += x_step;
    }
    _tile_stored(0, sums, 4 * width);
    if constexpr (NUM_OUT > 1) _tile_stored(1, sums + 16 * width, 4 * width);
    if constexpr (NUM_OUT > 2) _tile_stored(2, sums + 32 * width, 4 * width);
    if constexpr (NUM_OUT > 3) _tile_stored(3, sums + 48 * width, 4 * width);
}

// Sums of two wide weight tiles with two tiles of rows, to sums[row tile][out tile][16][16].
void multiply_wide(const uint8_t* a0, const uint8_t* a1, size_t s0, size_t s1, const uint8_t* x0,
                   const uint8_t* x1, int num_steps, float* sums) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int k = 0; k < num_steps; k++) {
        const size_t at = size_t(k) * TILE;
        _tile_loadd(4, a0 + k * s0, 64);
        _tile_loadd(6, x0 + at, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, a1 + k * s1, 64);
        _tile_dpbf16ps(1, 5, 6);
        _tile_loadd(7, x1 + at, 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 256, 64);
    _tile_stored(2, sums + 512, 64);
    _tile_stored(3, sums + 768, 64);
}

inline void put(const Product& p, int row, int first_out, __m512 v) {
    const int left = p.matrix.num_out - first_out;
    const __mmask16 mask = left >= 16 ? 0xffff : (1 << left) - 1;
    if (p.matrix.bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, p.matrix.bias + first_out));
    const int64_t at = row * p.out_stride + first_out;
    if (p.store == TO_BF16) {
        const __m256i h = (__m256i)_mm512_cvtneps_pbh(v);
        _mm256_mask_storeu_epi16(static_cast<uint16_t*>(p.out) + at, mask, h);
        return;
    }
    float* out = static_cast<float*>(p.out) + at;
    if (p.store == ADD_F32) v = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), v);
    _mm512_mask_storeu_ps(out, mask, v);
}

void put_tile(const Product& p, int first_row, int first_out, const float* sums) {
    __m512i r[16];
    for (int n = 0; n < 16; n++) r[n] = _mm512_load_si512(sums + 16 * n);
    transpose(r);
    const int num_rows = p.num_rows - first_row < 16 ? p.num_rows - first_row : 16;
    for (int m = 0; m < num_rows; m++) put(p, first_row + m, first_out, (__m512)r[m]);
}

template <int FORMAT>
void run_narrow(const Product& p, Share outs, const uint8_t* x, int width) {
    const int num_steps = ceil_div(p.matrix.num_in, TILE_IN);
    float* sums = static_cast<float*>(scratch(1, 4 * TILE));
    uint8_t* wide = static_cast<uint8_t*>(scratch(2, 16 * TILE));
    for (int tile = outs.begin; tile < outs.end;) {
        const Strip strip = strip_of(FORMAT, p.matrix.num_out, p.matrix.num_in, tile);
        const uint8_t* tiles = p.matrix.tiles + strip.begin;
        const size_t stride = strip.stride;
        const int left = outs.end - tile, in_group = GROUP_TILES - tile % GROUP_TILES;
        const int count = left < in_group ? left : in_group;
        if (count == 4) multiply_narrow<FORMAT, 4>(tiles, stride, num_steps, x, width, sums, wide);
        if (count == 3) multiply_narrow<FORMAT, 3>(tiles, stride, num_steps, x, width, sums, wide);
        if (count == 2) multiply_narrow<FORMAT, 2>(tiles, stride, num_steps, x, width, sums, wide);
        if (count == 1) multiply_narrow<FORMAT, 1>(tiles, stride, num_steps, x, width, sums, wide);
        for (int i = 0; i < count; i++) {
            const int first_out = (tile + i) * TILE_OUT;
            if (width == 1)
                put(p, 0, first_out, _mm512_load_ps(sums + 16 * i));
            else
                put_tile(p, 0, first_out, sums + 256 * i);
        }
        tile += count;
    }
}

template <int FORMAT>
void run_wide(const Product& p, Share outs, const uint8_t* x) {
    const int num_steps = ceil_div(p.matrix.num_in, TILE_IN);
    const size_t strip = size_t(num_steps) * TILE;
    const int row_tiles = ceil_div(p.num_rows, TILE_ROWS);
    float* sums = static_cast<float*>(scratch(1, 4 * TILE));
    uint8_t* wide = static_cast<uint8_t*>(scratch(2, 2 * strip));
    for (int tile = outs.begin; tile < outs.end; tile += 2) {
        const bool has_second = tile + 1 < outs.end;
        const auto packed = [&](int t) {
            return strip_of(FORMAT, p.matrix.num_out, p.matrix.num_in, t);
        };
        const Strip first = packed(tile), second = packed(has_second ? tile + 1 : tile);
        const uint8_t* a0 = p.matrix.tiles + first.begin;
        const uint8_t* a1 = p.matrix.tiles + second.begin;
        size_t s0 = first.stride, s1 = second.stride;
        if constexpr (FORMAT != BF16) {
            for (int k = 0; k < num_steps; k++) {
                widen_tile<FORMAT>(a0 + k * s0, wide + k * TILE);
                if (has_second) widen_tile<FORMAT>(a1 + k * s1, wide + strip + k * TILE);
            }
            a0 = wide;
            a1 = has_second ? wide + strip : wide;
            s0 = s1 = TILE;
        }
        for (int row = 0; row < row_tiles; row += 2) {
            const bool has_next = row + 1 < row_tiles;
            const uint8_t* x0 = x + row * strip;
            multiply_wide(a0, a1, s0, s1, x0, has_next ? x0 + strip : x0, num_steps, sums);
            for (int i = 0; i < 4; i++)
                if ((has_second || !(i & 1)) && (has_next || i < 2))
                    put_tile(p, 16 * (row + i / 2), (tile + (i & 1)) * TILE_OUT, sums + 256 * i);
        }
    }
}

template <int FORMAT>
void run(const Product& p, int thread, int num_threads, void* shared, Barrier barrier) {
    const Share outs = share_of(ceil_div(p.matrix.num_out, TILE_OUT), thread, num_threads);
    const size_t strip = size_t(ceil_div(p.matrix.num_in, TILE_IN)) * TILE;
    const bool is_padded = p.matrix.num_in % TILE_IN != 0;
    if (p.num_rows == 1 && !is_padded) {
        configure_tiles(1);
        run_narrow<FORMAT>(p, outs, reinterpret_cast<const uint8_t*>(p.x), 1);
    } else if (p.num_rows <= TILE_ROWS) {
        configure_tiles(16);
        uint8_t* x = static_cast<uint8_t*>(scratch(0, strip));
        pack_rows(p, 0, x);
        run_narrow<FORMAT>(p, outs, x, 16);
    } else {
        configure_tiles(16);
        uint8_t* x = static_cast<uint8_t*>(shared);
        const Share rows = share_of(ceil_div(p.num_rows, TILE_ROWS), thread, num_threads);
        for (int tile = rows.begin; tile < rows.end; tile++) pack_rows(p, 16 * tile, x + tile * strip);
        barrier();
        run_wide<FORMAT>(p, outs, x);
    }
    _tile_release();
}

}  // namespace

void multiply_amx(const Product& p, int thread, int num_threads, void* shared, Barrier barrier) {
    switch (p.matrix.format) {
        case Q8_0: return run<Q8_0>(p, thread, num_threads, shared, barrier);
        case Q4_0: return run<Q4_0>(p, thread, num_threads, shared, barrier);
        case Q4_1: return run<Q4_1>(p, thread, num_threads, shared, barrier);
        default: return run<BF16>(p, thread, num_threads, shared, barrier);
    }
}

}  // namespace slipstream
