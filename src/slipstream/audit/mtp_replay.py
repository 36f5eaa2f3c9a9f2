"""Multi-token-prediction heads behind a growing sequence, as the recordings were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slipstream.audit.loaded_target import LoadedTarget
from slipstream.execution.batch import ForwardOutput
from slipstream.models.mtp.heads import MtpHeads, MtpRows
from slipstream.speculation.learned.mtp import (
    CommittedStates,
    DraftChains,
    MtpPasses,
    Seat,
    chain_branch,
)


@dataclass(frozen=True, slots=True)
class DraftedChain:
    """Attributes:
    tokens: [drafts] int64, each the best of its row of `logits` [drafts, vocab].
    hidden: [drafts, hidden] outputs that the logits were made of.
    """

    tokens: Tensor
    logits: Tensor
    hidden: Tensor


@dataclass(frozen=True, slots=True)
class VerifiedChain:
    """Attributes:
    logits: [1 + drafts, vocab] the target's, behind the anchor and each draft.
    accept_len: Drafts that the target says itself.
    """

    logits: Tensor
    accept_len: int


class MtpReplay:
    """State between rounds: the target's sequence, the heads' rows, the anchor.

    Attributes:
        committed: Tokens in front of the anchor.
        anchor: The target's next token.
        states: [prompt, hidden] behind the target's final norm; logits: [prompt, vocab].
    """

    def __init__(
        self, target: LoadedTarget, heads: MtpHeads, prompt: Sequence[int], num_drafts: int
    ) -> None:
        self.heads = heads
        self._last_layer = target.num_layers - 1
        num_slots = target.kv.num_slots
        storage = heads.storage(num_slots + num_drafts, torch.float32)
        self._passes = MtpPasses(heads, storage)
        self._seat = Seat(np.arange(num_slots, num_slots + num_drafts, dtype=np.int64))
        self._sequence = target.sequence()
        output = self._sequence.extend(prompt, (self._last_layer,))
        self.committed = list(prompt)
        self.logits = torch.as_tensor(output.logits)
        self.anchor = int(self.logits[-1].argmax())
        self.states = self._states(output)
        self._absorb(self.states, [*prompt[1:], self.anchor])

    def straight(self) -> list[tuple[Tensor, Tensor]]:
        """Each head over the whole text: outputs and logits of all rows.

        The next head reads the outputs, and the text shifted by the token just drafted.
        """
        storage = self.heads.storage(self._passes.storage.num_slots, torch.float32)
        tokens, hidden, found = [*self.committed[1:], self.anchor], self.states, []
        for head in range(self.heads.num_heads):
            branch = chain_branch(0, len(tokens), self._sequence.slots())
            hidden = self.heads.run(head, MtpRows(torch.tensor(tokens), hidden, [branch]), storage)
            found.append((hidden, self.heads.logits(head, hidden)))
            tokens = [*tokens[1:], int(found[-1][1][-1].argmax())]
        return found

    def draft(self, count: int) -> DraftedChain:
        """A greedy chain behind the anchor."""
        chains = DraftChains(self._passes, [self._seat], [self._sequence.slots()])
        logits = [chains.first_logits()[0]]
        hidden = [chains.newest_output(0)]
        tokens = [int(logits[0].argmax())]
        while len(tokens) < count:
            logits.append(chains.extend({0: tokens})[0])
            hidden.append(chains.newest_output(0))
            tokens.append(int(logits[-1].argmax()))
        return DraftedChain(torch.tensor(tokens), torch.stack(logits), torch.stack(hidden))

    def verify(self, drafts: Sequence[int]) -> VerifiedChain:
        """Keep the drafts that the target says itself, and absorb them."""
        tokens = [self.anchor, *drafts]
        chain = range(-1, len(drafts))
        output = self._sequence.compute(tokens, chain, (self._last_layer,), num_known=1)
        logits = torch.as_tensor(output.logits)
        said: list[int] = logits.argmax(-1).tolist()
        accept_len = 0
        while accept_len < len(drafts) and drafts[accept_len] == said[accept_len]:
            accept_len += 1
        self._sequence.keep(range(accept_len + 1))
        accepted, bonus = list(drafts[:accept_len]), said[accept_len]
        self.committed += [self.anchor, *accepted]
        self.anchor = bonus
        self._absorb(self._states(output)[: accept_len + 1], [*accepted, bonus])
        return VerifiedChain(logits, accept_len)

    def close(self) -> None:
        """Give the target's pages back."""
        self._sequence.close()

    def _absorb(self, states: Tensor, next_tokens: list[int]) -> None:
        slots = self._sequence.slots()
        first = len(slots) - len(states)
        self._passes.absorb([CommittedStates(self._seat, states, next_tokens, slots, first)])

    def _states(self, output: ForwardOutput) -> Tensor:
        with torch.inference_mode():
            return self.heads.target_norm(output.taps[self._last_layer])
