"""DSpark: what it changes in DFlash."""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream.models.drafts.dflash import BlockNet, Choices
from slipstream.models.drafts.hparams import DSparkHparams

_PARTS_OF_JOINT = 3  # gate, candidate, output


class DSparkNet(BlockNet[DSparkHparams]):
    """DFlash with a bias by the previous token and an estimate of acceptance.

    Source: arXiv:2607.05147; names as in DeepSpec.
    """

    @classmethod
    def parameter_shapes(cls, hparams: DSparkHparams) -> dict[str, tuple[int, ...]]:
        """See `DraftNet`."""
        hidden, rank = hparams.body.hidden_size, hparams.markov_rank
        shapes = super().parameter_shapes(hparams)
        if hparams.markov_kind is not None:
            shapes["markov_head.markov_w1.weight"] = (hparams.body.vocab_size, rank)
            shapes["markov_head.markov_w2.weight"] = (hparams.draft_vocab_size, rank)
        if hparams.markov_kind == "gated":
            shapes["markov_head.gate_proj.weight"] = (rank, hidden + rank)
            shapes["markov_head.gate_proj.bias"] = (rank,)
        elif hparams.markov_kind == "rnn":
            num_out = _PARTS_OF_JOINT * rank
            shapes["markov_head.joint_proj.weight"] = (num_out, 2 * rank + hidden)
            shapes["markov_head.joint_proj.bias"] = (num_out,)
        if hparams.has_confidence:
            width = hidden + (rank if hparams.confidence_reads_markov else 0)
            shapes["confidence_head.proj.weight"] = (1, width)
            shapes["confidence_head.proj.bias"] = (1,)
        return shapes

    def choices(
        self, hidden: Tensor, logits: Tensor, previous: Tensor, state: Tensor | None = None
    ) -> Choices:
        """All tokens, biased by `previous`. See `BlockNet`.

        Args:
            state: [..., rank] what the recurrent head carries; None starts a path.
        """
        token_ids = self.target_token_ids().expand(logits.shape)
        if self.hparams.markov_kind is None:
            return Choices(token_ids, logits)
        inputs, state = self.markov_inputs(hidden, previous, state)
        bias = self.products("markov_head.markov_w2", inputs)
        return Choices(token_ids, logits + bias, state)

    def markov_inputs(
        self, hidden: Tensor, previous: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """What the Markov head's last matrix turns into biases, [..., rank], and the next state.

        Args:
            hidden, previous, state: As `choices` takes them.
        """
        embedded = self._previous(previous)
        if self.hparams.markov_kind == "gated":
            gate = self.products("markov_head.gate_proj", torch.cat((hidden, embedded), -1))
            embedded = torch.sigmoid(gate) * embedded
        elif self.hparams.markov_kind == "rnn":
            state = torch.zeros_like(embedded) if state is None else state
            read = torch.cat((state, embedded, hidden), -1)
            joint = self.products("markov_head.joint_proj", read)
            gate, candidate, output = joint.chunk(_PARTS_OF_JOINT, -1)
            gate = torch.sigmoid(gate)
            state = gate * state + (1.0 - gate) * torch.tanh(candidate)
            embedded = torch.tanh(output)
        return embedded, state

    def confidence_logits(self, hidden: Tensor, previous: Tensor) -> Tensor | None:
        """See `BlockNet`. It looks at no drafted token of its own row, so it may cut a draft."""
        if not self.hparams.has_confidence:
            return None
        if self.hparams.confidence_reads_markov:
            hidden = torch.cat((hidden, self._previous(previous)), -1)
        return self.products("confidence_head.proj", hidden).squeeze(-1)

    def confidence_temperature(self, index: int) -> float:
        """See `BlockNet`."""
        temperatures = self.hparams.confidence_temperatures
        return temperatures[index] if temperatures else 1.0

    def _previous(self, tokens: Tensor) -> Tensor:
        return self.products.rows("markov_head.markov_w1", tokens)
