"""Drafts by a smaller model with the target's vocabulary, drawn with the target's own noise.

The draft model applies the request's processors, temperature and filters to its logits and adds
the noise that the target will add (DESIGN.md, section 3; Daliri, Musco, Suresh 2024). Where the
two models agree on the logits they agree on the token, at every temperature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from slipstream.kv.cache import OutOfPages
from slipstream.speculation.candidates import best_children
from slipstream.speculation.drafter import DraftContext, DrafterNeeds, Observation
from slipstream.speculation.drafters.draft_model.parts import DraftModelParts, DraftModelRules
from slipstream.speculation.drafters.draft_model.passes import PassRows
from slipstream.speculation.drafters.draft_model.sequence import CachedSequence
from slipstream.speculation.growth import Growth, GrowthLimits
from slipstream.speculation.tree import EMPTY_TREE, ROOT, DraftTree

_TOKEN_BYTES = 8


@dataclass(frozen=True, slots=True)
class _Draft:
    """One request in one call of `propose`."""

    context: DraftContext
    sequence: CachedSequence
    growth: Growth

    @property
    def num_missing(self) -> int:
        """Known tokens that the cache does not hold yet; the anchor is one of them."""
        return len(self.context.tokens) - self.sequence.num_tokens


class DraftModelDrafter:
    """Drafts all requests of a step together: one pass over what is new, then one per depth.

    Each request has a lease in the draft cache. When its pages run out, leases of requests that
    are not asked for now are closed first, then a request that does not fit goes without a draft.
    """

    def __init__(self, name: str, parts: DraftModelParts, rules: DraftModelRules) -> None:
        self._name = name
        self._parts = parts
        self._rules = rules
        self._sequences: dict[str, CachedSequence] = {}  # least recently asked for first
        self._eos = frozenset(parts.sampler.eos_token_ids)

    @property
    def name(self) -> str:
        return self._name

    @property
    def needs(self) -> DrafterNeeds:
        parts = self._parts
        return DrafterNeeds(
            kv_bytes_per_token=parts.kv_bytes_per_token,
            weight_bytes=parts.weight_bytes,
            max_len=parts.max_len,
        )

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftTree]:
        drafts = [self._begin(context) for context in contexts]
        asked = frozenset(context.request_id for context in contexts)
        ready = self._read_known([draft for draft in drafts if draft is not None], asked)
        while self._grow(ready, asked):
            pass
        return [EMPTY_TREE if draft is None else draft.growth.tree(self._name) for draft in drafts]

    def observe(self, observations: Sequence[Observation]) -> None:
        for item in observations:
            sequence = self._sequences.get(item.request_id)
            if sequence is not None:
                sequence.settle(item.tokens)

    def release(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._close(request_id)

    def memory_bytes(self) -> int:
        return _TOKEN_BYTES * sum(item.num_tokens for item in self._sequences.values())

    def _begin(self, context: DraftContext) -> _Draft | None:
        """The request's text as far as the cache has it; None if it is too long to draft for."""
        room = self._parts.max_len - len(context.tokens)
        max_len = min(
            context.max_draft_len, context.max_draft_nodes, self._rules.max_draft_len, room
        )
        if max_len < 1:
            return None
        limits = GrowthLimits(
            max_len,
            context.max_draft_nodes,
            self._rules.num_children,
            self._rules.least_score,
        )
        params = context.params
        final = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos)
        return _Draft(context, self._sequence(context), Growth(context, limits, final))

    def _sequence(self, context: DraftContext) -> CachedSequence:
        sequence = self._sequences.pop(context.request_id, None)
        if sequence is not None:
            sequence.settle(context.tokens)
            if not sequence.holds_start_of(context.tokens):
                sequence.close()
                sequence = None
        if sequence is None:
            sequence = CachedSequence(
                self._parts.kv,
                self._parts.runner.storage,
                context.request_id,
                context.salt,
                context.tokens,
            )
        self._sequences[context.request_id] = sequence
        return sequence

    def _read_known(self, drafts: Sequence[_Draft], asked: frozenset[str]) -> list[_Draft]:
        """Compute what the cache lacks of each text, as far as one call may.

        Returns: The drafts whose anchor was reached; their first nodes are there.
        """
        rows = PassRows()
        reading: list[tuple[_Draft, int]] = []
        for draft, count in self._share_rows(drafts):
            sequence = draft.sequence
            reserve = partial(sequence.reserve_text, len(draft.context.tokens))
            if not count and not sequence.is_untouched:
                continue
            if not count or not self._make_room(reserve, asked):
                # It opens again with what the others share until then. Nothing is lost: full pages
                # stay in the prefix cache while there is room.
                self._close(draft.context.request_id)
                continue
            stop = sequence.num_tokens + count
            rows.add(
                draft.context.tokens[sequence.num_tokens : stop],
                sequence.text_slots(stop),
                wants_logits=count == draft.num_missing,
            )
            reading.append((draft, count))
        if not reading:
            return []
        logits = self._parts.runner.forward(rows.batch()).logits
        ready = [draft for draft, count in reading if count == draft.num_missing]
        for draft, count in reading:
            draft.sequence.commit_text(draft.context.tokens, count)
        self._add_children([(draft, ROOT) for draft in ready], logits)
        return ready

    def _share_rows(self, drafts: Sequence[_Draft]) -> list[tuple[_Draft, int]]:
        """How many tokens of each text are read now, the shortest rest first.

        Of those who would compute the same page, such as the choices of one request, the others
        wait unless there are rows for all: they find it in the prefix cache in the next call.
        """
        page_size = self._parts.kv.page_size
        pages: set[tuple[str, int, tuple[int, ...]]] = set()
        shares: list[tuple[_Draft, int]] = []
        repeats: list[_Draft] = []
        rows_left = self._rules.max_known_rows
        for draft in sorted(drafts, key=lambda draft: draft.num_missing):
            start = draft.sequence.num_tokens
            tokens = tuple(draft.context.tokens[start : start + page_size])
            page = (draft.context.salt, start, tokens)
            if page in pages:
                repeats.append(draft)
                continue
            pages.add(page)
            count = min(draft.num_missing, rows_left)
            rows_left -= count
            shares.append((draft, count))
        for draft in repeats:
            count = draft.num_missing if draft.num_missing <= rows_left else 0
            rows_left -= count
            shares.append((draft, count))
        return shares

    def _grow(self, drafts: Sequence[_Draft], asked: frozenset[str]) -> bool:
        """Give the best new nodes their children, in one pass; False if there are none."""
        rows = PassRows()
        parents: list[tuple[_Draft, int]] = []
        for draft in drafts:
            growth, sequence = draft.growth, draft.sequence
            frontier = growth.take_frontier()
            reserve = partial(sequence.reserve_nodes, len(frontier))
            if not frontier or not self._make_room(reserve, asked):
                continue
            for node in frontier:
                token = growth.token(node)
                path = growth.place(node, sequence.add_node(growth.parent_row(node), token))
                rows.add([token], sequence.node_slots(path), wants_logits=True)
                parents.append((draft, node))
        if not parents:
            return False
        self._add_children(parents, self._parts.runner.forward(rows.batch()).logits)
        return True

    def _add_children(
        self,
        parents: Sequence[tuple[_Draft, int]],
        logits: Tensor,  # [parents, vocab] float32
    ) -> None:
        requests = [draft.growth.request(node) for draft, node in parents]
        found = best_children(self._parts.sampler, logits, requests, self._rules.num_children)
        for (draft, node), children in zip(parents, found, strict=True):
            draft.growth.add_children(node, children)

    def _make_room(self, reserve: Callable[[], None], asked: frozenset[str]) -> bool:
        """Reserve, closing leases of requests that are not asked for now until it fits."""
        while True:
            try:
                reserve()
            except OutOfPages:
                idle = next((name for name in self._sequences if name not in asked), None)
                if idle is None:
                    return False
                self._close(idle)
            else:
                return True

    def _close(self, request_id: str) -> None:
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            sequence.close()
