// Products on AMX tiles. Rows are the left operand (<= 16 rows x 32 inputs), weights the right one
// (16 pairs of inputs x 16 outputs), so a row of sums is one vector of outputs. TDPBF16PS adds, for
// every element by itself, sum(even products in order) + sum(odd products in order) to the accumulator:
// the order of linear_vector.cpp. The number of rows in a tile cannot change it.
#include <immintrin.h>

#include "amx.hpp"
#include "linear_parts.hpp"
#include "linear_few.hpp"

namespace slipstream {
namespace {

constexpr int TILE = 1024;
constexpr int RING = 8;               // widened tiles in flight
constexpr int WIDEN_AHEAD = 4;        // tiles from widening to product

// Left operands: tile k, of `height` rows, is at data + k * step, its rows `stride` apart.
struct Rows {
    const uint8_t* data;
    size_t step, stride;
};

// How many steps share a tile of sums. Quantised weights need the sums of every step by themselves;
// step k then has its rows in the k-th part of its left tile and zeros in the others, so that one
// tile takes several steps before it is stored. (A store takes as long as a product.)
constexpr int steps_per_tile(int format, int num_rows) {
    return format == BF16 || num_rows > 8 ? 1 : 2;
}

// Codes of a tile as bf16 numbers, [16 pairs][16 outputs][2].
template <int FORMAT>
inline void widen_codes(const uint8_t* tile, uint8_t* wide) {
    const uint8_t* codes = tile + header_bytes(FORMAT);
    if constexpr (FORMAT == Q8_0) {
        const __m512i upper = _mm512_set1_epi32(int(0xffff0000u));
#pragma GCC unroll 16
        for (int pair = 0; pair < 16; pair++) {
            const auto number = [&](int odd) {
                const __m128i c = _mm_loadu_si128((const __m128i*)(codes + 32 * pair + 16 * odd));
                return (__m512i)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(c));
            };
            // A code has at most eight significant bits: the upper half of its float32 is exact.
            const __m512i even = _mm512_srli_epi32(number(0), 16);
            _mm512_store_si512(wide + 64 * pair,
                               _mm512_ternarylogic_epi32(even, number(1), upper, 0xf8));
        }
    } else {
        // Sixteen numbers, twice, because a lookup takes five bits of a word: a code and one more.
        constexpr float FIRST = FORMAT == Q4_0 ? -8 : 0;
        const __m512 numbers = _mm512_add_ps(
            _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_ps(FIRST));
        const __m512i table = (__m512i)_mm512_cvtne2ps_pbh(numbers, numbers);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const __m512i words = _mm512_loadu_si512(codes + 64 * i);
            uint8_t* to = wide + 256 * i;
            _mm512_store_si512(to, _mm512_permutexvar_epi16(words, table));
            _mm512_store_si512(to + 64, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), table));
            _mm512_store_si512(to + 128, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), table));
            _mm512_store_si512(to + 192, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), table));
        }
    }
}

inline void add_product(const Rows& x, int k, const uint8_t* weights) {
    _tile_loadd(4, x.data + k * x.step, x.stride);
    _tile_loadd(6, weights, 64);
    _tile_dpbf16ps(0, 4, 6);
}

