// See delta.hpp. Each of a state's rows (one for each value) goes its own way through the text, so a
// few of them pass over several rows of the text in registers.
#include "delta.hpp"

#include <algorithm>

#include "simd.hpp"

namespace slipstream {
namespace {

constexpr int LANES = 16;
constexpr int CHUNK = 16;  // rows of the text whose keys and queries stay in the first cache

// What one register holds of sixteen lanes; compilers take wider vectors apart badly.
#if defined(__AVX512F__) || !defined(__AVX2__)
typedef f32x16 Part;
SL_INLINE Part multiply_add(Part a, Part b, Part c) { return fma(a, b, c); }
SL_INLINE float sum_of(const Part* chains) { return sum(chains[0] + chains[1]); }
#else
typedef float Part __attribute__((vector_size(32)));
SL_INLINE Part multiply_add(Part a, Part b, Part c) {
    return Part(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
}
// As `sum` adds sixteen lanes.
SL_INLINE float sum_of(const Part* chains) {
    const __m256 eighths = __m256((chains[0] + chains[2]) + (chains[1] + chains[3]));
    const __m128 quarters =
        _mm_add_ps(_mm256_castps256_ps128(eighths), _mm256_extractf128_ps(eighths, 1));
    const __m128 pairs = _mm_add_ps(quarters, _mm_movehl_ps(quarters, quarters));
    return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)));
}
#endif
constexpr int WIDTH = sizeof(Part) / sizeof(float), PARTS = LANES / WIDTH;

SL_INLINE Part load_part(const float* p) {
    Part part;
    memcpy(&part, p, sizeof part);
    return part;
}
SL_INLINE void store_part(float* p, Part part) { memcpy(p, &part, sizeof part); }

struct Rows {
    int64_t first;
    int count, head;
};

// VALUES of the state's rows from `value` on, each of VECTORS * 16 cells. Sums have two chains, of even
// and odd vectors, whatever VALUES.
template <int VECTORS, int VALUES>
SL_INLINE void take_in_values(const Delta& delta, Rows rows, int value, const float* from, float* to) {
    constexpr int KEYS = VECTORS * LANES, COUNT = VECTORS * PARTS, CHAINS = 2 * PARTS;
    Part state[VALUES][COUNT];
#pragma GCC unroll 16
    for (int u = 0; u < VALUES; u++)
#pragma GCC unroll 32
        for (int i = 0; i < COUNT; i++) state[u][i] = load_part(from + (value + u) * KEYS + i * WIDTH);
    for (int row = 0; row < rows.count; row++) {
        const int64_t at = (rows.first + row) * delta.num_heads + rows.head;
        const float* key = delta.keys + at * KEYS;
        const float* query = delta.queries + at * KEYS;
        const float decay = delta.decays[at];
#pragma GCC unroll 16
        for (int u = 0; u < VALUES; u++) {
            Part known[CHAINS] = {}, mixed[CHAINS] = {};
#pragma GCC unroll 32
            for (int i = 0; i < COUNT; i++) {
                state[u][i] = state[u][i] * decay;
                known[i % CHAINS] = multiply_add(state[u][i], load_part(key + i * WIDTH), known[i % CHAINS]);
            }
            const int64_t cell = at * delta.value_dim + value + u;
            const Part change = Part{} + (delta.values[cell] - sum_of(known)) * delta.rates[at];
#pragma GCC unroll 32
            for (int i = 0; i < COUNT; i++) {
                state[u][i] = multiply_add(change, load_part(key + i * WIDTH), state[u][i]);
                mixed[i % CHAINS] = multiply_add(state[u][i], load_part(query + i * WIDTH), mixed[i % CHAINS]);
            }
            delta.outputs[cell] = sum_of(mixed);
        }
    }
#pragma GCC unroll 16
    for (int u = 0; u < VALUES; u++)
#pragma GCC unroll 32
        for (int i = 0; i < COUNT; i++) store_part(to + (value + u) * KEYS + i * WIDTH, state[u][i]);
}

template <int VECTORS>
void take_in_rows(const Delta& delta, Rows rows, const float* from, float* to) {
    constexpr int VALUES = VECTORS >= 16 ? 2 : 4;  // about what registers hold
    int value = 0;
    for (; value + VALUES <= delta.value_dim; value += VALUES)
        take_in_values<VECTORS, VALUES>(delta, rows, value, from, to);
    for (; value < delta.value_dim; value++) take_in_values<VECTORS, 1>(delta, rows, value, from, to);
}

void take_in_some(const Delta& delta, Rows rows, const float* from, float* to) {
    switch (delta.key_dim / LANES) {
        case 1: return take_in_rows<1>(delta, rows, from, to);
        case 2: return take_in_rows<2>(delta, rows, from, to);
        case 4: return take_in_rows<4>(delta, rows, from, to);
        case 8: return take_in_rows<8>(delta, rows, from, to);
        default: return take_in_rows<16>(delta, rows, from, to);
    }
}

}  // namespace

void SL_NAME(take_in)(const Delta& delta, const DeltaSpan& span, int head, float* spare) {
    const size_t size = size_t(delta.value_dim) * delta.key_dim;
    const auto matrix = [&](int id) { return delta.matrices + (size_t(id) * delta.num_heads + head) * size; };
    const auto copy = [&](float* to, const float* from) { memcpy(to, from, size * sizeof(float)); };
    const DeltaSnapshot* snapshots = delta.snapshots + span.first_snapshot;
    const float* from = matrix(span.source);
    float* target = span.target ? matrix(span.target) : spare;
    if (!span.num_taken && target != from) copy(target, from);
    for (int row = 0;;) {
        int end = std::min(row + CHUNK, int(row < span.num_taken ? span.num_taken : span.num_rows));
        for (int i = 0; i < span.num_snapshots; i++) {
            if (snapshots[i].num_rows == row) copy(matrix(snapshots[i].state), from);
            if (snapshots[i].num_rows > row) end = std::min(end, int(snapshots[i].num_rows));
        }
        if (row == span.num_rows) return;
        float* to = row < span.num_taken ? target : spare;
        take_in_some(delta, {span.first + row, end - row, head}, from, to);
        from = to;
        row = end;
    }
}

}  // namespace slipstream
