"""What drafters with nets get of the engine: weights, storage in the target's slots, a sampler."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.config.schema import Config
from slipstream.config.speculation import DraftNetConfig
from slipstream.engine.loading import LoadedModel
from slipstream.kv.cache import KvCache
from slipstream.kv.storage import KvStorage
from slipstream.models.drafts.load import AnyDraftNet
from slipstream.speculation.learned.parts import DraftNetParts, num_request_slots


def net_parts(
    config: Config, nets: Mapping[str, AnyDraftNet], kv: KvCache, target: LoadedModel
) -> dict[str, DraftNetParts]:
    """Draft nets keep their rows in the target's slots, so they have no cache of their own."""
    parts: dict[str, DraftNetParts] = {}
    dtype = target.kv_dtype(config.memory.draft_kv_dtype)
    for item in config.speculation.drafters:
        if not isinstance(item, DraftNetConfig):
            continue
        net = nets[item.name]
        body = net.hparams.body
        num_spare = config.scheduler.max_num_requests * num_request_slots(
            net.hparams, item.num_children, item.max_draft_len
        )
        num_slots = kv.num_slots + num_spare
        parts[item.name] = DraftNetParts(
            net=net,
            storage=KvStorage(num_slots, body.num_layers, body.kv_heads, body.head_dim, dtype),
            sampler=target.sampler(),
            max_len=min(target.max_model_len, body.max_positions),
            num_spare_slots=num_spare,
        )
    return parts
