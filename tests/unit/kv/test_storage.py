"""Keys and values come back as stored, copies are bit-exact, unwritten rows are zero."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream.kv.cache import KvCache
from slipstream.kv.storage import KvStorage

DTYPES = [torch.float32, torch.bfloat16]


def random_rows(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 2, 8, generator=torch.Generator().manual_seed(seed))


def small_storage(dtype: torch.dtype = torch.float32) -> KvStorage:
    return KvStorage(num_slots=24, num_layers=3, kv_heads=2, head_dim=8, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_read_back_as_rounded_to_the_stored_dtype(dtype: torch.dtype) -> None:
    storage = small_storage(dtype)
    keys, values = random_rows(3, seed=1), random_rows(3, seed=2)
    slots = torch.tensor([5, 4, 20])
    storage.write(1, slots, keys, values)
    got_keys, got_values = storage.gather(1, slots)
    assert torch.equal(got_keys, keys.to(dtype))
    assert torch.equal(got_values, values.to(dtype))
    assert torch.equal(storage.keys[1][20], keys[2].to(dtype))
    assert torch.equal(storage.values[1][20], values[2].to(dtype))


def test_writing_one_layer_leaves_the_others_alone() -> None:
    storage = small_storage()
    storage.write(1, torch.tensor([3]), random_rows(1), random_rows(1))
    assert not storage.keys[0].any()
    assert not storage.values[2].any()
    assert storage.keys[1].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_never_written_are_zero_so_masked_lanes_stay_finite(dtype: torch.dtype) -> None:
    storage = small_storage(dtype)
    assert all(not rows.any() for rows in (*storage.keys, *storage.values))


@pytest.mark.parametrize("dtype", DTYPES)
def test_compaction_copies_bits_in_all_layers(dtype: torch.dtype) -> None:
    cache = KvCache(num_pages=4, page_size=4)
    lease = cache.open("a", [1], "")
    lease.reserve(9)
    storage = KvStorage(cache.num_slots, 3, 2, 8, dtype)
    slots = torch.from_numpy(lease.slot_table())
    for layer in range(3):
        storage.write(layer, slots, random_rows(9, layer), random_rows(9, 10 + layer))
    kept = [0, 2, 3, 6, 8]
    wanted = [storage.gather(layer, slots[kept]) for layer in range(3)]
    moves = lease.compact(kept)
    storage.copy(moves.sources, moves.targets)
    lease.commit(len(kept))
    for layer in range(3):
        keys, values = storage.gather(layer, torch.from_numpy(lease.slots(0, 5)))
        assert torch.equal(keys, wanted[layer][0])
        assert torch.equal(values, wanted[layer][1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_copy_preserves_nan_payloads_and_signed_zeros(dtype: torch.dtype) -> None:
    storage = small_storage(dtype)
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    pattern = torch.tensor([0x7FC1, 0x7F81, -0x8000, 1, -1, 0x7F80, 2, 3], dtype=bits)
    if dtype == torch.float32:
        pattern = pattern << 16 | 5
    storage.keys[2][7] = pattern.view(dtype)
    storage.copy(np.array([7]), np.array([6]))
    assert torch.equal(storage.keys[2][6].view(bits), pattern.expand(2, 8))


def test_overlapping_moves_read_all_sources_first() -> None:
    storage = small_storage()
    rows = random_rows(4)
    storage.write(0, torch.tensor([4, 5, 6, 7]), rows, rows)
    storage.copy(np.array([5, 6, 7]), np.array([4, 5, 6]))
    assert torch.equal(storage.keys[0][4:7], rows[1:4])


def test_copying_nothing_is_allowed() -> None:
    storage = small_storage()
    storage.copy(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    assert not storage.keys[0].any()


def test_int8_keeps_a_head_of_a_token_within_half_a_step_of_its_own_scale() -> None:
    storage = small_storage(torch.int8)
    keys, values = 3 * random_rows(3, seed=1), random_rows(3, seed=2)
    slots = torch.tensor([5, 4, 20])
    storage.write(1, slots, keys, values)
    for rows, got in zip((keys, values), storage.gather(1, slots), strict=True):
        step = rows.abs().amax(-1, keepdim=True) / 127
        assert got.dtype == torch.float32
        assert bool(((got - rows).abs() <= 0.501 * step).all())


def test_int8_rows_have_the_same_bits_whatever_is_written_with_them() -> None:
    together, alone = small_storage(torch.int8), small_storage(torch.int8)
    rows = torch.cat((random_rows(3), torch.zeros(1, 2, 8), 1e30 * random_rows(1, seed=3)))
    slots = torch.tensor([2, 3, 9, 5, 7])
    together.write(0, slots, rows, -rows)
    for i in range(5):
        alone.write(0, slots[i : i + 1], rows[i : i + 1], -rows[i : i + 1])
    for got, expected in zip(together.gather(0, slots), alone.gather(0, slots), strict=True):
        assert torch.equal(got, expected)
        assert not got[3].any()


def test_an_int8_copy_takes_scales_along() -> None:
    storage = small_storage(torch.int8)
    storage.write(2, torch.tensor([4, 5]), random_rows(2), 7 * random_rows(2, seed=1))
    wanted = storage.gather(2, torch.tensor([5]))
    storage.copy(np.array([5]), np.array([4]))
    got = storage.gather(2, torch.tensor([4]))
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_bytes_per_token_counts_keys_and_values_of_all_layers() -> None:
    assert small_storage(torch.bfloat16).bytes_per_token == 2 * 3 * 2 * 8 * 2
    assert small_storage(torch.float32).bytes_per_token == 2 * 3 * 2 * 8 * 4
    assert small_storage(torch.int8).bytes_per_token == 2 * 3 * 2 * (8 + 4)


def test_a_slots_keys_and_values_lie_together_and_layers_start_at_a_cache_line() -> None:
    storage = small_storage()
    size = storage.keys[0][0].numel()
    for keys, values in zip(storage.keys, storage.values, strict=True):
        assert keys[0].is_contiguous()
        assert keys.stride(0) == values.stride(0) == 2 * size
        assert values.data_ptr() == keys.data_ptr() + size * keys.itemsize
    assert storage.keys[0].data_ptr() % 64 == 0
