"""Norms, rotary embedding and gates in native kernels against their formulas."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import Tensor

from slipstream.attention.backend import AttentionShape
from slipstream.attention.native import scale_addresses, struct_of
from slipstream.kernels import structs
from slipstream.kernels.library import KernelLibrary
from slipstream.kv.storage import KvStorage


def address(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def random(*shape: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def normalise(library: KernelLibrary, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    out = torch.empty(x.shape, dtype=torch.bfloat16)
    norm = structs.Norm(weight.data_ptr(), eps, len(weight))
    library.functions.sl_normalise(
        library.isa, ctypes.byref(norm), address(x), address(out), len(x)
    )
    return out


def gate(library: KernelLibrary, kind: str, gate_up: Tensor) -> Tensor:
    size = gate_up.shape[1] // 2
    out = torch.empty(len(gate_up), size, dtype=torch.bfloat16)
    library.functions.sl_gate(
        library.isa, structs.GATES[kind], address(gate_up), address(out), size, len(gate_up)
    )
    return out


def assert_one_rounding_apart(got: Tensor, exact: Tensor) -> None:
    """Equal to the exact value rounded to bfloat16, but for ties that float32 decides."""
    assert torch.allclose(got.double(), exact, rtol=2**-8, atol=1e-30)
    assert (got != exact.bfloat16()).double().mean() < 0.01


@pytest.mark.parametrize("size", [576, 48, 37, 5])
def test_a_norm_is_that_of_the_formula(library: KernelLibrary, size: int) -> None:
    x, weight = random(9, size), random(size, seed=1)
    length = (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert_one_rounding_apart(normalise(library, x, weight, 1e-5), x / length * weight.double())


def test_a_row_has_the_same_bits_alone_and_in_company(library: KernelLibrary) -> None:
    x, weight = random(9, 100), random(100, seed=1)
    together = normalise(library, x, weight, 1e-6)
    assert torch.equal(normalise(library, x[4:5].clone(), weight, 1e-6), together[4:5])


@pytest.mark.parametrize("size", [1536, 37])
def test_silu_gates_are_those_of_the_formula(library: KernelLibrary, size: int) -> None:
    gate_up = random(7, 2 * size)
    g, up = gate_up.double().chunk(2, -1)
    assert_one_rounding_apart(gate(library, "silu", gate_up), torch.nn.functional.silu(g) * up)


def test_gelu_gates_are_those_of_the_formula(library: KernelLibrary) -> None:
    gate_up = random(7, 64)
    g, up = gate_up.double().chunk(2, -1)
    expected = torch.nn.functional.gelu(g, approximate="tanh") * up
    got = gate(library, "gelu_tanh", gate_up)
    assert torch.allclose(got.double(), expected, rtol=2**-8, atol=1e-6)


def test_extreme_gates_stay_finite(library: KernelLibrary) -> None:
    gate_up = torch.tensor([[-1e4, -100.0, 100.0, 1e4, 1.0, 1.0, 1.0, 1.0]])
    got = gate(library, "silu", gate_up).float()
    assert got.isfinite().all()
    assert got[0, :2].abs().max() < 1e-30


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_are_stored_rotated_and_values_as_they_are(
    library: KernelLibrary, dtype: torch.dtype
) -> None:
    num_heads, kv_heads, dim, rows = 4, 2, 16, 5
    qkv = random(rows, (num_heads + 2 * kv_heads) * dim)
    before = qkv.view(rows, -1, dim).double()
    angles = random(20, dim // 2, seed=3)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    positions, slots = torch.tensor([3, 4, 5, 9, 19]), torch.tensor([7, 2, 0, 5, 1])
    storage = KvStorage(8, 1, kv_heads, dim, dtype)
    keys, values = storage.keys[0], storage.values[0]
    projection = structs.Projection(
        qkv.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        positions.data_ptr(),
        slots.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
    )
    kv_format = structs.KV_FLOAT32 if dtype == torch.float32 else structs.KV_BFLOAT16
    shape = structs.AttentionShape(num_heads, kv_heads, dim, kv_format, 1.0)
    library.functions.sl_rotate_and_store(
        library.isa, ctypes.byref(projection), ctypes.byref(shape), rows
    )
    first, second = before.chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    at = positions[:, None]
    expected = before * cos[at].double() + turned * sin[at].double()
    after = qkv.view(rows, -1, dim)
    assert torch.allclose(after[:, :num_heads].double(), expected[:, :num_heads], atol=1e-5)
    assert torch.equal(keys[slots], after[:, num_heads : num_heads + kv_heads].to(dtype))
    assert torch.equal(values[slots], before[:, num_heads + kv_heads :].to(dtype))


def store_both_ways(
    library: KernelLibrary, dtype: torch.dtype, qkv: Tensor, num_heads: int, dim: int
) -> list[KvStorage]:
    """Rows of queries, keys and values, stored by the kernels and by the storage itself."""
    rows = len(qkv)
    kv_heads = (qkv.shape[1] // dim - num_heads) // 2
    storages = native, plain = [KvStorage(8, 1, kv_heads, dim, dtype) for _ in range(2)]
    cos, sin = torch.ones(20, dim), torch.zeros(20, dim)
    positions, slots = torch.tensor([3, 4, 5, 9, 19])[:rows], torch.tensor([7, 2, 0, 5, 1])[:rows]
    before = qkv.clone().view(rows, -1, dim)
    tensors = (qkv, cos, sin, positions, slots, native.keys[0], native.values[0])
    projection = structs.Projection(*(tensor.data_ptr() for tensor in tensors))
    projection.key_scales, projection.value_scales = scale_addresses(native, 0)
    shape = struct_of(AttentionShape(num_heads, kv_heads, dim, 1.0), dtype)
    library.functions.sl_rotate_and_store(
        library.isa, ctypes.byref(projection), ctypes.byref(shape), rows
    )
    plain.write(0, slots, before[:, num_heads:-kv_heads], before[:, -kv_heads:])
    return storages


@pytest.mark.parametrize("dim", [16, 24, 64])
def test_int8_codes_are_those_that_the_storage_writes(library: KernelLibrary, dim: int) -> None:
    qkv = random(5, 8 * dim)
    qkv[1] = 0
    qkv[2] *= 1e-30
    native, plain = store_both_ways(library, torch.int8, qkv, 4, dim)
    assert torch.equal(native.keys[0], plain.keys[0])
    assert torch.equal(native.values[0], plain.values[0])
    assert torch.equal(native.key_scales[0], plain.key_scales[0])
    assert torch.equal(native.value_scales[0], plain.value_scales[0])


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf, 3.395e38, 3.398e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_numbers_that_are_not_finite_are_kept_as_the_storage_keeps_them(
    library: KernelLibrary, dtype: torch.dtype, number: float
) -> None:
    dim = 32
    qkv = random(5, 8 * dim)
    qkv[1, 4 * dim + 3] = number  # of the first key
    qkv[2, 7 * dim + 20] = number  # of the second value
    stored = store_both_ways(library, dtype, qkv, 4, dim)
    (keys, values), (other_keys, other_values) = (
        storage.gather(0, torch.arange(8)) for storage in stored
    )
    are_finite = keys.isfinite().all(-1)  # rotation spreads what is not, within a head
    assert torch.equal(are_finite, other_keys.isfinite().all(-1))
    assert torch.equal(keys[are_finite], other_keys[are_finite])
    assert torch.equal(values, other_values)
    assert values.isfinite().all()
    assert values[0, 1].any() == are_finite[0, 1]  # the second value, which is in slot 0
