// See pointwise.hpp. Vectors of sixteen; a rest is padded with zeros, so an element's bits do not
// depend on its place.
#include "pointwise.hpp"
#include "simd.hpp"

namespace slipstream {
namespace {

constexpr int LANES = 16;

// 1 / sqrt(mean of squares + eps).
float inverse_length(const float* x, int size, float eps) {
    f32x16 even = {}, odd = {};
    for (int i = 0; i < size; i += 2 * LANES) {
        const f32x16 a = load_some(x + i, size - i);
        even = fma(a, a, even);
        if (i + LANES < size) {
            const f32x16 b = load_some(x + i + LANES, size - i - LANES);
            odd = fma(b, b, odd);
        }
    }
    return 1.0f / std::sqrt(sum(even + odd) / float(size) + eps);
}

template <typename T>
void normalise_row(const Norm& norm, const float* x, T* out) {
    const float inverse = inverse_length(x, norm.size, norm.eps);
    for (int i = 0; i < norm.size; i += LANES) {
        const int left = norm.size - i;
        store_some(out + i, load_some(x + i, left) * inverse * load_some(norm.weight + i, left), left);
    }
}

void rotate(float* head, const float* cosines, const float* sines, int half) {
    for (int i = 0; i < half; i += LANES) {
        const int left = half - i;
        const f32x16 a = load_some(head + i, left), b = load_some(head + half + i, left);
        const f32x16 c = load_some(cosines + i, left), s = load_some(sines + i, left);
        store_some(head + i, a * c - b * s, left);
        store_some(head + half + i, b * c + a * s, left);
    }
}

// A head as codes; the scale takes its greatest number to 127. One that is NaN makes the scale so. Source:
// kv/storage.py has the twin.
float keep_codes(const float* x, int8_t* codes, int dim) {
    f32x16 greatest = {};
    i32x16 is_nan = {};
    for (int i = 0; i < dim; i += LANES) {
        const f32x16 v = load_some(x + i, dim - i);
        is_nan |= v != v;
        greatest = max(greatest, select(v < 0.0f, -v, v));
    }
    const float scale = mask_of(is_nan) ? NAN : max(greatest) / 127.0f;
    const f32x16 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    for (int i = 0; i < dim; i += LANES) {
        f32x16 v = scale > 0.0f ? load_some(x + i, dim - i) / scale : f32x16{};
        v = (v + magic) - magic;
        v = select(v > 127.0f, splat(127.0f), v);
        v = select(v < -127.0f, splat(-127.0f), v);
        store_some(codes + i, v, dim - i);
    }
    return scale;
}

void keep(const float* x, void* storage, int64_t at, int count, int format) {
    for (int i = 0; i < count; i += LANES) {
        const f32x16 v = load_some(x + i, count - i);
        if (format == KV_BF16)
            store_some(static_cast<uint16_t*>(storage) + at + i, v, count - i);
        else
            store_some(static_cast<float*>(storage) + at + i, v, count - i);
    }
}

// A head's value that is infinite or NaN as it is stored, against the rows that do not see it: their weight of
// it is 0, which takes finite numbers only to 0. Zeros are stored instead, and a key of NaN, which makes the
// rows that see it NaN and is hidden from the others. Source: kv/storage.py has the twin.
void hide_infinite(float* key, float* value, int dim, int format) {
    const float least = format == KV_BF16 ? 0x1.ffp127f : INFINITY;  // of what is rounded to infinity
    i32x16 is_finite = lane_numbers() >= 0;
    for (int i = 0; i < dim; i += LANES) {
        const f32x16 v = load_some(value + i, dim - i);
        is_finite = is_finite & (v < least) & (v > -least);
    }
    if (mask_of(is_finite) == 0xffff) return;
    for (int i = 0; i < dim; i++) key[i] = NAN, value[i] = 0.0f;
}

SL_INLINE f32x16 sigmoid(f32x16 x) { return 1.0f / (exp(-x) + 1.0f); }

SL_INLINE f32x16 activated(int kind, f32x16 x) {
    if (kind == SILU) return x * sigmoid(x);
    // 0.5 (1 + tanh z) = sigmoid(2 z)
    const f32x16 z = (x * x * x * 0.044715f + x) * 0.7978845608f;
    return x * sigmoid(z + z);
}

}  // namespace

void SL_NAME(normalise)(const Norm& norm, const float* x, uint16_t* out, Share rows) {
    for (int row = rows.begin; row < rows.end; row++)
        normalise_row(norm, x + int64_t(row) * norm.size, out + int64_t(row) * norm.size);
}

void SL_NAME(normalise_add)(const Norm& norm, const float* x, float* sum, Share rows) {
    for (int row = rows.begin; row < rows.end; row++) {
        const float* from = x + int64_t(row) * norm.size;
        float* to = sum + int64_t(row) * norm.size;
        const float inverse = inverse_length(from, norm.size, norm.eps);
        for (int i = 0; i < norm.size; i += LANES) {
            const int left = norm.size - i;
            const f32x16 y = load_some(from + i, left) * inverse * load_some(norm.weight + i, left);
            store_some(to + i, load_some(to + i, left) + y, left);
        }
    }
}

void SL_NAME(rotate_and_store)(const Projection& p, const AttentionShape& shape, Share rows) {
    const int dim = shape.head_dim, half = dim / 2;
    const int num_rotated = shape.num_heads + shape.kv_heads;
    for (int row = rows.begin; row < rows.end; row++) {
        float* qkv = p.qkv + int64_t(row) * (num_rotated + shape.kv_heads) * dim;
        for (int h = 0; h < num_rotated; h++) {
            const Norm& norm = h < shape.num_heads ? p.q_norm : p.k_norm;
            if (norm.weight) normalise_row(norm, qkv + h * dim, qkv + h * dim);
            rotate(qkv + h * dim, p.cosines + p.positions[row] * dim, p.sines + p.positions[row] * dim, half);
        }
        for (int h = shape.num_heads; h < num_rotated; h++)
            hide_infinite(qkv + h * dim, qkv + (h + shape.kv_heads) * dim, dim, shape.kv_format);
        const int width = shape.kv_heads * dim;
        const int64_t first = p.slots[row] * slot_stride(shape);
        if (shape.kv_format == KV_INT8) {
            for (int h = 0; h < shape.kv_heads; h++) {
                const int64_t at = p.slots[row] * shape.kv_heads + h;
                p.key_scales[at] = keep_codes(qkv + (shape.num_heads + h) * dim,
                                              static_cast<int8_t*>(p.keys) + first + h * dim, dim);
                p.value_scales[at] = keep_codes(qkv + (num_rotated + h) * dim,
                                                static_cast<int8_t*>(p.values) + first + h * dim, dim);
            }
            continue;
        }
        keep(qkv + shape.num_heads * dim, p.keys, first, width, shape.kv_format);
        keep(qkv + num_rotated * dim, p.values, first, width, shape.kv_format);
    }
}

void SL_NAME(gate)(int kind, const float* gate_up, uint16_t* out, int size, Share rows) {
    for (int row = rows.begin; row < rows.end; row++) {
        const float* gates = gate_up + int64_t(row) * 2 * size;
        for (int i = 0; i < size; i += LANES) {
            const int left = size - i;
            const f32x16 up = load_some(gates + size + i, left);
            store_some(out + int64_t(row) * size + i,
                       activated(kind, load_some(gates + i, left)) * up, left);
        }
    }
}

}  // namespace slipstream
