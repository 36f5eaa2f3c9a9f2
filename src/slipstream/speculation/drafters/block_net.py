"""Drafts by a block net (DFlash, DFlash 2, DSpark): one pass, then a walk over its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from slipstream.models.drafts.dflash import BlockNet
from slipstream.speculation.candidates import Children, best_children
from slipstream.speculation.drafter import DraftContext, DrafterNeeds, Observation, TargetRows
from slipstream.speculation.growth import DraftRow, Growth
from slipstream.speculation.learned.begin import begin_growth, growth_limits
from slipstream.speculation.learned.block import BlockPasses, BlockRows
from slipstream.speculation.learned.kv import DraftKv
from slipstream.speculation.learned.native import Ask, native_net
from slipstream.speculation.learned.native_drafts import NativeBlocks, propose_each
from slipstream.speculation.learned.offers import taps_of, target_logits
from slipstream.speculation.learned.parts import DraftNetParts, DraftNetRules
from slipstream.speculation.tree import ROOT, DraftTree


@dataclass(slots=True)
class _Draft:
    """One request in one call of `propose`.

    Attributes:
        states: Node -> what the net carries along its path.
        frontier: Nodes whose children are looked for next.
    """

    context: DraftContext
    growth: Growth
    states: dict[int, Tensor | None] = field(default_factory=lambda: {ROOT: None})
    frontier: list[int] = field(default_factory=lambda: [ROOT])

    def token(self, node: int) -> int:
        return self.context.tokens[-1] if node == ROOT else self.growth.token(node)


class BlockNetDrafter:
    """Drafts all requests of a step in one pass.

    A tree's node at depth d offers what row d of the block says behind the node's own token, so
    that nets whose rows depend on the token in front draft consistent branches.
    """

    def __init__(self, name: str, parts: DraftNetParts, rules: DraftNetRules) -> None:
        assert isinstance(parts.net, BlockNet)
        self._name = name
        self._parts = parts
        self._rules = rules
        self._net = parts.net
        self._passes = BlockPasses(parts.net, DraftKv(parts.storage))
        native = native_net(parts, rules)
        self._native = NativeBlocks(name, native, parts) if native is not None else None

    @property
    def name(self) -> str:
        return self._name

    @property
    def needs(self) -> DrafterNeeds:
        return self._parts.needs

    def absorb(self, rows: Sequence[TargetRows]) -> None:
        if self._native is not None:
            self._native.absorb(rows)
            return
        taps = torch.cat([taps_of(item, self._parts.tap_layer_ids) for item in rows])
        counts = [len(item.rows) for item in rows]
        slots = [item.slots[-count:] for item, count in zip(rows, counts, strict=True)]
        positions = [
            np.arange(len(item.slots) - count, len(item.slots), dtype=np.int64)
            for item, count in zip(rows, counts, strict=True)
        ]
        self._passes.inject(taps, np.concatenate(positions), np.concatenate(slots))

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftTree]:
        most = self._net.hparams.max_draft_len
        limits = [growth_limits(item, self._parts, self._rules, most) for item in contexts]
        return propose_each(contexts, limits, self._native, self._parts, self._propose)

    def _propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Drafts in torch, for any request."""
        growths = [begin_growth(context, limits, self._parts) for context, limits in asks]
        drafts = [
            _Draft(context, growth) for (context, _), growth in zip(asks, growths, strict=True)
        ]
        # Always a whole block: rows may see those behind them, and no draft depends on others.
        rows = self._passes.run(
            [context.tokens[-1] for context, _ in asks],
            [context.slots for context, _ in asks],
            self._net.hparams.max_draft_len,
        )
        for depth in range(max(growth.max_len for growth in growths)):
            self._grow(drafts, rows, depth)
        return [growth.tree(self._name) for growth in growths]

    def observe(self, observations: Sequence[Observation]) -> None:
        """Nothing: what was committed comes with the target's rows."""

    def release(self, request_ids: Sequence[str]) -> None:
        """Nothing is held for a request but what lies in its slots."""

    def memory_bytes(self) -> int:
        return 0

    def _grow(self, drafts: Sequence[_Draft], rows: BlockRows, depth: int) -> None:
        """Give every node of one depth its children, then choose the nodes of the next."""
        places = [(index, node) for index, draft in enumerate(drafts) for node in draft.frontier]
        if not places:
            return
        requests = [drafts[index].growth.request(node) for index, node in places]
        with torch.inference_mode():
            found = self._children(drafts, places, rows, depth, requests)
        for (index, node), children in zip(places, found, strict=True):
            drafts[index].growth.add_children(node, children)
        for draft in drafts:
            draft.frontier = draft.growth.take_frontier()
            for node in draft.frontier:
                draft.growth.place(node, len(draft.states))
                draft.states[node] = draft.states[draft.growth.parent(node)]

    def _children(
        self,
        drafts: Sequence[_Draft],
        places: Sequence[tuple[int, int]],
        rows: BlockRows,
        depth: int,
        requests: Sequence[DraftRow],
    ) -> list[Children]:
        indices = torch.tensor([index for index, _ in places])
        hidden, logits = rows.draft_hidden[indices, depth], rows.logits[indices, depth]
        previous = torch.tensor([drafts[index].token(node) for index, node in places])
        carried = [drafts[index].states[node] for index, node in places]
        stacked = [state for state in carried if state is not None]
        state = torch.stack(stacked) if stacked else None
        choices = self._net.choices(hidden, logits, previous, state)
        if choices.state is not None:
            for (index, node), after in zip(places, choices.state, strict=True):
                drafts[index].states[node] = after
        vocab_size = self._net.hparams.body.vocab_size
        offered = target_logits(choices.token_ids, choices.logits, vocab_size)
        found = self._best(choices.token_ids, offered, requests)
        confidence = self._net.confidence_logits(hidden, previous)
        if confidence is None:
            return found
        trusts = torch.sigmoid(confidence / self._net.confidence_temperature(depth)).tolist()
        return [_trusted(item, trust) for item, trust in zip(found, trusts, strict=True)]

    def _best(
        self, token_ids: Tensor, offered: Tensor, requests: Sequence[DraftRow]
    ) -> list[Children]:
        """As `best_children`; none where all that a row offers pads the vocabulary."""
        sampler = self._parts.sampler
        rows = (token_ids < sampler.vocab_size).any(-1).nonzero().flatten().tolist()
        found: list[Children] = [[] for _ in requests]
        best = best_children(
            sampler, offered[rows], [requests[row] for row in rows], self._rules.num_children
        )
        for row, children in zip(rows, best, strict=True):
            found[row] = children
        return found


def _trusted(children: Children, trust: float) -> Children:
    """The net's own estimate for its first choice; the rest is shared out as before."""
    if not children:
        return children
    first, *others = children
    # A first share of nearly 1 cancels badly, and no child may outrank its parent.
    factor = (1.0 - trust) / (1.0 - first.share) if first.share < 1.0 else 0.0
    return [
        first._replace(share=trust),
        *(other._replace(share=min(1.0, other.share * factor)) for other in others),
    ]
