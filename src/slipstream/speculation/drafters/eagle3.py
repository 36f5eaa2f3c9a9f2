"""Drafts by an EAGLE-3 net: one pass per depth, each row reading the one before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slipstream.models.drafts.eagle3 import Eagle3Net
from slipstream.speculation.candidates import best_children
from slipstream.speculation.drafter import DraftContext, DrafterNeeds, Observation, TargetRows
from slipstream.speculation.growth import GrowthLimits
from slipstream.speculation.learned.begin import begin_growth, growth_limits
from slipstream.speculation.learned.eagle import CommittedRows, Eagle3Passes, OwnRow
from slipstream.speculation.learned.eagle_tree import EagleTree
from slipstream.speculation.learned.kv import DraftKv
from slipstream.speculation.learned.native import Ask, native_net
from slipstream.speculation.learned.native_drafts import NativeChains, propose_each
from slipstream.speculation.learned.offers import taps_of, target_logits
from slipstream.speculation.learned.parts import DraftNetParts, DraftNetRules
from slipstream.speculation.tree import DraftTree


@dataclass(frozen=True, slots=True)
class _Newest:
    """A request's newest committed row and its position."""

    position: int
    row: OwnRow


class Eagle3Drafter:
    """Drafts all requests of a step together; a tree by cumulative probability (EAGLE-2).

    Of each request it holds the newest committed row; all earlier ones lie in the target's slots.
    """

    def __init__(self, name: str, parts: DraftNetParts, rules: DraftNetRules) -> None:
        assert isinstance(parts.net, Eagle3Net)
        self._name = name
        self._parts = parts
        self._rules = rules
        self._net = parts.net
        self._passes = Eagle3Passes(parts.net, DraftKv(parts.storage))
        self._newest: dict[str, _Newest] = {}
        native = native_net(parts, rules)
        self._native = NativeChains(name, native, parts) if native is not None else None

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
        for item in rows:
            taps = taps_of(item, self._parts.tap_layer_ids)
            first = len(item.slots) - len(taps)
            count = len(item.next_tokens)
            if count == 0:
                continue
            committed = CommittedRows(taps[:count], item.next_tokens, item.slots[: first + count])
            newest = self._newest.get(item.request_id)
            known = newest.row if newest is not None and newest.position == first - 1 else None
            row = self._passes.absorb(committed, known)
            self._newest[item.request_id] = _Newest(first + count - 1, row)

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftTree]:
        limits = [self._limits(context) for context in contexts]
        return propose_each(contexts, limits, self._native, self._parts, self._propose)

    def _propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Drafts in torch, for any request."""
        trees = [
            EagleTree(
                begin_growth(context, limits, self._parts),
                self._newest_row(context.request_id),
                context.slots,
            )
            for context, limits in asks
        ]
        waiting = [(tree, *tree.rows_of_root()) for tree in trees]
        while waiting:
            self._add_children(waiting)
            wanted = [(tree, tree.next_rows()) for tree, _, _ in waiting]
            asked = [(tree, rows) for tree, rows in wanted if rows is not None]
            if not asked:
                break
            found = self._passes.extend([rows for _, rows in asked])
            waiting = [
                (tree, tree.add_rows(rows), rows)
                for (tree, _), rows in zip(asked, found, strict=True)
            ]
        return [tree.growth.tree(self._name) for tree in trees]

    def observe(self, observations: Sequence[Observation]) -> None:
        """Nothing: what was committed comes with the target's rows."""

    def release(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._newest.pop(request_id, None)
            if self._native is not None:
                self._native.release(request_id)

    def memory_bytes(self) -> int:
        in_torch = sum(item.row.nbytes for item in self._newest.values())
        return in_torch + (self._native.num_bytes if self._native is not None else 0)

    def _limits(self, context: DraftContext) -> GrowthLimits | None:
        """Bounds of the request's tree; None where its newest row is not known."""
        if not self._knows(context.request_id, len(context.slots) - 1):
            return None
        return growth_limits(context, self._parts, self._rules, self._rules.max_draft_len)

    def _knows(self, request_id: str, position: int) -> bool:
        if self._native is not None:
            return self._native.knows(request_id, position)
        newest = self._newest.get(request_id)
        return newest is not None and newest.position == position

    def _newest_row(self, request_id: str) -> OwnRow:
        if self._native is not None:
            return self._native.newest(request_id)
        return self._newest[request_id].row

    def _add_children(self, waiting: Sequence[tuple[EagleTree, list[int], list[OwnRow]]]) -> None:
        """Give every node whose row is there its children, in one product with the head."""
        rows = [row for _, _, of_tree in waiting for row in of_tree]
        places = [(tree, node) for tree, nodes, _ in waiting for node in nodes]
        with torch.inference_mode():
            logits = self._passes.logits(rows)
            token_ids = self._net.target_token_ids().expand(logits.shape)
            offered = target_logits(token_ids, logits, self._net.hparams.body.vocab_size)
        requests = [tree.growth.request(node) for tree, node in places]
        found = best_children(self._parts.sampler, offered, requests, self._rules.num_children)
        for (tree, node), children in zip(places, found, strict=True):
            tree.growth.add_children(node, children)
