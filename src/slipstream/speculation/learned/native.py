"""Drafting with a net in native kernels: one call per step for what was committed, one to draft."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch

from slipstream.execution.batch import IntArray
from slipstream.kernels import draft_structs
from slipstream.kernels.address import address_of
from slipstream.models.drafts.hparams import DFlashHparams, family_of
from slipstream.models.drafts.native import NativeDraftNet, is_native
from slipstream.models.drafts.packed import PackedProducts
from slipstream.models.mtp.native import NativeHead
from slipstream.models.mtp.native import obstacle as head_obstacle
from slipstream.models.native_net import NativeNet, NetRoom
from slipstream.speculation.confidence import LOGIT_DISAGREEMENT, NUM_RIVALS
from slipstream.speculation.drafter import DraftContext, TargetRows
from slipstream.speculation.growth import GrowthLimits
from slipstream.speculation.learned.parts import (
    DraftNetParts,
    DraftNetRules,
    MtpParts,
    num_request_slots,
)
from slipstream.speculation.tree import EMPTY_TREE, DraftTree

log = logging.getLogger("slipstream.speculation")

Ask = tuple[DraftContext, GrowthLimits]
"""A request that is drafted for and the bounds of its tree."""

_NO_TOKENS = np.empty(0, np.int64)


def native_net(parts: DraftNetParts, rules: DraftNetRules) -> NativeNet | None:
    """The parts' net for native calls; None where torch computes it, which is logged."""
    seat_slots = num_request_slots(parts.net.hparams, rules.num_children, rules.max_draft_len)
    if not _is_native(_obstacle(parts, seat_slots), parts.needs.weight_bytes):
        return None
    return NativeDraftNet(parts.net, _room(parts, rules, seat_slots))


def native_head(parts: MtpParts, rules: DraftNetRules, seat_slots: int) -> NativeNet | None:
    """The same for a multi-token-prediction head.

    Args:
        seat_slots: Spare slots of a request.
    """
    if not _is_native(head_obstacle(parts.heads), parts.needs.weight_bytes):
        return None
    return NativeHead(parts.heads, _room(parts, rules, seat_slots))


def _is_native(obstacle: str | None, num_bytes: int) -> bool:
    """Say how a net drafts."""
    if obstacle is None:
        log.info("native calls draft with a net of %.1f MiB", num_bytes / 2**20)
    else:
        log.info("torch drafts, which takes several times as long: %s", obstacle)
    return obstacle is None


def _room(parts: DraftNetParts | MtpParts, rules: DraftNetRules, seat_slots: int) -> NetRoom:
    return NetRoom(
        storage=parts.storage,
        first_spare_slot=parts.storage.num_slots - parts.num_spare_slots,
        seat_slots=seat_slots,
        num_drawable=parts.sampler.vocab_size,
        rules=draft_structs.DraftRules(
            rules.least_score, LOGIT_DISAGREEMENT, rules.num_children, NUM_RIVALS
        ),
    )


def _obstacle(parts: DraftNetParts, seat_slots: int) -> str | None:
    """Why native calls cannot draft with the net."""
    hparams, ends = parts.net.hparams, parts.net.ends.packed()
    if not isinstance(parts.net.products, PackedProducts):
        return "its matrices are not in native kernels"
    if ends is None:
        return "the target's embeddings and vocabulary are not in native kernels"
    if not is_native(hparams):
        return f"no native pass has all that this net of family {family_of(hparams)} has"
    scales_itself = isinstance(hparams, DFlashHparams) and hparams.embedding_scale != 1.0
    if scales_itself and ends.embedding_scale and not hparams.has_own_embeddings:
        return "the target and the net both scale embeddings"
    if parts.num_spare_slots < seat_slots:
        return "its storage has no spare slots"
    return None


