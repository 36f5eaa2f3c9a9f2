"""Training EAGLE-3 (arXiv:2503.01840)."""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from slipstream.errors import ConfigError
from slipstream.models.drafts.hparams import DraftFamily, Eagle3Hparams
from slipstream.models.hparams import Hparams
from slipstream.models.identity import TargetIdentity
from slipstream.training.batch_blocks import AnchorRules
from slipstream.training.eagle_objective import EagleObjective
from slipstream.training.families.family import GgufValue, Json, TrainingFamily, layer_inputs
from slipstream.training.objective import DraftIds
from slipstream.training.settings import LossSettings, NetSettings, RunSettings

E = TypeVar("E", bound=Eagle3Hparams)
_SERVED_DRAFT_LEN = 3


class ChainFamily(TrainingFamily[E], Generic[E]):
    """Layers that draft token by token, and are unrolled in training."""

    num_layers: ClassVar = 1
    has_qk_norm: ClassVar = False
    model_type: ClassVar = "llama"
    has_paired_rotary: ClassVar = True

    def objective(self, settings: RunSettings, ids: DraftIds) -> EagleObjective:
        """See `TrainingFamily`."""
        anchors = AnchorRules(settings.fit.num_anchors, settings.fit.repeat_weight)
        return EagleObjective(ids, settings.losses, settings.net.max_draft_len, anchors)

    def served_draft_len(self, hparams: E) -> int:
        """See `TrainingFamily`."""
        return _SERVED_DRAFT_LEN

    def speculators_fields(self, hparams: E) -> Json:
        """See `TrainingFamily`."""
        return {
            "eagle_aux_hidden_state_layer_ids": layer_inputs(hparams),
            "norm_before_residual": hparams.has_normed_residual,
            "norm_before_fc": hparams.has_input_norm,
            **({"norm_output": True} if hparams.recycles_normed else {}),
        }


class Eagle3Family(ChainFamily[Eagle3Hparams]):
    """EAGLE-3 with all of its options off."""

    name: ClassVar[DraftFamily] = "eagle3"
    max_draft_len: ClassVar = 5
    losses: ClassVar = LossSettings(
        label=0.0, soft=1.0, distance=0.0, confidence=0.0, selector=0.0, depth_decay=0.8
    )
    architecture: ClassVar = "LlamaForCausalLMEagle3"
    speculators_name: ClassVar = "Eagle3Speculator"
    gguf_architecture: ClassVar = "eagle3"

    def hparams(self, settings: NetSettings, target: Hparams) -> Eagle3Hparams:
        """See `TrainingFamily`."""
        return Eagle3Hparams(**self._common(settings, target))

    def config_fields(self, hparams: Eagle3Hparams, target: TargetIdentity) -> Json:
        """See `TrainingFamily`."""
        return {
            "num_target_layers": target.num_layers,
            "eagle_aux_hidden_state_layer_ids": layer_inputs(hparams),
            **{name: True for name, is_on in _options(hparams).items() if is_on},
        }

    def gguf_keys(self, hparams: Eagle3Hparams) -> dict[str, GgufValue]:
        """See `TrainingFamily`."""
        if hparams.recycles_normed:
            raise ConfigError(
                "GGUF has no eagle3 net whose chained rows read behind the final norm",
                hint="export it with --layout slipstream",
            )
        if hparams.has_input_norm:
            raise ConfigError(
                "GGUF has no eagle3 net whose taps are normalised before they are fused",
                hint="export it with --layout slipstream",
            )
        return super().gguf_keys(hparams) | {
            "eagle3.norm_before_residual": hparams.has_normed_residual,
            "eagle3.norm_before_fc": hparams.has_input_norm,
        }


def _options(hparams: Eagle3Hparams) -> dict[str, bool]:
    """Published options, by their fields in config.json."""
    return {
        "norm_before_residual": hparams.has_normed_residual,
        "norm_before_fc": hparams.has_input_norm,
        "norm_output": hparams.recycles_normed,
    }
