"""Memory that weights, keys and values lie in."""

from __future__ import annotations

import pytest

from slipstream.errors import CapacityError
from slipstream.kernels.memory import zeros_on_huge_pages


def test_it_is_zero_and_of_the_size_that_was_asked_for() -> None:
    memory = zeros_on_huge_pages(5000)
    assert memory.shape == (5000,)
    assert not memory.any()


@pytest.mark.parametrize("num_bytes", [2**60, 2**64])
def test_more_than_the_system_gives_is_refused(num_bytes: int) -> None:
    with pytest.raises(CapacityError, match=r"does not give .* GiB") as refusal:
        zeros_on_huge_pages(num_bytes)
    assert refusal.value.hint
