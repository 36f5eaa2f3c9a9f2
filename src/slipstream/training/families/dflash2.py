"""Training DFlash 2: convolutions and a path selector beside DFlash."""

from __future__ import annotations

from typing import Any, ClassVar

from slipstream.errors import ConfigError
from slipstream.models.drafts.hparams import DFlash2Hparams, DraftFamily
from slipstream.models.hparams import Hparams
from slipstream.training.families.dflash import BlockFamily
from slipstream.training.families.family import GgufValue, Json
from slipstream.training.settings import NetSettings

_CONV_GROUP = 16


class DFlash2Family(BlockFamily[DFlash2Hparams]):
    """Blocks whose paths are selected among candidates."""

    name: ClassVar[DraftFamily] = "dflash2"
    of_tokens: ClassVar = BlockFamily.of_tokens | {"candidate_selector.successor_codebook"}
    architecture: ClassVar = "DFlash2DraftModel"
    speculators_name: ClassVar = "DFlash2Speculator"

    def hparams(self, settings: NetSettings, target: Hparams) -> DFlash2Hparams:
        """See `TrainingFamily`."""
        common = self._common(settings, target)
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

    def settings_of(self, hparams: DFlash2Hparams) -> dict[str, Any]:
        """See `TrainingFamily`."""
        return super().settings_of(hparams) | {
            "selector_rank": hparams.selector_rank,
            "selector_top_k": hparams.selector_top_k,
        }

    def gguf_keys(self, hparams: DFlash2Hparams) -> dict[str, GgufValue]:
        """See `TrainingFamily`."""
        own = {f"dflash.{name}": count for name, count in self._own_fields(hparams).items()}
        return super().gguf_keys(hparams) | own

    def _own_fields(self, hparams: DFlash2Hparams) -> Json:
        return {
            "conv_kernel_size": hparams.conv_kernel_len,
            "conv_group_size": hparams.conv_group_size,
            "selector_rank": hparams.selector_rank,
            "selector_top_k": hparams.selector_top_k,
        }
