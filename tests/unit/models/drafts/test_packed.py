"""Draft nets' matrices in native kernels: as stored, side by side, and each by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slipstream.kernels.matrix import PackedMatrix, StoredWeight
from slipstream.models.drafts.load import load_draft
from slipstream.models.drafts.packed import PackedProducts
from slipstream.training.draft_gguf import GgufType, write_draft_gguf
from slipstream.weights.open import open_checkpoint
from tests.support.blocks import random_blocks
from tests.support.drafts import target_hparams, tiny_ends, tiny_net
from tests.support.native import native_kernels

Q, K, V = (f"layers.0.self_attn.{name}_proj" for name in "qkv")


def rows(num_rows: int, num_in: int) -> torch.Tensor:
    return torch.randn(num_rows, num_in, generator=torch.Generator().manual_seed(4))


def test_matrices_that_read_the_same_rows_lie_together_and_keep_their_names() -> None:
    library = native_kernels()
    stored: dict[str, StoredWeight] = {
        f"{Q}.weight": random_blocks("Q8_0", 64, 96),
        f"{K}.weight": random_blocks("Q8_0", 32, 96),
        f"{V}.weight": torch.randn(32, 96).bfloat16(),
        f"{Q}.bias": torch.randn(64),
        f"{K}.bias": torch.randn(32),
        f"{V}.bias": torch.randn(32),
    }
    products = PackedProducts(library, stored)
    x = rows(5, 96)
    joined = products.matrix(Q, K, V)
    assert joined.shape == (128, 96)
    together = joined.multiply(x.bfloat16(), torch.empty(5, 128))
    first = 0
    for name in (Q, K, V):
        weight, bias = stored[f"{name}.weight"], stored[f"{name}.bias"]
        assert isinstance(bias, torch.Tensor)
        alone = PackedMatrix(library, [weight], bias)
        expected = alone.multiply(x.bfloat16(), torch.empty(5, weight.shape[0]))
        assert torch.equal(products(name, x), expected)
        assert torch.equal(together[:, first : first + weight.shape[0]], expected)
        first += weight.shape[0]
    assert products.num_bytes == joined.nbytes


def test_matrices_that_fill_no_whole_tiles_lie_apart() -> None:
    gate, up = "layers.0.mlp.gate_proj", "layers.0.mlp.up_proj"
    weights = {f"{name}.weight": torch.randn(24, 32).bfloat16() for name in (gate, up)}
    products = PackedProducts(native_kernels(), weights)
    with pytest.raises(KeyError):
        products.matrix(gate, up)
    for name in (gate, up):
        expected = rows(3, 32).bfloat16().float() @ weights[f"{name}.weight"].float().T
        assert torch.allclose(products(name, rows(3, 32)), expected, atol=1e-4)


def test_rows_are_read_as_they_are_stored() -> None:
    weight = torch.randn(40, 12).bfloat16()
    products = PackedProducts(native_kernels(), {"markov_head.markov_w1.weight": weight})
    indices = torch.tensor([[3, 39], [0, 3]])
    found = products.rows("markov_head.markov_w1", indices)
    assert torch.equal(found, weight.float()[indices])


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q4_1", "bf16"])
@pytest.mark.parametrize("family", ["eagle3", "dspark"])
def test_a_net_stays_in_the_blocks_that_it_is_stored_in(
    tmp_path: Path, family: str, kind: GgufType
) -> None:
    net = tiny_net(family)
    path = tmp_path / "draft.gguf"
    write_draft_gguf(path, net.hparams, net.parameters, net.draft_token_ids, kind, {})
    target, ends = target_hparams(), tiny_ends()

    exact = load_draft(open_checkpoint(path), target, ends, torch.float32)
    packed = load_draft(open_checkpoint(path), target, ends, torch.bfloat16, native_kernels())

    assert isinstance(packed.products, PackedProducts)
    assert packed.products.matrix("layers.0.mlp.down_proj").formats == (kind.upper(),)
    assert packed.weight_bytes < exact.weight_bytes / 1.5
    for name in ("layers.0.self_attn.o_proj", "layers.0.mlp.up_proj", Q):
        width = exact.parameters[f"{name}.weight"].shape[1]
        expected = exact.products(name, rows(4, width).bfloat16().float())
        assert torch.allclose(packed.products(name, rows(4, width)), expected, atol=0.02), name
