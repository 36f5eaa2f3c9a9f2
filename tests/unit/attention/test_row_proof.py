"""Telling exact library calls from those whose bits depend on the batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from slipstream.attention.row_proof import (
    BASE_ROWS,
    admitted_row_counts,
    cancelling_operands,
    is_pointwise,
    prove_pointwise,
)
from slipstream.errors import NumericsError


def test_the_operands_product_is_zero_up_to_rounding() -> None:
    x, weight = cancelling_operands(32, 64, 48, seed=1)

    assert (x.double() @ weight.double().t()).abs().max() < 1e-10
    assert (x @ weight.t()).abs().max() > 1e-7


def test_other_reduction_orders_change_nearly_every_element() -> None:
    x, weight = cancelling_operands(32, 64, 48, seed=1)
    forward = sum_in_order(x, weight, range(64))

    backward = sum_in_order(x, weight, range(63, -1, -1))

    assert (forward != backward).float().mean() > 0.95


def sum_in_order(x: Tensor, weight: Tensor, order: range) -> Tensor:
    total = torch.zeros(len(x), len(weight))
    for index in order:
        total += x[:, index, None] * weight[:, index]
    return total


def test_counts_that_keep_the_base_order_are_admitted_and_others_are_not() -> None:
    x, weight = cancelling_operands(64, 64, 16, seed=2)

    def product(rows: Tensor) -> Tensor:
        order = range(64) if len(rows) != 4 else range(63, -1, -1)
        return sum_in_order(rows, weight, order)

    assert admitted_row_counts(product, x, (1, 4, 32, 64)) == {1, BASE_ROWS, 32, 64}


def test_a_product_that_depends_on_a_rows_place_is_not_admitted_at_all() -> None:
    x, weight = cancelling_operands(64, 64, 16, seed=2)

    def product(rows: Tensor) -> Tensor:
        first = sum_in_order(rows[:3], weight, range(63, -1, -1))
        return torch.cat((first, sum_in_order(rows[3:], weight, range(64))))

    assert admitted_row_counts(product, x, (16, 32, 64)) == frozenset()


@pytest.mark.parametrize("function", [torch.exp, torch.tanh], ids=["exp", "tanh"])
def test_functions_that_the_layers_use_do_not_depend_on_an_elements_place(
    function: Callable[[Tensor], Tensor],
) -> None:
    prove_pointwise("it", function, torch.linspace(-30, 30, 4096))


def test_a_function_that_treats_the_tail_differently_is_refused() -> None:
    def treats_tail(values: Tensor) -> Tensor:
        out = values * 2
        out[len(values) // 32 * 32 :] += 1
        return out

    assert not is_pointwise(treats_tail, torch.linspace(-3, 3, 1024))
    with pytest.raises(NumericsError, match="doubling"):
        prove_pointwise("doubling", treats_tail, torch.linspace(-3, 3, 1024))


def test_not_a_number_counts_as_equal_to_itself() -> None:
    assert is_pointwise(functional.relu, torch.full((1024,), torch.nan))
