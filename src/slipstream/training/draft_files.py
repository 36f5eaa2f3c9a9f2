"""Trained draft nets as checkpoints: in our layout, and in that of `speculators`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from slipstream.errors import ConfigError
from slipstream.models.drafts.hparams import DraftHparams
from slipstream.models.drafts.read import describe_draft
from slipstream.models.family import activation_name
from slipstream.models.hparams import RotaryParams
from slipstream.models.identity import TargetIdentity
from slipstream.training.families.family import Json
from slipstream.training.families.table import family_for
from slipstream.training.run_folder import differences, save_tensors, write_json

WEIGHTS_FILE = "model.safetensors"


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
    save_tensors(path / WEIGHTS_FILE, tensors, {"format": "pt"})


def our_config(hparams: DraftHparams, target: TargetIdentity, dtype: torch.dtype) -> Json:
    """config.json of a net as `load_draft` reads it: DeepSpec's, z-lab's and SpecForge's fields."""
    family = family_for(hparams)
    return {
        "architectures": [family.architecture],
        **_body(hparams),
        "torch_dtype": str(dtype).removeprefix("torch."),
        **family.config_fields(hparams, target),
    }


def speculators_config(
    hparams: DraftHparams, target: TargetIdentity, target_source: str, dtype: torch.dtype
) -> Json:
    """config.json of the `speculators` format.

    Args:
        target_source: Name under which a server finds the target.
    """
    family = family_for(hparams)
    num_drafts = family.served_draft_len(hparams)
    return {
        "architectures": [family.speculators_name],
        "speculators_model_type": family.name,
        "speculators_config": {
            "algorithm": family.name,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": num_drafts}],
            "verifier": {"name_or_path": target_source, "architectures": []},
        },
        "transformer_layer_config": _body(hparams),
        "torch_dtype": str(dtype).removeprefix("torch."),
        "draft_vocab_size": hparams.draft_vocab_size,
        "target_hidden_size": hparams.target_hidden_size,
        **family.speculators_fields(hparams),
    }


def config_vocab_size(config: Json) -> int:
    """The target's vocabulary, in either layout."""
    return int(config.get("transformer_layer_config", config)["vocab_size"])


def require_writable(
    hparams: DraftHparams, stored: Mapping[str, Tensor], target: TargetIdentity
) -> None:
    """Refuse a net that our layout would tell as another one.

    Args:
        stored: What a checkpoint of it holds.
    Raises:
        ConfigError: Says what would differ.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in stored.items()}
    if hparams.is_reduced:
        shapes["d2t"] = (hparams.draft_vocab_size,)
    described = describe_draft(our_config(hparams, target, torch.float32), shapes)
    if described is not None:
        require_same_net(hparams, described.hparams, "slipstream")


def require_same_net(hparams: DraftHparams, read: DraftHparams, layout: str) -> None:
    """Refuse a layout in which a net is read as another one.

    Raises:
        ConfigError: Says what differs.
    """
    differing = differences(asdict(hparams), asdict(read))
    if differing:
        raise ConfigError(
            f"layout {layout} cannot express this net: {'; '.join(differing)}",
            hint="use another layout, or start from a net without this option",
        )


def _body(hparams: DraftHparams) -> Json:
    body = hparams.body
    return {
        "model_type": family_for(hparams).model_type,
        "hidden_size": body.hidden_size,
        "intermediate_size": body.intermediate_size,
        "num_hidden_layers": body.num_layers,
        "num_attention_heads": body.num_heads,
        "num_key_value_heads": body.kv_heads,
        "head_dim": body.head_dim,
        "max_position_embeddings": body.max_positions,
        "rms_norm_eps": body.norm_eps,
        "rope_theta": body.layers[0].rotary.theta,
        "hidden_act": activation_name(body.activation),
        "attention_bias": body.qkv_bias,
        "vocab_size": body.vocab_size,
        "draft_vocab_size": hparams.draft_vocab_size,
        "tie_word_embeddings": False,
        **_scaling_fields(body.layers[0].rotary),
        **_window_fields([layer.window for layer in body.layers]),
    }


def _scaling_fields(rotary: RotaryParams) -> Json:
    """What `read_rotary` reads; nothing where angles are not scaled."""
    if rotary.scaling == "none":
        return {}
    names = {
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
        "yarn": ("factor", "beta_fast", "beta_slow"),
    }[rotary.scaling]
    section: Json = {"rope_type": rotary.scaling} | {name: getattr(rotary, name) for name in names}
    if rotary.scaling != "linear":
        section["original_max_position_embeddings"] = rotary.original_max_positions
    if rotary.scaling == "yarn":
        section["attention_factor"] = rotary.amplitude
    return {"rope_scaling": section}


def _window_fields(windows: Sequence[int | None]) -> Json:
    """Which layers have a window; nothing where none has."""
    widths = [window for window in windows if window is not None]
    if not widths:
        return {}
    return {
        "sliding_window": widths[0],
        "use_sliding_window": True,
        "layer_types": [
            "full_attention" if window is None else "sliding_attention" for window in windows
        ],
    }
