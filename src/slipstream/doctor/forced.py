"""Acceptance along the target's own text: drafts start everywhere, and every one is compared.

The tokens that a draft builds on are always the true ones, so each depth is measured by itself and
a wrong draft spoils no other. No engine, no cache: the same nets, in plain torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.models.drafts.dflash import BlockNet
from slipstream.models.drafts.eagle3 import Eagle3Net
from slipstream.models.drafts.load import AnyDraftNet
from slipstream.models.drafts.parts import Context, LayerKv, empty_context


@dataclass(frozen=True, slots=True)
class ForcedText:
    """A prompt with the target's own greedy answer.

    Attributes:
        tokens: [len] int64.
        answer_at: Place of the answer's first token.
        taps: Layer -> [len, hidden] its output, as `DraftHparams.tap_layer_ids` counts layers.
    """

    tokens: Tensor
    answer_at: int
    taps: Mapping[int, Tensor]

    def anchors(self, num_drafts: int) -> Tensor:
        """[blocks] places of the answer's tokens that `num_drafts` others stand behind."""
        return torch.arange(self.answer_at, max(len(self.tokens) - num_drafts, self.answer_at))


@dataclass(frozen=True, slots=True)
class Reading:
    """A net, and how the target's states are handed to it.

    Attributes:
        tap_shift: Places by which taps are moved: 1 pairs each place with the states of the place
            in front of it.
        block_shift: Rotary positions added to the rows of a block, but not to its context.
    """

    net: AnyDraftNet
    tap_shift: int = 0
    block_shift: int = 0

    def taps_of(self, text: ForcedText) -> Tensor:
        """[len, taps * hidden] float32 what the net is told of each place."""
        layer_ids = self.net.hparams.tap_layer_ids or ()
        taps = torch.cat([text.taps[layer] for layer in layer_ids], -1).float()
        return torch.roll(taps, self.tap_shift, 0) if self.tap_shift else taps


def greedy_hits(reading: Reading, text: ForcedText, anchors: Tensor, num_drafts: int) -> Tensor:
    """[blocks, drafts] bool: whether the likeliest draft at each depth is the text's own token.

    Args:
        anchors: [blocks] as `text.anchors(num_drafts)` gives them, or for more drafts.
        num_drafts: At most those of a block, for block drafters.
    """
    with torch.inference_mode():
        if isinstance(reading.net, Eagle3Net):
            drafted = _eagle_drafts(reading.net, reading.taps_of(text), text, anchors, num_drafts)
        else:
            drafted = _block_drafts(reading, text, anchors, num_drafts)
    return drafted == _behind(text, anchors, 1, num_drafts)


def _eagle_drafts(
    net: Eagle3Net, taps: Tensor, text: ForcedText, anchors: Tensor, num_drafts: int
) -> Tensor:
    """[blocks, drafts] target ids. A block's rows see the committed rows up to its anchor's."""
    num_rows = len(text.tokens) - 1
    places = torch.arange(num_rows)
    first = net.extend(
        text.tokens[1:].view(1, 1, -1),
        net.fuse(taps[:num_rows]).view(1, 1, num_rows, -1),
        places.view(1, 1, -1),
        empty_context(net.hparams.body, 1, 1),
        (),
        torch.ones(num_rows, num_rows, dtype=torch.bool).tril(),
    )
    context = Context(
        [LayerKv(layer.keys[:, 0], layer.values[:, 0]) for layer in first.layers],
        places.unsqueeze(0),
        (places < anchors.unsqueeze(1)).unsqueeze(0),
    )
    before = anchors - 1  # the row that pairs the state in front of an anchor with the anchor
    hidden, normed = first.hidden[0, 0, before], first.normed[0, 0, before]
    known = net.target_token_ids()
    drafted = [known[net.head(normed).argmax(-1)]]
    earlier: list[LayerKv] = []
    for depth in range(1, num_drafts):
        rows = net.extend(
            text.tokens[anchors + depth].view(1, -1, 1),
            hidden.view(1, len(anchors), 1, -1),
            (before + depth).view(1, -1, 1),
            context,
            earlier,
            torch.ones(1, depth, dtype=torch.bool),
        )
        earlier = _joined(earlier, rows.layers)
        hidden = rows.hidden[0, :, 0]
        drafted.append(known[net.head(rows.normed[0, :, 0]).argmax(-1)])
    return torch.stack(drafted, -1)


def _block_drafts(reading: Reading, text: ForcedText, anchors: Tensor, num_drafts: int) -> Tensor:
    """[blocks, drafts] target ids. A block sees the states of all places in front of its anchor."""
    net = reading.net
    assert isinstance(net, BlockNet)
    places = torch.arange(len(text.tokens)).unsqueeze(0)
    features = net.context_features(reading.taps_of(text).unsqueeze(0))
    is_visible = (places < anchors.unsqueeze(1)).unsqueeze(0)
    context = Context(net.context_kv(features, places), places, is_visible)
    num_rows = net.hparams.first_draft_row + num_drafts
    positions = anchors.unsqueeze(1) + torch.arange(num_rows) + reading.block_shift
    block = net.block_tokens(text.tokens[anchors], num_rows)
    hidden = net.block_hidden(block.unsqueeze(0), positions.unsqueeze(0), context)
    rows = net.draft_rows(hidden)[0]
    previous = _behind(text, anchors, 0, num_drafts)
    state: Tensor | None = None
    drafted = []
    for depth in range(num_drafts):
        at = rows[:, depth]
        choices = net.choices(at, net.logits(at), previous[:, depth], state)
        state = choices.state
        best = choices.logits.argmax(-1, keepdim=True)
        drafted.append(choices.token_ids.gather(-1, best).squeeze(-1))
    return torch.stack(drafted, -1)


def _behind(text: ForcedText, anchors: Tensor, first: int, count: int) -> Tensor:
    """[blocks, count] tokens from `first` places behind each anchor on."""
    return text.tokens[anchors.unsqueeze(1) + first + torch.arange(count)]


def _joined(earlier: Sequence[LayerKv], rows: Sequence[LayerKv]) -> list[LayerKv]:
    if not earlier:
        return list(rows)
    return [
        LayerKv(torch.cat((old.keys, new.keys), 2), torch.cat((old.values, new.values), 2))
        for old, new in zip(earlier, rows, strict=True)
    ]
