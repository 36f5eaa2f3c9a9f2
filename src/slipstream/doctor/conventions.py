"""Other ways in which a draft checkpoint may have been meant than the one it is read by.

Each is a mistake that exporters, converters and configurations have made: the checkpoint loads, the
shapes fit, and acceptance collapses. Reading it the other way and measuring again tells which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from slipstream.doctor.forced import Reading
from slipstream.doctor.rearranged import exchanged, neighbours_as_halves, other_half_first
from slipstream.models.drafts.hparams import DFlashHparams, DraftHparams, Eagle3Hparams
from slipstream.models.drafts.load import AnyDraftNet, net_class_of
from slipstream.models.hparams import Hparams

_ROTARY_BASES = (10000.0, 500000.0, 1000000.0, 10000000.0)
_COUNTING = "target_layer_ids name outputs of layers, aux_hidden_state_layer_ids name inputs"
_EMBEDDING = -1  # the first tap there is


@dataclass(frozen=True, slots=True)
class Convention:
    """One other way to read a checkpoint.

    Attributes:
        name: What would be different.
        remedy: What to do if this is the right one.
        reading: Makes it; nothing is copied before.
        layer_ids: Layers of the target that it reads, where they are not the net's own.
    """

    name: str
    remedy: str
    reading: Callable[[], Reading]
    layer_ids: tuple[int, ...] = ()


def conventions_of(
    net: AnyDraftNet, target: Hparams, mask_token_ids: Sequence[int] = ()
) -> list[Convention]:
    """All that make sense for this net and target.

    Args:
        mask_token_ids: Tokens that may stand for "not known" in a block.
    """
    hparams = net.hparams
    found = [*_taps(net, target), *_rotary(net, target), *_norms(net), *_ends(net, target)]
    found += [*_token_ids(net), *_places(net)]
    if isinstance(hparams, DFlashHparams):
        found += _blocks(net, hparams, mask_token_ids)
    if isinstance(hparams, Eagle3Hparams):
        found += _eagle_flags(net, hparams)
    return found


def layers_read(conventions: Sequence[Convention], net: AnyDraftNet) -> tuple[int, ...]:
    """Layers of the target that the net or one of the conventions reads, ascending."""
    own = net.hparams.tap_layer_ids or ()
    return tuple(sorted({*own, *(layer for item in conventions for layer in item.layer_ids)}))


def _taps(net: AnyDraftNet, target: Hparams) -> Iterator[Convention]:
    layer_ids = net.hparams.tap_layer_ids or ()
    earlier = tuple(layer - 1 for layer in layer_ids)
    later = tuple(layer + 1 for layer in layer_ids)
    if min(earlier) >= _EMBEDDING:
        yield _other_taps(
            net,
            "taps one layer earlier",
            f"lower each of its layer ids by 1: {_COUNTING}",
            earlier,
        )
    if max(later) < target.num_layers:
        yield _other_taps(
            net,
            "taps one layer later",
            f"raise each of its layer ids by 1: {_COUNTING}",
            later,
        )
    if len(layer_ids) > 1:
        yield _other_taps(
            net,
            "taps in the opposite order",
            "list its layer ids in the opposite order",
            layer_ids[::-1],
        )
    yield Convention(
        "states one place earlier",
        "it was trained with each token beside the state two places in front of it: train it "
        "again with states and tokens in step",
        partial(Reading, net, tap_shift=1),
    )
    yield Convention(
        "states one place later",
        "it was trained with each token's own state, which the target has not computed when a "
        "draft is made: train it again with the state in front of each token",
        partial(Reading, net, tap_shift=-1),
    )


def _other_taps(net: AnyDraftNet, name: str, remedy: str, layer_ids: tuple[int, ...]) -> Convention:
    return Convention(
        name, remedy, partial(_changed, net, tap_layer_ids=layer_ids), layer_ids=layer_ids
    )


def _rotary(net: AnyDraftNet, target: Hparams) -> Iterator[Convention]:
    layers = net.hparams.body.layers
    now = {layer.rotary.theta for layer in layers}
    of_target = {layer.rotary.theta for layer in target.layers}
    for base in sorted({*_ROTARY_BASES, *of_target} - now):
        yield Convention(
            f"rotary base {base:g}",
            f"set rope_theta to {base:g} in its config.json",
            partial(_with_rotary_base, net, base),
        )
    yield Convention(
        "rotary pairs of neighbours",
        "its query and key weights are in the interleaved order of GGUF's Llama: convert it again, "
        "with each head's two halves one after the other",
        lambda: _with_parameters(net, neighbours_as_halves(net)),
    )


def _norms(net: AnyDraftNet) -> Iterator[Convention]:
    yield Convention(
        "norm weights as 1 + w",
        "its norms are stored without their 1: add 1 to each norm's weight",
        lambda: _with_parameters(
            net, {name: p + 1.0 for name, p in net.parameters.items() if _is_norm(name)}
        ),
    )
    yield Convention(
        "norm weights left out",
        "it was trained without weights in its norms: set each norm's weight to 1",
        lambda: _with_parameters(
            net,
            {name: torch.ones_like(p) for name, p in net.parameters.items() if _is_norm(name)},
        ),
    )


def _ends(net: AnyDraftNet, target: Hparams) -> Iterator[Convention]:
    hparams = net.hparams
    fits = hparams.body.hidden_size == target.hidden_size
    has_whole_head = hparams.has_own_head and not hparams.is_reduced
    if hparams.has_own_embeddings and fits:
        yield Convention(
            "the target's embeddings",
            "its embed_tokens.weight is not the one that it was trained with: remove the tensor",
            partial(_changed, net, has_own_embeddings=False),
        )
    if has_whole_head and fits:
        yield Convention(
            "the target's head",
            "its lm_head.weight is not the one that it was trained with: remove the tensor",
            partial(_changed, net, has_own_head=False),
        )
    if hparams.has_own_embeddings and has_whole_head:
        embed, head = "embed_tokens.weight", "lm_head.weight"
        yield Convention(
            "embeddings and head exchanged",
            f"its {embed} and {head} have taken each other's place: exchange them",
            lambda: _with_parameters(
                net, {embed: net.parameters[head], head: net.parameters[embed]}
            ),
        )


def _places(net: AnyDraftNet) -> Iterator[Convention]:
    """Of tensors of one shape that lie in each other's place."""
    yield Convention(
        "gate and up exchanged",
        "its mlp.gate_proj and mlp.up_proj have taken each other's place: exchange them",
        lambda: _with_parameters(net, exchanged(net.parameters, "mlp.gate_proj", "mlp.up_proj")),
    )


