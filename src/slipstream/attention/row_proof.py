"""Proof by trial that a library call gives a row the same bits whatever rows go with it.

Matrix libraries choose a kernel, and with it a reduction order, by the number of rows. Nothing in
their documentation says where the order changes, so it is found out on the machine that serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from slipstream.errors import NumericsError

ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
BASE_ROWS = 16


def cancelling_operands(
    num_rows: int, num_in: int, num_out: int, *, seed: int
) -> tuple[Tensor, Tensor]:
    """Operands whose product is exactly zero, so that what is left is the rounding of one order.

    The second half of the inner axis repeats the first half, permuted and with the other sign.
    Any two reduction orders then disagree in nearly every element, not only in a few last bits.

    Returns: x [num_rows, num_in] with heavy tails and w [num_out, num_in], both float32. Wide
    outputs repeat 1024 random rows, which costs less and hides nothing.
    """
    generator = torch.Generator().manual_seed(seed)
    half = num_in // 2
    order = torch.randperm(half, generator=generator)
    x = torch.randn(num_rows, num_in, generator=generator)
    x *= torch.exp(torch.randn(num_rows, num_in, generator=generator))
    w = torch.randn(min(num_out, 1024), num_in, generator=generator)
    x[:, half : 2 * half] = -x[:, :half][:, order]
    w[:, half : 2 * half] = w[:, :half][:, order]
    if num_out > len(w):
        w = w.repeat(-(-num_out // len(w)), 1)[:num_out]
    return x, w


def admitted_row_counts(
    product: Callable[[Tensor], Tensor],
    x: Tensor,  # [at least max(candidates), num_in]
    candidates: Iterable[int] = ROW_COUNTS,
) -> frozenset[int]:
    """Row counts at which `product` gives every row the bits of the base call of 16 rows.

    The reference is computed with one thread, so an admitted count does not depend on the number
    of threads either.

    Returns: The admitted counts; empty if even the base call depends on a row's place in it or on
    the number of threads, which means that `product` cannot be used at all.
    """
    counts = sorted({BASE_ROWS, *candidates})
    num_rows = counts[-1]
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        reference = torch.cat(
            [product(x[start : start + BASE_ROWS]) for start in range(0, num_rows, BASE_ROWS)]
        )
    finally:
        torch.set_num_threads(num_threads)
    base = torch.arange(BASE_ROWS)
    for shift in (1, 5, 8):
        if not torch.equal(product(x[base.roll(shift)]), reference[base.roll(shift)]):
            return frozenset()
    return frozenset(count for count in counts if _agrees(product, x, reference, count))


def _agrees(product: Callable[[Tensor], Tensor], x: Tensor, reference: Tensor, count: int) -> bool:
    last = len(reference) - count
    return all(
        torch.equal(product(x[start : start + count]), reference[start : start + count])
        for start in {0, last // 3, last}
    )


def prove_pointwise(name: str, function: Callable[[Tensor], Tensor], values: Tensor) -> None:
    """Check that an element's result does not depend on its place in the tensor.

    Vectorised functions may treat the last elements of a tensor by other code, and which elements
    come last depends on the number of rows and threads.

    Args:
        values: [n] with n at least 512.
    Raises:
        NumericsError: If an element's bits changed with its place.
    """
    if not is_pointwise(function, values):
        raise NumericsError(
            f"{name} gives other bits at the end of a tensor than in its middle with this build "
            f"of torch ({torch.__version__}), so answers would depend on the batch",
            hint="use an official torch build for this processor",
        )


def is_pointwise(function: Callable[[Tensor], Tensor], values: Tensor) -> bool:
    """Whether places, lengths, alignment and strides leave `function`'s bits alone."""
    whole = function(values)
    if not _same(whole, function(_strided(values))):
        return False
    spans: Sequence[tuple[int, int]] = [(0, n) for n in (1, 2, 3, 7, 15, 17, 31, 33, 63, 65, 127)]
    spans = [*spans, (1, 64), (3, 130), (5, 69), (16, 257), (7, 512)]
    return all(_same(function(values[a:b].clone()), whole[a:b]) for a, b in spans) and all(
        _same(function(values[a:b]), whole[a:b]) for a, b in spans
    )


def _strided(values: Tensor) -> Tensor:
    """The same values with gaps, which sends torch down its element-by-element path."""
    holder = values.new_zeros(len(values), 3)
    holder[:, 0] = values
    return holder[:, 0]


def _same(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
