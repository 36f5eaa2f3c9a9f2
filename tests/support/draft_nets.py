"""Net drafters over made-up hidden states, which stand in for the target's."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.matrix import PackedMatrix
from slipstream.kv.cache import KvCache
from slipstream.kv.lease import Lease
from slipstream.kv.storage import KvStorage
from slipstream.models.drafts.load import AnyDraftNet, packed_products
from slipstream.models.drafts.parts import StoredEnds
from slipstream.models.layers.embedding import PackedEnds
from slipstream.sampling.sampler import Sampler
from slipstream.speculation.drafter import (
    DraftContext,
    Drafter,
    DrafterNeeds,
    Observation,
    TapReader,
    TargetRows,
)
from slipstream.speculation.drafters.block_net import BlockNetDrafter
from slipstream.speculation.drafters.eagle3 import Eagle3Drafter
from slipstream.speculation.learned.parts import (
    DraftNetParts,
    DraftNetRules,
    num_request_slots,
)
from slipstream.speculation.tree import DraftTree
from tests.support.drafts import HIDDEN_SIZE, tiny_net
from tests.support.native import native_kernels

EOS = 2
VOCAB_SIZE = 300
NET_VOCAB_SIZE = 512


class FedDrafter:
    """A net drafter that is told of hidden states just before it drafts.

    A row's states are a pure function of the tokens up to it, as the target's are.
    """

    def __init__(self, drafter: Drafter, kv: KvCache) -> None:
        assert isinstance(drafter, TapReader)
        self._drafter = drafter
        self._reader: TapReader = drafter
        self.kv = kv
        self._leases: dict[str, Lease] = {}

    @property
    def name(self) -> str:
        return self._drafter.name

    @property
    def needs(self) -> DrafterNeeds:
        return self._drafter.needs

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftTree]:
        return self._drafter.propose([self._feed(context) for context in contexts])

    def observe(self, observations: Sequence[Observation]) -> None:
        self._drafter.observe(observations)

    def release(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            lease = self._leases.pop(request_id, None)
            if lease is not None:
                lease.close()
        self._drafter.release(request_ids)

    def memory_bytes(self) -> int:
        """What it holds, and what lies in the slots of its requests."""
        num_rows = sum(lease.num_tokens for lease in self._leases.values())
        return self._drafter.memory_bytes() + self.needs.kv_bytes_per_token * num_rows

    def _feed(self, context: DraftContext) -> DraftContext:
        tokens, request_id = list(context.tokens), context.request_id
        lease = self._leases.get(request_id)
        if lease is None or lease.num_tokens > len(tokens) - 1:
            self.release([request_id])
            lease = self._leases[request_id] = self.kv.open(request_id, tokens, context.salt)
        first, stop = lease.num_tokens, len(tokens) - 1
        if stop > first:
            lease.reserve(stop - first)
            lease.commit(stop - first)
            lease.publish(tokens[:stop])
            taps = states(tokens, first, stop)
            slots = lease.slots(0, stop).copy()
            next_tokens = tokens[first + 1 : stop + 1]
            layer_ids, rows = self.needs.target_layer_ids, np.arange(len(taps))
            self._reader.absorb(
                [TargetRows(request_id, slots, next_tokens, rows, dict.fromkeys(layer_ids, taps))]
            )
        return replace(context, slots=lease.slots(0, lease.num_tokens).copy())


def states(tokens: Sequence[int], first: int, stop: int) -> Tensor:
    """[stop - first, hidden] made up from the last three tokens up to each position."""
    rows = []
    for position in range(first, stop):
        digest = hashlib.sha256(repr(tokens[max(position - 2, 0) : position + 1]).encode()).digest()
        generator = np.random.default_rng(int.from_bytes(digest[:8], "little"))
        rows.append(generator.normal(0.0, 1.0, HIDDEN_SIZE))
    return torch.tensor(np.stack(rows), dtype=torch.float32)


@dataclass(frozen=True, slots=True)
class PackedStoredEnds(StoredEnds):
    """A target's ends that native kernels have, too."""

    library: KernelLibrary

    def packed(self) -> PackedEnds | None:
        embeddings = PackedMatrix(self.library, [self.embeddings])
        return PackedEnds(embeddings, PackedMatrix(self.library, [self.vocabulary]), 0.0)


def packed_net(
    library: KernelLibrary, family: str, changes: dict[str, Any] | None = None
) -> AnyDraftNet:
    """A tiny random net in bfloat16, its matrices in native kernels."""
    net = tiny_net(family, {"vocab_size": NET_VOCAB_SIZE} | (changes or {}))
    products, rest = packed_products(
        library, {name: item.bfloat16() for name, item in net.parameters.items()}
    )
    assert isinstance(net.ends, StoredEnds)
    ends = PackedStoredEnds(net.ends.embeddings.bfloat16(), net.ends.vocabulary.bfloat16(), library)
    return type(net)(net.hparams, rest, ends, net.draft_token_ids, products)


def make_net_drafter(
    family: str,
    *,
    name: str = "net",
    num_children: int = 1,
    net: AnyDraftNet | None = None,
    num_spare_slots: int = 0,
    kv_dtype: torch.dtype = torch.float32,
) -> FedDrafter:
    """A drafter with a tiny random net of a family, or with this one.

    Args:
        num_spare_slots: Native passes draft with enough of them, if the net has them.
    """
    net = net or tiny_net(family, {"vocab_size": NET_VOCAB_SIZE})
    kv = KvCache(512, 4)
    body = net.hparams.body
    num_slots = kv.num_slots + num_spare_slots
    storage = KvStorage(num_slots, body.num_layers, body.kv_heads, body.head_dim, kv_dtype)
    parts = DraftNetParts(
        net, storage, Sampler(VOCAB_SIZE, (EOS,)), max_len=512, num_spare_slots=num_spare_slots
    )
    rules = DraftNetRules(num_children=num_children, max_draft_len=4, least_score=0.0)
    kind = Eagle3Drafter if family == "eagle3" else BlockNetDrafter
    return FedDrafter(kind(name, parts, rules), kv)


def make_native_drafter(family: str, *, name: str = "net", num_children: int = 1) -> FedDrafter:
    """A drafter whose tiny net runs in native kernels."""
    net = packed_net(native_kernels(), family)
    num_slots = 8 * num_request_slots(net.hparams, num_children, 4)
    return make_net_drafter(
        family, name=name, num_children=num_children, net=net, num_spare_slots=num_slots
    )
