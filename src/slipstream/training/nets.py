"""The draft net of a run: its shape from the settings and the target, its weights, its copies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from slipstream.errors import ConfigError
from slipstream.models.decoder import Model
from slipstream.models.drafts.hparams import (
    DFlash2Hparams,
    DFlashHparams,
    DraftHparams,
    DSparkHparams,
    Eagle3Hparams,
    MtpHparams,
)
from slipstream.models.drafts.initial import initial_parameters
from slipstream.models.drafts.load import AnyDraftNet, net_class_of
from slipstream.models.drafts.mtp import TARGET_NORM
from slipstream.models.drafts.parts import StoredEnds
from slipstream.models.hparams import Hparams, LayerParams, RotaryParams
from slipstream.training.attention import attend_bfloat16
from slipstream.training.block_start import Lessons, start_block_net
from slipstream.training.settings import NetSettings

HEAD = "lm_head.weight"
_FUSION = "fc.weight"
_CONV_GROUP = 16
_NORM_SHARE = 0.3  # of the target's: drafts that are sure of nothing learn faster than wrong ones
_NOISE_SHARE = 0.3  # of the usual random start of `fc`, around the deepest tap as it is
_KEPT = (  # no product reads them
    "norm.weight", "norm_embedding.weight", "norm_hidden.weight", "base_kernel",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FixedParts:
    """What is measured before a training and stays.

    Attributes:
        token_ids: [draft_vocab] int64 target id of each of the draft's tokens, ascending.
        tap_scales: [taps * hidden] float32, see `tap_scales_of`.
    """

    token_ids: Tensor
    tap_scales: Tensor


@dataclass(frozen=True, slots=True)
class TrainedNet:
    """A draft net whose weights are optimised.

    Attributes:
        parameters: Name -> float32 tensor; those that are trained require a gradient.
        ends: The target's embeddings and head.
        token_ids: [draft_vocab] int64 target id of each of its tokens; None if it knows all.
        tap_scales: [taps * hidden] float32; the parameter `fc.weight` is for taps divided by it.
    """

    hparams: DraftHparams
    parameters: dict[str, Tensor]
    ends: StoredEnds
    token_ids: Tensor | None
    tap_scales: Tensor

    def trained(self) -> dict[str, Tensor]:
        """The parameters that are optimised, in a fixed order."""
        return {name: p for name, p in sorted(self.parameters.items()) if p.requires_grad}

    def as_run(self) -> dict[str, Tensor]:
        """The parameters as the net reads them, and as they are stored, in float32."""
        if isinstance(self.hparams, MtpHparams):  # what it reads is normalised
            return self.parameters
        return self.parameters | {_FUSION: self.parameters[_FUSION] / self.tap_scales}

    def copy_in(self, dtype: torch.dtype) -> AnyDraftNet:
        """A net to run, its products in `dtype`; gradients reach the parameters."""
        rounded = {
            name: p if name.endswith(_KEPT) else p.to(dtype) for name, p in self.as_run().items()
        }
        net_class = net_class_of(self.hparams)
        attention = attend_bfloat16 if dtype == torch.bfloat16 else None
        return net_class(self.hparams, rounded, self.ends, self.token_ids, attention=attention)


def new_net(
    settings: NetSettings,
    target: Model,
    ends: StoredEnds,
    fixed: FixedParts,
    seed: int,
    lessons: Lessons | None = None,
) -> TrainedNet:
    """A net to start from: the target's head behind random layers.

    What the net reads is at first the deepest tap, nearly as it is, since the target's own head
    already reads a token from it; and the norm in front of the head is smaller than the target's.

    Args:
        lessons: What a block drafter starts with more than that; None is nothing.
    """
    token_ids = fixed.token_ids
    hparams = net_hparams(settings, target.hparams)
    generator = torch.Generator().manual_seed(seed)
    parameters = initial_parameters(hparams, generator)
    parameters[HEAD] = ends.vocabulary[token_ids].float()
    scale = target.final_norm.scale.float()
    parameters[_FUSION] = parameters[_FUSION] * _NOISE_SHARE
    constants = set() if settings.trains_head else {HEAD}
    if isinstance(hparams, MtpHparams):
        _start_head(parameters, scale)
        constants.add(TARGET_NORM)
    else:
        parameters["norm.weight"] = scale * _NORM_SHARE
        _add_deepest_tap(parameters[_FUSION], fixed.tap_scales)
    if lessons is not None and isinstance(hparams, DFlashHparams):
        as_read = parameters | {_FUSION: parameters[_FUSION] / fixed.tap_scales}
        start_block_net(as_read, hparams, ends, token_ids, lessons)
    for name, parameter in parameters.items():
        parameter.requires_grad_(name not in constants)
    is_reduced = hparams.is_reduced
    return TrainedNet(
        hparams, parameters, ends, token_ids if is_reduced else None, fixed.tap_scales
    )


def _start_head(parameters: dict[str, Tensor], scale: Tensor) -> None:
    """Let a multi-token-prediction head pass the state through that it reads.

    Args:
        scale: [hidden] float32 of the target's final norm.
    """
    parameters[TARGET_NORM] = scale
    parameters["norm.weight"] = scale.square().mean().sqrt().repeat(len(scale)) * _NORM_SHARE
    parameters[_FUSION][:, -len(scale) :] += torch.eye(len(scale))


def _add_deepest_tap(fusion: Tensor, tap_scales: Tensor) -> None:
    """Let `fusion`, [hidden, taps * target hidden] for divided taps, pass the last tap through."""
    width = min(fusion.shape[0], fusion.shape[1])
    scales = tap_scales[-width:]
    fusion[:width, -width:] += torch.diag(scales / scales.square().mean().sqrt())


def net_hparams(settings: NetSettings, target: Hparams) -> DraftHparams:
    """The net's shape: as wide as the target, with its heads and rotary base.

    Raises:
        ConfigError: The target cannot have such a net.
    """
    common = _common(settings, target)
    if settings.family == "eagle3":
        return Eagle3Hparams(**common)
    if settings.family == "mtp":
        return MtpHparams(**common, recycles_normed=True)
    first_row = 0 if settings.family == "dspark" else 1
    common |= {
        "draft_block_len": settings.max_draft_len + first_row,
        "mask_token_id": settings.mask_token_id,
        "first_draft_row": first_row,
        "causal_layers": (False,) * settings.num_layers,
    }
    if settings.family == "dflash":
        return DFlashHparams(**common)
    if settings.family == "dflash2":
        if target.hidden_size % _CONV_GROUP:
            raise ConfigError(
                f"dflash2 needs a hidden size that {_CONV_GROUP} divides, the target's is "
                f"{target.hidden_size}",
                hint="use --family dflash or dspark",
            )
        return DFlash2Hparams(
            **common,
            conv_group_size=_CONV_GROUP,
            selector_rank=settings.selector_rank,
            selector_top_k=min(settings.selector_top_k, settings.draft_vocab_size),
        )
    return DSparkHparams(
        **common,
        markov_kind=settings.markov_kind if settings.markov_rank else None,
        markov_rank=settings.markov_rank,
        has_confidence=True,
        confidence_reads_markov=settings.markov_rank > 0,
    )


def _common(settings: NetSettings, target: Hparams) -> dict[str, Any]:  # Any: fields of hparams
    missing = [layer for layer in settings.tap_layer_ids if not -1 <= layer < target.num_layers]
    if missing or len(set(settings.tap_layer_ids)) != len(settings.tap_layer_ids):
        raise ConfigError(
            f"--taps must name different layers from -1 to {target.num_layers - 1}, got "
            f"{', '.join(map(str, settings.tap_layer_ids))}"
        )
    is_chain = settings.family in ("eagle3", "mtp")
    if is_chain and settings.num_layers != 1:
        raise ConfigError(f"{settings.family} has one layer, got --layers {settings.num_layers}")
    last = (target.num_layers - 1,)
    if settings.family == "mtp" and settings.tap_layer_ids != last:
        raise ConfigError(
            f"mtp reads the output of the target's last layer alone, got --taps "
            f"{', '.join(map(str, settings.tap_layer_ids))}",
            hint=f"leave out --taps, or make the cache with --taps {last[0]}",
        )
    rotary = RotaryParams(max(layer.rotary.theta for layer in target.layers))
    body = replace(
        target,
        family="draft",
        intermediate_size=settings.intermediate_size,
        activation="silu",
        has_tied_embeddings=False,
        attention_scale=target.head_dim**-0.5,
        layers=(LayerParams(None, rotary),) * settings.num_layers,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        has_qk_norm=not is_chain,
        is_norm_zero_centred=False,
        has_sandwich_norms=False,
        embedding_scale=None,
    )
    return {
        "body": body,
        "target_hidden_size": target.hidden_size,
        "num_taps": len(settings.tap_layer_ids),
        "tap_layer_ids": settings.tap_layer_ids,
        "draft_vocab_size": settings.draft_vocab_size,
        "has_own_embeddings": False,
        "has_own_head": True,
    }
