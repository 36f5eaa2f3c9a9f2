"""Training a multi-token-prediction head: unrolled like EAGLE-3, with the target's own ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from slipstream.errors import ConfigError
from slipstream.models.drafts.hparams import DraftFamily, MtpHparams
from slipstream.models.drafts.mtp import TARGET_NORM
from slipstream.models.hparams import Hparams
from slipstream.models.identity import TargetIdentity
from slipstream.training.families.eagle3 import ChainFamily
from slipstream.training.families.family import (
    FUSION,
    HEAD,
    NOISE_SHARE,
    NORM,
    NORM_SHARE,
    GgufValue,
    Json,
)
from slipstream.training.settings import LossSettings, NetSettings
from slipstream.training.start import Start
from slipstream.weights.names import gguf_head_name

_PREFIX = "mtp."


class MtpFamily(ChainFamily[MtpHparams]):
    """What it reads is normalised, so that nothing is divided; its final norm is the target's."""

    name: ClassVar[DraftFamily] = "mtp"
    max_draft_len: ClassVar = 3
    losses: ClassVar = LossSettings(  # the decay is FastMTP's
        label=0.0, soft=1.0, distance=0.0, confidence=0.0, selector=0.0, depth_decay=0.6
    )
    architecture: ClassVar = "LlamaForCausalLM"
    gguf_architecture: ClassVar = "llama"  # whose layer it has

    def hparams(self, settings: NetSettings, target: Hparams) -> MtpHparams:
        """See `TrainingFamily`."""
        self._require_one_layer(settings)
        common = self._common(settings, target)
        last = self.tap_layer_ids(target.num_layers)
        if settings.tap_layer_ids != last:
            raise ConfigError(
                f"mtp reads the output of the target's last layer alone, got --taps "
                f"{', '.join(map(str, settings.tap_layer_ids))}",
                hint=f"leave out --taps, or make the cache with --taps {last[0]}",
            )
        return MtpHparams(**common, recycles_normed=True)

    def grown(self, hparams: MtpHparams, settings: NetSettings) -> MtpHparams:
        """See `TrainingFamily`."""
        self._require_one_layer(settings)
        return super().grown(hparams, settings)

    def constants(self, start: Start) -> dict[str, Tensor]:
        """See `TrainingFamily`."""
        return {TARGET_NORM: start.final_norm.clone()}

    def tap_layer_ids(self, num_target_layers: int) -> tuple[int, ...]:
        """See `TrainingFamily`."""
        return (num_target_layers - 1,)

    def start(self, parameters: dict[str, Tensor], hparams: MtpHparams, start: Start) -> None:
        """Let the head pass the state through that it reads."""
        scale = start.final_norm
        parameters[NORM] = scale.square().mean().sqrt().repeat(len(scale)) * NORM_SHARE
        parameters[FUSION] = parameters[FUSION] * NOISE_SHARE
        parameters[FUSION][:, -len(scale) :] += torch.eye(len(scale))

    def as_run(self, parameters: Mapping[str, Tensor], tap_scales: Tensor) -> dict[str, Tensor]:
        """See `TrainingFamily`."""
        return dict(parameters)

    def as_trained(self, parameters: Mapping[str, Tensor], tap_scales: Tensor) -> dict[str, Tensor]:
        """See `TrainingFamily`."""
        return dict(parameters)

    def stored(self, parameters: Mapping[str, Tensor], *, is_reduced: bool) -> dict[str, Tensor]:
        """See `TrainingFamily`. Whoever loads it takes rows of the head from the target, too."""
        is_left_out = {TARGET_NORM: True, HEAD: not parameters[HEAD].requires_grad}
        return {
            _PREFIX + name: p for name, p in parameters.items() if not is_left_out.get(name, False)
        }

    def require_layout(self, layout: str) -> None:
        """See `TrainingFamily`."""
        if layout == "speculators":
            raise ConfigError(
                f"layout {layout} has no multi-token-prediction head by itself",
                hint="use --layout slipstream or gguf",
            )

    def config_fields(self, hparams: MtpHparams, target: TargetIdentity) -> Json:
        """A decoder as deep as the target, with a head behind it and nothing else in its file."""
        return {"num_hidden_layers": target.num_layers, "mtp_num_hidden_layers": 1}

    def gguf_keys(self, hparams: MtpHparams) -> dict[str, GgufValue]:
        """The layer behind a decoder that is not there."""
        return {
            "llama.block_count": _num_target_layers(hparams) + 1,
            "llama.nextn_predict_layers": 1,
        }

    def gguf_name(self, name: str, hparams: MtpHparams) -> str:
        """See `TrainingFamily`."""
        return gguf_head_name(name.removeprefix(_PREFIX), _num_target_layers(hparams))

    def _require_one_layer(self, settings: NetSettings) -> None:
        if settings.num_layers != 1:
            raise ConfigError(
                f"{self.name} has one layer, got --layers {settings.num_layers}",
                hint="leave out --layers",
            )


def _num_target_layers(hparams: MtpHparams) -> int:
    """From its only tap, which is that of the last layer."""
    assert hparams.tap_layer_ids is not None
    return hparams.tap_layer_ids[0] + 1
