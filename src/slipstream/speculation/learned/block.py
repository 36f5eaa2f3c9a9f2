"""Passes of a block drafter's net for the requests of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slipstream.execution.batch import IntArray
from slipstream.models.drafts.dflash import BlockNet
from slipstream.speculation.learned.kv import DraftKv


@dataclass(frozen=True, slots=True)
class BlockRows:
    """A drafted block per request.

    Attributes:
        hidden: [requests, rows, hidden] behind the final norm.
        draft_hidden: [requests, drafts, hidden] those of them that draft.
        logits: [requests, drafts, draft_vocab] float32 their own logits.
    """

    hidden: Tensor
    draft_hidden: Tensor
    logits: Tensor


class BlockPasses:
    """Injects the target's states and runs blocks.

    Args:
        net: Any of the block drafters' nets.
        kv: Its storage, in the target's slots.
    """

    def __init__(
        self,
        net: BlockNet[Any],  # Any: the family's hyperparameters
        kv: DraftKv,
    ) -> None:
        self.net = net
        self.kv = kv

    def inject(self, taps: Tensor, positions: IntArray, slots: IntArray) -> None:
        """Store what committed positions mean to the net.

        Args:
            taps: [rows, taps * target hidden] the target's states, side by side.
            positions, slots: [rows] of these rows.
        """
        with torch.inference_mode():
            features = self.net.context_features(taps)
            layers = self.net.context_kv(features, torch.from_numpy(positions))
            self.kv.write(slots, layers)

    def run(
        self, anchors: Sequence[int], tables: Sequence[IntArray], max_draft_len: int
    ) -> BlockRows:
        """Draft a block behind each anchor.

        Args:
            anchors: Last committed token of each request; the target has not read it yet.
            tables: By request, slots of all positions in front of the anchor.
            max_draft_len: Drafts of each block, at most those it was trained for.
        """
        hparams = self.net.hparams
        num_drafts = min(max_draft_len, hparams.max_draft_len)
        num_rows = hparams.first_draft_row + num_drafts
        with torch.inference_mode():
            starts = torch.tensor([[len(table)] for table in tables])
            positions = (starts + torch.arange(num_rows)).unsqueeze(1)
            tokens = self.net.block_tokens(torch.tensor(anchors), num_rows).unsqueeze(1)
            hidden = self.net.block_hidden(tokens, positions, self.kv.context(tables))
            draft_hidden = self.net.draft_rows(hidden)
            logits = self.net.logits(draft_hidden)
            return BlockRows(hidden[:, 0], draft_hidden[:, 0], logits[:, 0])