class NativeCall:
    """Makes the arguments of native calls and reads their trees.

    Args:
        name: Source of the trees.
    """

    def __init__(self, name: str, net: NativeNet, parts: DraftNetParts | MtpParts) -> None:
        self.net = net
        self._sources = frozenset((name,))
        self._tap_layer_ids = parts.needs.target_layer_ids
        self._eos = np.array(parts.sampler.eos_token_ids, np.int64)
        self._final_tokens: list[IntArray] = []

    def learn(
        self,
        function: Callable[..., None],  # of the library
        rows: Sequence[TargetRows],
        seats: Sequence[tuple[int, bool]] | None = None,
    ) -> None:
        """Take in rows of several requests.

        Args:
            seats: By request, its seat and whether what is kept there is its newest row; None
                where a net keeps no row.
        """
        requests = (draft_structs.Committed * len(rows))()
        next_tokens: list[IntArray] = []
        for index, (request, item) in enumerate(zip(requests, rows, strict=True)):
            count = len(item.rows)
            request.slots = address_of(item.slots)
            request.rows = address_of(item.rows)
            request.first_position = len(item.slots) - count
            request.num_rows = count
            if seats is not None:
                request.seat, request.is_newest_known = seats[index]
                next_tokens.append(np.array(item.next_tokens, np.int64))
                request.next_tokens = address_of(next_tokens[-1])
        taps = (ctypes.c_void_p * len(self._tap_layer_ids))()
        for index, layer in enumerate(self._tap_layer_ids):
            tap = rows[0].taps[layer]
            assert tap.dtype == torch.float32
            assert tap.is_contiguous()
            taps[index] = tap.data_ptr()
        self.net.cover(max(len(item.slots) for item in rows))
        committed = draft_structs.CommittedRows(
            ctypes.addressof(requests), ctypes.addressof(taps), len(rows)
        )
        function(*self.net.arguments(), ctypes.byref(committed))

    def _asked(
        self, asks: Sequence[Ask], seats: Sequence[int]
    ) -> ctypes.Array[draft_structs.DraftRequest]:
        """Requests to draft for; valid as long as `asks` and until the next call."""
        self._final_tokens.clear()
        requests = (draft_structs.DraftRequest * len(asks))()
        for request, (context, limits), seat in zip(requests, asks, seats, strict=True):
            params, drawing = context.params, request.drawing
            if not params.is_greedy:
                drawing.temperature = params.temperature
            drawing.top_p, drawing.min_p = params.top_p, params.min_p
            drawing.top_k = min(params.top_k, 2**31 - 1)
            drawing.seed = context.seed % 2**64
            request.anchor = context.tokens[-1]
            request.position = len(context.tokens)
            request.slots = address_of(context.slots)
            request.num_slots = len(context.slots)
            final_tokens = self._final_tokens_of(context)
            request.final_tokens = address_of(final_tokens)
            request.num_final_tokens = len(final_tokens)
            request.max_len, request.max_nodes = limits.max_len, limits.max_nodes
            request.seat = seat
        return requests

    def draft(
        self,
        function: Callable[..., None],  # of the library
        asks: Sequence[Ask],
        seats: Sequence[int],
    ) -> list[DraftTree]:
        """Trees of requests, which must have spare slots enough for all of them."""
        self.net.cover(max(len(context.tokens) + limits.max_len for context, limits in asks))
        requests = self._asked(asks, seats)
        num_requests, stride = len(asks), max(limits.max_nodes for _, limits in asks)
        tokens = np.empty((num_requests, stride), np.int64)
        parents = np.empty((num_requests, stride), np.int32)
        scores = np.empty((num_requests, stride), np.float64)
        counts = np.empty(num_requests, np.int32)
        trees = draft_structs.DraftTrees(
            address_of(tokens),
            address_of(parents),
            address_of(scores),
            address_of(counts),
            stride,
        )
        function(*self.net.arguments(), requests, num_requests, ctypes.byref(trees))
        return [
            DraftTree(
                tuple(tokens[row, :count].tolist()),
                tuple(parents[row, :count].tolist()),
                tuple(scores[row, :count].tolist()),
                (self._sources,) * count,
            )
            if count
            else EMPTY_TREE
            for row, count in enumerate(counts.tolist())
        ]

    def _final_tokens_of(self, context: DraftContext) -> IntArray:
        params = context.params
        eos = _NO_TOKENS if params.ignore_eos else self._eos
        if not params.stop_token_ids:
            return eos
        tokens = np.array([*params.stop_token_ids, *eos.tolist()], np.int64)
        self._final_tokens.append(tokens)
        return tokens
