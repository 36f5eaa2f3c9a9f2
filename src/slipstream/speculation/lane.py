"""One drafter's drafts for one request: what they were worth, and when they are tried again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from slipstream.speculation.acceptance import DraftOutcome, DraftRecord
from slipstream.speculation.tree import DraftTree

MAX_BACKOFF = 8
MAX_SILENT_STEPS = 16
DEAR_SILENCE = 0.25  # tokens, from which on an ask that brings nothing weighs as a draft
DEEPER_PROBES = 4  # as often again where a draft is verified and could be deeper


@dataclass(frozen=True, slots=True)
class LaneDraft:
    """What a lane had in one step.

    Attributes:
        num_proposed: Nodes of the merged draft that its drafter had proposed.
        tree: What was verified of the merged draft; of it `nodes` count for the lane.
        path: Kept nodes.
        price: What asking and verifying cost, in tokens that plain decoding makes meanwhile.
        is_whole: All that was proposed and counts for the lane was verified.
        is_free: Asking cost nothing.
    """

    num_proposed: int
    tree: DraftTree
    nodes: Collection[int]
    path: tuple[int, ...]
    price: float
    is_whole: bool
    is_free: bool


@dataclass(slots=True)
class Lane:
    """What the controller remembers of one drafter's drafts for one request.

    Attributes:
        record: Its drafts so far; it starts with what is known of all requests.
        num_cut_steps: Steps since all that could have been drafted was verified.
        num_silent_steps: Steps in which the drafter was asked before it first had something to say.
        has_spoken: It once had.
        backoff: Doubles with every probe that failed.
        depth: Tokens of the last draft that was verified, probes aside, or that a probe brought; 0
            if all of it was cut.
        is_muted: Drafting costs more than it brings: the drafter is not asked until the next probe.
        is_probe: In this step one more node is verified than pays.
        was_asked: In the last step.
    """

    record: DraftRecord
    num_cut_steps: int = 0
    num_silent_steps: int = 0
    has_spoken: bool = False
    backoff: int = 1
    depth: int = 0
    is_muted: bool = False
    is_probe: bool = False
    was_asked: bool = False

    @staticmethod
    def after(pool: DraftRecord) -> Lane:
        """A new one, with what all requests' drafts have taught."""
        return Lane(
            DraftRecord(gain=pool.gain, price=pool.price),
            backoff=MAX_BACKOFF if pool.is_loss else 1,
            is_muted=pool.is_loss,
        )

    @property
    def asks(self) -> bool:
        """Whether the drafter is asked in this step."""
        return self.is_probe or not self.is_muted

    def wait(self, interval: int, least: float) -> float:
        """Steps with something cut, from one probe to the next: `least` or more."""
        share = DEEPER_PROBES if self.depth else 1
        return max(interval * self.backoff / share, least)

    def may_be_reading(self, num_proposed: int) -> bool:
        """Whether the drafter may still read the prompt, which is slow and proposes nothing."""
        if num_proposed or self.has_spoken:
            return False
        return self.num_silent_steps < MAX_SILENT_STEPS

    def rest(self) -> None:
        """Count a step in which the drafter was not asked."""
        # A probe that did not come about: the drafter may not draft any more, or no row was free.
        self.num_cut_steps = 0 if self.is_probe else self.num_cut_steps + 1
        self.was_asked = False

    def learn(self, draft: LaneDraft, pool: DraftRecord, decay: float, pool_decay: float) -> None:
        """Count a step in which the drafter was asked."""
        self.was_asked = True
        if self.may_be_reading(draft.num_proposed):
            self.num_silent_steps += 1
            return
        self.has_spoken = self.has_spoken or draft.num_proposed > 0
        is_whole = draft.is_whole and not self.is_muted
        self.num_cut_steps = 0 if is_whole else self.num_cut_steps + 1
        if not self.is_probe:
            self.depth = _depth(draft.tree, draft.nodes)
        if draft.is_free and not draft.nodes:
            return
        outcome = DraftOutcome.of(draft.tree, draft.nodes, draft.path)
        # Silence makes the past fade by what it cost: a cheap drafter may wait long for its chance.
        weight = 1.0 if draft.num_proposed else min(draft.price / DEAR_SILENCE, 1.0)
        for record, past in ((self.record, decay), (pool, pool_decay)):
            record.observe(outcome, draft.price, 1.0 - weight * (1.0 - past))
        if self.is_probe:
            self._learn_probe(draft)
        self.is_muted = self.record.is_loss

    def _learn_probe(self, draft: LaneDraft) -> None:
        kept = set(draft.path).intersection(draft.nodes)
        is_hit = bool(kept) and _depth(draft.tree, kept) == _depth(draft.tree, draft.nodes)
        self.backoff = 1 if is_hit else min(2 * self.backoff, MAX_BACKOFF)
        self.num_cut_steps = 0
        if self.is_muted:
            self.depth = len(kept)
            self.record.gain, self.record.price = float(len(kept)), draft.price


def _depth(tree: DraftTree, nodes: Collection[int]) -> int:
    return max((tree.depths[node] for node in nodes), default=0)