// NUM strips of bf16 tiles side by side, to [NUM][16 rows][16 outputs].
template <int NUM>
SL_INLINE void multiply_strips_bf16(const uint8_t* strips, size_t bytes, int num_steps, const Rows& x,
                                    Ahead ahead, float* sums) {
    _tile_zero(0);
    if (NUM > 1) _tile_zero(1);
    if (NUM > 2) _tile_zero(2);
    if (NUM > 2) _tile_zero(3);
    for (int k = 0; k < num_steps; k++, strips += TILE) {
        for (size_t i = 0; i < TILE; i += LINE) ahead.fetch(LINE);
        _tile_loadd(4, x.data + k * x.step, x.stride);
        _tile_loadd(6, strips, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (NUM == 1) continue;
        _tile_loadd(7, strips + bytes, 64);
        _tile_dpbf16ps(1, 4, 7);
        if (NUM == 2) continue;
        _tile_loadd(6, strips + 2 * bytes, 64);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(7, strips + 3 * bytes, 64);
        _tile_dpbf16ps(3, 4, 7);
    }
    _tile_stored(0, sums, 64);
    if (NUM > 1) _tile_stored(1, sums + 16 * TILE_ROWS, 64);
    if (NUM > 2) _tile_stored(2, sums + 32 * TILE_ROWS, 64);
    if (NUM > 2) _tile_stored(3, sums + 48 * TILE_ROWS, 64);
}

// Where the sums of tiles of rows go, for one tile of outputs.
struct Place {
    const Product& p;
    int first_row, first_out;

    SL_INLINE void put_row(int row, __m512 sums) const {
        if (first_row + row < p.num_rows) put(p, first_row + row, first_out, sums);
    }
    SL_INLINE void fetch_row(int row) const {
        if (first_row + row >= p.num_rows) return;
        const size_t at = size_t(first_row + row) * p.out_stride + first_out;
        __builtin_prefetch(static_cast<const char*>(p.out) + at * (p.store == TO_BF16 ? 2 : 4), 1);
    }
};

// A strip of quantised tiles times `count` tiles of rows. Three stages overlap, so that tiles, vectors
// and memory work at once: widen, multiply, scale. The first tile of rows widens the strip on its way, for
// others (IS_WIDE) too; with one tile of rows `wide` is a ring of RING tiles.
// With many tiles of rows, their sums miss the first-level cache. One row's at a time are fetched, during
// the tile's own steps, and written, during those of the next tile.
// `row_sums`: [tile of rows][step][NUM_ROWS] of inputs, for formats with minima.
template <int FORMAT, int NUM_ROWS, bool IS_WIDE>
SL_INLINE void multiply_strip(const uint8_t* strip, int num_steps, int count, const Rows& x,
                              const float* row_sums, uint8_t* wide, const Place& place) {
    constexpr size_t BYTES = tile_bytes(FORMAT);
    constexpr int STEPS = steps_per_tile(FORMAT, NUM_ROWS);
    constexpr int LINKS = 4, LINKS_AHEAD = 3;  // tiles of sums, and how many from product to scaling
    alignas(64) float links[LINKS][STEPS * NUM_ROWS * 16];
    const auto widen_step = [&](int k) {
        if (k >= num_steps) return;
        prefetch(strip + k * BYTES + PREFETCH, BYTES);
        widen_codes<FORMAT>(strip + k * BYTES, wide + (IS_WIDE ? k : k % RING) * size_t(TILE));
    };
    // The next product: its tile of rows times its tile of weights, and where its sums go.
    int next = 0, next_step = 0, next_link = 0;
    const auto multiply_steps = [&] {
        if (next >= count * num_steps) return;
        _tile_zero(0);
#pragma GCC unroll 4
        for (int j = 0; j < STEPS; j++) {
            if (STEPS > 1 && next_step >= num_steps) break;
            add_product(x, next, wide + (IS_WIDE ? next_step : next_step % RING) * size_t(TILE));
            widen_step(next + WIDEN_AHEAD);
            next++, next_step++;
        }
        if (IS_WIDE && next_step == num_steps) next_step = 0;
        _tile_stored(0, links[next_link++ % LINKS], 64);
    };
    for (int k = 0; k < WIDEN_AHEAD; k++) widen_step(k);
    for (int i = 0; i < LINKS_AHEAD; i++) multiply_steps();
    int num_scaled = 0;
    alignas(64) float held[NUM_ROWS * 16];  // sums of the tile before
    const auto put_held = [&](int i, int first) {
        for (int m = first; m < NUM_ROWS; m++)
            place.put_row(i * NUM_ROWS + m, _mm512_load_ps(held + 16 * m));
    };
    for (int i = 0; i < count; i++) {
        __m512 sums[NUM_ROWS];
#pragma GCC unroll 16
        for (int m = 0; m < NUM_ROWS; m++) sums[m] = _mm512_setzero_ps();
        for (int first = 0; first < num_steps; first += STEPS) {
            multiply_steps();
            if (IS_WIDE && first < NUM_ROWS) {
                place.fetch_row(i * NUM_ROWS + first);
                if (i) place.put_row((i - 1) * NUM_ROWS + first, _mm512_load_ps(held + 16 * first));
            }
            const float* link = links[num_scaled++ % LINKS];
#pragma GCC unroll 4
            for (int j = 0; j < STEPS; j++, link += 16 * NUM_ROWS, row_sums += NUM_ROWS) {
                if (STEPS > 1 && first + j >= num_steps) break;
                const uint8_t* tile = strip + (first + j) * BYTES;
                const __m512 scale = halves(tile);
#pragma GCC unroll 16
                for (int m = 0; m < NUM_ROWS; m++)
                    sums[m] = _mm512_fmadd_ps(scale, _mm512_load_ps(link + 16 * m), sums[m]);
                if constexpr (FORMAT == Q4_1) {
                    const __m512 minimum = halves(tile + 32);
#pragma GCC unroll 16
                    for (int m = 0; m < NUM_ROWS; m++)
                        sums[m] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(row_sums[m]), sums[m]);
                }
            }
        }
        if (IS_WIDE && i) put_held(i - 1, num_steps);
#pragma GCC unroll 16
        for (int m = 0; m < NUM_ROWS; m++) _mm512_store_ps(held + 16 * m, sums[m]);
    }
    put_held(count - 1, 0);
}

