"""One draft per request: ask every drafter, merge, keep what is worth its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.clock import Clock
from slipstream.speculation.control import LengthController
from slipstream.speculation.drafter import DraftContext, Drafter, TapReader, TargetRows
from slipstream.speculation.merge import best_chain, merge_trees
from slipstream.speculation.tree import EMPTY_TREE, DraftTree


@dataclass(frozen=True, slots=True)
class Ask:
    """One request that may be drafted for.

    Attributes:
        drafters: Instance names that may propose; None is all.
    """

    context: DraftContext
    drafters: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts of one step.

    Attributes:
        trees: Request id -> nodes to verify.
        proposed: Request id -> drafter that was asked -> nodes of the merged draft, before the
            controller pruned it, that the drafter had proposed.
        drafter_s: Drafter that was asked -> seconds that it took, with what it had to take in.
        draft_s: Seconds spent in all.
    """

    trees: Mapping[str, DraftTree]
    proposed: Mapping[str, Mapping[str, int]]
    drafter_s: Mapping[str, float]
    draft_s: float


class Proposer:
    """Owner of the drafters' turn in a step.

    Args:
        drafters: In order of preference; already guarded against faults.
        controller: Decides which nodes are worth a row.
        clock: Times the drafting.
        chains_only: The target cannot verify branches: the best chain is kept.
    Attributes:
        tap_layer_ids: Layers whose output some drafter reads.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        controller: LengthController,
        clock: Clock,
        *,
        chains_only: bool = False,
    ) -> None:
        self._chains_only = chains_only
        self.drafters = tuple(drafters)
        self.controller = controller
        self._clock = clock
        self._readers = [
            drafter
            for drafter in self.drafters
            if isinstance(drafter, TapReader) and drafter.needs.target_layer_ids
        ]
        layers = {layer for item in self._readers for layer in item.needs.target_layer_ids}
        self.tap_layer_ids = tuple(sorted(layers))

    def propose(
        self, asks: Sequence[Ask], num_other_rows: int, num_tokens: int, told_s: float = 0.0
    ) -> Proposal:
        """Drafts for all `asks`, pruned by the controller.

        Args:
            num_other_rows: Rows that the pass has without any draft.
            num_tokens: Tokens that the pass draws without any draft, for `asks` and all others.
            told_s: Seconds in which drafters took in what they read for these asks.
        """
        if not asks:
            return Proposal({}, {}, {}, 0.0)
        started_s = asked_s = self._clock.now()
        proposals: dict[str, list[DraftTree]] = {ask.context.request_id: [] for ask in asks}
        asked: dict[str, list[str]] = {ask.context.request_id: [] for ask in asks}
        drafter_s: dict[str, float] = {}
        for drafter in self.drafters:
            contexts = [ask.context for ask in asks if self._asks(drafter, ask)]
            if not contexts:
                continue
            for context, tree in zip(contexts, drafter.propose(contexts), strict=True):
                asked[context.request_id].append(drafter.name)
                if tree:
                    proposals[context.request_id].append(tree)
            drafter_s[drafter.name] = self._clock.now() - asked_s
            asked_s = self._clock.now()
        told = [reader.name for reader in self._readers if reader.name in drafter_s]
        for name in told:
            drafter_s[name] += told_s / len(told)
        merged = {ask.context.request_id: self._merge(proposals, ask.context) for ask in asks}
        kept = self.controller.prune(merged, num_other_rows, num_tokens)
        return Proposal(
            trees=kept,
            proposed={
                request_id: {
                    name: sum(name in sources for sources in tree.sources)
                    for name in asked[request_id]
                }
                for request_id, tree in merged.items()
            },
            drafter_s=drafter_s,
            draft_s=told_s + self._clock.now() - started_s,
        )

    def _merge(
        self, proposals: Mapping[str, Sequence[DraftTree]], context: DraftContext
    ) -> DraftTree:
        trees = proposals[context.request_id]
        if not trees:
            return EMPTY_TREE
        if self._chains_only or context.wants_laws:
            return best_chain(trees, min(context.max_draft_len, context.max_draft_nodes))
        return merge_trees(trees, context.max_draft_nodes, context.max_draft_len)

    def needing_taps(self, asks: Sequence[Ask]) -> list[str]:
        """Requests for which a drafter that reads the target's states will be asked."""
        return [
            ask.context.request_id
            for ask in asks
            if any(self._asks(reader, ask) for reader in self._readers)
        ]

    def absorb(self, rows: Sequence[TargetRows]) -> None:
        """Tell the drafters that read the target's states what it has computed."""
        for drafter in self._readers:
            drafter.absorb(rows)

    def _asks(self, drafter: Drafter, ask: Ask) -> bool:
        if ask.drafters is not None and drafter.name not in ask.drafters:
            return False
        context, max_len = ask.context, drafter.needs.max_len
        if max_len is not None and len(context.tokens) + context.max_draft_len > max_len:
            return False
        return self.controller.asks(context.request_id, drafter.name)
