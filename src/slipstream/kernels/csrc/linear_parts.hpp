// What the units of products share: reading scales, bringing memory near, storing sums.
#pragma once
#include <type_traits>

#include "linear.hpp"
#include "simd.hpp"

namespace slipstream {
namespace {

constexpr int PREFETCH = 4096;  // bytes ahead in a stream of weights that are widened
constexpr size_t LINE = 64;     // of a cache

SL_INLINE void prefetch(const uint8_t* p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

constexpr int STRIPS = 4;  // that are read side by side: memory gives more to several streams than to one

// Brings the next strips near while others are multiplied, a line of each at a time: many prefetches at
// once fill the core's line buffers, and its loads wait.
class Ahead {
public:
    // Of nothing.
    Ahead() : at_(nullptr), left_(0), second_(0), third_(0) {}
    // Of the strips [first, end).
    Ahead(const Matrix& m, int first, int end)
        : at_(m.tiles + (end > first ? first * strip_bytes(m) : 0)),
          left_(end > first ? strip_bytes(m) : 0),
          second_(end - first > 1 ? strip_bytes(m) : 0),
          third_(end - first >= STRIPS ? 2 * strip_bytes(m) : 0) {}

    // As many bytes of each of the first NUM, at most a line.
    template <int NUM = STRIPS>
    SL_INLINE void fetch(size_t bytes) {
        // Where registers are few, no branch: it would part a tile's code into pieces between which all
        // sums lie in memory. At the end the last line is fetched again and again.
        if (HAS_WIDE_REGISTERS && left_ < bytes) return;
        __builtin_prefetch(at_, 0, 2);
        if (NUM > 1) __builtin_prefetch(at_ + second_, 0, 2);
        if (NUM > 2) __builtin_prefetch(at_ + third_, 0, 2);
        if (NUM > 2) __builtin_prefetch(at_ + third_ + second_, 0, 2);
        const size_t step = left_ < bytes ? 0 : bytes;
        at_ += step;
        left_ -= step;
    }

private:
    const uint8_t* at_;
    size_t left_, second_, third_;  // bytes of a strip; from the first strip to others
};

// As large a share of what is upcoming as `some` are of a thread's strips.
inline void bring(const Upcoming& upcoming, Share some, Share outs) {
    const int64_t num_strips = outs.end - outs.begin;
    const int64_t end = upcoming.num_slots * int64_t(some.end - outs.begin) / num_strips;
    for (int64_t i = upcoming.num_slots * int64_t(some.begin - outs.begin) / num_strips; i < end; i++)
        prefetch(upcoming.first + upcoming.slots[i] * upcoming.slot_bytes, upcoming.slot_bytes);
    keep_prefetches();
}

// What a thread reads after the strips before `tile`: its next ones, or the first ones of the product that
// follows, so that the products of a step are one stream.
inline Ahead ahead_of(const Product& p, int tile, Share outs, int thread, int num_threads) {
    if (tile < outs.end || !p.next) return Ahead(p.matrix, tile, outs.end);
    const Share next = share_of(num_strips(*p.next), thread, num_threads);
    return Ahead(*p.next, next.begin, next.end);
}

// Calls f(tile, number of strips) for all strips of a share, as many side by side as there are, up to MOST.
template <int MOST = STRIPS, typename F>
SL_INLINE void by_strips(Share outs, const F& f) {
    int tile = outs.begin;
    if (MOST > 2)
        for (; tile + MOST <= outs.end; tile += MOST) f(tile, std::integral_constant<int, MOST>());
    if (MOST > 1)
        for (; tile + 2 <= outs.end; tile += 2) f(tile, std::integral_constant<int, 2>());
    for (; tile < outs.end; tile++) f(tile, std::integral_constant<int, 1>());
}

// Calls f(number), which is LEAST to MOST.
template <int LEAST, int MOST, typename F>
SL_INLINE void by_number(int number, const F& f) {
    if constexpr (LEAST < MOST) {
        if (number != LEAST) return by_number<LEAST + 1, MOST>(number, f);
    }
    f(std::integral_constant<int, LEAST>());
}

// Sixteen half-precision numbers.
SL_INLINE f32x16 halves(const uint8_t* p) {
#if defined(__AVX512F__)
    return f32x16(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)));
#elif defined(__F16C__) && defined(__AVX2__)
    return f32x16::of([&](int i) SL_INLINED_LAMBDA {
        return f32x16::Part(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 16 * i))));
    });
#else
    uint16_t h[16];
    memcpy(h, p, 32);
    float v[16];
    for (int n = 0; n < 16; n++) v[n] = half_to_float(h[n]);
    return load(v);
#endif
}

// Store a row's sums of a tile of outputs, or add them to what is there; bias first.
#if defined(__AVX512F__)
SL_INLINE void put(const Product& p, int row, int first_out, f32x16 sums) {
    const int left = p.matrix.num_out - first_out;
    const __mmask16 mask = left >= 16 ? 0xffff : (1 << left) - 1;
    __m512 v = __m512(sums);
    if (p.matrix.bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, p.matrix.bias + first_out));
    const int64_t at = row * p.out_stride + first_out;
    if (p.store == TO_BF16) {
        uint16_t rounded[16];
        store(rounded, f32x16(v));
        _mm256_mask_storeu_epi16(static_cast<uint16_t*>(p.out) + at, mask,
                                 _mm256_loadu_si256((const __m256i*)rounded));
        return;
    }
    float* out = static_cast<float*>(p.out) + at;
    if (p.store == ADD_F32) v = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), v);
    _mm512_mask_storeu_ps(out, mask, v);
}
#else
SL_INLINE void put(const Product& p, int row, int first_out, f32x16 v) {
    const int left = p.matrix.num_out - first_out;
    if (p.matrix.bias) v = v + load_some(p.matrix.bias + first_out, left);
    const int64_t at = row * p.out_stride + first_out;
    if (p.store == TO_BF16) return store_some(static_cast<uint16_t*>(p.out) + at, v, left);
    float* out = static_cast<float*>(p.out) + at;
    store_some(out, p.store == ADD_F32 ? load_some(out, left) + v : v, left);
}
#endif

}  // namespace
}  // namespace slipstream