// sums[row tile][out tile][16][16] of two strips of bf16 tiles with two tiles of rows.
void multiply_square(const uint8_t* w0, const uint8_t* w1, const uint8_t* x0, const uint8_t* x1,
                     int num_steps, float* sums) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t at = 0; at < size_t(num_steps) * TILE; at += TILE) {
        _tile_loadd(4, x0 + at, 64);
        _tile_loadd(6, w0 + at, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w1 + at, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, x1 + at, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 256, 64);
    _tile_stored(2, sums + 512, 64);
    _tile_stored(3, sums + 768, 64);
}

// Rows from `first` on, NUM_ROWS of them or all that are left, to left tiles of STEPS steps each; what
// is not theirs in the tiles stays zero.
template <int NUM_ROWS, int STEPS>
void pack_rows(const Product& p, int first, uint8_t* tiles) {
    const int left = p.num_rows - first, count = left < NUM_ROWS ? left : NUM_ROWS;
    for (int k = 0; k * TILE_IN < p.matrix.num_in; k++, tiles += 64 * STEPS * NUM_ROWS) {
        const int width = p.matrix.num_in - k * TILE_IN;
        const __mmask32 mask = width >= 32 ? ~__mmask32(0) : (__mmask32(1) << width) - 1;
        for (int m = 0; m < NUM_ROWS; m++) {
            const uint16_t* x = p.x + (first + m) * p.x_stride + k * TILE_IN;
            _mm512_store_si512(tiles + 64 * (k % STEPS * NUM_ROWS + m),
                               m < count ? _mm512_maskz_loadu_epi16(mask, x) : _mm512_setzero_si512());
        }
    }
}

// Sums of the inputs of each step, to [steps][NUM_ROWS]: products with ones.
template <int NUM_ROWS, int STEPS>
void sum_rows(const Rows& x, int num_steps, float* row_sums) {
    alignas(64) uint16_t ones[TILE / 2];
    for (uint16_t& one : ones) one = 0x3f80;
    alignas(64) float links[STEPS * NUM_ROWS * 16];
    for (int k = 0; k < num_steps; k++) {
        _tile_zero(0);
        add_product(x, k, reinterpret_cast<const uint8_t*>(ones));
        _tile_stored(0, links, 64);
        for (int m = 0; m < NUM_ROWS; m++)
            row_sums[k * NUM_ROWS + m] = links[16 * (k % STEPS * NUM_ROWS + m)];
    }
}

