"""Training DFlash (arXiv:2602.06036), and what all block drafters share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor

from slipstream.errors import WeightsError
from slipstream.models.drafts.hparams import DFlashHparams, DraftFamily
from slipstream.models.hparams import Hparams
from slipstream.models.identity import TargetIdentity
from slipstream.training.batch_blocks import AnchorRules
from slipstream.training.block_objective import BlockObjective
from slipstream.training.block_start import start_attention
from slipstream.training.families.family import GgufValue, Json, TrainingFamily, layer_inputs
from slipstream.training.objective import DraftIds
from slipstream.training.settings import LossSettings, NetSettings, RunSettings
from slipstream.training.start import Lessons, Start

B = TypeVar("B", bound=DFlashHparams)


class BlockFamily(TrainingFamily[B], Generic[B]):
    """A block of masks, drafted in one pass.

    Attributes:
        first_draft_row: See `DFlashHparams`.
    """

    num_layers: ClassVar = 2
    max_draft_len: ClassVar = 5
    losses: ClassVar = LossSettings(
        label=1.0, soft=0.0, distance=0.0, confidence=0.0, selector=1.0, depth_decay=4.0
    )
    has_qk_norm: ClassVar = True
    model_type: ClassVar = "qwen3"
    gguf_architecture: ClassVar = "dflash"
    has_paired_rotary: ClassVar = False
    first_draft_row: ClassVar = 1

    def objective(self, settings: RunSettings, ids: DraftIds) -> BlockObjective:
        """See `TrainingFamily`."""
        fit = settings.fit
        anchors = AnchorRules(fit.num_anchors, fit.repeat_weight)
        num_drafts = settings.net.max_draft_len
        return BlockObjective(ids, settings.losses, num_drafts, anchors, recomputes=fit.recomputes)

    def settings_of(self, hparams: B) -> dict[str, Any]:
        """See `TrainingFamily`."""
        return super().settings_of(hparams) | {
            "max_draft_len": hparams.max_draft_len,
            "mask_token_id": hparams.mask_token_id,
        }

    def grown(self, hparams: B, settings: NetSettings) -> B:
        """See `TrainingFamily`."""
        causal = hparams.causal_layers
        more = causal[-1:] * (settings.num_layers - len(causal))
        return replace(super().grown(hparams, settings), causal_layers=causal + more)

    def require_trainable(self, hparams: B) -> None:
        """See `TrainingFamily`."""
        if hparams.logit_scale != 1.0 or hparams.logit_cap is not None:
            raise WeightsError(
                f"the net's logits are scaled by {hparams.logit_scale:g} and capped at "
                f"{hparams.logit_cap}; training knows them only as they are",
                hint="measure it with `slipstream train eval --prompts`, or train a new one",
            )

    def start(self, parameters: dict[str, Tensor], hparams: B, start: Start) -> None:
        """See `TrainingFamily`; with lessons, rows also know where to look."""
        super().start(parameters, hparams, start)
        if start.lessons is not None:
            self._learn(parameters, hparams, start, start.lessons)

    def _learn(
        self, parameters: dict[str, Tensor], hparams: B, start: Start, lessons: Lessons
    ) -> None:
        as_run = self.as_run(parameters, start.fixed.tap_scales)
        start_attention(as_run, hparams, start.ends, lessons)

    def served_draft_len(self, hparams: B) -> int:
        """See `TrainingFamily`."""
        return hparams.max_draft_len

    def config_fields(self, hparams: B, target: TargetIdentity) -> Json:
        """See `TrainingFamily`."""
        taps = {"target_layer_ids": list(hparams.tap_layer_ids or ())}
        return {
            "num_target_layers": target.num_layers,
            "dflash_config": self._block_fields(hparams) | taps | self._own_fields(hparams),
            **causal_fields(hparams),
        }

    def speculators_fields(self, hparams: B) -> Json:
        """See `TrainingFamily`."""
        return {
            "aux_hidden_state_layer_ids": layer_inputs(hparams),
            **self._block_fields(hparams),
            "sample_from_anchor": hparams.first_draft_row == 0,
            **self._own_fields(hparams),
            **unusual_causal_fields(hparams),
        }

    def gguf_keys(self, hparams: B) -> dict[str, GgufValue]:
        """See `TrainingFamily`."""
        return super().gguf_keys(hparams) | {
            "dflash.block_size": hparams.draft_block_len,
            "dflash.sample_from_anchor": hparams.first_draft_row == 0,
            "dflash.attention.causal": any(hparams.causal_layers),
            "tokenizer.ggml.mask_token_id": hparams.mask_token_id,
        }

    def _own_fields(self, hparams: B) -> Json:
        """Fields of config.json, in either layout, that other block drafters lack."""
        return {}

    def _block_fields(self, hparams: B) -> Json:
        fields: Json = {
            "block_size": hparams.draft_block_len,
            "mask_token_id": hparams.mask_token_id,
        }
        if hparams.first_draft_row != self.first_draft_row:
            fields["sample_from_anchor"] = hparams.first_draft_row == 0
        if hparams.embedding_scale != 1.0:
            fields["input_embedding_scale"] = hparams.embedding_scale
        return fields

    def _common(self, settings: NetSettings, target: Hparams) -> dict[str, Any]:
        """As in `TrainingFamily`, of `DFlashHparams`."""
        return super()._common(settings, target) | {
            "draft_block_len": settings.max_draft_len + self.first_draft_row,
            "mask_token_id": settings.mask_token_id,
            "first_draft_row": self.first_draft_row,
            "causal_layers": (False,) * settings.num_layers,
        }


class DFlashFamily(BlockFamily[DFlashHparams]):
    """Blocks, and nothing else."""

    name: ClassVar[DraftFamily] = "dflash"
    architecture: ClassVar = "DFlashDraftModel"
    speculators_name: ClassVar = "DFlashSpeculator"

    def hparams(self, settings: NetSettings, target: Hparams) -> DFlashHparams:
        """See `TrainingFamily`."""
        return DFlashHparams(**self._common(settings, target))


def causal_fields(hparams: DFlashHparams) -> Json:
    """What tells which layers are causal; where they differ, those with a window are."""
    causal = set(hparams.causal_layers)
    return {"is_causal": causal.pop()} if len(causal) == 1 else {}


def unusual_causal_fields(hparams: DFlashHparams) -> Json:
    """The same, but nothing of nets like those that are trained from scratch."""
    windows = [layer.window for layer in hparams.body.layers]
    is_unusual = any(hparams.causal_layers) or any(windows)
    return causal_fields(hparams) if is_unusual else {}
