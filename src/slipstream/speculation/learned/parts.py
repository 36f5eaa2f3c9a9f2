"""What a drafter with a net is made of; free of torch, so that anyone may name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.models.drafts.hparams import DFlashHparams, DraftHparams
from slipstream.speculation.drafter import DrafterNeeds

if TYPE_CHECKING:
    from slipstream.kv.storage import KvStorage
    from slipstream.models.drafts.load import AnyDraftNet
    from slipstream.models.mtp.heads import MtpHeads
    from slipstream.sampling.sampler import Sampler


@dataclass(frozen=True, slots=True)
class DraftNetParts:
    """A draft net in memory, with a storage in the target's slots; the engine loads it.

    Attributes:
        net: Reads the target's states.
        storage: Its keys and values; as many slots as the target's.
        sampler: Over the target's vocabulary.
        max_len: Longest text it can draft for.
        num_spare_slots: How many slots `storage` has behind the target's, for rows that are not
            committed; native passes need some, see `num_request_slots`.
    """

    net: AnyDraftNet
    storage: KvStorage
    sampler: Sampler
    max_len: int
    num_spare_slots: int = 0

    @property
    def tap_layer_ids(self) -> tuple[int, ...]:
        """Target layers whose states the net reads, in its order."""
        return self.net.hparams.tap_layer_ids or ()

    @property
    def needs(self) -> DrafterNeeds:
        """What a drafter with this net asks of the engine."""
        return DrafterNeeds(
            target_layer_ids=self.tap_layer_ids,
            kv_bytes_per_token=self.storage.bytes_per_token,
            weight_bytes=self.net.weight_bytes,
            max_len=self.max_len,
        )


@dataclass(frozen=True, slots=True)
class MtpParts:
    """Multi-token-prediction heads in memory, with a storage in the target's slots.

    Attributes:
        storage: Their keys and values; the target's slots, then spare ones.
        sampler: Over the target's vocabulary.
        max_len: Longest text they can draft for.
        num_spare_slots: Slots of `storage` behind the target's, for rows that are not committed.
        last_layer_id: The target's last layer, whose output they read behind its final norm.
    """

    heads: MtpHeads
    storage: KvStorage
    sampler: Sampler
    max_len: int
    num_spare_slots: int
    last_layer_id: int

    @property
    def needs(self) -> DrafterNeeds:
        """What a drafter with these heads asks of the engine."""
        return DrafterNeeds(
            target_layer_ids=(self.last_layer_id,),
            kv_bytes_per_token=self.storage.bytes_per_token,
            weight_bytes=self.heads.weight_bytes,
            max_len=self.max_len,
        )


@dataclass(frozen=True, slots=True)
class DraftNetRules:
    """How much a net drafts.

    Attributes:
        num_children: Best tokens proposed after each node, and most nodes of one depth that get
            children; 1 drafts chains.
        max_draft_len: Most tokens from root to leaf.
        least_score: What is less likely than this to be accepted is not proposed.
    """

    num_children: int
    max_draft_len: int
    least_score: float = 0.03


def num_request_slots(hparams: DraftHparams, num_children: int, max_draft_len: int) -> int:
    """Spare slots that native passes want for a request: a block, or the newest committed row and
    all nodes that can have children."""
    if isinstance(hparams, DFlashHparams):
        return hparams.draft_block_len
    return 1 + num_children * (max_draft_len - 1)
