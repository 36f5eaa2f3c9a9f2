// Products with 8-bit inputs on AMX tiles, laid as in linear_amx.cpp: rows on the left, weights on the
// right. Up to eight rows two steps share a product, each with zeros in the other's half of its rows: a
// product takes as long as its left operand has rows. Few rows are quicker on vectors; sums of whole
// numbers are exact, so the way cannot change a bit.
#include <immintrin.h>

#include "amx.hpp"
#include "linear_int8.hpp"

namespace slipstream {
namespace {

constexpr int WIDE_TILE = 512;
constexpr int RING = 16;         // widened tiles in flight
constexpr int WIDEN_AHEAD = 4;   // products from widening to multiplying
constexpr int MAX_VECTOR_ROWS = 2;

// A tile's codes as signed bytes, [8 quads][16 outputs][4].
template <int FORMAT>
inline void widen_codes(const uint8_t* tile, uint8_t* wide) {
    const uint8_t* codes = tile + header_bytes(FORMAT);
    if constexpr (FORMAT == Q8_0) {
        memcpy(wide, codes, WIDE_TILE);
    } else {
        const __m512i four_bits = _mm512_set1_epi8(15), first = _mm512_set1_epi8(FORMAT == Q4_0 ? 8 : 0);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const __m512i both = _mm512_loadu_si512(codes + 64 * i);
            const __m512i low = _mm512_and_si512(both, four_bits);
            const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), four_bits);
            _mm512_store_si512(wide + 64 * i, FORMAT == Q4_0 ? _mm512_sub_epi8(low, first) : low);
            _mm512_store_si512(wide + 256 + 64 * i, FORMAT == Q4_0 ? _mm512_sub_epi8(high, first) : high);
        }
    }
}

// A strip of weights times all tiles of rows; put(t, sums[HEIGHT]) takes the sums of tile t. Three
// stages overlap: widen, multiply, scale. With IS_WIDE the whole strip was widened before, else `wide`
// is a ring.
template <int FORMAT, bool IS_WIDE, typename Tiles, typename Put>
SL_INLINE void multiply_strip(const uint8_t* strip, const Product& p, const Tiles& tiles,
                              const Int8Rows& rows, uint8_t* wide, const Put& put_tile) {
    constexpr size_t BYTES = tile_bytes(FORMAT);
    constexpr int HEIGHT = Tiles::HEIGHT, BLOCKS = Tiles::BLOCKS, WIDTH = Tiles::WIDTH;
    constexpr int LINKS = 4, LINKS_AHEAD = IS_WIDE ? 3 : 1;
    const int num_steps = p.matrix.num_in / TILE_IN;
    alignas(64) int32_t links[LINKS][BLOCKS * HEIGHT * 16];
    const auto widen_steps = [&](int first) {
        if (IS_WIDE) return;
#pragma GCC unroll 2
        for (int k = first; k < first + BLOCKS; k++) {
            if (k >= num_steps) return;
            prefetch(strip + k * BYTES, BYTES);
            widen_codes<FORMAT>(strip + k * BYTES, wide + k % RING * WIDE_TILE);
        }
    };
    const int num_products = tiles.num_tiles * tiles.num_steps / BLOCKS;
    int next = 0, next_step = 0;
    const int8_t* left = rows.codes;
    const auto multiply_steps = [&] {
        if (next >= num_products) return;
        _tile_zero(0);
        _tile_loadd(4, left, WIDTH);
        _tile_loadd(6, wide + (IS_WIDE ? next_step : next_step % RING) * WIDE_TILE, 64);
        _tile_dpbssd(0, 4, 6);
        widen_steps(next_step + WIDEN_AHEAD * BLOCKS);
        left += BLOCKS * HEIGHT * WIDTH;
        next_step += BLOCKS;
        if (IS_WIDE && next_step == tiles.num_steps) next_step = 0;
        _tile_stored(0, links[next++ % LINKS], 64);
    };
    for (int i = 0; i < WIDEN_AHEAD; i++) widen_steps(i * BLOCKS);
    for (int i = 0; i < LINKS_AHEAD; i++) multiply_steps();
    int num_scaled = 0;
    for (int t = 0; t < tiles.num_tiles; t++) {
        __m512 sums[HEIGHT];
#pragma GCC unroll 16
        for (int m = 0; m < HEIGHT; m++) sums[m] = _mm512_setzero_ps();
        Int8Rows x = tiles.at(rows, t, 0);
        for (int first = 0; first < num_steps; first += BLOCKS) {
            multiply_steps();
            const int32_t* link = links[num_scaled++ % LINKS];
#pragma GCC unroll 2
            for (int j = 0; j < BLOCKS; j++, link += 16 * HEIGHT, x.scales += HEIGHT, x.sums += HEIGHT) {
                if (BLOCKS > 1 && first + j >= num_steps) break;
                const uint8_t* tile = strip + (first + j) * BYTES;
                const __m512 scale = __m512(halves(tile));
#pragma GCC unroll 16
                for (int m = 0; m < HEIGHT; m++)
                    sums[m] = _mm512_fmadd_ps(_mm512_mul_ps(scale, _mm512_set1_ps(x.scales[m])),
                                              _mm512_cvtepi32_ps(_mm512_load_si512(link + 16 * m)),
                                              sums[m]);
                if constexpr (FORMAT == Q4_1) {
                    const __m512 minimum = __m512(halves(tile + 32));
#pragma GCC unroll 16
                    for (int m = 0; m < HEIGHT; m++)
                        sums[m] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(x.sums[m]), sums[m]);
                }
            }
        }
        put_tile(t, sums);
    }
}

