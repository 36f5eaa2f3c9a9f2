"""GGUF files of families with special parts give the logits of the checkpoints they are from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slipstream.audit.paged_sequence import PagedSequence
from slipstream.errors import WeightsError
from slipstream.execution.runner import Runner
from slipstream.kernels.library import KernelLibrary
from slipstream.kv.cache import KvCache
from slipstream.kv.states import StatePool
from slipstream.models.load import load_model, read_hparams
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.gguf_reader import read_gguf
from slipstream.weights.open import open_checkpoint
from slipstream.weights.summary import summarize
from tests.support.gguf_families import ARCHITECTURES, write_family_gguf
from tests.support.native import native_kernels
from tests.support.tiny_families import CONFIGS, VOCAB_SIZE, write_tiny_family

pytestmark = pytest.mark.usefixtures("one_thread")

# llama.cpp keeps one factor of the two that DeepSeek's YaRN has.
YARN = CONFIGS["deepseek_v3"]["rope_scaling"] | {"mscale": 0.8}
WHOLE_BLOCKS: dict[str, dict[str, Any]] = {  # rows of whole blocks of 32
    "deepseek_v3": {
        "kv_lora_rank": 32,
        "q_lora_rank": 32,
        "qk_nope_head_dim": 32,
        "v_head_dim": 16,
        "moe_intermediate_size": 32,
        "intermediate_size": 64,
    },
    "qwen3_next": {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
}


def write_family(path: Path, family: str, **changes: Any) -> Path:
    if family == "deepseek_v3":
        changes = {"rope_scaling": YARN} | changes
    return write_tiny_family(path, family, seed=3, **changes)


def logits_of(
    path: Path, dtype: torch.dtype = torch.float32, kernels: KernelLibrary | None = None
) -> Tensor:
    """Of one text, prompt and then a row at a time."""
    model = load_model(open_checkpoint(path), dtype, kernels=kernels)
    shape = model.hparams.state_shape
    states = None if shape is None else StatePool(2, 64, 0)
    kv = KvCache(16, 4, states=states)
    storage = model.hparams.kv_shape.storage(kv.num_slots, dtype)
    storage.states = None if shape is None else shape.storage(2, 0)
    sequence = PagedSequence(Runner(model, storage), kv, "text")
    tokens = np.random.default_rng(0).integers(VOCAB_SIZE, size=24).tolist()
    parts = [sequence.extend(tokens[:20]).logits]
    parts += [sequence.extend([token]).logits for token in tokens[20:]]
    return torch.cat(parts)


@pytest.mark.parametrize("family", ARCHITECTURES)
@pytest.mark.parametrize("is_old", [False, True], ids=["new", "old"])
def test_logits_are_those_of_the_checkpoint(tmp_path: Path, family: str, is_old: bool) -> None:
    path = write_family(tmp_path / "folder", family)
    file = write_family_gguf(tmp_path / "model.gguf", path, is_old=is_old)

    torch.testing.assert_close(logits_of(file), logits_of(path), atol=2e-4, rtol=2e-4)


def test_latent_attention_without_a_rank_of_queries_is_read(tmp_path: Path) -> None:
    path = write_family(tmp_path / "folder", "deepseek_v3", q_lora_rank=None)
    file = write_family_gguf(tmp_path / "model.gguf", path, extra={"attention.q_lora_rank": 0})

    torch.testing.assert_close(logits_of(file), logits_of(path), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe"])
def test_gates_and_rows_into_experts_may_be_one_tensor(tmp_path: Path, family: str) -> None:
    path = write_family(tmp_path / "folder", family)
    file = write_family_gguf(tmp_path / "model.gguf", path, is_fused=True)

    torch.testing.assert_close(logits_of(file), logits_of(path), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("matrix_type", ["Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("family", WHOLE_BLOCKS)
def test_blocks_of_every_expert_are_multiplied_as_stored(
    tmp_path: Path, family: str, matrix_type: str
) -> None:
    path = write_family(tmp_path / "folder", family, **WHOLE_BLOCKS[family])
    file = write_family_gguf(tmp_path / "model.gguf", path, matrix_type=matrix_type)
    kernels = native_kernels()
    model = load_model(open_checkpoint(file), torch.bfloat16, kernels=kernels)

    exact, native = logits_of(file), logits_of(file, torch.bfloat16, kernels)

    assert matrix_type in model.linear_kinds()
    # A row whose router is undecided may go through another expert in bfloat16.
    errors = (native - exact).square().mean(-1).sqrt()
    assert errors.median() < 0.1 * exact.std()


@pytest.mark.parametrize("matrix_type", ["F16", "BF16"])
def test_half_precision_is_read(tmp_path: Path, matrix_type: str) -> None:
    path = write_family(tmp_path / "folder", "qwen3_5_moe", dtype=torch.bfloat16)
    file = write_family_gguf(tmp_path / "model.gguf", path, matrix_type=matrix_type)

    torch.testing.assert_close(logits_of(file), logits_of(path), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_a_head_is_left_unread_under_its_public_names(tmp_path: Path, family: str) -> None:
    path = write_family(tmp_path / "folder", family)
    plain = write_family_gguf(tmp_path / "plain.gguf", path)
    file = write_family_gguf(tmp_path / "model.gguf", path, has_head=True)
    checkpoint = open_checkpoint(file)

    torch.testing.assert_close(logits_of(file), logits_of(plain), atol=0.0, rtol=0.0)
    assert checkpoint.config["num_hidden_layers"] == 3
    is_deepseek = family == "deepseek_v3"
    start = "model.layers.3." if is_deepseek else "mtp."
    own = [name for name in checkpoint.names() if name.startswith(start)]
    wanted = {"eh_proj", "enorm", "hnorm", "shared_head.norm", "self_attn.o_proj"}
    if not is_deepseek:
        wanted = {"fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"}
        wanted |= {"layers.0.self_attn.q_proj", "layers.0.input_layernorm"}
    assert wanted <= {name.removeprefix(start).removesuffix(".weight") for name in own}
    assert sum(summarize(file).unserved.values()) == len(own)


def test_norms_of_a_head_are_zero_centred_as_in_public_files(tmp_path: Path) -> None:
    path = write_family(tmp_path / "folder", "qwen3_5")
    checkpoint = open_checkpoint(write_family_gguf(tmp_path / "model.gguf", path, has_head=True))

    of_the_head = checkpoint.take("mtp.layers.0.input_layernorm.weight")

    assert torch.equal(of_the_head, checkpoint.take("model.layers.2.input_layernorm.weight"))


def opened(tmp_path: Path, family: str, **extra: Any) -> Checkpoint:
    path = write_family(tmp_path / "folder", family)
    return open_checkpoint(write_family_gguf(tmp_path / "model.gguf", path, extra=extra))


def test_softmax_routing_of_older_deepseeks_is_refused(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, "deepseek_v3", expert_gating_func=1)

    with pytest.raises(WeightsError, match="scoring_func = 'softmax'"):
        read_hparams(checkpoint.config)


def test_an_unknown_gating_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="expert_gating_func = 7"):
        opened(tmp_path, "deepseek_v3", expert_gating_func=7)


def test_a_file_of_heads_alone_is_no_target(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="leaves the decoder no layer"):
        opened(tmp_path, "qwen3_5", nextn_predict_layers=3)


def test_decays_that_are_not_negative_are_refused(tmp_path: Path) -> None:
    path = write_family(tmp_path / "folder", "qwen3_5")
    file = write_family_gguf(tmp_path / "model.gguf", path)
    checkpoint = open_checkpoint(_with_positive_decays(file))

    with pytest.raises(WeightsError, match=r"blk\.0\.ssm_a.*must be negative"):
        checkpoint.take("model.layers.0.linear_attn.A_log")


def _with_positive_decays(file: Path) -> Path:
    tensor = read_gguf(file).tensors["blk.0.ssm_a"]
    data = bytearray(file.read_bytes())
    data[tensor.offset : tensor.offset + tensor.num_bytes] = bytes(tensor.num_bytes)
    changed = file.with_name("changed.gguf")
    changed.write_bytes(data)
    return changed
