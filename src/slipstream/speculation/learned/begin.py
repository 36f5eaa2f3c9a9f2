"""Where a draft with a net starts: its bounds, and whether the net knows the text so far."""

from __future__ import annotations

from typing import Protocol

from slipstream.sampling.sampler import Sampler
from slipstream.speculation.drafter import DraftContext
from slipstream.speculation.growth import Growth, GrowthLimits
from slipstream.speculation.learned.parts import DraftNetRules


class DraftingParts(Protocol):
    """What both ask of a drafter's parts."""

    @property
    def sampler(self) -> Sampler:
        """Over the target's vocabulary."""

    @property
    def max_len(self) -> int:
        """Longest text that can be drafted for."""


def growth_limits(
    context: DraftContext, parts: DraftingParts, rules: DraftNetRules, most: int
) -> GrowthLimits | None:
    """Bounds of the request's tree; None if it is too long or its text is not all computed.

    Args:
        most: Most tokens that the net drafts in one go.
    """
    num_computed = len(context.slots)
    room = parts.max_len - len(context.tokens)
    max_len = min(context.max_draft_len, context.max_draft_nodes, rules.max_draft_len, most, room)
    if max_len < 1 or num_computed < 1 or num_computed != len(context.tokens) - 1:
        return None
    return GrowthLimits(max_len, context.max_draft_nodes, rules.num_children, rules.least_score)


def begin_growth(context: DraftContext, limits: GrowthLimits, parts: DraftingParts) -> Growth:
    """An empty tree for the request."""
    params = context.params
    eos = frozenset() if params.ignore_eos else frozenset(parts.sampler.eos_token_ids)
    return Growth(context, limits, frozenset(params.stop_token_ids) | eos)
