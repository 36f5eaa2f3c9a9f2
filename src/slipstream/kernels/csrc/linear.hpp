// Products of packed matrices. All variants add in one order, whatever the number of rows: per 32
// inputs, link(x, w) = ((0 + x0 w0) + x2 w2 ...) + ((0 + x1 w1) + x3 w3 ...), then
//   sum = sum + link(x, w)                for bf16 weights w,
//   sum = fma(scale, link(x, c), sum)     for a block's codes c, exact in bf16; and in Q4_1
//   sum = fma(minimum, link(x, 1), sum)   after that,
// in float32, each step rounded to nearest even with subnormals flushed to zero. A matrix that takes
// 8-bit inputs has another order, see linear_int8.hpp.
#pragma once
#include "kernels.hpp"

namespace slipstream {

using Barrier = void (*)();

// `shared`: memory of the team, at least shared_bytes(num_rows, num_in); all threads of the team must call.
void multiply_amx(const Product& p, int thread, int num_threads, void* shared, Barrier barrier);
void multiply_avx512_bf16(const Product& p, int thread, int num_threads, void* shared, Barrier barrier);
void multiply_avx512(const Product& p, int thread, int num_threads, void* shared, Barrier barrier);
void multiply_portable(const Product& p, int thread, int num_threads, void* shared, Barrier barrier);
void multiply_int8_amx(const Product& p, int thread, int num_threads, void* shared, Barrier barrier);
void multiply_int8_vnni(const Product& p, int thread, int num_threads, void* shared, Barrier barrier);
void multiply_int8_portable(const Product& p, int thread, int num_threads, void* shared, Barrier barrier);

// Whether this processor's VDPBF16PS adds the product of upper halves, rounds, adds that of lower ones and
// rounds. Its makers say so, but the bits of all answers rest on it.
bool adds_pairs_in_order();

inline size_t shared_bytes(int num_rows, int num_in) {
    return size_t(ceil_div(num_rows, TILE_ROWS)) * TILE_ROWS * ceil_div(num_in, TILE_IN) * (TILE_IN + 1) *
           sizeof(float);
}

// Bring stored weights into tiles. `source`: [num_out, num_in] bf16, or GGUF blocks by row.
// Only shape, format and inputs of `m` are read.
void pack_matrix(const Matrix& m, const uint8_t* source, uint8_t* tiles);

// One output's weights, [num_in] float32.
void read_row(const Matrix& m, int row, float* out);

using Multiply = void (*)(const Product&, int, int, void*, Barrier);

}  // namespace slipstream
