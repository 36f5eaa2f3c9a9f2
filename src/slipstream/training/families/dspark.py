"""Training DSpark (arXiv:2607.05147): a Markov head and a confidence head beside DFlash."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from slipstream.errors import ConfigError
from slipstream.models.drafts.hparams import DraftFamily, DSparkHparams
from slipstream.models.hparams import Hparams
from slipstream.models.identity import TargetIdentity
from slipstream.training.block_start import start_markov_head
from slipstream.training.families.dflash import BlockFamily, unusual_causal_fields
from slipstream.training.families.family import GgufValue, Json
from slipstream.training.settings import LossSettings, NetSettings
from slipstream.training.start import Lessons, Start


class DSparkFamily(BlockFamily[DSparkHparams]):
    """Blocks whose first draft is the anchor's row."""

    name: ClassVar[DraftFamily] = "dspark"
    losses: ClassVar = LossSettings(
        label=0.0, soft=1.0, distance=0.0, confidence=0.1, selector=0.0, depth_decay=2.0
    )
    of_tokens: ClassVar = BlockFamily.of_tokens | {"markov_head.markov_w2.weight"}
    architecture: ClassVar = "Qwen3DSparkModel"
    speculators_name: ClassVar = "DSparkSpeculator"
    first_draft_row: ClassVar = 0

    def hparams(self, settings: NetSettings, target: Hparams) -> DSparkHparams:
        """See `TrainingFamily`."""
        return DSparkHparams(
            **self._common(settings, target),
            markov_kind=settings.markov_kind if settings.markov_rank else None,
            markov_rank=settings.markov_rank,
            has_confidence=True,
            confidence_reads_markov=settings.markov_rank > 0,
        )

    def settings_of(self, hparams: DSparkHparams) -> dict[str, Any]:
        """See `TrainingFamily`."""
        return super().settings_of(hparams) | {
            "markov_rank": hparams.markov_rank,
            "markov_kind": hparams.markov_kind or "vanilla",
        }

    def grown(self, hparams: DSparkHparams, settings: NetSettings) -> DSparkHparams:
        """See `TrainingFamily`; temperatures were fitted to the net as it was."""
        return replace(super().grown(hparams, settings), confidence_temperatures=())

    def config_fields(self, hparams: DSparkHparams, target: TargetIdentity) -> Json:
        """See `TrainingFamily`."""
        return {
            "num_target_layers": target.num_layers,
            **self._block_fields(hparams),
            **self._own_fields(hparams),
            "target_layer_ids": list(hparams.tap_layer_ids or ()),
            **unusual_causal_fields(hparams),
        }

    def gguf_keys(self, hparams: DSparkHparams) -> dict[str, GgufValue]:
        """See `TrainingFamily`."""
        if hparams.markov_kind is None:
            raise ConfigError(
                "a dspark net without a Markov head cannot be told from dflash in GGUF",
                hint="export it with --layout slipstream",
            )
        if hparams.markov_kind != "vanilla":
            raise ConfigError(
                f"GGUF has no Markov head of kind {hparams.markov_kind}, only vanilla",
                hint="export it with --layout slipstream",
            )
        return super().gguf_keys(hparams) | {
            "dflash.has_confidence_head": hparams.has_confidence,
        }

    def _learn(
        self,
        parameters: dict[str, Tensor],
        hparams: DSparkHparams,
        start: Start,
        lessons: Lessons,
    ) -> None:
        super()._learn(parameters, hparams, start, lessons)
        if hparams.markov_kind == "vanilla":
            start_markov_head(parameters, hparams, start.fixed.token_ids, lessons.answers)

    def _own_fields(self, hparams: DSparkHparams) -> Json:
        return {
            "markov_rank": hparams.markov_rank,
            "markov_head_type": hparams.markov_kind or "vanilla",
            "enable_confidence_head": hparams.has_confidence,
            "confidence_head_with_markov": hparams.confidence_reads_markov,
        }
