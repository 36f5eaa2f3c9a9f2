// Products without tiles, compiled for any machine, for AVX-512 and once more for its bf16 instructions,
// which multiply twice as many numbers. More rows than fit go by groups, the first of which widens each
// strip's codes on its way for all others.
#include "linear_few.hpp"

namespace slipstream {
namespace {

#if defined(__AVX512BF16__)
template <int FORMAT>
using Dots = Pairs<FORMAT>;
#else
template <int FORMAT>
using Dots = Singles<FORMAT>;
#endif

using Wide = Dots<WIDENED>;
using Word = Wide::Word;

constexpr int GROUP_ROWS = HAS_WIDE_REGISTERS ? 4 : 3;  // at most

// More rows than MOST_ROWS by groups of GROUP_ROWS or one less: their words, then their sums.
struct Groups {
    int num_rows, count, num_steps;
    Word* words;
    float* sums;

    Groups(const Product& p, void* memory)
        : num_rows(p.num_rows),
          count(ceil_div(p.num_rows, GROUP_ROWS)),
          num_steps(ceil_div(p.matrix.num_in, TILE_IN)),
          words(static_cast<Word*>(memory)),
          sums(reinterpret_cast<float*>(words_of(num_rows))) {}

    Share rows_of(int group) const { return share_of(num_rows, group, count); }
    Word* words_of(int row) const { return words + size_t(row) * num_steps * Wide::WORDS; }
    float* sums_of(int row) const { return sums + size_t(row) * num_steps; }
};

void put_groups(const Product& p, const Groups& groups, Share some) {
    for (int g = some.begin; g < some.end; g++) {
        const Share rows = groups.rows_of(g);
        const int count = rows.end - rows.begin;
        put_rows<Wide>(p, rows.begin, count, groups.words_of(rows.begin));
        if (p.matrix.format == Q4_1)
            sum_words<Wide>(groups.words_of(rows.begin), groups.num_steps * count, groups.sums_of(rows.begin));
    }
}

// Calls f(number of rows) for a group.
template <typename F>
SL_INLINE void by_rows(Share rows, const F& f) {
    if (rows.end - rows.begin < GROUP_ROWS)
        f(std::integral_constant<int, GROUP_ROWS - 1>());
    else
        f(std::integral_constant<int, GROUP_ROWS>());
}

template <int FORMAT, typename Next>
void run_groups(const Product& p, Share outs, const Groups& groups, const Next& next) {
    constexpr int MOST = strips_at_once(GROUP_ROWS);
    constexpr bool IS_WIDE = FORMAT == BF16;  // as it is stored
    const size_t wide_bytes = groups.num_steps * WIDE_TILE;
    uint8_t* wide = static_cast<uint8_t*>(scratch(2, MOST * wide_bytes));
    by_strips<MOST>(outs, [&](int tile, auto num) {
        constexpr int NUM = decltype(num)::value;
        const Strips packed = strips_of(p.matrix, tile, wide);
        const Strips widened =
            IS_WIDE ? packed : Strips{packed.tiles, packed.bytes, wide, WIDE_TILE, wide_bytes, nullptr};
        Ahead ahead = next(tile + NUM);
        for (int g = 0; g < groups.count; g++) {
            const Turn turn{g, groups.count};
            const Share rows = groups.rows_of(g);
            const FewRows<Word> few{groups.words_of(rows.begin), groups.sums_of(rows.begin), groups.num_steps};
            by_rows(rows, [&](auto count) {
                constexpr int ROWS = decltype(count)::value;
                if (IS_WIDE || g)
                    multiply_strips<Wide, FORMAT, NUM, ROWS, LATER>(p, tile, rows.begin, widened, few, ahead,
                                                                    turn);
                else
                    multiply_strips<Dots<FORMAT>, FORMAT, NUM, ROWS, FIRST>(p, tile, rows.begin, packed, few,
                                                                           ahead, turn);
            });
        }
    });
}

template <int FORMAT>
void run(const Product& p, int thread, int num_threads, void* shared, Barrier barrier) {
    const FlushSubnormals flush;
    const Share outs = share_of(num_strips(p.matrix), thread, num_threads);
    const auto next = [&](int tile) { return ahead_of(p, tile, outs, thread, num_threads); };
    if (p.num_rows <= MOST_ROWS)
        return by_number<1, MOST_ROWS>(p.num_rows, [&](auto num_rows) {
            run_few<Dots, FORMAT, decltype(num_rows)::value>(p, outs, next);
        });
    const Groups groups(p, shared);
    put_groups(p, groups, share_of(groups.count, thread, num_threads));
    barrier();
    run_groups<FORMAT>(p, outs, groups, next);
}

}  // namespace

void SL_NAME(multiply)(const Product& p, int thread, int num_threads, void* shared, Barrier barrier) {
    switch (p.matrix.format) {
        case Q8_0: return run<Q8_0>(p, thread, num_threads, shared, barrier);
        case Q4_0: return run<Q4_0>(p, thread, num_threads, shared, barrier);
        case Q4_1: return run<Q4_1>(p, thread, num_threads, shared, barrier);
        default: return run<BF16>(p, thread, num_threads, shared, barrier);
    }
}

#if defined(__AVX512BF16__)
bool adds_pairs_in_order() {
    const FlushSubnormals flush;
    uint32_t state = 1;
    const auto number = [&] {  // of a size at which every rounding shows
        state = state * 1664525u + 1013904223u;
        return uint16_t((state >> 16 & 0x807f) | (120 + (state >> 8 & 15)) << 7);
    };
    for (int round = 0; round < 64; round++) {
        uint32_t x[16], w[16];
        float sums[16], expected[16];
        for (int i = 0; i < 16; i++) {
            const uint16_t x0 = number(), x1 = number(), w0 = number(), w1 = number();
            x[i] = uint32_t(x0) << 16 | x1;
            w[i] = uint32_t(w0) << 16 | w1;
            sums[i] = widen(number());
            expected[i] = __builtin_fmaf(widen(x1), widen(w1), __builtin_fmaf(widen(x0), widen(w0), sums[i]));
        }
        const __m512 got = _mm512_dpbf16_ps(_mm512_loadu_ps(sums), __m512bh(_mm512_loadu_si512(x)),
                                            __m512bh(_mm512_loadu_si512(w)));
        if (_mm512_cmpneq_epi32_mask(__m512i(got), __m512i(_mm512_loadu_ps(expected)))) return false;
    }
    return true;
}
#endif

}  // namespace slipstream
