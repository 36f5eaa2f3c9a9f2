// What a vector of weights of sixteen outputs holds when it is multiplied: for each output one word of the
// step's inputs. Words at even places belong to the chain of even inputs and the others to that of odd
// ones, and each chain meets its inputs in order (linear.hpp).
#pragma once
#include "linear_parts.hpp"

namespace slipstream {
namespace {

constexpr int WIDENED = -1;   // in place of a format: words as `widen` left them
constexpr int PARTS = 4;      // of a tile, of eight inputs each
constexpr size_t WIDE_TILE = 1024;  // bytes of a tile of widened words

// Bytes of a part's codes.
constexpr size_t part_bytes(int format) {
    return (format == WIDENED ? WIDE_TILE : tile_bytes(format) - header_bytes(format)) / PARTS;
}

#if defined(__AVX512F__)
// The numbers that four bits stand for.
SL_INLINE f32x16 numbers_of(int format) { return to_float(lane_numbers()) - (format == Q4_0 ? 8.0f : 0.0f); }
#endif

// A word is one input in float32.
template <int FORMAT>
struct Singles {
    using Word = float;
    using Weights = f32x16;
    static constexpr int WORDS = 32, PART = WORDS / PARTS;  // of a step and of a part
    static constexpr int READ = HAS_WIDE_REGISTERS ? PART : 1;  // at once: few registers hold one beside sums
    static constexpr size_t PART_BYTES = part_bytes(FORMAT);

    static SL_INLINE f32x16 add(const f32x16& sum, const f32x16& weights, const float* x) {
        return fma(weights, splat(*x), sum);
    }

    // A row's inputs of a step, from bf16.
    static SL_INLINE void put_row(const uint16_t* inputs, int count, float* words) {
        uint16_t some[TILE_IN] = {};
        if (count < TILE_IN) {
            memcpy(some, inputs, sizeof(uint16_t) * count);
            inputs = some;
        }
        store(words, load(inputs));
        store(words + 16, load(inputs + 16));
    }
    static constexpr float ONE = 1.0f;

    // Weights of READ of a part's words, from `first` on; `codes`: where the part begins.
    SL_INLINE void read(const uint8_t* codes, int first, f32x16* weights) const {
#if defined(__AVX512F__)
        if constexpr (FORMAT == Q4_0 || FORMAT == Q4_1) return read_four_bits(codes, weights);
#endif
#pragma GCC unroll 8
        for (int i = 0; i < READ; i++) weights[i] = read(codes, first + i);
    }

    // A part's weights in half the bytes, to be read as WIDENED.
    SL_INLINE void widen(const uint8_t* codes, int first, const f32x16* weights, uint8_t* wide) const {
        const auto keep = [&](int word, const f32x16& even, const f32x16& odd) {
            store((uint32_t*)wide + 8 * word, bits_of(even) >> 16 | bits_of(odd));
        };
        if constexpr (READ == 1) {
            if (first % 2 == 0) keep(first, weights[0], read(codes, first + 1));
        } else {
#pragma GCC unroll 4
            for (int i = 0; i < READ; i += 2) keep(i, weights[i], weights[i + 1]);
        }
    }

private:
    // One word's.
    static SL_INLINE f32x16 read(const uint8_t* codes, int word) {
        // Hides that two words lie in the same bytes: these would be held in registers, which sums need.
        if (!HAS_WIDE_REGISTERS) asm("" : "+r"(codes));
        if constexpr (FORMAT == Q8_0) {
            return load((const int8_t*)codes + 16 * word);
        } else if constexpr (FORMAT == Q4_0 || FORMAT == Q4_1) {
            const u32x16 words = load((const uint32_t*)codes);
            const i32x16 code = cast<i32x16>(words >> (16 * (word % 2) + 4 * (word / 2)) & 15);
            return to_float(FORMAT == Q4_0 ? code - 8 : code);
        } else {
            const u32x16 pair = load((const uint32_t*)codes + 16 * (word / 2));
            return of_bits(word % 2 ? pair & 0xffff0000u : pair << 16);
        }
    }

#if defined(__AVX512F__)
    f32x16 numbers = numbers_of(FORMAT);

