"""What a draft checkpoint says of itself is honoured or refused: nothing in it goes unheard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from slipstream.errors import WeightsError
from slipstream.models.drafts.hparams import DraftHparams
from slipstream.models.drafts.load import load_draft
from slipstream.weights.open import open_checkpoint
from tests.support.drafts import (
    CONFIGS,
    HIDDEN_SIZE,
    MASK_ID,
    TAPS,
    VOCAB_SIZE,
    Json,
    speculators_config,
    target_hparams,
    tiny_ends,
    tiny_tensors_of,
    write_draft,
)

INPUTS = [layer + 1 for layer in TAPS]
SECTION = {"mask_token_id": MASK_ID, "target_layer_ids": TAPS}
WINDOW = {"use_sliding_window": True, "sliding_window": 16}
MODELOPT = {
    "eagle_aux_hidden_state_layer_ids": INPUTS,
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "parallel_draft_heads_num_layers": None,
    "has_lm_head": True,
}


def read(path: Path, config: Json, tensors: dict[str, Tensor]) -> DraftHparams:
    write_draft(path, config, tensors)
    net = load_draft(open_checkpoint(path), target_hparams(), tiny_ends(), torch.float32)
    hparams: DraftHparams = net.hparams
    return hparams


def read_changed(path: Path, family: str, **changes: Any) -> DraftHparams:  # Any: JSON values
    return read(path, CONFIGS[family] | changes, tiny_tensors_of(CONFIGS[family]))


def test_what_modelopt_says_of_every_eagle_net_is_understood(tmp_path: Path) -> None:
    hparams = read_changed(tmp_path, "eagle3", eagle_config=MODELOPT)
    assert hparams.tap_layer_ids == tuple(TAPS)


@pytest.mark.parametrize(
    "name", ["use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm"]
)
def test_a_part_that_is_switched_off_is_not_computed_all_the_same(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(WeightsError, match=f"{name} = False; it must be True"):
        read_changed(tmp_path, "eagle3", eagle_config={name: False})


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("eagle3", {"use_qk_norm": True}, "use_qk_norm = true, but there is no tensor"),
        ("dflash", {"use_qk_norm": False}, "use_qk_norm = false, but there is a tensor"),
        ("dflash", {"has_embed_tokens": True}, "no tensor embed_tokens"),
    ],
)
def test_a_field_that_contradicts_the_tensors_is_refused(
    tmp_path: Path, family: str, changes: Json, words: str
) -> None:
    with pytest.raises(WeightsError, match=words):
        read_changed(tmp_path, family, **changes)


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        (
            "eagle3",
            {"aux_hidden_state_layer_ids": [2, 3, 4], "target_layer_ids": [2, 3, 4]},
            r"outputs of layers \[1, 2, 3\]; by another field .* \[2, 3, 4\]",
        ),
        (
            "eagle3",
            {"aux_hidden_state_layer_ids": INPUTS, "eagle_aux_hidden_state_layer_ids": [2, 3, 4]},
            r"by another field .* \[1, 2, 3\]",
        ),
        ("dflash", {"aux_hidden_state_layer_ids": TAPS}, r"by another field .* \[1, 3, 5\]"),
        (
            "dflash",
            {"is_causal": False, "dflash_config": SECTION | {"causal": True}},
            "is_causal = false and, in dflash_config, causal = true",
        ),
    ],
)
def test_two_fields_that_contradict_each_other_are_refused(
    tmp_path: Path, family: str, changes: Json, words: str
) -> None:
    with pytest.raises(WeightsError, match=words) as caught:
        read_changed(tmp_path, family, **changes)
    assert caught.value.hint is not None


def test_layers_named_twice_in_both_ways_of_counting_are_one_list(tmp_path: Path) -> None:
    hparams = read_changed(tmp_path, "dflash", aux_hidden_state_layer_ids=INPUTS)
    assert hparams.tap_layer_ids == tuple(TAPS)


def test_eagle_with_more_states_than_its_rule_names_must_name_them(tmp_path: Path) -> None:
    tensors = tiny_tensors_of(CONFIGS["eagle3"])
    tensors["fc.weight"] = torch.zeros(HIDDEN_SIZE, 5 * HIDDEN_SIZE)
    config = CONFIGS["eagle3"] | {"target_hidden_size": HIDDEN_SIZE}
    with pytest.raises(WeightsError, match="reads 5 states of 64 values"):
        read(tmp_path / "unnamed", config, tensors)

    named = config | {"target_layer_ids": [0, 1, 2, 3, 4], "num_aux_hidden_states": 5}
    assert read(tmp_path / "named", named, tensors).num_taps == 5


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"max_window_layers": 0}, [16, 16]),
        ({"max_window_layers": 1}, [None, 16]),
        ({"max_window_layers": 28}, [None, None]),
        ({}, [None, None]),
        ({"layer_types": ["sliding_attention", "full_attention"]}, [16, None]),
    ],
)
def test_layers_slide_from_the_one_that_the_configuration_names(
    tmp_path: Path, changes: Json, windows: list[int | None]
) -> None:
    """As transformers' Qwen3 has it, whose fields these are."""
    hparams = read_changed(tmp_path, "dflash", **WINDOW, **changes)
    assert [layer.window for layer in hparams.body.layers] == windows


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("dflash", {"dflash_config": "none"}, "dflash_config = 'none'; it must be an object"),
        ("dspark", {"dflash_config": [1]}, r"dflash_config = \[1\]; it must be an object"),
        ("dspark", {"architectures": "Qwen3DSparkModel"}, "it must be a list of names"),
        ("eagle3", {"architectures": 3}, "it must be a list of names"),
        ("eagle3", {"aux_hidden_state_layer_ids": [True, 3, 4]}, "must be a list of layers"),
    ],
)
def test_a_field_of_another_type_is_called_so(
    tmp_path: Path, family: str, changes: Json, words: str
) -> None:
    with pytest.raises(WeightsError, match=words):
        read_changed(tmp_path, family, **changes)


def test_what_the_speculators_wrapper_says_of_itself_is_not_the_nets(tmp_path: Path) -> None:
    """Its own model_type, its training, and nulls in the place of what the body says."""
    own = {"model_type": "speculator_model", "max_anchors": 256, "hidden_act": None}
    config = speculators_config("dflash") | own
    tensors = tiny_tensors_of(CONFIGS["dflash"])
    assert read(tmp_path, config, tensors).tap_layer_ids == tuple(TAPS)


def test_a_mask_with_an_embedding_of_its_own_is_not_given_the_targets(tmp_path: Path) -> None:
    (tmp_path / "mask_embedding.pt").write_bytes(b"pickled")
    with pytest.raises(WeightsError, match="embedding for the mask token"):
        read_changed(tmp_path, "dflash")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool], ids=str)
def test_ids_of_draft_tokens_that_were_cast_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = tiny_tensors_of(CONFIGS["eagle3"])
    tensors["d2t"] = tensors["d2t"].to(dtype)
    with pytest.raises(WeightsError, match="must be int32 or int64"):
        read(tmp_path, CONFIGS["eagle3"], tensors)


def test_ids_of_draft_tokens_may_be_short_integers(tmp_path: Path) -> None:
    tensors = tiny_tensors_of(CONFIGS["eagle3"])
    tensors["d2t"] = tensors["d2t"].int()
    assert read(tmp_path, CONFIGS["eagle3"], tensors).draft_vocab_size < VOCAB_SIZE
