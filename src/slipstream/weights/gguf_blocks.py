"""GGUF block formats: one function per format, bytes to float32, exactly as ggml defines them.

Every function takes `blocks` [num_blocks, block bytes] uint8 and returns [num_blocks, block values]
float32. "Exactly": the same float32 operations in the same order as ggml's reference code, so that
results agree to the last bit. Half-precision scales widen without loss.

Source: ggml-quants.c and ggml-common.h of the ggml repository.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Blocks = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float32]

_CHUNK_BLOCKS = 4096  # keeps a format's intermediate arrays within the processor's cache


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A storage type: `num_bytes` hold `num_values` values."""

    type_id: int
    name: str
    num_values: int
    num_bytes: int
    dequantize: Callable[[Blocks], Values]

    @property
    def is_quantized(self) -> bool:
        """Whether values share a scale; F32, F16 and BF16 do not."""
        return self.num_values > 1


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A tensor as stored: rows of blocks, for kernels that multiply without widening.

    `blocks` is [num_blocks, block bytes] uint8, in the order of the rows of `shape`.
    """

    block: BlockFormat
    shape: tuple[int, ...]
    blocks: Blocks

    def dequantize(self) -> Values:
        """The values, in `shape`."""
        flat = np.empty((len(self.blocks), self.block.num_values), np.float32)
        for start in range(0, len(flat), _CHUNK_BLOCKS):
            part = slice(start, start + _CHUNK_BLOCKS)
            flat[part] = self.block.dequantize(self.blocks[part])
        return flat.reshape(self.shape)


def dequantize_f32(blocks: Blocks) -> Values:
    """4 bytes: the value itself."""
    return np.ascontiguousarray(blocks).view("<f4").astype(np.float32)


def dequantize_i32(blocks: Blocks) -> Values:
    """Whole numbers below 2^24, as maps of tokens hold."""
    return blocks.view("<i4").astype(np.float32)


def dequantize_i64(blocks: Blocks) -> Values:
    """As `dequantize_i32`."""
    return blocks.view("<i8").astype(np.float32)


def dequantize_f16(blocks: Blocks) -> Values:
    """2 bytes: IEEE half precision."""
    return _half(blocks)


def dequantize_bf16(blocks: Blocks) -> Values:
    """2 bytes: the upper half of a float32."""
    upper = np.ascontiguousarray(blocks).view("<u2").astype(np.uint32)
    return (upper << np.uint32(16)).view(np.float32)


def dequantize_q8_0(blocks: Blocks) -> Values:
    """34 bytes, 32 values: scale, 32 signed bytes."""
    scale = _half(blocks[:, :2])
    return blocks[:, 2:].view(np.int8) * scale


def dequantize_q4_0(blocks: Blocks) -> Values:
    """18 bytes, 32 values: scale, nibbles (low halves first), offset 8."""
    scale = _half(blocks[:, :2])
    return (_nibbles(blocks[:, 2:]).view(np.int8) - np.int8(8)) * scale


def dequantize_q4_1(blocks: Blocks) -> Values:
    """20 bytes, 32 values: scale, minimum, nibbles."""
    scale, minimum = _half(blocks[:, :2]), _half(blocks[:, 2:4])
    values = _nibbles(blocks[:, 4:]) * scale
    values += minimum
    return values


def dequantize_q5_0(blocks: Blocks) -> Values:
    """22 bytes, 32 values: scale, 32 fifth bits, nibbles, offset 16."""
    scale = _half(blocks[:, :2])
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return (codes.view(np.int8) - np.int8(16)) * scale


def dequantize_q5_1(blocks: Blocks) -> Values:
    """24 bytes, 32 values: scale, minimum, 32 fifth bits, nibbles."""
    scale, minimum = _half(blocks[:, :2]), _half(blocks[:, 2:4])
    values = (_nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])) * scale
    values += minimum
    return values


def dequantize_q4_k(blocks: Blocks) -> Values:
    """144 bytes, 256 values: two super-scales, 8 six-bit scales and minima, nibbles."""
    scales, minima = _sub_scales(blocks[:, :16])
    # 32 bytes carry the 32 values of one sub-block in their low halves, of the next in the high.
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    values = codes * scales
    values -= minima
    return values.reshape(-1, 256)


def dequantize_q5_k(blocks: Blocks) -> Values:
    """176 bytes, 256 values: as Q4_K with one more bit per value."""
    scales, minima = _sub_scales(blocks[:, :16])
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    high = (blocks[:, None, 16:48] >> shifts) & np.uint8(1)
    codes = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    codes |= high << np.uint8(4)
    values = codes * scales
    values -= minima
    return values.reshape(-1, 256)


def dequantize_q6_k(blocks: Blocks) -> Values:
    """210 bytes, 256 values: nibbles, upper bit pairs, 16 signed scales, super-scale, offset 32."""
    scales = blocks[:, 192:208].view(np.int8) * _half(blocks[:, 208:])
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & np.uint8(3)
    codes = (low | (high << np.uint8(4))).view(np.int8) - np.int8(32)
    values = codes.reshape(-1, 16, 16) * scales[:, :, None]
    return values.reshape(-1, 256)


def _half(stored: Blocks) -> Values:
    """Widen half-precision numbers: [..., 2n] uint8 to [..., n] float32."""
    return np.ascontiguousarray(stored).view("<f2").astype(np.float32)


def _nibbles(stored: Blocks) -> Blocks:
    """Split bytes into 4-bit codes: [..., n] to [..., 2n], the n low halves before the n high."""
    return np.concatenate([stored & np.uint8(0x0F), stored >> np.uint8(4)], axis=-1)


def _fifth_bits(stored: Blocks) -> Blocks:
    """Spread 32 bits over 32 codes, each in place 4: [num_blocks, 4] to [num_blocks, 32]."""
    return np.unpackbits(stored, axis=-1, bitorder="little") << np.uint8(4)


def _sub_scales(head: Blocks) -> tuple[Values, Values]:
    """Scales and minima of a K block's 8 sub-blocks, each [num_blocks, 8, 1].

    `head` [num_blocks, 16]: two half-precision super-scales, then 16 six-bit numbers in 12 bytes:
    bytes 0-3 and 4-7 hold scales and minima 0-3 whole and the top two bits of 4-7, whose low
    nibbles are in bytes 8-11.
    """
    super_scale, super_minimum = _half(head[:, :2]), _half(head[:, 2:4])
    first, second, rest = head[:, 4:8], head[:, 8:12], head[:, 12:16]
    top_first = (first >> np.uint8(2)) & np.uint8(0x30)
    top_second = (second >> np.uint8(2)) & np.uint8(0x30)
    scales = np.concatenate([first & np.uint8(63), (rest & np.uint8(15)) | top_first], axis=-1)
    minima = np.concatenate([second & np.uint8(63), (rest >> np.uint8(4)) | top_second], axis=-1)
    return (scales * super_scale)[:, :, None], (minima * super_minimum)[:, :, None]


BLOCK_FORMATS: Mapping[int, BlockFormat] = {
    block.type_id: block
    for block in (
        BlockFormat(0, "F32", 1, 4, dequantize_f32),
        BlockFormat(1, "F16", 1, 2, dequantize_f16),
        BlockFormat(30, "BF16", 1, 2, dequantize_bf16),
        BlockFormat(26, "I32", 1, 4, dequantize_i32),
        BlockFormat(27, "I64", 1, 8, dequantize_i64),
        BlockFormat(8, "Q8_0", 32, 34, dequantize_q8_0),
        BlockFormat(2, "Q4_0", 32, 18, dequantize_q4_0),
        BlockFormat(3, "Q4_1", 32, 20, dequantize_q4_1),
        BlockFormat(6, "Q5_0", 32, 22, dequantize_q5_0),
        BlockFormat(7, "Q5_1", 32, 24, dequantize_q5_1),
        BlockFormat(12, "Q4_K", 256, 144, dequantize_q4_k),
        BlockFormat(13, "Q5_K", 256, 176, dequantize_q5_k),
        BlockFormat(14, "Q6_K", 256, 210, dequantize_q6_k),
    )
}

_UNSUPPORTED_NAMES: Mapping[int, str] = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16",
    28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
    40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


def type_name(type_id: int) -> str:
    """The name that ggml gives to a storage type, supported or not."""
    block = BLOCK_FORMATS.get(type_id)
    if block is not None:
        return block.name
    return _UNSUPPORTED_NAMES.get(type_id, f"type number {type_id}")
