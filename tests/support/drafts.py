"""Tiny random draft nets and checkpoints, in the layouts of the published ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from slipstream.models.drafts.hparams import DraftHparams
from slipstream.models.drafts.initial import initial_parameters
from slipstream.models.drafts.load import AnyDraftNet, net_class_of, with_taps
from slipstream.models.drafts.parts import StoredEnds
from slipstream.models.drafts.read import describe_draft
from slipstream.models.hparams import Hparams
from slipstream.models.load import read_hparams
from tests.support.tiny import TinySizes, tiny_config

Json = dict[str, Any]  # Any: JSON

VOCAB_SIZE, HIDDEN_SIZE, NUM_TARGET_LAYERS = 320, 64, 8
MASK_ID = 319
TAPS = [1, 3, 5]

_BODY: Json = {
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB_SIZE,
    "hidden_act": "silu",
    "torch_dtype": "float32",
}
_BLOCK: Json = {
    **_BODY,
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "num_target_layers": NUM_TARGET_LAYERS,
    "rope_theta": 10000.0,
}
CONFIGS: dict[str, Json] = {
    "eagle3": {
        **_BODY,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": 96,
    },
    "dflash": {
        **_BLOCK,
        "architectures": ["DFlashDraftModel"],
        "block_size": 5,
        "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": TAPS},
    },
    "dflash2": {
        **_BLOCK,
        "architectures": ["DFlash2DraftModel"],
        "is_causal": False,
        "dflash_config": {
            "block_size": 5,
            "mask_token_id": MASK_ID,
            "target_layer_ids": TAPS,
            "conv_kernel_size": 2,
            "conv_group_size": 8,
            "selector_rank": 12,
            "selector_top_k": 6,
        },
    },
    "dspark": {
        **_BLOCK,
        "architectures": ["Qwen3DSparkModel"],
        "block_size": 4,
        "mask_token_id": MASK_ID,
        "target_layer_ids": TAPS,
        "markov_rank": 12,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    },
}
FAMILIES = tuple(CONFIGS)


def target_hparams(**sizes: Any) -> Hparams:  # Any: the fields of TinySizes
    """Of a target that the tiny drafts are made for."""
    shape = replace(TinySizes(), num_layers=NUM_TARGET_LAYERS, **sizes)
    return read_hparams(tiny_config("llama", shape, torch.float32))


def tiny_ends(vocab_size: int = VOCAB_SIZE) -> StoredEnds:
    """Embeddings and head of such a target."""
    generator = torch.Generator().manual_seed(1)
    shape = (vocab_size, HIDDEN_SIZE)
    return StoredEnds(*(torch.randn(shape, generator=generator) * 0.3 for _ in range(2)))


def tiny_hparams(config: Json) -> DraftHparams:
    """What a config.json with the tensors that it implies is read as, taps resolved."""
    described = describe_draft(config, _shapes(config))
    assert described is not None
    return with_taps(described.hparams, NUM_TARGET_LAYERS)


def random_parameters(hparams: DraftHparams, seed: int = 0) -> dict[str, Tensor]:
    """Parameters of which none is trivial."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor + torch.randn(tensor.shape, generator=generator) * 0.15
        for name, tensor in initial_parameters(hparams, generator).items()
    }


def tiny_net(
    family: str,
    changes: Json | None = None,
    parameters: dict[str, Tensor] | None = None,
) -> AnyDraftNet:
    """A random net of a family, float32.

    Args:
        changes: Fields of config.json that differ.
        parameters: Instead of random ones.
    """
    hparams = tiny_hparams(CONFIGS[family] | (changes or {}))
    token_ids = draft_token_ids(hparams)
    weights = random_parameters(hparams) if parameters is None else parameters
    ends = tiny_ends(hparams.body.vocab_size)
    return net_class_of(hparams)(hparams, weights, ends, token_ids)


def draft_token_ids(hparams: DraftHparams) -> Tensor | None:
    """Every third token, where the vocabulary is reduced."""
    return torch.arange(hparams.draft_vocab_size) * 3 + 1 if hparams.is_reduced else None


def tiny_tensors_of(config: Json) -> dict[str, Tensor]:
    """The tensors of a checkpoint under their published names."""
    hparams = tiny_hparams(config)
    tensors = random_parameters(hparams)
    token_ids = draft_token_ids(hparams)
    if token_ids is not None:
        tensors["d2t"] = token_ids - torch.arange(len(token_ids))
        tensors["t2d"] = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
        tensors["t2d"][token_ids] = True
    if "draft_vocab_size" in config and "speculators_model_type" not in config:
        tensors = {
            name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()
        }
    return tensors


def write_draft(path: Path, config: Json, tensors: dict[str, Tensor]) -> Path:
    """Write config.json and model.safetensors to `path`, and return it."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors")
    return path


def speculators_config(family: str) -> Json:
    """The same net as `CONFIGS[family]` in the `speculators` format."""
    flat = {**CONFIGS[family], **CONFIGS[family].get("dflash_config", {})}
    body_names = (*_BODY, "model_type", "num_hidden_layers", "rope_theta")
    skipped = ("architectures", "dflash_config", "num_target_layers", "target_layer_ids")
    own = {key: value for key, value in flat.items() if key not in (*body_names, *skipped)}
    if family == "eagle3":
        own["eagle_aux_hidden_state_layer_ids"] = [2, 4, 5]
    else:
        own["aux_hidden_state_layer_ids"] = [layer + 1 for layer in TAPS]
        own["draft_vocab_size"] = VOCAB_SIZE
    return {
        "speculators_model_type": family,
        "speculators_version": "0.5.0",
        "architectures": ["Eagle3Speculator" if family == "eagle3" else "DFlashSpeculator"],
        "speculators_config": {
            "algorithm": family,
            "verifier": {"name_or_path": "someone/target", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": {key: flat[key] for key in body_names if key in flat},
        **own,
    }


def _shapes(config: Json) -> dict[str, tuple[int, ...]]:
    """Names and widths from which a family is told; sizes that are read from the config are 1."""
    family = next(
        (name for name in ("dflash2", "dspark", "dflash") if _is_of(config, name)), "eagle3"
    )
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (HIDDEN_SIZE, 3 * HIDDEN_SIZE)}
    if family == "eagle3":
        return shapes | {
            "layers.0.hidden_norm.weight": (1,),
            "lm_head.weight": (1, 1),
            "d2t": (1,),
        }
    shapes |= {"hidden_norm.weight": (1,), "layers.0.self_attn.q_norm.weight": (1,)}
    if family == "dflash2":
        shapes["candidate_selector.predecessor_codebook"] = (1, 1)
    return shapes


def _is_of(config: Json, family: str) -> bool:
    names = [*config.get("architectures", []), config.get("speculators_model_type", "")]
    return any(family in str(name).lower() for name in names)
