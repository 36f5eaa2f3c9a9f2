"""A prompt decoded greedily with a block drafter, round by round, as the recordings were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slipstream.audit.loaded_target import LoadedTarget
from slipstream.execution.batch import ForwardOutput
from slipstream.kv.storage import KvStorage
from slipstream.models.drafts.dflash import BlockNet, Choices
from slipstream.speculation.learned.block import BlockPasses, BlockRows
from slipstream.speculation.learned.kv import DraftKv

AnyBlockNet = BlockNet[Any]  # Any: hyperparameters of one of the families


@dataclass(frozen=True, slots=True)
class Walk:
    """One path through a drafted block.

    Attributes:
        tokens: The drafts, by row.
        choices: What each row offered behind the path so far.
        confidence: [drafts] logits of acceptance; None where the net has none.
    """

    tokens: list[int]
    choices: list[Choices]
    confidence: Tensor | None


@dataclass(frozen=True, slots=True)
class Round:
    """One block, drafted and verified.

    Attributes:
        start: Position of the anchor.
        num_new_context: Rows whose states were injected before the block.
        anchor: The last committed token.
        rows, walk: What was drafted; `num_proposed` of it was verified.
        target_logits: [num_proposed + 1, vocab] behind the anchor and each draft.
        accepted_len, bonus: What came of it.
    """

    start: int
    num_new_context: int
    anchor: int
    rows: BlockRows
    walk: Walk
    num_proposed: int
    target_logits: Tensor
    accepted_len: int
    bonus: int


class BlockReplay:
    """State between rounds: the target's sequence, the net's storage, the anchor.

    Attributes:
        output: The prompt and what was committed so far; the anchor is the last one.
        injected: All states injected so far, [rows, taps * target hidden] each.
    """

    def __init__(self, target: LoadedTarget, net: AnyBlockNet, prompt: Sequence[int]) -> None:
        self.net = net
        self._tap_layer_ids: tuple[int, ...] = net.hparams.tap_layer_ids or ()
        body = net.hparams.body
        storage = KvStorage(
            target.kv.num_slots, body.num_layers, body.kv_heads, body.head_dim, torch.float32
        )
        self._passes = BlockPasses(net, DraftKv(storage))
        self._sequence = target.sequence()
        output = self._sequence.extend(prompt, self._tap_layer_ids)
        self.injected: list[Tensor] = []
        self._inject(self._taps(output))
        self.output = [*prompt, int(output.logits[-1].argmax())]

    def draft(self) -> BlockRows:
        """Run a block behind the anchor."""
        hparams = self.net.hparams
        return self._passes.run([self.output[-1]], [self._sequence.slots()], hparams.max_draft_len)

    def walk(self, rows: BlockRows, path: Sequence[int] | None = None) -> Walk:
        """Follow the best token of each row, or a given path."""
        previous, state = self.output[-1], None
        tokens: list[int] = []
        offered: list[Choices] = []
        confidence: list[Tensor] = []
        for row in range(rows.logits.shape[1]):
            hidden, logits = rows.draft_hidden[0, row], rows.logits[0, row]
            before = torch.tensor(previous)
            choices = self.net.choices(hidden, logits, before, state)
            estimate = self.net.confidence_logits(hidden, before)
            if estimate is not None:
                confidence.append(estimate)
            best = int(choices.token_ids[choices.logits.argmax()])
            previous, state = best if path is None else path[row], choices.state
            tokens.append(previous)
            offered.append(choices)
        return Walk(tokens, offered, torch.stack(confidence) if confidence else None)

    def target_logits(self, drafts: Sequence[int]) -> Tensor:
        """[drafts + 1, vocab] behind the anchor and each draft; nothing is kept."""
        return self._compute(drafts).logits

    def advance(self, rows: BlockRows, walk: Walk, num_proposed: int) -> Round:
        """Verify the first drafts of a walk, and commit what the target says itself."""
        start, anchor = self._sequence.num_tokens, self.output[-1]
        num_new_context = len(self.injected[-1])
        drafts = walk.tokens[:num_proposed]
        output = self._compute(drafts)
        said: list[int] = output.logits.argmax(-1).tolist()
        accepted_len = 0
        while accepted_len < len(drafts) and drafts[accepted_len] == said[accepted_len]:
            accepted_len += 1
        self._sequence.keep(range(accepted_len + 1))
        self._inject(self._taps(output)[: accepted_len + 1])
        self.output.extend(said[: accepted_len + 1])
        bonus = said[accepted_len]
        return Round(
            start, num_new_context, anchor, rows, walk, num_proposed, output.logits,
            accepted_len, bonus,
        )  # fmt: skip

    def close(self) -> None:
        """Give the target's pages back."""
        self._sequence.close()

    def _compute(self, drafts: Sequence[int]) -> ForwardOutput:
        parents = range(-1, len(drafts))
        return self._sequence.compute([self.output[-1], *drafts], parents, self._tap_layer_ids)

    def _inject(self, taps: Tensor) -> None:
        slots = self._sequence.slots()
        first = len(slots) - len(taps)
        positions = torch.arange(first, len(slots)).numpy()
        self._passes.inject(taps, positions, slots[first:])
        self.injected.append(taps)

    def _taps(self, output: ForwardOutput) -> Tensor:
        return torch.cat([output.taps[layer] for layer in self._tap_layer_ids], -1)


def greedy_tokens(target: LoadedTarget, prompt: Sequence[int], count: int) -> list[int]:
    """The target's own continuation, token by token."""
    sequence = target.sequence()
    tokens = [int(sequence.extend(prompt).logits[-1].argmax())]
    while len(tokens) < count:
        tokens.append(int(sequence.extend(tokens[-1:]).logits[-1].argmax()))
    sequence.close()
    return tokens
