// What a vector of weights of sixteen outputs holds when it is multiplied: for each output one word of the
// step's inputs. Words at even places belong to the chain of even inputs and the others to that of odd
// ones, and each chain meets its inputs in order (linear.hpp).
#pragma once
#include <immintrin.h>

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

// The numbers that four bits stand for.
SL_INLINE __m512 numbers_of(int format) {
    return _mm512_add_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         _mm512_set1_ps(format == Q4_0 ? -8.0f : 0.0f));
}

// Sixteen codes of Q8_0.
SL_INLINE __m512 bytes_at(const uint8_t* codes) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)codes)));
}

// A word is one input in float32.
template <int FORMAT>
struct Singles {
    using Word = float;
    static constexpr int WORDS = 32, PART = WORDS / PARTS;  // of a step and of a part
    static constexpr size_t PART_BYTES = part_bytes(FORMAT);

    __m512 numbers = numbers_of(FORMAT);

    static SL_INLINE __m512 add(__m512 sum, __m512i weights, const float* x) {
        return _mm512_fmadd_ps(__m512(weights), _mm512_set1_ps(*x), sum);
    }

    // A row's inputs of a step, from bf16.
    static SL_INLINE void put_row(__m512i inputs, float* words) {
        const auto wide = [&](__m256i half) {
            return __m512(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
        };
        _mm512_store_ps(words, wide(_mm512_castsi512_si256(inputs)));
        _mm512_store_ps(words + 16, wide(_mm512_extracti64x4_epi64(inputs, 1)));
    }
    static void put_ones(float* one) { *one = 1.0f; }

    // Weights of a part's words; `codes`: where the part begins.
    SL_INLINE void read(const uint8_t* codes, __m512i* weights) const {
        if constexpr (FORMAT == Q8_0) {
#pragma GCC unroll 8
            for (int i = 0; i < PART; i++) weights[i] = __m512i(bytes_at(codes + 16 * i));
        } else if constexpr (FORMAT == Q4_0 || FORMAT == Q4_1) {
            const auto number = [&](__m512i words) {
                return __m512i(_mm512_permutexvar_ps(words, numbers));
            };
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                // A load one byte on is a shift by eight bits; it may read three bytes too many.
                const __m512i words = _mm512_loadu_si512(codes + i);
                const int first = 4 * (i % 2) + i / 2;
                weights[first] = number(words);
                weights[first + 2] = number(_mm512_srli_epi32(words, 4));
            }
        } else {
#pragma GCC unroll 4
            for (int i = 0; i < PART / 2; i++) {
                const __m512i pair = _mm512_loadu_si512(codes + 64 * i);
                weights[2 * i] = _mm512_slli_epi32(pair, 16);
                weights[2 * i + 1] = _mm512_and_si512(pair, _mm512_set1_epi32(int(0xffff0000u)));
            }
        }
    }

    // A part's weights in half the bytes, to be read as WIDENED.
    static SL_INLINE void widen(const __m512i* weights, uint8_t* wide) {
#pragma GCC unroll 4
        for (int i = 0; i < PART / 2; i++)
            _mm512_store_si512(wide + 64 * i, _mm512_or_si512(_mm512_srli_epi32(weights[2 * i], 16),
                                                              weights[2 * i + 1]));
    }
};

#if defined(__AVX512BF16__)
// A word is two inputs in bf16, of which the earlier one is in the upper half: VDPBF16PS adds that first.
template <int FORMAT>
struct Pairs {
    using Word = uint32_t;
    static constexpr int WORDS = 16, PART = WORDS / PARTS;
    static constexpr size_t PART_BYTES = part_bytes(FORMAT);

    // Twice, because a lookup takes five bits: a code and one more.
    __m512i numbers = __m512i(_mm512_cvtne2ps_pbh(numbers_of(FORMAT), numbers_of(FORMAT)));

    static SL_INLINE __m512 add(__m512 sum, __m512i weights, const uint32_t* x) {
        return _mm512_dpbf16_ps(sum, __m512bh(weights), __m512bh(_mm512_set1_epi32(int(*x))));
    }

    static SL_INLINE void put_row(__m512i inputs, uint32_t* words) {
        // Of four inputs: the third and the first, then the fourth and the second.
        const __m512i order = _mm512_setr_epi32(
            0x000002, 0x010003, 0x040006, 0x050007, 0x08000a, 0x09000b, 0x0c000e, 0x0d000f, 0x100012,
            0x110013, 0x140016, 0x150017, 0x18001a, 0x19001b, 0x1c001e, 0x1d001f);
        _mm512_store_si512(words, _mm512_permutexvar_epi16(order, inputs));
    }
    static void put_ones(uint32_t* one) { *one = 0x3f803f80; }

    SL_INLINE void read(const uint8_t* codes, __m512i* weights) const {
        // Of four inputs' numbers, two of them in each word.
        const auto pair_up = [&](__m512i first, __m512i second, __m512i* to) {
            constexpr __mmask32 LOWER = 0x55555555;
            to[0] = _mm512_mask_blend_epi16(LOWER, _mm512_slli_epi32(first, 16), second);
            to[1] = _mm512_mask_blend_epi16(LOWER, first, _mm512_srli_epi32(second, 16));
        };
        if constexpr (FORMAT == Q8_0) {
#pragma GCC unroll 2
            for (int i = 0; i < PART; i += 2, codes += 64)
#pragma GCC unroll 2
                for (int odd = 0; odd < 2; odd++)  // a code has at most eight significant bits
                    weights[i + odd] = _mm512_or_si512(
                        __m512i(bytes_at(codes + 16 * odd)),
                        _mm512_srli_epi32(__m512i(bytes_at(codes + 32 + 16 * odd)), 16));
        } else if constexpr (FORMAT == Q4_0 || FORMAT == Q4_1) {
            const __m512i words = _mm512_loadu_si512(codes);
            const __m512i chains[2] = {
                _mm512_shuffle_epi8(words, _mm512_set4_epi32(0x0d0c0d0c, 0x09080908, 0x05040504, 0x01000100)),
                _mm512_shuffle_epi8(words, _mm512_set4_epi32(0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302))};
#pragma GCC unroll 4
            for (int i = 0; i < PART; i++)
                weights[i] = _mm512_permutexvar_epi16(
                    _mm512_srlv_epi16(chains[i % 2], _mm512_set1_epi32(i < 2 ? 0x00000004 : 0x0008000c)),
                    numbers);
        } else if constexpr (FORMAT == BF16) {
            pair_up(_mm512_loadu_si512(codes), _mm512_loadu_si512(codes + 64), weights);
            pair_up(_mm512_loadu_si512(codes + 128), _mm512_loadu_si512(codes + 192), weights + 2);
        } else {
#pragma GCC unroll 4
            for (int i = 0; i < PART; i++) weights[i] = _mm512_load_si512(codes + 64 * i);
        }
    }

    static SL_INLINE void widen(const __m512i* weights, uint8_t* wide) {
#pragma GCC unroll 4
        for (int i = 0; i < PART; i++) _mm512_store_si512(wide + 64 * i, weights[i]);
    }
};
#endif

}  // namespace
}  // namespace slipstream
