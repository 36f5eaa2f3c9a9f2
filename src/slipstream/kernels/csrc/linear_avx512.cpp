// Products without tiles, compiled for AVX-512 and once more for its bf16 instructions, which multiply
// twice as many numbers. More rows than fit go by groups, the first of which widens each strip's codes on
// its way for all others.
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

constexpr int MOST_OWN_ROWS = 8;  // that every thread prepares for itself, which costs less than waiting

// Rows by groups of two to MOST_ROWS, as even as can be: their words, then their sums.
struct Groups {
    int num_rows, count, num_steps;
    Word* words;
    float* sums;

    Share rows_of(int group) const { return share_of(num_rows, group, count); }
    Word* words_of(int row) const { return words + size_t(row) * num_steps * Wide::WORDS; }
    float* sums_of(int row) const { return sums + size_t(row) * num_steps; }
};

Groups groups_of(const Product& p, void* shared) {
    const int num_steps = ceil_div(p.matrix.num_in, TILE_IN);
    const size_t num_words = size_t(p.num_rows) * num_steps * Wide::WORDS;
    if (p.num_rows <= MOST_OWN_ROWS)
        shared = scratch(1, num_words * sizeof(Word) + sizeof(float) * p.num_rows * num_steps);
    Word* words = static_cast<Word*>(shared);
    return {p.num_rows, ceil_div(p.num_rows, MOST_ROWS), num_steps, words,
            reinterpret_cast<float*>(words + num_words)};
}

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
    switch (rows.end - rows.begin) {
        case 2: return f(std::integral_constant<int, 2>());
        case 3: return f(std::integral_constant<int, 3>());
        default: return f(std::integral_constant<int, 4>());
    }
}

template <int FORMAT, typename Next>
void run_groups(const Product& p, Share outs, const Groups& groups, const Next& next) {
    constexpr int MOST = 2;
    const size_t wide_bytes = groups.num_steps * WIDE_TILE;
    uint8_t* wide = static_cast<uint8_t*>(scratch(2, MOST * wide_bytes));
    by_strips<MOST>(outs, [&](int tile, auto num) {
        constexpr int NUM = decltype(num)::value;
        const Strips packed = strips_of(p.matrix, tile, wide);
        const Strips widened{packed.tiles, packed.bytes, wide, WIDE_TILE, wide_bytes, nullptr};
        for (int g = 0; g < groups.count; g++) {
            const Share rows = groups.rows_of(g);
            const FewRows<Word> few{groups.words_of(rows.begin), groups.sums_of(rows.begin), groups.num_steps};
            by_rows(rows, [&](auto count) {
                constexpr int ROWS = decltype(count)::value;
                if (g == 0)
                    multiply_strips<Dots<FORMAT>, FORMAT, NUM, ROWS, true>(p, tile, rows.begin, packed, few,
                                                                           next(tile + NUM));
                else
                    multiply_strips<Wide, FORMAT, NUM, ROWS, false>(p, tile, rows.begin, widened, few, Ahead());
            });
        }
    });
}

template <int FORMAT>
void run(const Product& p, int thread, int num_threads, void* shared, Barrier barrier) {
    const FlushSubnormals flush;
    const Share outs = share_of(num_strips(p.matrix), thread, num_threads);
    const auto next = [&](int tile) { return ahead_of(p, tile, outs, thread, num_threads); };
    switch (p.num_rows) {
        case 1: return run_few<Dots, FORMAT, 1>(p, outs, next);
        case 2: return run_few<Dots, FORMAT, 2>(p, outs, next);
        case 3: return run_few<Dots, FORMAT, 3>(p, outs, next);
        case 4: return run_few<Dots, FORMAT, 4>(p, outs, next);
    }
    const Groups groups = groups_of(p, shared);
    if (p.num_rows <= MOST_OWN_ROWS) {
        put_groups(p, groups, {0, groups.count});
    } else {
        put_groups(p, groups, share_of(groups.count, thread, num_threads));
        barrier();
    }
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

}  // namespace slipstream
