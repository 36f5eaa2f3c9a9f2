"""Trained draft nets as checkpoints: in our layout, and in that of `speculators`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from slipstream.models.drafts.hparams import (
    DFlash2Hparams,
    DFlashHparams,
    DraftHparams,
    DSparkHparams,
    Eagle3Hparams,
    MtpHparams,
    family_of,
)
from slipstream.models.identity import TargetIdentity
from slipstream.training.run_folder import write_json

Json = dict[str, Any]  # Any: JSON

_ARCHITECTURES = {
    "eagle3": "LlamaForCausalLMEagle3",
    "mtp": "LlamaForCausalLM",
    "dflash": "DFlashDraftModel",
    "dflash2": "DFlash2DraftModel",
    "dspark": "Qwen3DSparkModel",
}
_SPECULATORS_NAMES = {
    "eagle3": "Eagle3Speculator",
    "dflash": "DFlashSpeculator",
    "dflash2": "DFlash2Speculator",
    "dspark": "DSparkSpeculator",
}


def write_draft_folder(
    path: Path,
    config: Json,
    parameters: Mapping[str, Tensor],
    token_ids: Tensor | None,
    dtype: torch.dtype,
) -> None:
    """Write config.json and model.safetensors.

    Args:
        config: Of one of the layouts below.
        token_ids: [draft_vocab] int64 target id of each of the draft's tokens; None if it knows
            all.
        dtype: In which matrices are stored; norms are stored in it too.
    """
    path.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().to(dtype).contiguous() for name, tensor in parameters.items()}
    if token_ids is not None:
        is_known = torch.zeros(config_vocab_size(config), dtype=torch.bool)
        is_known[token_ids] = True
        tensors["d2t"] = token_ids - torch.arange(len(token_ids))
        tensors["t2d"] = is_known
    write_json(path / "config.json", config)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})


def our_config(hparams: DraftHparams, target: TargetIdentity, dtype: torch.dtype) -> Json:
    """config.json of a net as `load_draft` reads it: DeepSpec's, z-lab's and SpecForge's fields."""
    family = family_of(hparams)
    config: Json = {
        "architectures": [_ARCHITECTURES[family]],
        **_body(hparams),
        "torch_dtype": str(dtype).removeprefix("torch."),
        "num_target_layers": target.num_layers,
    }
    if isinstance(hparams, MtpHparams):
        return _mtp(config, target)
    taps = list(hparams.tap_layer_ids or ())
    match hparams:
        case Eagle3Hparams():
            config["eagle_aux_hidden_state_layer_ids"] = [layer + 1 for layer in taps]
        case DSparkHparams():
            config |= _block(hparams) | _dspark(hparams) | {"target_layer_ids": taps}
        case DFlashHparams():
            config["dflash_config"] = {**_block(hparams), "target_layer_ids": taps}
            config["is_causal"] = False
    if isinstance(hparams, DFlash2Hparams):
        config["dflash_config"] |= _dflash2(hparams)
    return config


def speculators_config(
    hparams: DraftHparams, target: TargetIdentity, target_source: str, dtype: torch.dtype
) -> Json:
    """config.json of the `speculators` format.

    Args:
        target_source: Name under which a server finds the target.
    """
    family = family_of(hparams)
    config: Json = {
        "architectures": [_SPECULATORS_NAMES[family]],
        "speculators_model_type": family,
        "speculators_config": {
            "algorithm": family,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": _max_draft_len(hparams)}
            ],
            "verifier": {"name_or_path": target_source, "architectures": []},
        },
        "transformer_layer_config": _body(hparams),
        "torch_dtype": str(dtype).removeprefix("torch."),
        "draft_vocab_size": hparams.draft_vocab_size,
        "target_hidden_size": hparams.target_hidden_size,
    }
    outputs = [layer + 1 for layer in hparams.tap_layer_ids or ()]
    if isinstance(hparams, Eagle3Hparams):
        config |= {
            "eagle_aux_hidden_state_layer_ids": outputs,
            "norm_before_residual": hparams.has_normed_residual,
            "norm_before_fc": hparams.has_input_norm,
        }
    else:
        config["aux_hidden_state_layer_ids"] = outputs
    if isinstance(hparams, DFlashHparams):
        config |= _block(hparams) | {"sample_from_anchor": hparams.first_draft_row == 0}
    if isinstance(hparams, DFlash2Hparams):
        config |= _dflash2(hparams)
    if isinstance(hparams, DSparkHparams):
        config |= _dspark(hparams)
    return config


def config_vocab_size(config: Json) -> int:
    """The target's vocabulary, in either layout."""
    return int(config.get("transformer_layer_config", config)["vocab_size"])


def _max_draft_len(hparams: DraftHparams) -> int:
    return hparams.max_draft_len if isinstance(hparams, DFlashHparams) else 3


def _mtp(config: Json, target: TargetIdentity) -> Json:
    """A decoder as deep as the target, with a head behind it and nothing else in its file."""
    del config["num_target_layers"]
    return config | {"num_hidden_layers": target.num_layers, "mtp_num_hidden_layers": 1}


def _body(hparams: DraftHparams) -> Json:
    body = hparams.body
    return {
        "model_type": "llama" if isinstance(hparams, Eagle3Hparams) else "qwen3",
        "hidden_size": body.hidden_size,
        "intermediate_size": body.intermediate_size,
        "num_hidden_layers": body.num_layers,
        "num_attention_heads": body.num_heads,
        "num_key_value_heads": body.kv_heads,
        "head_dim": body.head_dim,
        "max_position_embeddings": body.max_positions,
        "rms_norm_eps": body.norm_eps,
        "rope_theta": body.layers[0].rotary.theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "vocab_size": body.vocab_size,
        "draft_vocab_size": hparams.draft_vocab_size,
        "tie_word_embeddings": False,
    }


def _block(hparams: DFlashHparams) -> Json:
    return {"block_size": hparams.draft_block_len, "mask_token_id": hparams.mask_token_id}


def _dspark(hparams: DSparkHparams) -> Json:
    return {
        "markov_rank": hparams.markov_rank,
        "markov_head_type": hparams.markov_kind or "vanilla",
        "enable_confidence_head": hparams.has_confidence,
        "confidence_head_with_markov": hparams.confidence_reads_markov,
    }


def _dflash2(hparams: DFlash2Hparams) -> Json:
    return {
        "conv_kernel_size": hparams.conv_kernel_len,
        "conv_group_size": hparams.conv_group_size,
        "selector_rank": hparams.selector_rank,
        "selector_top_k": hparams.selector_top_k,
    }
