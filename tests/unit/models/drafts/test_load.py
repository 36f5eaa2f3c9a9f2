"""Draft checkpoints: told by their content, read from every layout, refused where unfit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from slipstream.errors import WeightsError
from slipstream.models.drafts.load import AnyDraftNet, describe_checkpoint, load_draft, misfits
from slipstream.weights.open import open_checkpoint
from tests.support.drafts import (
    CONFIGS,
    FAMILIES,
    HIDDEN_SIZE,
    TAPS,
    VOCAB_SIZE,
    speculators_config,
    target_hparams,
    tiny_ends,
    tiny_tensors_of,
    write_draft,
)
from tests.support.gguf_drafts import write_draft_gguf
from tests.support.tiny import write_tiny_checkpoint

EAGLE_DEFAULT_TAPS = (1, 3, 4)  # inputs of layers 2, 8 // 2 and 8 - 3


def write(path: Path, family: str, **changes: Any) -> Path:  # Any: JSON values
    config = CONFIGS[family] | changes
    return write_draft(path, config, tiny_tensors_of(CONFIGS[family]))


def load(path: Path, **target: Any) -> AnyDraftNet:  # Any: the fields of TinySizes
    return load_draft(open_checkpoint(path), target_hparams(**target), tiny_ends(), torch.float32)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_is_read_as_what_its_content_says(tmp_path: Path, family: str) -> None:
    path = write(tmp_path / "any name", family)
    described = describe_checkpoint(open_checkpoint(path))
    assert described is not None
    assert described.layout.family == family

    net = load(path)

    stored = tiny_tensors_of(CONFIGS[family])
    assert torch.equal(net.parameters["fc.weight"], stored["fc.weight"])
    expected = EAGLE_DEFAULT_TAPS if family == "eagle3" else tuple(TAPS)
    assert net.hparams.tap_layer_ids == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_the_speculators_format_holds_the_same_net(tmp_path: Path, family: str) -> None:
    tensors = {
        name.replace("midlayer.", "layers.0."): tensor
        for name, tensor in tiny_tensors_of(CONFIGS[family]).items()
    }
    path = write_draft(tmp_path, speculators_config(family), tensors)
    described = describe_checkpoint(open_checkpoint(path))
    assert described is not None
    assert (described.layout.name, described.layout.family) == ("speculators", family)
    assert described.layout.target_name == "someone/target"
    expected = EAGLE_DEFAULT_TAPS if family == "eagle3" else tuple(TAPS)
    assert load(path).hparams.tap_layer_ids == expected


@pytest.mark.parametrize(
    ("family", "layout"),
    [("eagle3", "SafeAILab"), ("dflash", "z-lab"), ("dflash2", "z-lab"), ("dspark", "DeepSpec")],
)
def test_the_layout_is_named(tmp_path: Path, family: str, layout: str) -> None:
    described = describe_checkpoint(open_checkpoint(write(tmp_path, family)))
    assert described is not None
    assert described.layout.name == layout


def test_a_specforge_dspark_keeps_everything_in_one_section(tmp_path: Path) -> None:
    moved = ["mask_token_id", "target_layer_ids", "markov_rank", "markov_head_type"]
    moved += ["enable_confidence_head", "confidence_head_with_markov"]
    flat = CONFIGS["dspark"]
    section = {name: flat[name] for name in moved} | {"projector_type": "dspark"}
    config = {name: value for name, value in flat.items() if name not in moved}
    config |= {"architectures": ["DSparkDraftModel"], "dflash_config": section}
    path = write_draft(tmp_path, config, tiny_tensors_of(flat))
    described = describe_checkpoint(open_checkpoint(path))
    assert described is not None
    assert (described.layout.name, described.layout.family) == ("SpecForge", "dspark")
    assert load(path).hparams.first_draft_row == 0


def test_a_dspark_without_a_markov_head_is_told_from_dflash(tmp_path: Path) -> None:
    changes = {"markov_rank": 0, "enable_confidence_head": False}
    changes |= {"confidence_head_with_markov": False}
    config = CONFIGS["dspark"] | changes
    net = load(write_draft(tmp_path, config, tiny_tensors_of(config)))
    assert (net.hparams.first_draft_row, net.hparams.max_draft_len) == (0, 4)


def test_a_prefix_before_every_name_does_not_matter(tmp_path: Path) -> None:
    tensors = {
        f"model.{name}": tensor for name, tensor in tiny_tensors_of(CONFIGS["dflash"]).items()
    }
    assert load(write_draft(tmp_path, CONFIGS["dflash"], tensors)).hparams.num_taps == 3


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_file_holds_the_same_net(tmp_path: Path, family: str) -> None:
    expected = load(write(tmp_path / "folder", family))

    net = load(write_draft_gguf(tmp_path / "draft.gguf", family))

    assert net.hparams == expected.hparams
    assert net.parameters.keys() == expected.parameters.keys()
    for name, tensor in expected.parameters.items():
        assert torch.equal(net.parameters[name], tensor), name
    assert torch.equal(net.target_token_ids(), expected.target_token_ids())


def test_an_ordinary_model_is_no_drafter(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny_checkpoint(tmp_path))
    assert describe_checkpoint(checkpoint) is None
    with pytest.raises(WeightsError, match="holds no drafter"):
        load_draft(checkpoint, target_hparams(), tiny_ends(), torch.float32)


def test_the_rotary_base_of_eagle_is_not_the_targets(tmp_path: Path) -> None:
    (layer,) = load(write(tmp_path, "eagle3")).hparams.body.layers
    assert layer.rotary.theta == 10000.0


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"hidden_size": 128, "num_heads": 8}, "taps have 64 values, the target's states 128"),
        ({"vocab_size": 300}, "vocabulary has 320 tokens, the target's 300"),
        ({"num_layers": 6}, "made for a target of 8 layers, this one has 6"),
        ({"num_layers": 4}, "taps layers [5], the target has layers 0 to 3"),
    ],
)
def test_a_drafter_of_another_target_is_refused(
    tmp_path: Path, target: dict[str, int], words: str
) -> None:
    path = write(tmp_path, "dflash")
    checkpoint = open_checkpoint(path)
    described = describe_checkpoint(checkpoint)
    assert described is not None
    other = target_hparams(**{key: value for key, value in target.items() if key != "num_layers"})
    if "num_layers" in target:
        other = replace(other, layers=other.layers[: target["num_layers"]])
    assert any(words in problem for problem in misfits(described, other))
    with pytest.raises(WeightsError, match=re.escape(words)) as caught:
        load_draft(checkpoint, other, tiny_ends(), torch.float32)
    assert caught.value.hint is not None


def test_eagle_for_a_shallow_target_is_refused(tmp_path: Path) -> None:
    shallow = replace(target_hparams(), layers=target_hparams().layers[:4])
    checkpoint = open_checkpoint(write(tmp_path, "eagle3"))
    with pytest.raises(WeightsError, match="taps a layer twice"):
        load_draft(checkpoint, shallow, tiny_ends(), torch.float32)


def test_a_tensor_that_nothing_reads_is_named(tmp_path: Path) -> None:
    tensors = tiny_tensors_of(CONFIGS["dflash"]) | {"extra.weight": torch.zeros(2)}
    path = write_draft(tmp_path, CONFIGS["dflash"], tensors)
    with pytest.raises(WeightsError, match=r"extra\.weight"):
        load(path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = tiny_tensors_of(CONFIGS["dflash"])
    del tensors["layers.1.mlp.up_proj.weight"]
    with pytest.raises(WeightsError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        load(write_draft(tmp_path, CONFIGS["dflash"], tensors))


def test_a_tensor_of_the_wrong_shape_is_named(tmp_path: Path) -> None:
    tensors = tiny_tensors_of(CONFIGS["dflash"])
    tensors["norm.weight"] = torch.ones(HIDDEN_SIZE + 1)
    with pytest.raises(WeightsError, match=r"norm\.weight has shape \[65\]"):
        load(write_draft(tmp_path, CONFIGS["dflash"], tensors))


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("dflash", {"something_new": 3}, "something_new"),
        ("dflash", {"block_size": 1}, "block_size = 1"),
        ("dflash", {"model_type": "gemma4"}, "gemma4"),
        ("dflash", {"dflash_config": {"mask_token_id": 999, "target_layer_ids": TAPS}}, "999"),
        ("dflash", {"dflash_config": {"mask_token_id": 3, "target_layer_ids": [1] * 5}}, "192"),
        ("dflash", {"dflash_config": {"block_size": 7, "mask_token_id": 3}}, "block_size = 5"),
        ("dflash", {"use_swa": True, "swa_window_size": 3}, "less than a block"),
        ("dspark", {"markov_head_type": "other"}, "other"),
        ("dspark", {"markov_rank": 0}, "markov_rank = 0"),
        ("dflash2", {"is_neox_style": False}, "is_neox_style"),
        ("eagle3", {"draft_vocab_size": 500}, "500"),
        ("eagle3", {"fc_norm": True}, "fc_norm"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused(
    tmp_path: Path, family: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(WeightsError, match=words):
        load(write(tmp_path, family, **changes))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("prefix_gru.weight_ih_l0", "Domino"),
        ("lilicorr.w", "LiLiCorr"),
        ("mask_hidden", "P-EAGLE"),
    ],
)
def test_a_relative_that_is_not_supported_is_called_by_its_name(
    tmp_path: Path, name: str, family: str
) -> None:
    tensors = tiny_tensors_of(CONFIGS["dflash"]) | {name: torch.zeros(2)}
    path = write_draft(tmp_path, CONFIGS["dflash"], tensors)
    with pytest.raises(WeightsError, match=family):
        describe_checkpoint(open_checkpoint(path))


def change_d2t(tensors: dict[str, Tensor], index: int, value: int) -> dict[str, Tensor]:
    tensors["d2t"][index] = value
    return tensors


@pytest.mark.parametrize(
    ("index", "offset", "words"),
    [(5, VOCAB_SIZE, "outside the vocabulary"), (1, 0, "twice"), (95, 100, "disagree")],
)
def test_a_map_of_draft_tokens_that_is_wrong_is_refused(
    tmp_path: Path, index: int, offset: int, words: str
) -> None:
    tensors = change_d2t(tiny_tensors_of(CONFIGS["eagle3"]), index, offset)
    with pytest.raises(WeightsError, match=words):
        load(write_draft(tmp_path, CONFIGS["eagle3"], tensors))


def test_a_map_of_target_ids_in_the_place_of_offsets_is_called_so(tmp_path: Path) -> None:
    tensors = tiny_tensors_of(CONFIGS["eagle3"])
    tensors["d2t"] += torch.arange(len(tensors["d2t"]))
    with pytest.raises(WeightsError, match="outside the vocabulary") as caught:
        load(write_draft(tmp_path, CONFIGS["eagle3"], tensors))
    assert caught.value.hint is not None
    assert "it holds target ids, and this layout stores offsets" in caught.value.hint


def test_a_reduced_vocabulary_needs_its_map(tmp_path: Path) -> None:
    tensors = tiny_tensors_of(CONFIGS["eagle3"])
    del tensors["d2t"]
    with pytest.raises(WeightsError, match="it lacks d2t"):
        load(write_draft(tmp_path, CONFIGS["eagle3"], tensors))
