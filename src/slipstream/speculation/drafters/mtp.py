"""Drafts by the target's multi-token-prediction heads: a chain, one token after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.speculation.candidates import best_children
from slipstream.speculation.drafter import DraftContext, DrafterNeeds, Observation, TargetRows
from slipstream.speculation.growth import Growth, GrowthLimits
from slipstream.speculation.learned.begin import begin_growth, growth_limits
from slipstream.speculation.learned.mtp import CommittedStates, DraftChains, MtpPasses, Seat
from slipstream.speculation.learned.native import Ask, native_head
from slipstream.speculation.learned.native_drafts import NativeChains, propose_each
from slipstream.speculation.learned.offers import target_logits
from slipstream.speculation.learned.parts import DraftNetRules, MtpParts
from slipstream.speculation.learned.seats import Seats
from slipstream.speculation.tree import ROOT, DraftTree


class MtpDrafter:
    """Drafts all requests of a step together.

    The heads' rows of committed tokens lie in the target's slots; those of a request's anchor and
    drafts in a seat. Native calls keep the seats where they draft, else `Seats` does.
    """

    def __init__(self, name: str, parts: MtpParts, rules: DraftNetRules) -> None:
        self._name = name
        self._parts = parts
        self._rules = rules
        self._passes = MtpPasses(parts.heads, parts.storage)
        self._most = parts.heads.most_drafts(rules.max_draft_len)
        self._token_ids = parts.heads.token_ids()
        seat_slots = num_seat_slots(rules.max_draft_len)
        native = native_head(parts, rules, seat_slots)
        self._native = NativeChains(name, native, parts) if native is not None else None
        self._seats = Seats(parts.storage.num_slots, parts.num_spare_slots, seat_slots)

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
        items = [item for item in rows if item.next_tokens]
        for start in range(0, len(items), self._seats.count):
            some = items[start : start + self._seats.count]
            self._passes.absorb([self._committed(item) for item in some])

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftTree]:
        limits = [self._limits(context) for context in contexts]
        return propose_each(contexts, limits, self._native, self._parts, self._propose)

    def observe(self, observations: Sequence[Observation]) -> None:
        """Nothing: what was committed comes with the target's rows."""

    def release(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._seats.release(request_id)
            if self._native is not None:
                self._native.release(request_id)

    def memory_bytes(self) -> int:
        return self._seats.num_bytes + (self._native.num_bytes if self._native is not None else 0)

    def _committed(self, item: TargetRows) -> CommittedStates:
        count = len(item.next_tokens)
        first = len(item.slots) - len(item.rows)
        states = item.taps[self._parts.last_layer_id][torch.from_numpy(item.rows[:count])]
        with torch.inference_mode():
            states = self._parts.heads.target_norm(states)
        seat = self._seats.take(item.request_id)
        return CommittedStates(
            seat, states, item.next_tokens, item.slots[: first + count + 1], first
        )

    def _limits(self, context: DraftContext) -> GrowthLimits | None:
        """Bounds of the request's chain; None where its anchor has no rows."""
        if not self._knows(context.request_id, len(context.slots)):
            return None
        return growth_limits(context, self._parts, self._rules, self._most)

    def _knows(self, request_id: str, position: int) -> bool:
        """Whether there is a row of the token at `position`, the newest one."""
        if self._native is not None:
            return self._native.knows(request_id, position - 1)
        return self._seats.knows(request_id, position)

    def _seat(self, context: DraftContext) -> Seat:
        if self._native is None:
            return self._seats.of(context.request_id)
        slots, output = self._native.seat_of(context.request_id)
        return Seat(slots, len(context.slots), [output])

    def _propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Drafts in torch, for any request: a token of each at a time until all have ended."""
        growths = [begin_growth(context, limits, self._parts) for context, limits in asks]
        chains = DraftChains(
            self._passes,
            [self._seat(context) for context, _ in asks],
            [context.slots for context, _ in asks],
        )
        nodes = dict.fromkeys(range(len(growths)), ROOT)
        drafts: dict[int, list[int]] = {place: [] for place in nodes}
        logits = chains.first_logits()
        while True:
            self._add_children(growths, nodes, logits)
            nodes = {place: node for place in nodes for node in growths[place].take_frontier()}
            if not nodes:
                return [growth.tree(self._name) for growth in growths]
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
