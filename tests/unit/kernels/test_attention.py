"""Native attention: close to the exact result, and the same bits alone or in company."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from slipstream.attention.backend import AttentionShape
from slipstream.attention.native import NativeAttention
from slipstream.execution.batch import Branch
from slipstream.kernels.library import KernelLibrary, KernelsUnavailableError
from slipstream.kernels.twins import section_twin
from slipstream.kv.storage import KvStorage
from tests.support.native import find_kernels

_NUM_SLOTS = 400
DTYPES = [torch.float32, torch.bfloat16, torch.int8]


pytestmark = pytest.mark.usefixtures("one_thread")


def make_storage(shape: AttentionShape, dtype: torch.dtype) -> KvStorage:
    storage = KvStorage(_NUM_SLOTS, 1, shape.kv_heads, shape.head_dim, dtype)
    generator = torch.Generator().manual_seed(1)
    size = (_NUM_SLOTS, shape.kv_heads, shape.head_dim)
    keys, values = (torch.randn(size, generator=generator) for _ in range(2))
    storage.write(0, torch.arange(_NUM_SLOTS), keys, values)
    return storage


def make_shape(num_heads: int = 6, kv_heads: int = 2, head_dim: int = 64) -> AttentionShape:
    return AttentionShape(num_heads, kv_heads, head_dim, head_dim**-0.5)


def queries_for(shape: AttentionShape, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return 3 * torch.randn(count, shape.num_heads, shape.head_dim, generator=generator)


def paged_slots(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Pages of 16 slots in any order, as the cache hands them out."""
    pages = np.random.default_rng(3).permutation(_NUM_SLOTS // 16)
    return (16 * pages[:, None] + np.arange(16)).reshape(-1)[:count].astype(np.int64)


def scattered_slots(count: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.random.default_rng(seed).permutation(_NUM_SLOTS)[:count].astype(np.int64)


def exact(
    shape: AttentionShape, queries: Tensor, storage: KvStorage, branch: Branch, window: int | None
) -> Tensor:
    """The textbook, in float64."""
    results = []
    for row, position in zip(branch.rows, branch.positions, strict=True):
        first = max(0, int(position) + 1 - window) if window else 0
        seen = torch.from_numpy(branch.slots[first : position + 1])
        k, v = (
            part.double().repeat_interleave(shape.group_size, 1) for part in storage.gather(0, seen)
        )
        scores = torch.einsum("hd,khd->hk", queries[row].double(), k) * shape.scale
        results.append(torch.einsum("hk,khd->hd", scores.softmax(-1), v).reshape(-1))
    return torch.stack(results)


def attend(
    backend: NativeAttention,
    queries: Tensor,
    storage: KvStorage,
    branches: Sequence[Branch],
    window: int | None = None,
) -> Tensor:
    return backend.prepare(branches, len(queries), window).attend(0, queries, storage)


def alone(
    backend: NativeAttention,
    queries: Tensor,
    storage: KvStorage,
    branch: Branch,
    window: int | None = None,
) -> Tensor:
    """Each row of a branch in a pass of its own."""
    zero = np.zeros(1, np.int64)
    return torch.cat(
        [
            attend(
                backend,
                queries[row : row + 1],
                storage,
                [Branch(zero, np.array([position]), branch.slots[: position + 1])],
                window,
            )
            for row, position in zip(branch.rows.tolist(), branch.positions.tolist(), strict=True)
        ]
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_heads", "kv_heads", "head_dim"), [(6, 2, 64), (5, 1, 128), (4, 4, 16), (2, 1, 80)]
)
@pytest.mark.parametrize("window", [None, 1, 40])
def test_results_are_close_to_the_exact_ones(
    library: KernelLibrary,
    dtype: torch.dtype,
    num_heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
) -> None:
    shape = make_shape(num_heads, kv_heads, head_dim)
    storage, queries = make_storage(shape, dtype), queries_for(shape, 20)
    branch = Branch(np.arange(20), np.arange(80, 100), scattered_slots(100))
    backend = NativeAttention(shape, library)
    got = attend(backend, queries, storage, [branch], window)
    expected = exact(shape, queries, storage, branch, window)
    # In the order of AMX tiles weights are bfloat16, but for float32 values.
    is_rounded = backend.name == "native-amx" and dtype != torch.float32
    assert torch.allclose(got.double(), expected, rtol=1e-5, atol=4e-3 if is_rounded else 2e-6)


@pytest.mark.parametrize("window", [None, 33, 140])
@pytest.mark.parametrize(
    ("head_dim", "dtype"), [(64, torch.bfloat16), (96, torch.bfloat16), (64, torch.int8)]
)
def test_rows_have_the_same_bits_at_any_cut_into_passes_and_threads(
    library: KernelLibrary, window: int | None, head_dim: int, dtype: torch.dtype
) -> None:
    shape = make_shape(head_dim=head_dim)
    storage, queries = make_storage(shape, dtype), queries_for(shape, 310)
    backend, slots = NativeAttention(shape, library), paged_slots(390)
    branch = Branch(np.arange(310), np.arange(80, 390), slots)
    whole = attend(backend, queries, storage, [branch], window)
    for num_threads in (2, 3):
        torch.set_num_threads(num_threads)
        for first, last in ((0, 1), (5, 13), (47, 49), (170, 187), (200, 280), (309, 310)):
            positions = np.arange(80 + first, 80 + last)
            part = Branch(np.arange(last - first), positions, slots[: 80 + last])
            got = attend(backend, queries[first:last], storage, [part], window)
            assert torch.equal(got, whole[first:last]), (num_threads, first, last)


@pytest.mark.parametrize("window", [None, 33])
def test_a_row_has_the_same_bits_alone_and_in_a_prompt_chunk(
    library: KernelLibrary, window: int | None
) -> None:
    shape = make_shape()
    storage, queries = make_storage(shape, torch.bfloat16), queries_for(shape, 150)
    backend = NativeAttention(shape, library)
    branch = Branch(np.arange(150), np.arange(10, 160), scattered_slots(160))
    together = attend(backend, queries, storage, [branch], window)
    assert torch.equal(together, alone(backend, queries, storage, branch, window))


def test_branches_do_not_see_each_other(library: KernelLibrary) -> None:
    shape = make_shape()
    storage, queries = make_storage(shape, torch.bfloat16), queries_for(shape, 9)
    backend = NativeAttention(shape, library)
    first = Branch(np.array([0, 2, 4]), np.array([7, 8, 9]), scattered_slots(10, 1))
    second = Branch(np.array([1, 3, 5, 6, 7, 8]), np.arange(95, 101), scattered_slots(101, 2))
    together = attend(backend, queries, storage, [first, second])
    for branch in (first, second):
        rows = torch.from_numpy(branch.rows)
        assert torch.equal(together[rows], alone(backend, queries, storage, branch))


# In the order of AMX tiles what a row does not see has weight 0, which takes finite numbers to 0;
# values are stored so that they are.
@pytest.mark.parametrize(
    ("dtype", "number"),
    [(torch.float32, torch.nan), (torch.bfloat16, 3e38), (torch.bfloat16, -3e38)],
)
def test_a_key_that_a_row_does_not_see_cannot_harm_it(
    library: KernelLibrary, dtype: torch.dtype, number: float
) -> None:
    shape = make_shape()
    storage, queries = make_storage(shape, dtype), queries_for(shape, 4)
    backend, slots = NativeAttention(shape, library), scattered_slots(44)
    branch = Branch(np.arange(4), np.arange(40, 44), slots)
    before = attend(backend, queries, storage, [branch])
    for tensor in (storage.keys[0], storage.values[0]):
        tensor[int(slots[42])] = number
    after = attend(backend, queries, storage, [branch])
    assert torch.equal(after[:2], before[:2])
    assert not bool((after[2:] == before[2:]).any())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("position", [70, 75, 78])  # before all windows, between them, at an end
def test_a_value_that_is_no_number_harms_those_who_see_it_and_nobody_else(
    library: KernelLibrary, dtype: torch.dtype, position: int
) -> None:
    shape, window = make_shape(), 4
    storage, queries = make_storage(shape, dtype), queries_for(shape, 5)
    backend, slots = NativeAttention(shape, library), scattered_slots(80)
    positions = np.arange(75, 80)
    branch = Branch(np.arange(5), positions, slots)
    before = attend(backend, queries, storage, [branch], window)
    nothing = torch.full((1, shape.kv_heads, shape.head_dim), torch.nan)
    storage.write(0, torch.tensor([int(slots[position])]), nothing, nothing)
    after = attend(backend, queries, storage, [branch], window)
    sees = torch.from_numpy((position <= positions) & (positions < position + window))
    assert after[sees].isnan().all()
    assert torch.equal(after[~sees], before[~sees])


@pytest.mark.parametrize("num_threads", [2, 3])
def test_threads_change_no_bit(library: KernelLibrary, num_threads: int) -> None:
    shape = make_shape()
    storage, queries = make_storage(shape, torch.bfloat16), queries_for(shape, 40)
    backend = NativeAttention(shape, library)
    branch = Branch(np.arange(40), np.arange(40), scattered_slots(40))
    expected = attend(backend, queries, storage, [branch])
    torch.set_num_threads(num_threads)
    assert torch.equal(attend(backend, queries, storage, [branch]), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_heads", "kv_heads"), [(6, 2), (9, 3), (8, 1)])
def test_threads_that_share_few_branches_change_no_bit(
    library: KernelLibrary, dtype: torch.dtype, num_heads: int, kv_heads: int
) -> None:
    shape = make_shape(num_heads, kv_heads)
    storage, queries = make_storage(shape, dtype), queries_for(shape, 9)
    backend = NativeAttention(shape, library)
    rows = np.array_split(np.arange(9), [1, 3])
    branches = [
        Branch(part, np.arange(end - len(part), end), scattered_slots(end, end))
        for part, end in zip(rows, (390, 20, 200), strict=True)
    ]
    expected = attend(backend, queries, storage, branches)
    for num_threads in (2, 3, 7):
        torch.set_num_threads(num_threads)
        assert torch.equal(attend(backend, queries, storage, branches), expected), num_threads


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [16, 64])
def test_backends_of_one_name_agree_to_the_last_bit(
    library: KernelLibrary, head_dim: int, dtype: torch.dtype
) -> None:
    shape = make_shape(head_dim=head_dim)
    storage, queries = make_storage(shape, dtype), queries_for(shape, 60)
    branch = Branch(np.arange(60), np.arange(200, 260), scattered_slots(260))
    backend = NativeAttention(shape, library)
    got = attend(backend, queries, storage, [branch])
    for isa in ("portable", "avx512", "avx512_bf16", "amx"):
        try:
            other = NativeAttention(shape, find_kernels(isa))
        except KernelsUnavailableError:
            continue  # not of this machine
        if other.name == backend.name:
            assert torch.equal(got, attend(other, queries, storage, [branch])), isa


@pytest.mark.parametrize(("count", "head_dim"), [(1, 32), (33, 64), (97, 96), (128, 64)])
def test_a_section_has_the_bits_of_its_twin(
    library: KernelLibrary, count: int, head_dim: int
) -> None:
    shape = make_shape(head_dim=head_dim)
    backend = NativeAttention(shape, library)
    if backend.name != "native-amx":
        pytest.skip("the twin has the order of AMX tiles")
    storage, queries = make_storage(shape, torch.bfloat16), queries_for(shape, 1)
    slots = scattered_slots(count)
    got = attend(
        backend, queries, storage, [Branch(np.zeros(1, np.int64), np.array([count - 1]), slots)]
    )
    keys, values = (part.bfloat16() for part in storage.gather(0, torch.from_numpy(slots)))
    for head, result in enumerate(got.view(shape.num_heads, head_dim)):
        of = head // shape.group_size
        expected = section_twin(queries[:, head], keys[:, of], values[:, of], shape.scale)
        assert torch.equal(result, expected[0]), head


def test_an_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(KernelsUnavailableError, match="neon"):
        KernelLibrary(isa="neon")
