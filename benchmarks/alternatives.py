"""Other ways to compute a step's parts on a CPU, against the native kernels.

One layer of the size of SmolLM2-135M (576 hidden, 9 heads, 3 key heads of 64, 1,536 intermediate)
in bfloat16 with 512 positions of keys and values, for some row counts: eager torch, torch.compile
(inductor), FlexAttention, and ours. Also whether a row's bits depend on how many rows are computed
with it. Run with: python benchmarks/alternatives.py
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from slipstream.bench.provenance import read_provenance
from slipstream.clock import SystemClock
from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.matrix import PackedMatrix

HIDDEN, HEADS, KV_HEADS, DIM, INTERMEDIATE, CONTEXT = 576, 9, 3, 64, 1536, 512
ROW_COUNTS = (1, 8, 16, 64)
REPEATS = 200

Step = Callable[[Tensor], Tensor]


def matrices() -> list[Tensor]:
    """Weights of the four products of a layer."""
    torch.manual_seed(0)
    shapes = [
        ((HEADS + 2 * KV_HEADS) * DIM, HIDDEN),
        (HIDDEN, HIDDEN),
        (2 * INTERMEDIATE, HIDDEN),
        (HIDDEN, INTERMEDIATE),
    ]
    return [(torch.randn(shape) / 24).bfloat16() for shape in shapes]


def mlp(weights: list[Tensor]) -> Step:
    """Norm, gate and up, gate, down: what a compiler could fuse."""
    norm = torch.ones(HIDDEN, dtype=torch.bfloat16)

    def run(x: Tensor) -> Tensor:
        gate, up = linear(rms_norm(x, (HIDDEN,), norm), weights[2]).chunk(2, -1)
        return x + linear(silu(gate) * up, weights[3])

    return run


def native_products(weights: list[Tensor]) -> Step:
    """Our two products of the same part; norm and gate are in one call with them in a real pass."""
    library = KernelLibrary()
    packed = [PackedMatrix(library, [weight]) for weight in weights[2:]]

    def run(x: Tensor) -> Tensor:
        wide = packed[0].multiply(x, x.new_empty(len(x), 2 * INTERMEDIATE))
        return packed[1].multiply(wide[:, :INTERMEDIATE], x.new_empty(len(x), HIDDEN))

    return run


def attention(rows: int) -> dict[str, Callable[[], Tensor]]:
    """The last `rows` positions attend to all before them."""
    torch.manual_seed(1)
    q = torch.randn(1, HEADS, rows, DIM).bfloat16()
    k = torch.randn(1, KV_HEADS, CONTEXT, DIM).bfloat16()
    v = torch.randn(1, KV_HEADS, CONTEXT, DIM).bfloat16()
    offset = CONTEXT - rows
    causal = torch.arange(CONTEXT)[None] <= torch.arange(rows)[:, None] + offset
    mask = create_block_mask(
        lambda b, h, i, j: j <= i + offset, None, None, rows, CONTEXT, device="cpu"
    )
    flex = torch.compile(flex_attention)
    return {
        "sdpa with a mask": lambda: scaled_dot_product_attention(
            q, k, v, attn_mask=causal, enable_gqa=True
        ),
        "flex, compiled": lambda: flex(q, k, v, block_mask=mask, enable_gqa=True),
    }


def median_us(step: Callable[[], object]) -> float:
    """Median time of a call, in microseconds."""
    for _ in range(10):
        step()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return round(statistics.median(times) * 1e6, 1)


def is_row_exact(step: Step) -> bool:
    """Whether the first row has the same bits in all row counts."""
    torch.manual_seed(2)
    x = torch.randn(max(ROW_COUNTS), HIDDEN).bfloat16()
    first = [step(x[:rows])[0] for rows in ROW_COUNTS]
    return all(torch.equal(first[0], other) for other in first[1:])


def _on_rows(step: Step, rows: int) -> Callable[[], object]:
    x = torch.randn(rows, HIDDEN).bfloat16()
    return lambda: step(x)


def main() -> None:
    """Measure everything and print it as JSON."""
    torch.set_grad_enabled(False)
    weights = matrices()
    steps = {
        "mlp, eager": mlp(weights),
        "mlp, compiled": torch.compile(mlp(weights), dynamic=True),
        "mlp products, native": native_products(weights),
    }
    results: dict[str, dict[Any, Any]] = {}
    for name, step in steps.items():
        times = {rows: median_us(_on_rows(step, rows)) for rows in ROW_COUNTS}
        results[name] = {"us_by_rows": times, "row_exact": is_row_exact(step)}
    for rows in ROW_COUNTS:
        for name, call in attention(rows).items():
            results.setdefault(name, {})[rows] = median_us(call)
    provenance = read_provenance([Path(sys.argv[0]).name], [], SystemClock())
    sys.stdout.write(
        json.dumps({"provenance": asdict(provenance), "results": results}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
