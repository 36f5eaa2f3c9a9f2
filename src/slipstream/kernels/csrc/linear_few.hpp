// A few rows in vectors of sixteen outputs, which take each weight from memory once for all of them.
// On AMX machines for a few rows: loading and storing tiles would take longer than all arithmetic, and
// tiles ask the memory for less at a time. The order is that of linear_vector.cpp.
#pragma once
#include "linear_words.hpp"
#if defined(__AVX512F__)
#include "transpose.hpp"
#endif

namespace slipstream {
namespace {

// As many rows and strips at once as have their sums in registers; more than one strip share what is brought
// of inputs.
constexpr int MOST_ROWS = HAS_WIDE_REGISTERS ? 8 : 3;
constexpr int strips_at_once(int num_rows) {
    if (!HAS_WIDE_REGISTERS) return num_rows > 1 ? 1 : 2;
    return num_rows > 4 ? 1 : num_rows > 2 ? 2 : STRIPS;
}

// What a pass over strips reads: their tiles, as the only one; the tiles, leaving their words for others;
// or these words.
enum Source { ALONE, FIRST, LATER };

// Rows' words, [steps][rows][WORDS], and the sums of each step's inputs, [steps][rows].
template <typename Word>
struct FewRows {
    const Word* words;
    const float* sums;
    int num_steps;
};

// Strips side by side: their tiles, and where the codes of these lie, in them or widened.
struct Strips {
    const uint8_t* tiles;
    size_t bytes;  // from a strip to the next
    const uint8_t* codes;
    size_t code_step, code_bytes;  // from a step's codes to the next one's, and from a strip's
    uint8_t* wide;  // where to leave the words for other rows, [strips][steps] tiles, or null
};

inline Strips strips_of(const Matrix& m, int first, uint8_t* wide = nullptr) {
    const size_t bytes = strip_bytes(m);
    const uint8_t* tiles = m.tiles + first * bytes;
    return {tiles, bytes, tiles + header_bytes(m.format), tile_bytes(m.format), bytes, wide};
}

// One step of NUM strips, to sums[NUM][ROWS].
template <typename Dots, int FORMAT, int NUM, int ROWS, Source SOURCE>
SL_INLINE void multiply_tiles(const Dots& dots, const Strips& strips, const FewRows<typename Dots::Word>& rows,
                              int k, Ahead& ahead, f32x16* sums) {
    constexpr int PART = Dots::PART, READ = Dots::READ, SLOTS = NUM * PART * LINE / part_bytes(FORMAT);
    const typename Dots::Word* x = rows.words + size_t(k) * ROWS * Dots::WORDS;
    f32x16 links[2][NUM][ROWS];
    for (auto& chain : links)
        for (auto& strip : chain)
            for (f32x16& link : strip) link = f32x16{};
    if (SOURCE == ALONE && FORMAT != BF16) ahead.fetch<NUM>(header_bytes(FORMAT));
#pragma GCC unroll 4
    for (int part = 0; part < PARTS; part++, x += PART) {
#pragma GCC unroll 8
        for (int first = 0; first < PART; first += READ) {
            typename Dots::Weights weights[NUM][READ];
            const auto read = [&](int s) {
                const uint8_t* codes = strips.codes + s * strips.code_bytes + k * strips.code_step +
                                       part * Dots::PART_BYTES;
                dots.read(codes, first, weights[s]);
                if (SOURCE == FIRST)
                    dots.widen(codes, first, weights[s],
                               strips.wide + size_t(s * rows.num_steps + k) * WIDE_TILE +
                                   part * WIDE_TILE / PARTS);
            };
            const auto multiply = [&](int s, int i) {
                const int w = first + i;
                if (SOURCE == ALONE && (w * NUM + s) % SLOTS == 0) ahead.fetch<NUM>(LINE);
#pragma GCC unroll 8
                for (int m = 0; m < ROWS; m++)
                    links[w % 2][s][m] = Dots::add(links[w % 2][s][m], weights[s][i], x + m * Dots::WORDS + w);
            };
            if constexpr (ROWS > 2) {  // each input is brought once for all strips
#pragma GCC unroll 4
                for (int s = 0; s < NUM; s++) read(s);
#pragma GCC unroll 8
                for (int i = 0; i < READ; i++)
#pragma GCC unroll 4
                    for (int s = 0; s < NUM; s++) multiply(s, i);
            } else {
#pragma GCC unroll 4
                for (int s = 0; s < NUM; s++) {
                    read(s);
#pragma GCC unroll 8
                    for (int i = 0; i < READ; i++) multiply(s, i);
                }
            }
        }
    }
    const uint8_t* tile = strips.tiles + k * tile_bytes(FORMAT);
#pragma GCC unroll 4
    for (int s = 0; s < NUM; s++, tile += strips.bytes) {
#pragma GCC unroll 8
        for (int m = 0; m < ROWS; m++, sums++) {
            const f32x16 link = links[0][s][m] + links[1][s][m];
            *sums = FORMAT == BF16 ? *sums + link : fma(halves(tile), link, *sums);
            if constexpr (FORMAT == Q4_1)
                *sums = fma(halves(tile + 32), splat(rows.sums[k * ROWS + m]), *sums);
        }
    }
}

// Passes over the same strips share what is to be brought near: pass `at` of `count` brings every count-th
// line, and so does it evenly.
struct Turn {
    int at = 0, count = 1;
};

// NUM strips, the first of them at output tile `tile`, times ROWS rows from `first_row` on.
template <typename Dots, int FORMAT, int NUM, int ROWS, Source SOURCE>
SL_INLINE void multiply_strips(const Product& p, int tile, int first_row, const Strips& strips,
                               const FewRows<typename Dots::Word>& rows, Ahead& ahead, Turn turn = {}) {
    const Dots dots;
    f32x16 sums[NUM * ROWS];
    for (f32x16& sum : sums) sum = f32x16{};
    constexpr int LINES = (tile_bytes(FORMAT) + LINE - 1) / LINE;
    for (int k = 0, due = turn.at; k < rows.num_steps; k++) {
        if (SOURCE != ALONE)
            for (due += LINES; due >= turn.count; due -= turn.count) ahead.fetch<NUM>(LINE);
        multiply_tiles<Dots, FORMAT, NUM, ROWS, SOURCE>(dots, strips, rows, k, ahead, sums);
    }
    for (int s = 0; s < NUM; s++)
        for (int m = 0; m < ROWS; m++) put(p, first_row + m, (tile + s) * TILE_OUT, sums[s * ROWS + m]);
}

// `num_rows` rows from `first` on as words, to [steps][num_rows][WORDS], with zeros past the last input.
template <typename Dots>
void put_rows(const Product& p, int first, int num_rows, typename Dots::Word* words) {
    for (int k = 0; k * TILE_IN < p.matrix.num_in; k++) {
        for (int m = 0; m < num_rows; m++, words += Dots::WORDS)
            Dots::put_row(p.x + (first + m) * p.x_stride + k * TILE_IN, p.matrix.num_in - k * TILE_IN, words);
    }
}

// Sums of the inputs of `count` rows of a step, [count][WORDS]: products with ones, of sixteen at a time.
#if defined(__AVX512F__)
template <typename Dots>
void sum_words(const typename Dots::Word* words, int count, float* sums) {
    for (int i = 0; i < count; i += 16) {
        const int some = count - i < 16 ? count - i : 16;
        f32x16 links[2] = {};
        for (int first = 0; first < Dots::WORDS; first += 16) {
            __m512i w[16];
            for (int j = 0; j < 16; j++)
                w[j] = j < some ? _mm512_loadu_si512(words + size_t(i + j) * Dots::WORDS + first)
                                : _mm512_setzero_si512();
            transpose(w);
            for (int j = 0; j < 16; j++)
                links[j % 2] = Dots::add(links[j % 2], typename Dots::Weights(w[j]), &Dots::ONE);
        }
        _mm512_mask_storeu_ps(sums + i, __mmask16((1u << some) - 1), __m512(links[0] + links[1]));
    }
}
#else
template <typename Dots>
void sum_words(const float* words, int count, float* sums) {
    for (; count > 0; count--, sums++, words += Dots::WORDS) {
        float even = 0.0f, odd = 0.0f;
        for (int i = 0; i < Dots::WORDS; i += 2) {
            even += words[i];
            odd += words[i + 1];
        }
        *sums = even + odd;
    }
}
#endif

// `next`: what to bring near while the strips before a tile are multiplied.
template <typename Dots, int FORMAT, int ROWS, typename Next>
__attribute__((noinline)) void multiply_few(const Product& p, Share outs, FewRows<typename Dots::Word> rows,
                                            const Next& next) {
    by_strips<strips_at_once(ROWS)>(outs, [&](int tile, auto num) {
        constexpr int NUM = decltype(num)::value;
        Ahead ahead = next(tile + NUM);
        multiply_strips<Dots, FORMAT, NUM, ROWS, ALONE>(p, tile, 0, strips_of(p.matrix, tile), rows, ahead);
    });
}

// All rows at once.
template <template <int> class Dots, int FORMAT, int ROWS, typename Next>
__attribute__((noinline)) void run_few(const Product& p, Share outs, const Next& next) {
    using Of = Dots<FORMAT>;
    using Word = typename Of::Word;
    const int num_steps = ceil_div(p.matrix.num_in, TILE_IN);
    const size_t num_words = size_t(num_steps) * ROWS * Of::WORDS;
    Word* words = static_cast<Word*>(scratch(1, num_words * sizeof(Word) + sizeof(float) * num_steps * ROWS));
    float* sums = reinterpret_cast<float*>(words + num_words);
    put_rows<Of>(p, 0, ROWS, words);
    if (FORMAT == Q4_1) sum_words<Of>(words, num_steps * ROWS, sums);
    const int most = p.upcoming ? STRIPS : outs.end - outs.begin;
    for (int tile = outs.begin; tile < outs.end; tile += most) {
        const Share some{tile, tile + most < outs.end ? tile + most : outs.end};
        if (p.upcoming) bring(*p.upcoming, some, outs);
        multiply_few<Of, FORMAT, ROWS>(p, some, {words, sums, num_steps}, next);
    }
}

}  // namespace
}  // namespace slipstream
