"""Where a checkpoint keeps multi-token-prediction heads, and whom they are for. No torch.

Told from names of tensors and fields of config.json. Two layouts are published: DeepSeek-V3 counts
its heads as layers behind the decoder's last; Qwen3-Next and Qwen3.5 keep theirs under `mtp.`.
The second is also that of a head in a file of its own, whatever its target.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.errors import WeightsError

Json = Mapping[str, Any]  # Any: JSON

_DEEPSEEK_FIELD = "num_nextn_predict_layers"
_QWEN_FIELDS = ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")
_DRAFT_FIELDS = ("draft_vocab_size",)
_BEHIND = re.compile(r"model\.layers\.(\d+)\.eh_proj\.weight")
_QWEN_PREFIX = "mtp."
_DSPARK_MARK = "mtp.0.main_proj.weight"


@dataclass(frozen=True, slots=True)
class HeadNames:
    """What the parts of one head are called.

    Attributes:
        fusion, embedding_norm, hidden_norm, final_norm: Without `.weight`.
        layer: What the names of its decoder layer's tensors begin with.
        embeddings, vocabulary: Of its own matrices, with `.weight`; the checkpoint may lack them.
    """

    fusion: str
    embedding_norm: str
    hidden_norm: str
    layer: str
    final_norm: str
    embeddings: str
    vocabulary: str


@dataclass(frozen=True, slots=True)
class MtpLayout:
    """The heads of one checkpoint.

    Attributes:
        name: Whose layout it is.
        heads: In the order in which they draft.
        prefixes: What the names of all their tensors begin with.
        num_target_layers: Depth of the decoder that they were trained with.
        draft_vocab_size: Tokens that they know; None is all of the target's.
    """

    name: str
    heads: tuple[HeadNames, ...]
    prefixes: tuple[str, ...]
    num_target_layers: int
    draft_vocab_size: int | None = None


def find_heads(config: Json, names: Collection[str]) -> MtpLayout | None:
    """The heads that a checkpoint has, or says that it has; None where there are none.

    Raises:
        WeightsError: Its heads are of a kind that is not supported, or of another depth.
    """
    if _DSPARK_MARK in names:
        return None
    text = {**config, **(config.get("text_config") or {})}
    depth = _whole(text, "num_hidden_layers", 0)
    behind = sorted(int(match[1]) for name in names if (match := _BEHIND.fullmatch(name)))
    count = _whole(text, _DEEPSEEK_FIELD, 0)
    if count or behind:
        return _behind_the_last_layer(depth, count or len(behind), behind)
    said = _whole(text, _QWEN_FIELDS[0], 0)
    if not said and f"{_QWEN_PREFIX}fc.weight" not in names:
        return None
    if said > 1:
        raise WeightsError(
            f"config.json has {_QWEN_FIELDS[0]} = {said}; a head of one layer is supported"
        )
    known = _whole(text, "draft_vocab_size", 0) or None
    return MtpLayout("Qwen", (_qwen_names(),), (_QWEN_PREFIX, "d2t", "t2d"), depth, known)


def without_heads(config: Json) -> dict[str, Any]:  # Any: JSON
    """The fields of the decoder whose layers a head's layer is like."""
    ours = {_DEEPSEEK_FIELD, *_QWEN_FIELDS, *_DRAFT_FIELDS}
    return {name: value for name, value in config.items() if name not in ours}


def _behind_the_last_layer(depth: int, count: int, behind: list[int]) -> MtpLayout:
    wanted = list(range(depth, depth + count))
    others = [index for index in behind if index not in wanted]
    if others:
        raise WeightsError(
            f"the head at model.layers.{others[0]} is for a decoder of another depth: config.json "
            f"has {depth} layers, so its heads are at model.layers.{wanted[0]} and behind",
            hint="config.json must be that of the checkpoint that the head is from",
        )
    prefixes = [f"model.layers.{index}" for index in wanted]
    heads = tuple(
        HeadNames(
            fusion=f"{prefix}.eh_proj",
            embedding_norm=f"{prefix}.enorm",
            hidden_norm=f"{prefix}.hnorm",
            layer=prefix,
            final_norm=f"{prefix}.shared_head.norm",
            embeddings=f"{prefix}.embed_tokens.weight",
            vocabulary=f"{prefix}.shared_head.head.weight",
        )
        for prefix in prefixes
    )
    return MtpLayout("DeepSeek", heads, tuple(f"{prefix}." for prefix in prefixes), depth)


def _qwen_names() -> HeadNames:
    return HeadNames(
        fusion="mtp.fc",
        embedding_norm="mtp.pre_fc_norm_embedding",
        hidden_norm="mtp.pre_fc_norm_hidden",
        layer="mtp.layers.0",
        final_norm="mtp.norm",
        embeddings="mtp.embed_tokens.weight",
        vocabulary="mtp.lm_head.weight",
    )


def _whole(config: Json, name: str, otherwise: int) -> int:
    value = config.get(name)
    if value is None:
        return otherwise
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise WeightsError(f"config.json has {name} = {value!r}; it must be a whole number")
    return value