template <int FORMAT, int NUM_ROWS, typename Next>
void run_narrow(const Product& p, Share outs, const Next& next) {
    constexpr int STEPS = steps_per_tile(FORMAT, NUM_ROWS), HEIGHT = STEPS * NUM_ROWS;
    const int num_steps = ceil_div(p.matrix.num_in, TILE_IN);
    const size_t bytes = strip_bytes(p.matrix);
    const uint8_t* strip = p.matrix.tiles + outs.begin * bytes;
    configure_tiles(HEIGHT);
    Rows x{reinterpret_cast<const uint8_t*>(p.x), 2 * TILE_IN, 2 * size_t(p.x_stride)};
    if (STEPS > 1 || p.num_rows != NUM_ROWS || p.matrix.num_in % TILE_IN) {
        // One buffer for each shape of tiles: what one leaves zero is never written by another.
        constexpr int BUFFER = ROW_SCRATCH + NUM_ROWS + (STEPS > 1);
        uint8_t* packed = static_cast<uint8_t*>(scratch(BUFFER, size_t(num_steps) * 64 * HEIGHT));
        pack_rows<NUM_ROWS, STEPS>(p, 0, packed);
        x = {packed, 64 * HEIGHT, 64};
    }
    if constexpr (FORMAT == BF16) {
        alignas(64) float sums[STRIPS * 16 * TILE_ROWS];
        by_strips(outs, [&](int tile, auto num) {
            constexpr int NUM = decltype(num)::value;
            multiply_strips_bf16<NUM>(p.matrix.tiles + tile * bytes, bytes, num_steps, x,
                                      next(tile + NUM), sums);
            for (int s = 0; s < NUM; s++)
                for (int m = 0; m < p.num_rows; m++)
                    put(p, m, (tile + s) * TILE_OUT, _mm512_load_ps(sums + 16 * (TILE_ROWS * s + m)));
        });
    } else {
        float* row_sums = static_cast<float*>(scratch(1, sizeof(float) * num_steps * NUM_ROWS));
        if (FORMAT == Q4_1) sum_rows<NUM_ROWS, STEPS>(x, num_steps, row_sums);
        uint8_t* wide = static_cast<uint8_t*>(scratch(2, RING * TILE));
        for (int tile = outs.begin; tile < outs.end; tile++, strip += bytes)
            multiply_strip<FORMAT, NUM_ROWS, false>(strip, num_steps, 1, x, row_sums, wide,
                                                    {p, 0, tile * TILE_OUT});
    }
}

void run_wide_bf16(const Product& p, Share outs, const uint8_t* x) {
    const int num_steps = ceil_div(p.matrix.num_in, TILE_IN);
    const size_t strip_bytes = size_t(num_steps) * TILE;
    const int row_tiles = ceil_div(p.num_rows, TILE_ROWS);
    float* sums = static_cast<float*>(scratch(1, 4 * TILE));
    for (int tile = outs.begin; tile < outs.end; tile += 2) {
        const bool has_second = tile + 1 < outs.end;
        const uint8_t* w0 = p.matrix.tiles + tile * strip_bytes;
        const uint8_t* w1 = has_second ? w0 + strip_bytes : w0;
        for (int row_tile = 0; row_tile < row_tiles; row_tile += 2) {
            const bool has_next = row_tile + 1 < row_tiles;
            const uint8_t* x0 = x + row_tile * strip_bytes;
            multiply_square(w0, w1, x0, has_next ? x0 + strip_bytes : x0, num_steps, sums);
            for (int i = 0; i < 32; i++) {
                const int row = 16 * row_tile + i;
                if (row >= p.num_rows) break;
                const float* at = sums + 512 * (i / 16) + 16 * (i % 16);
                put(p, row, tile * TILE_OUT, _mm512_load_ps(at));
                if (has_second) put(p, row, (tile + 1) * TILE_OUT, _mm512_load_ps(at + 256));
            }
        }
    }
}

