// What the kernels' translation units share. Every kernel runs inside a team of threads and takes its
// own share of the work by index; shares cut columns, rows or heads, never a sum.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace slipstream {

constexpr int TILE_OUT = 16;  // outputs of a weight tile
constexpr int TILE_IN = 32;   // inputs of a weight tile; one link of the accumulation chain
constexpr int TILE_ROWS = 16;

enum Format : int32_t { BF16 = 0, Q8_0 = 1, Q4_0 = 2, Q4_1 = 3 };
enum Isa : int32_t { PORTABLE = 0, AVX512 = 1, AVX512_BF16 = 2, AMX = 3 };
// bf16 inputs by twos in a row (TDPBF16PS and what does without), in 8 bit, and as VDPBF16PS pairs them.
enum InputType : int32_t { BF16_INPUTS = 0, INT8_INPUTS = 1, PAIRED_INPUTS = 2, NUM_INPUTS = 3 };
enum Store : int32_t { TO_F32 = 0, TO_BF16 = 1, ADD_F32 = 2 };

// A packed matrix: [out tile][in tile], so that a thread reads one stream. Only blocks take 8-bit inputs.
struct Matrix {
    const uint8_t* tiles;
    const float* bias;  // or null
    int32_t format;
    int32_t num_out;
    int32_t num_in;
    int32_t inputs;  // how rows enter the product; tiles are packed for it
};

// Keys and values that a thread reads soon: some of their slots are brought near with each strip.
struct Upcoming {
    const uint8_t* first;  // of slot 0
    const int64_t* slots;
    int64_t slot_bytes;
    int32_t num_slots;
};

struct Product {
    Matrix matrix;
    const uint16_t* x;  // [rows, x_stride] bf16
    void* out;          // [rows, out_stride] float32 or bf16
    int64_t x_stride;
    int64_t out_stride;
    int32_t num_rows;
    int32_t store;
    const Matrix* next;  // of the product that follows at once, or null: a hint
    const Upcoming* upcoming;  // of this thread, or null: a hint
};

struct Share {
    int begin, end;
};

inline Share share_of(int count, int thread, int num_threads) {
    return {static_cast<int>(int64_t(count) * thread / num_threads),
            static_cast<int>(int64_t(count) * (thread + 1) / num_threads)};
}

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Half-precision scales of a tile's outputs and, in Q4_1, their minima.
constexpr size_t header_bytes(int format) { return format == BF16 ? 0 : format == Q4_1 ? 64 : 32; }

constexpr size_t tile_bytes(int format) {
    return header_bytes(format) + (format == BF16 ? 1024 : format == Q8_0 ? 512 : 256);
}

// A strip: the tiles of sixteen outputs.
inline int num_strips(const Matrix& m) { return ceil_div(m.num_out, TILE_OUT); }
inline size_t strip_bytes(const Matrix& m) {
    return ceil_div(m.num_in, TILE_IN) * tile_bytes(m.format);
}

inline float widen(uint16_t h) {
    uint32_t u = uint32_t(h) << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

inline uint16_t round_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000) return uint16_t((u >> 16) | 0x40);
    return uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

inline float half_to_float(uint16_t h) {
    const uint32_t exponent = (h >> 10) & 31, fraction = h & 1023;
    float f;
    if (exponent == 0) {
        f = float(fraction) * 5.9604644775390625e-8f;  // 2^-24
    } else {
        const uint32_t u = (exponent == 31 ? 0xff : exponent + 112) << 23 | fraction << 13;
        memcpy(&f, &u, 4);
    }
    return h & 0x8000 ? -f : f;
}

// To the compiler prefetches are no effect: it leaves out loops of nothing else, unless this follows.
inline void keep_prefetches() { asm volatile(""); }

// A buffer of the calling thread that only grows; what was never written is zero.
void* scratch(int which, size_t bytes);
constexpr int HIDDEN_SCRATCH = 0;
constexpr int PLAN_SCRATCH = 12;  // two for each plan of attention
constexpr int ROW_SCRATCH = 28;   // packed rows, by the shape of their tiles
constexpr int DRAFT_SCRATCH = 46;  // see draft.hpp
constexpr int DRAW_SCRATCH = 62;   // three
constexpr int STATE_SCRATCH = 65;  // a head's recurrent state
constexpr int NUM_SCRATCH = 66;

}  // namespace slipstream
