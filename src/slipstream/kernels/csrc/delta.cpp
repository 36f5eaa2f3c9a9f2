// See delta.hpp. Each of a state's rows (one for each value) goes its own way through the text, so a
// few of them pass over several rows of the text in registers.
#include "delta.hpp"

#include <algorithm>

#include "simd.hpp"

namespace slipstream {
namespace {

constexpr int LANES = 16;
constexpr int CHUNK = 16;  // rows of the text whose keys and queries stay in the first cache

struct Rows {
    int64_t first;
    int count, head;
};

// VALUES of the state's rows from `value` on, each of VECTORS * 16 cells. Sums have two chains, of even
// and odd vectors, whatever VALUES.
template <int VECTORS, int VALUES>
SL_INLINE void take_in_values(const Delta& delta, Rows rows, int value, const float* from, float* to) {
    constexpr int KEYS = VECTORS * LANES;
    f32x16 state[VALUES][VECTORS];
#pragma GCC unroll 16
    for (int u = 0; u < VALUES; u++)
#pragma GCC unroll 32
        for (int i = 0; i < VECTORS; i++) state[u][i] = load(from + (value + u) * KEYS + i * LANES);
    for (int row = 0; row < rows.count; row++) {
        const int64_t at = (rows.first + row) * delta.num_heads + rows.head;
        const float* key = delta.keys + at * KEYS;
        const float* query = delta.queries + at * KEYS;
        const float decay = delta.decays[at];
#pragma GCC unroll 16
        for (int u = 0; u < VALUES; u++) {
            f32x16 known[2] = {}, mixed[2] = {};
#pragma GCC unroll 32
            for (int i = 0; i < VECTORS; i++) {
                state[u][i] = state[u][i] * decay;
                known[i % 2] = fma(state[u][i], load(key + i * LANES), known[i % 2]);
            }
            const int64_t cell = at * delta.value_dim + value + u;
            const f32x16 change = splat((delta.values[cell] - sum(known[0] + known[1])) * delta.rates[at]);
#pragma GCC unroll 32
            for (int i = 0; i < VECTORS; i++) {
                state[u][i] = fma(change, load(key + i * LANES), state[u][i]);
                mixed[i % 2] = fma(state[u][i], load(query + i * LANES), mixed[i % 2]);
            }
            delta.outputs[cell] = sum(mixed[0] + mixed[1]);
        }
    }
#pragma GCC unroll 16
    for (int u = 0; u < VALUES; u++)
#pragma GCC unroll 32
        for (int i = 0; i < VECTORS; i++) store(to + (value + u) * KEYS + i * LANES, state[u][i]);
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
