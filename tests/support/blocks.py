"""Random weights in stored blocks."""

from __future__ import annotations

import numpy as np

from slipstream.weights.gguf_blocks import BLOCK_FORMATS, QuantizedTensor

_FORMATS = {block.name: block for block in BLOCK_FORMATS.values()}


def random_blocks(name: str, num_out: int, num_in: int) -> QuantizedTensor:
    """Any codes, with scales of either sign down to the smallest half-precision number."""
    block = _FORMATS[name]
    rng = np.random.default_rng(3)
    blocks = rng.integers(0, 256, (num_out * num_in // 32, block.num_bytes), dtype=np.uint8)
    num_scales = 2 if name == "Q4_1" else 1
    scales = rng.standard_normal((len(blocks), num_scales)).astype(np.float16)
    scales[::7] = 2**-24
    blocks[:, : 2 * num_scales] = scales.view(np.uint8)
    return QuantizedTensor(block, (num_out, num_in), blocks)
