"""The page pool counts holders and never hands out the scratch page."""

from __future__ import annotations

import pytest

from slipstream.kv.pages import SCRATCH_PAGE, PagePool


def test_the_scratch_page_is_never_handed_out() -> None:
    pool = PagePool(3)
    assert sorted(pool.allocate(3)) == [1, 2, 3]
    assert SCRATCH_PAGE == 0


def test_a_page_is_free_again_only_when_its_last_holder_releases_it() -> None:
    pool = PagePool(2)
    pages = pool.allocate(1)
    pool.retain(pages)
    pool.release(pages)
    assert pool.num_free == 1
    pool.release(pages)
    assert pool.num_free == 2


def test_the_page_freed_last_is_handed_out_first() -> None:
    pool = PagePool(4)
    first, second = pool.allocate(2)
    pool.release([first])
    pool.release([second])
    assert pool.allocate(2) == [second, first]


def test_too_large_an_allocation_takes_nothing() -> None:
    pool = PagePool(2)
    with pytest.raises(ValueError, match="cannot allocate 3 pages, 2 are free"):
        pool.allocate(3)
    assert pool.num_free == 2


def test_allocating_no_page_leaves_the_pool_alone() -> None:
    pool = PagePool(2)
    assert pool.allocate(0) == []
    assert pool.num_free == 2


def test_a_page_released_too_often_is_named() -> None:
    pool = PagePool(1)
    pages = pool.allocate(1)
    pool.release(pages)
    with pytest.raises(ValueError, match="page 1 is already free"):
        pool.release(pages)


def test_a_free_page_cannot_be_retained() -> None:
    with pytest.raises(ValueError, match="page 1 is free"):
        PagePool(1).retain([1])


def test_a_pool_without_pages_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 page, got 0"):
        PagePool(0)
