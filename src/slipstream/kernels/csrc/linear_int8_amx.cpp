// Products with 8-bit inputs on AMX tiles, laid as in linear_amx.cpp: rows on the left, weights on the
// right. A step's tiles are half as deep. Few rows are as quick on vectors, which need no widened codes;
// sums of whole numbers are exact, so the way cannot change a bit.
#include <immintrin.h>

#include "amx.hpp"
#include "linear_int8.hpp"

namespace slipstream {
namespace {

constexpr int WIDE_TILE = 512;
constexpr int RING = 8;         // widened tiles in flight
constexpr int WIDEN_AHEAD = 4;  // tiles from widening to product
constexpr int MAX_VECTOR_ROWS = 8;

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

// A strip of weights times all tiles of rows; put_tile(t, sums[TILE_ROWS]) takes the sums of tile t.
// Three stages overlap: widen, multiply, scale. With IS_WIDE the whole strip was widened before, else
// `wide` is a ring.
template <int FORMAT, bool IS_WIDE, typename Put>
SL_INLINE void multiply_strip(const uint8_t* strip, const Int8Tiles<TILE_ROWS>& tiles,
                              const Int8Rows& rows, uint8_t* wide, const Put& put_tile) {
    constexpr size_t BYTES = tile_bytes(FORMAT);
    constexpr int LINKS = 4, LINKS_AHEAD = IS_WIDE ? 3 : 1;
    const int num_steps = tiles.num_steps, num_products = tiles.num_tiles * num_steps;
    alignas(64) int32_t links[LINKS][TILE_ROWS * TILE_OUT];
    const auto widen_step = [&](int k) {
        if (IS_WIDE || k >= num_steps) return;
        prefetch(strip + k * BYTES + PREFETCH, BYTES);
        widen_codes<FORMAT>(strip + k * BYTES, wide + k % RING * WIDE_TILE);
    };
    int next = 0, next_step = 0;
    const auto multiply_step = [&] {
        if (next >= num_products) return;
        _tile_zero(0);
        _tile_loadd(4, rows.codes + size_t(next) * TILE_ROWS * TILE_IN, TILE_IN);
        _tile_loadd(6, wide + (IS_WIDE ? next_step : next_step % RING) * WIDE_TILE, 64);
        _tile_dpbssd(0, 4, 6);
        // The next strip is widened at once: it should be near by then.
        if (IS_WIDE && next < num_steps) prefetch(strip + (num_steps + next) * BYTES, BYTES);
        widen_step(next_step + WIDEN_AHEAD);
        if (++next_step == num_steps && IS_WIDE) next_step = 0;
        _tile_stored(0, links[next++ % LINKS], 64);
    };
    for (int k = 0; k < WIDEN_AHEAD; k++) widen_step(k);
    for (int i = 0; i < LINKS_AHEAD; i++) multiply_step();
    int num_scaled = 0;
    Int8Rows x = rows;
    for (int t = 0; t < tiles.num_tiles; t++) {
        __m512 sums[TILE_ROWS];
#pragma GCC unroll 16
        for (int m = 0; m < TILE_ROWS; m++) sums[m] = _mm512_setzero_ps();
        for (int k = 0; k < num_steps; k++, x = tiles.at(x, 0, 1)) {
            multiply_step();
            const int32_t* link = links[num_scaled++ % LINKS];
            const __m512 scale = __m512(halves(strip + k * BYTES));
#pragma GCC unroll 16
            for (int m = 0; m < TILE_ROWS; m++)
                sums[m] = _mm512_fmadd_ps(_mm512_mul_ps(scale, _mm512_set1_ps(x.scales[m])),
                                          _mm512_cvtepi32_ps(_mm512_load_si512(link + 16 * m)), sums[m]);
            if constexpr (FORMAT == Q4_1) {
                const __m512 minimum = __m512(halves(strip + k * BYTES + 32));
#pragma GCC unroll 16
                for (int m = 0; m < TILE_ROWS; m++)
                    sums[m] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(x.sums[m]), sums[m]);
            }
        }
        put_tile(t, sums);
    }
}

template <int FORMAT, bool IS_WIDE>
void run(const Product& p, int thread, int num_threads, void* shared, Barrier barrier) {
    const FlushSubnormals flush;
    const Int8Tiles<TILE_ROWS> tiles(p);
    const Int8Rows rows = quantise_rows(p, 0, tiles, thread, num_threads, shared, barrier);
    const Share outs = share_of(ceil_div(p.matrix.num_out, TILE_OUT), thread, num_threads);
    const size_t strip_bytes = tiles.num_steps * tile_bytes(FORMAT);
    const uint8_t* strip = p.matrix.tiles + outs.begin * strip_bytes;
    const int num_wide = IS_WIDE ? tiles.num_steps : RING;
    uint8_t* wide = static_cast<uint8_t*>(scratch(2, size_t(num_wide) * WIDE_TILE));
    configure_tiles(TILE_ROWS, TILE_IN / 4);
    for (int out = outs.begin; out < outs.end; out++, strip += strip_bytes) {
        if (IS_WIDE)
            for (int k = 0; k < tiles.num_steps; k++)
                widen_codes<FORMAT>(strip + k * tile_bytes(FORMAT), wide + size_t(k) * WIDE_TILE);
        multiply_strip<FORMAT, IS_WIDE>(strip, tiles, rows, wide, [&](int t, const __m512* sums) {
#pragma GCC unroll 16
            for (int m = 0; m < TILE_ROWS; m++) {
                const int row = t * TILE_ROWS + m;
                if (row < p.num_rows) put(p, row, out * TILE_OUT, f32x16(sums[m]));
            }
        });
    }
    _tile_release();
}

template <int FORMAT>
void run_rows(const Product& p, int thread, int num_threads, void* shared, Barrier barrier) {
    if (p.num_rows <= TILE_ROWS) return run<FORMAT, false>(p, thread, num_threads, shared, barrier);
    return run<FORMAT, true>(p, thread, num_threads, shared, barrier);
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
