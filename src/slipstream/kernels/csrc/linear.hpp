// Products of packed matrices. All variants add in one order, whatever the number of rows: per 32
// inputs, s = ((0 + x0 w0) + x2 w2 ...) + ((0 + x1 w1) + x3 w3 ...), then sum = sum + s, in float32,
// each step rounded to nearest even with subnormals flushed to zero.
#pragma once
#include "kernels.hpp"

namespace slipstream {

using Barrier = void (*)();

// `shared`: memory of the team, at least shared_bytes(p); all threads of the team must call.
void multiply_amx(const Product& p, int thread, int num_threads, void* shared, Barrier barrier);
void multiply_avx512(const Product& p, int thread, int num_threads, void* shared, Barrier barrier);
void multiply_portable(const Product& p, int thread, int num_threads, void* shared, Barrier barrier);

inline size_t shared_bytes(const Product& p) {
    return size_t(ceil_div(p.num_rows, TILE_ROWS)) * TILE_ROWS * ceil_div(p.matrix.num_in, TILE_IN) *
           TILE_IN * 4;
}

// Bring stored weights into tiles. `source`: [num_out, num_in] bf16, or GGUF blocks by row.
// Layouts differ: AMX keeps a tile's inputs together, the others its outputs.
void pack_matrix(int format, int isa, int num_out, int num_in, const uint8_t* source, uint8_t* tiles);

// One output's weights, as the products use them: [num_in] float32 that are bf16 values.
void read_row(const Matrix& m, int isa, int row, float* out);

using Multiply = void (*)(const Product&, int, int, void*, Barrier);

}  // namespace slipstream