template <int FORMAT, typename Tiles, bool IS_WIDE>
void run(const Product& p, int thread, int num_threads, void* shared, Barrier barrier) {
    const FlushSubnormals flush;
    const Tiles tiles(p);
    const Int8Rows rows = quantise_rows(p, 0, tiles, thread, num_threads, shared, barrier);
    const Share outs = share_of(ceil_div(p.matrix.num_out, TILE_OUT), thread, num_threads);
    const int num_steps = p.matrix.num_in / TILE_IN;
    const size_t strip_bytes = num_steps * tile_bytes(FORMAT);
    const uint8_t* strip = p.matrix.tiles + outs.begin * strip_bytes;
    uint8_t* wide = static_cast<uint8_t*>(scratch(2, size_t(IS_WIDE ? num_steps : RING) * WIDE_TILE));
    configure_tiles(Tiles::BLOCKS * Tiles::HEIGHT, Tiles::WIDTH / 4);
    for (int out = outs.begin; out < outs.end; out++, strip += strip_bytes) {
        if (IS_WIDE)
            for (int k = 0; k < num_steps; k++)
                widen_codes<FORMAT>(strip + k * tile_bytes(FORMAT), wide + size_t(k) * WIDE_TILE);
        multiply_strip<FORMAT, IS_WIDE>(strip, p, tiles, rows, wide, [&](int t, const __m512* sums) {
#pragma GCC unroll 16
            for (int m = 0; m < Tiles::HEIGHT; m++) {
                const int row = t * Tiles::HEIGHT + m;
                if (row < p.num_rows) put(p, row, out * TILE_OUT, f32x16(sums[m]));
            }
        });
    }
    _tile_release();
}

template <int FORMAT>
void run_rows(const Product& p, int thread, int num_threads, void* shared, Barrier barrier) {
    if (p.num_rows <= 4)
        run<FORMAT, Int8Tiles<4, true>, false>(p, thread, num_threads, shared, barrier);
    else if (p.num_rows <= 8)
        run<FORMAT, Int8Tiles<8, true>, false>(p, thread, num_threads, shared, barrier);
    else if (p.num_rows <= 16)
        run<FORMAT, Int8Tiles<16, false>, false>(p, thread, num_threads, shared, barrier);
    else
        run<FORMAT, Int8Tiles<16, false>, true>(p, thread, num_threads, shared, barrier);
}

}  // namespace

void multiply_int8_amx(const Product& p, int thread, int num_threads, void* shared, Barrier barrier) {
    if (p.num_rows <= MAX_VECTOR_ROWS)
        return multiply_int8_vnni(p, thread, num_threads, shared, barrier);
    switch (p.matrix.format) {
        case Q8_0: return run_rows<Q8_0>(p, thread, num_threads, shared, barrier);
        case Q4_0: return run_rows<Q4_0>(p, thread, num_threads, shared, barrier);
        default: return run_rows<Q4_1>(p, thread, num_threads, shared, barrier);
    }
}

}  // namespace slipstream