// Rows go by blocks, whose inputs and sums stay in the second-level cache from strip to strip.
template <int FORMAT>
void run_wide(const Product& p, Share outs, const uint8_t* x, const float* row_sums) {
    constexpr int BLOCK = 8;  // tiles of rows
    const int num_steps = ceil_div(p.matrix.num_in, TILE_IN);
    const int row_tiles = ceil_div(p.num_rows, TILE_ROWS);
    const size_t bytes = strip_bytes(p.matrix), x_bytes = size_t(num_steps) * TILE;
    uint8_t* wide = static_cast<uint8_t*>(scratch(2, x_bytes));
    for (int first = 0; first < row_tiles; first += BLOCK) {
        const int count = row_tiles - first < BLOCK ? row_tiles - first : BLOCK;
        for (int tile = outs.begin; tile < outs.end; tile++)
            multiply_strip<FORMAT, TILE_ROWS, true>(
                p.matrix.tiles + tile * bytes, num_steps, count, {x + first * x_bytes, TILE, 64},
                row_sums + size_t(first) * num_steps * TILE_ROWS, wide,
                {p, TILE_ROWS * first, tile * TILE_OUT});
    }
}

template <int FORMAT>
void run(const Product& p, int thread, int num_threads, void* shared, Barrier barrier) {
    const FlushSubnormals flush;
    const Share outs = share_of(ceil_div(p.matrix.num_out, TILE_OUT), thread, num_threads);
    const auto next = [&](int tile) { return ahead_of(p, tile, outs, thread, num_threads); };
    if (p.num_rows == 1) return run_few<Singles, FORMAT, 1>(p, outs, next);
    if constexpr (FORMAT != BF16)
        if (p.num_rows == 2) return run_few<Singles, FORMAT, 2>(p, outs, next);
    if constexpr (FORMAT == Q8_0) {
        if (p.num_rows == 3) return run_few<Singles, FORMAT, 3>(p, outs, next);
        if (p.num_rows == 4) return run_few<Singles, FORMAT, 4>(p, outs, next);
    }
    if (p.num_rows <= 4) {
        run_narrow<FORMAT, 4>(p, outs, next);
    } else if (p.num_rows <= 8) {
        run_narrow<FORMAT, 8>(p, outs, next);
    } else if (p.num_rows <= TILE_ROWS) {
        run_narrow<FORMAT, TILE_ROWS>(p, outs, next);
    } else {
        const int num_steps = ceil_div(p.matrix.num_in, TILE_IN);
        const int row_tiles = ceil_div(p.num_rows, TILE_ROWS);
        const size_t x_bytes = size_t(num_steps) * TILE;
        uint8_t* x = static_cast<uint8_t*>(shared);
        float* row_sums = reinterpret_cast<float*>(x + row_tiles * x_bytes);
        configure_tiles(TILE_ROWS);
        const Share tiles = share_of(row_tiles, thread, num_threads);
        for (int t = tiles.begin; t < tiles.end; t++) {
            pack_rows<TILE_ROWS, 1>(p, TILE_ROWS * t, x + t * x_bytes);
            if (FORMAT == Q4_1)
                sum_rows<TILE_ROWS, 1>({x + t * x_bytes, TILE, 64}, num_steps,
                                       row_sums + size_t(t) * num_steps * TILE_ROWS);
        }
        barrier();
        if constexpr (FORMAT == BF16)
            run_wide_bf16(p, outs, x);
        else
            run_wide<FORMAT>(p, outs, x, row_sums);
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
