"""How draft checkpoints are published: which family one is, and its fields under one set of names.

Told from names of tensors and fields of config.json alone; no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.errors import WeightsError
from slipstream.models.drafts.hparams import DraftFamily

Json = Mapping[str, Any]  # Any: JSON

# Families that are known by a tensor of theirs, and not supported.
_UNSUPPORTED: Mapping[str, str] = {
    "prefix_gru.weight_ih_l0": "Domino",
    "lilicorr.": "LiLiCorr",
    "mix_L": "XPress",
    "mask_hidden": "P-EAGLE",
    "emb.0.weight": "an MLP speculator (Arctic, IBM)",
    "mtp.0.main_proj.weight": "the DSpark bundled in DeepSeek-V4",
}

# How training went, or what servers propose by default: no effect on a pass.
_HARMLESS = frozenset(
    {
        "num_anchors", "max_anchors", "ce_loss_alpha", "l1_loss_alpha", "confidence_head_alpha",
        "loss_decay_gamma", "auf", "lambda_base_start", "lambda_base_decay_ratio", "emb_dim",
        "gru_hidden_dim", "pure_draft_prefix_len", "embed_requires_grad", "attention_mode",
        "mask_token", "speculators_version", "enable_sp_ulysses", "draft_attention",
    }
)  # fmt: skip

_RENAMED: Mapping[str, str] = {
    "midlayer.": "layers.0.",
    "encoder.fc.": "fc.",
    "encoder.output_norm_enc.": "hidden_norm.",
    "draft_id_to_target_id": "d2t",
}


_KINDS = ("eagle3", "dflash", "dspark")
_OWN_TENSORS = (
    "markov_head.",
    "candidate_selector.",
    "hidden_norm.weight",
    "layers.0.hidden_norm.weight",
)


@dataclass(frozen=True, slots=True)
class DraftLayout:
    """A checkpoint's fields in one place.

    Attributes:
        name: Whose layout it is.
        family: What the net is.
        config: The fields of a decoder's config.json and the family's own; `target_layer_ids` in
            this package's convention, `block_size` and the others as z-lab and DeepSpec spell
            them.
        names: Parameter name in the nets -> name in the checkpoint.
        target_name: The target it was made for, where the checkpoint says.
    """

    name: str
    family: DraftFamily
    config: dict[str, Any]  # Any: JSON
    names: Mapping[str, str]
    target_name: str | None = None


def read_draft_layout(
    config: Json, stored_names: Collection[str], *, is_gguf: bool = False
) -> DraftLayout | None:
    """The layout of a draft checkpoint; None for a checkpoint that is no drafter.

    Raises:
        WeightsError: It is a drafter of a family that is not supported, or contradicts itself.
    """
    names = {_parameter_name(name): name for name in stored_names}
    for marker, family_name in _UNSUPPORTED.items():
        if any(name == marker or name.startswith(marker) for name in names):
            raise WeightsError(
                f"the checkpoint is {family_name} (it has tensor {marker!r}), which is not "
                "supported; supported are EAGLE-3, DFlash, DFlash 2 and DSpark"
            )
    family = _family(config, names)
    if family is None:
        return None
    target = None
    if "speculators_model_type" in config:
        fields, target = _speculators(config)
        layout = "speculators"
    else:
        fields = _merged(config, ("dflash_config", "dspark_config", "eagle_config"))
        layout = "GGUF" if is_gguf else _layout_name(config, family, stored_names)
    fields = {name: value for name, value in fields.items() if name not in _HARMLESS}
    _count_taps_from_outputs(fields)
    return DraftLayout(layout, family, fields, names, target)


def _parameter_name(stored: str) -> str:
    name = stored.removeprefix("model.")
    for prefix, replacement in _RENAMED.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def _family(config: Json, names: Collection[str]) -> DraftFamily | None:
    if "fc.weight" not in names:
        if _is_cut(config, names):
            raise WeightsError(
                "the checkpoint is a draft net's by its configuration or tensors, and there is no "
                "tensor fc.weight, with which each reads the target's states",
                hint="a shard is missing or the export was cut short; export it again",
            )
        return None
    if any(name.startswith("candidate_selector.") for name in names):
        return "dflash2"
    if any(name.startswith("markov_head.") for name in names):
        return "dspark"
    if "hidden_norm.weight" in names:
        return "dspark" if _says_dspark(config) else "dflash"
    if "layers.0.hidden_norm.weight" in names:
        return "eagle3"
    raise WeightsError(
        "the checkpoint has tensor fc.weight but no hidden_norm.weight, as EAGLE and EAGLE-2 have; "
        "supported are EAGLE-3, DFlash, DFlash 2 and DSpark"
    )


def _is_cut(config: Json, names: Collection[str]) -> bool:
    """Whether what lacks `fc.weight` is a drafter all the same."""
    if config.get("speculators_model_type") in _KINDS or "dflash_config" in config:
        return True
    architectures = " ".join(_architectures(config)).lower()
    return any(kind in architectures for kind in _KINDS) or any(
        name.startswith(_OWN_TENSORS) for name in names
    )


def _says_dspark(config: Json) -> bool:
    """Without a Markov head only the configuration tells DSpark's layout of rows from DFlash's."""
    section = _section(config, "dflash_config")
    kinds = (config.get("speculators_model_type"), section.get("projector_type"))
    return "dspark" in kinds or any("DSpark" in name for name in _architectures(config))


def _layout_name(config: Json, family: DraftFamily, stored_names: Collection[str]) -> str:
    architectures = _architectures(config)
    if any(name.endswith(("DSparkModel", "Eagle3Model")) for name in architectures):
        return "DeepSpec"
    if "LlamaForCausalLMEagle3" in architectures or "DSparkDraftModel" in architectures:
        return "SpecForge"
    if family == "eagle3":
        has_midlayer = any("midlayer." in name for name in stored_names)
        return "SafeAILab" if has_midlayer else "vLLM"
    return "z-lab"


def _speculators(config: Json) -> tuple[dict[str, Any], str | None]:
    """Fields of the `speculators` format and the name of the verifier."""
    verifier = _section(config, "speculators_config").get("verifier")
    body = config.get("transformer_layer_config")
    if not isinstance(body, Mapping):
        raise WeightsError("config.json of the speculators format lacks transformer_layer_config")
    skipped = (
        *("speculators_model_type", "speculators_config", "transformer_layer_config"),
        *("architectures", "model_type"),  # of the wrapper; the body has its own
    )
    own = {
        name: value for name, value in config.items() if name not in skipped and value is not None
    }
    fields = {**body, **own}
    is_non_causal = own.pop("sliding_window_non_causal", None)
    if is_non_causal is not None:
        fields.pop("sliding_window_non_causal")
        fields["is_sliding_causal"] = not is_non_causal
    if fields.pop("shift_label", None):
        fields["sample_from_anchor"] = True
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    return fields, str(name) if name else None


def _merged(config: Json, sections: Collection[str]) -> dict[str, Any]:
    """The fields of config.json with those of its sections beside them."""
    fields = {name: value for name, value in config.items() if name not in sections}
    for section in sections:
        for name, value in _section(config, section).items():
            if fields.get(name) is not None and fields[name] != value:
                raise WeightsError(
                    f"config.json has {name} = {fields[name]!r} and, in {section}, {value!r}"
                )
            fields[name] = value
    return fields


def _section(config: Json, name: str) -> Json:
    """A nested object; empty where it is absent."""
    section = config.get(name) or {}
    if not isinstance(section, Mapping):
        raise WeightsError(f"config.json has {name} = {section!r}; it must be an object")
    return section


def _architectures(config: Json) -> list[str]:
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise WeightsError(f"config.json has architectures = {names!r}; it must be a list of names")
    return names


def _count_taps_from_outputs(fields: dict[str, Any]) -> None:
    """Fields that name the input of a layer become `target_layer_ids`, which name outputs."""
    for name in ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids"):
        ids = fields.pop(name, None)
        if ids is None:
            continue
        if not isinstance(ids, list) or not all(type(item) is int for item in ids):
            raise WeightsError(f"config.json has {name} = {ids!r}; it must be a list of layers")
        outputs = [layer - 1 for layer in ids]
        others = fields.get("target_layer_ids")
        if others not in (None, outputs):
            raise WeightsError(
                f"config.json has {name} = {ids}, the inputs of layers, so the outputs of layers "
                f"{outputs}; by another field it reads the outputs of layers {others}",
                hint="remove the field that is not the training's; slipstream doctor measures each",
            )
        fields["target_layer_ids"] = outputs
