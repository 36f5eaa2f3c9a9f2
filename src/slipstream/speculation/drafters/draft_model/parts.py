"""What a draft-model drafter is made of; free of torch, so that anyone may name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.kv.cache import KvCache
    from slipstream.sampling.sampler import Sampler
    from slipstream.speculation.drafters.draft_model.passes import DraftRunner


@dataclass(frozen=True, slots=True)
class DraftModelParts:
    """A draft model in memory, with a cache of its own; the engine loads it.

    Attributes:
        runner: Runs its passes over the storage behind `kv`.
        kv: Its cache; nobody else's.
        sampler: Over the target's vocabulary.
        max_len: Longest text it can draft for.
        kv_bytes_per_token, weight_bytes: What it takes of the memory budget.
    """

    runner: DraftRunner
    kv: KvCache
    sampler: Sampler
    max_len: int
    kv_bytes_per_token: int = 0
    weight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DraftModelRules:
    """How much a draft model drafts.

    Attributes:
        num_children: Best tokens proposed after each node, and most nodes of one depth that get
            children; 1 drafts chains.
        max_draft_len: Most tokens from root to leaf.
        max_known_rows: Most rows of known tokens per call. A request whose text is further
            behind than that gets no draft until it has caught up, a part in each call, so that
            no step waits for a long prompt.
        least_score: What is less likely than this to be accepted is not proposed.
    """

    num_children: int
    max_draft_len: int
    max_known_rows: int = 256
    least_score: float = 0.03