def _token_ids(net: AnyDraftNet) -> Iterator[Convention]:
    """Of a draft vocabulary; only those that name tokens at all."""
    ids = net.draft_token_ids
    if ids is None:
        return
    places = torch.arange(len(ids))
    ways = (
        ("d2t as target ids", "its d2t holds target ids, not offsets: store id - place", -places),
        ("d2t as offsets", "its d2t holds offsets, not target ids: store place + offset", places),
        ("the first tokens as its vocabulary", "its d2t is wrong: store zeros", places - ids),
    )
    for name, remedy, change in ways:
        other = ids + change
        is_vocabulary = len(torch.unique(other)) == len(other)
        is_inside = int(other.min()) >= 0 and int(other.max()) < net.hparams.body.vocab_size
        if is_vocabulary and is_inside and not torch.equal(other, ids):
            yield Convention(name, remedy, partial(_rebuilt, net, token_ids=other))


def _blocks(
    net: AnyDraftNet, hparams: DFlashHparams, mask_token_ids: Sequence[int]
) -> Iterator[Convention]:
    row = 1 - hparams.first_draft_row
    if hparams.draft_block_len > row:
        yield Convention(
            "a row drafts its own place" if row else "a row drafts the place behind it",
            f"set sample_from_anchor to {'false' if row else 'true'} in its config.json",
            partial(_changed, net, first_draft_row=row),
        )
    is_causal = any(hparams.causal_layers)
    yield Convention(
        "rows see their whole block" if is_causal else "rows see earlier rows of their block",
        f"set is_causal to {str(not is_causal).lower()} in its config.json",
        partial(_changed, net, causal_layers=(not is_causal,) * len(hparams.causal_layers)),
    )
    for shift, where in ((-1, "earlier"), (1, "later")):
        yield Convention(
            f"blocks one position {where}",
            f"it was trained with blocks that start one rotary position {where}: train it again, "
            "the anchor at its own position",
            partial(Reading, net, block_shift=shift),
        )
    for token_id in mask_token_ids:
        if token_id != hparams.mask_token_id and token_id < hparams.body.vocab_size:
            yield Convention(
                f"mask token {token_id}",
                f"set mask_token_id to {token_id} in its config.json",
                partial(_changed, net, mask_token_id=token_id),
            )


def _eagle_flags(net: AnyDraftNet, hparams: Eagle3Hparams) -> Iterator[Convention]:
    flags = {
        "has_normed_residual": ("the residual behind hidden_norm", "norm_before_residual"),
        "recycles_normed": ("chained rows read behind the final norm", "norm_output"),
    }
    for field, (name, key) in flags.items():
        is_set = bool(getattr(hparams, field))
        yield Convention(
            f"not {name}" if is_set else name,
            f"set {key} to {str(not is_set).lower()} in its config.json",
            partial(_changed, net, **{field: not is_set}),
        )
    yield Convention(
        "the state in front of the embedding",
        "the first layer's q_proj, k_proj and v_proj have the state's columns first: exchange the "
        "two halves of their columns",
        lambda: _with_parameters(net, other_half_first(net.parameters)),
    )


def _changed(net: AnyDraftNet, **fields: Any) -> Reading:  # Any: fields of different types
    return _rebuilt(net, hparams=replace(net.hparams, **fields))


def _with_rotary_base(net: AnyDraftNet, base: float) -> Reading:
    body = net.hparams.body
    layers = tuple(
        replace(layer, rotary=replace(layer.rotary, theta=base)) for layer in body.layers
    )
    return _changed(net, body=replace(body, layers=layers))


def _with_parameters(net: AnyDraftNet, others: Mapping[str, Tensor]) -> Reading:
    return _rebuilt(net, parameters={**net.parameters, **others})


def _rebuilt(
    net: AnyDraftNet,
    hparams: DraftHparams | None = None,
    parameters: Mapping[str, Tensor] | None = None,
    token_ids: Tensor | None = None,
) -> Reading:
    shape = net.hparams if hparams is None else hparams
    return Reading(
        net_class_of(shape)(
            shape,
            net.parameters if parameters is None else parameters,
            net.ends,
            net.draft_token_ids if token_ids is None else token_ids,
        )
    )


def _is_norm(name: str) -> bool:
    return name.removesuffix(".weight").endswith(("norm", "layernorm"))
