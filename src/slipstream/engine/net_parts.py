"""What drafters with nets get of the engine: weights, storage in the target's slots, a sampler."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from slipstream.config.mtp import MtpConfig
from slipstream.config.schema import Config
from slipstream.config.speculation import DraftNetConfig
from slipstream.engine.loading import LoadedModel, load_draft_net, load_mtp_heads
from slipstream.kv.cache import KvCache
from slipstream.kv.storage import KvStorage
from slipstream.models.drafts.load import AnyDraftNet
from slipstream.models.mtp.heads import MtpHeads
from slipstream.speculation.drafters.mtp import num_seat_slots
from slipstream.speculation.learned.parts import DraftNetParts, MtpParts, num_request_slots

log = logging.getLogger("slipstream.engine")

AnyNet = AnyDraftNet | MtpHeads


def load_nets(config: Config, target: LoadedModel) -> dict[str, AnyNet]:
    """Load the nets of all drafters that have one, by the drafter's name.

    Raises:
        SlipstreamError: One does not fit the target.
    """
    nets: dict[str, AnyNet] = {}
    for item in config.speculation.drafters:
        if isinstance(item, DraftNetConfig):
            nets[item.name] = load_draft_net(item, config.model, target)
        elif isinstance(item, MtpConfig):
            nets[item.name] = load_mtp_heads(item, config.model, target)
    return nets


def net_parts(
    config: Config, nets: Mapping[str, AnyNet], kv: KvCache, target: LoadedModel
) -> dict[str, DraftNetParts | MtpParts]:
    """Nets keep their rows in the target's slots, so they have no cache of their own."""
    parts: dict[str, DraftNetParts | MtpParts] = {}
    dtype = target.kv_dtype(config.memory.draft_kv_dtype)
    for item in config.speculation.drafters:
        if isinstance(item, MtpConfig):
            parts[item.name] = _mtp_parts(config, item, nets[item.name], kv, target)
        if not isinstance(item, DraftNetConfig):
            continue
        net = nets[item.name]
        assert not isinstance(net, MtpHeads)
        body = net.hparams.body
        num_spare = config.scheduler.max_num_requests * num_request_slots(
            net.hparams, item.num_children, item.max_draft_len
        )
        num_slots = kv.num_slots + num_spare
        parts[item.name] = DraftNetParts(
            net=net,
            storage=KvStorage(num_slots, body.num_layers, body.kv_heads, body.head_dim, dtype),
            sampler=target.sampler(),
            max_len=_max_len(item.name, body.max_positions, target),
            num_spare_slots=num_spare,
        )
    return parts


def _mtp_parts(
    config: Config, item: MtpConfig, heads: AnyNet, kv: KvCache, target: LoadedModel
) -> MtpParts:
    assert isinstance(heads, MtpHeads)
    num_spare = config.scheduler.max_num_requests * num_seat_slots(item.max_draft_len)
    dtype = target.kv_dtype(config.memory.draft_kv_dtype)
    return MtpParts(
        heads=heads,
        storage=heads.storage(kv.num_slots + num_spare, dtype),
        sampler=target.sampler(),
        max_len=_max_len(item.name, heads.hparams.max_positions, target),
        num_spare_slots=num_spare,
        last_layer_id=target.model.hparams.num_layers - 1,
    )


def _max_len(name: str, own: int, target: LoadedModel) -> int:
    """Longest text that a net drafts for; said where the target takes longer ones."""
    if own < target.max_model_len:
        log.warning(
            "drafter %s drafts for texts of up to %d tokens (max_position_embeddings in its "
            "config.json); the target takes %d, and answers longer ones without its drafts",
            name,
            own,
            target.max_model_len,
        )
    return min(target.max_model_len, own)