    SL_INLINE void read_four_bits(const uint8_t* codes, f32x16* weights) const {
        const auto number = [&](__m512i words) { return f32x16(_mm512_permutexvar_ps(words, numbers)); };
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            // A load one byte on is a shift by eight bits; it may read three bytes too many.
            const __m512i words = _mm512_loadu_si512(codes + i);
            const int first = 4 * (i % 2) + i / 2;
            weights[first] = number(words);
            weights[first + 2] = number(_mm512_srli_epi32(words, 4));
        }
    }
#endif
};

#if defined(__AVX512BF16__)
// A word is two inputs in bf16, of which the earlier one is in the upper half: VDPBF16PS adds that first.
template <int FORMAT>
struct Pairs {
    using Word = uint32_t;
    using Weights = __m512i;
    static constexpr int WORDS = 16, PART = WORDS / PARTS, READ = PART;
    static constexpr size_t PART_BYTES = part_bytes(FORMAT);

    // Sixteen codes of Q8_0.
    static SL_INLINE __m512i bytes_at(const uint8_t* codes) { return __m512i(load((const int8_t*)codes)); }

    // Twice, because a lookup takes five bits: a code and one more.
    __m512i numbers = __m512i(_mm512_cvtne2ps_pbh(__m512(numbers_of(FORMAT)), __m512(numbers_of(FORMAT))));

    static SL_INLINE f32x16 add(f32x16 sum, __m512i weights, const uint32_t* x) {
        return f32x16(_mm512_dpbf16_ps(__m512(sum), __m512bh(weights), __m512bh(_mm512_set1_epi32(int(*x)))));
    }

    static SL_INLINE void put_row(const uint16_t* x, int count, uint32_t* words) {
        const __mmask32 mask = count >= TILE_IN ? ~__mmask32(0) : (__mmask32(1) << count) - 1;
        const __m512i inputs = _mm512_maskz_loadu_epi16(mask, x);
        // Of four inputs: the third and the first, then the fourth and the second.
        const __m512i order = _mm512_setr_epi32(
            0x000002, 0x010003, 0x040006, 0x050007, 0x08000a, 0x09000b, 0x0c000e, 0x0d000f, 0x100012,
            0x110013, 0x140016, 0x150017, 0x18001a, 0x19001b, 0x1c001e, 0x1d001f);
        _mm512_store_si512(words, _mm512_permutexvar_epi16(order, inputs));
    }
    static constexpr uint32_t ONE = 0x3f803f80;

    SL_INLINE void read(const uint8_t* codes, int, __m512i* weights) const {
        if constexpr (FORMAT == Q8_0) {
#pragma GCC unroll 2
            for (int i = 0; i < PART; i += 2, codes += 64)
#pragma GCC unroll 2
                for (int odd = 0; odd < 2; odd++)  // a code has at most eight significant bits
                    weights[i + odd] = _mm512_or_si512(
                        bytes_at(codes + 16 * odd),
                        _mm512_srli_epi32(bytes_at(codes + 32 + 16 * odd), 16));
        } else if constexpr (FORMAT == Q4_0 || FORMAT == Q4_1) {
            const __m512i words = _mm512_loadu_si512(codes);
#pragma GCC unroll 4
            for (int i = 0; i < PART; i++)
                weights[i] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4 * i), numbers);
        } else {
#pragma GCC unroll 4
            for (int i = 0; i < PART; i++) weights[i] = _mm512_loadu_si512(codes + 64 * i);
        }
    }

    static SL_INLINE void widen(const uint8_t*, int, const __m512i* weights, uint8_t* wide) {
#pragma GCC unroll 4
        for (int i = 0; i < PART; i++) _mm512_store_si512(wide + 64 * i, weights[i]);
    }
};
#endif

}  // namespace
}  // namespace slipstream
