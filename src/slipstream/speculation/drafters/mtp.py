"""Drafts by the target's multi-token-prediction heads: a chain, one token after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from slipstream.speculation.candidates import best_children
from slipstream.speculation.drafter import DraftContext, DrafterNeeds, Observation, TargetRows
from slipstream.speculation.growth import Growth, GrowthLimits
from slipstream.speculation.learned.begin import begin_growth, growth_limits
from slipstream.speculation.learned.mtp import CommittedStates, DraftChains, MtpPasses, Seat
from slipstream.speculation.learned.offers import target_logits
from slipstream.speculation.learned.parts import DraftNetRules, MtpParts
from slipstream.speculation.tree import EMPTY_TREE, ROOT, DraftTree


class MtpDrafter:
    """Drafts all requests of a step together.

    The heads' rows of committed tokens lie in the target's slots; those of a request's anchor and
    drafts in a seat. Who needs a seat when none is free takes that of the request that was heard
    of longest ago; that one drafts again after its next step.
    """

    def __init__(self, name: str, parts: MtpParts, rules: DraftNetRules) -> None:
        self._name = name
        self._parts = parts
        self._rules = rules
        self._passes = MtpPasses(parts.heads, parts.storage)
        self._most = parts.heads.most_drafts(rules.max_draft_len)
        self._token_ids = parts.heads.token_ids()
        size = num_seat_slots(rules.max_draft_len)
        first = parts.storage.num_slots - parts.num_spare_slots
        self._free = [
            Seat(np.arange(start, start + size, dtype=np.int64))
            for start in range(first, parts.storage.num_slots - size + 1, size)
        ]
        self._num_seats = len(self._free)
        self._seats: dict[str, Seat] = {}

    @property
    def name(self) -> str:
        return self._name

    @property
    def needs(self) -> DrafterNeeds:
        return self._parts.needs

    def absorb(self, rows: Sequence[TargetRows]) -> None:
        items = [item for item in rows if item.next_tokens]
        for start in range(0, len(items), self._num_seats):
            some = items[start : start + self._num_seats]
            self._passes.absorb([self._committed(item) for item in some])

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftTree]:
        trees = [EMPTY_TREE] * len(contexts)
        asked: dict[int, Growth] = {}
        for place, context in enumerate(contexts):
            limits = self._limits(context)
            if limits is not None:
                asked[place] = begin_growth(context, limits, self._parts)
        if asked:
            self._grow(list(asked.values()), [contexts[place] for place in asked])
        for place, growth in asked.items():
            trees[place] = growth.tree(self._name)
        return trees

    def observe(self, observations: Sequence[Observation]) -> None:
        """Nothing: what was committed comes with the target's rows."""

    def release(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            seat = self._seats.pop(request_id, None)
            if seat is not None:
                self._free.append(Seat(seat.slots))

    def memory_bytes(self) -> int:
        return sum(seat.nbytes for seat in self._seats.values())

    def _committed(self, item: TargetRows) -> CommittedStates:
        count = len(item.next_tokens)
        first = len(item.slots) - len(item.rows)
        states = item.taps[self._parts.last_layer_id][torch.from_numpy(item.rows[:count])]
        with torch.inference_mode():
            states = self._parts.heads.target_norm(states)
        seat = self._take_seat(item.request_id)
        return CommittedStates(
            seat, states, item.next_tokens, item.slots[: first + count + 1], first
        )

    def _take_seat(self, request_id: str) -> Seat:
        seat = self._seats.pop(request_id, None)
        if seat is None:
            if not self._free:
                self.release([next(iter(self._seats))])
            seat = self._free.pop()
        self._seats[request_id] = seat  # at the end: heard of last
        return seat

    def _limits(self, context: DraftContext) -> GrowthLimits | None:
        """Bounds of the request's chain; None where its anchor has no rows."""
        seat = self._seats.get(context.request_id)
        if seat is None or seat.position != len(context.slots):
            return None
        return growth_limits(context, self._parts, self._rules, self._most)

    def _grow(self, growths: Sequence[Growth], contexts: Sequence[DraftContext]) -> None:
        """Give each chain token after token until all have ended."""
        chains = DraftChains(
            self._passes,
            [self._seats[context.request_id] for context in contexts],
            [context.slots for context in contexts],
        )
        nodes = dict.fromkeys(range(len(growths)), ROOT)
        drafts: dict[int, list[int]] = {place: [] for place in nodes}
        logits = chains.first_logits()
        while True:
            self._add_children(growths, nodes, logits)
            nodes = {place: node for place in nodes for node in growths[place].take_frontier()}
            if not nodes:
                return
            for place, node in nodes.items():
                growths[place].place(node, len(drafts[place]) + 1)
                drafts[place].append(growths[place].token(node))
            logits = chains.extend({place: drafts[place] for place in nodes})

    def _add_children(
        self, growths: Sequence[Growth], nodes: dict[int, int], logits: Tensor
    ) -> None:
        offered = target_logits(
            self._token_ids.expand(logits.shape), logits, self._parts.heads.hparams.vocab_size
        )
        requests = [growths[place].request(node) for place, node in nodes.items()]
        found = best_children(self._parts.sampler, offered, requests, 1)
        for (place, node), children in zip(nodes.items(), found, strict=True):
            growths[place].add_children(node, children)


def num_seat_slots(max_draft_len: int) -> int:
    """Spare slots of a request: of its anchor and of all drafts that others are drafted behind."""
    return max_draft_len
