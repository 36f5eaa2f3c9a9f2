"""Multi-token-prediction heads: a decoder layer that reads the target's last state and a token."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.attention.backend import AttentionBackend, Rows
from slipstream.kv.storage import KvStorage
from slipstream.models.drafts.parts import TokenEnds
from slipstream.models.hparams import Hparams, RotaryParams
from slipstream.models.layers.block import DecoderLayer, LayerContext
from slipstream.models.layers.linear import Linear
from slipstream.models.layers.norm import RmsNorm
from slipstream.models.layers.rotary import RotaryTable, Rotation


@dataclass(frozen=True, slots=True)
class MtpHead:
    """One head.

    Attributes:
        fusion: From embedding and state, both normalised, side by side, to the layer's input.
        ends: Its embeddings, and its product with the tokens that it knows.
    """

    fusion: Linear
    embedding_norm: RmsNorm
    hidden_norm: RmsNorm
    layer: DecoderLayer
    final_norm: RmsNorm
    ends: TokenEnds


@dataclass(frozen=True, slots=True)
class MtpRows:
    """Rows of one pass through one head.

    Attributes:
        tokens: [rows] int64 the token behind each row's state.
        hidden: [rows, hidden] float32 what is known behind the token in front of it.
        branches: How rows attend: slots of all rows of a text, in the order of their positions.
    """

    tokens: Tensor
    hidden: Tensor
    branches: Sequence[Rows]


class MtpHeads:
    """All heads of a checkpoint; each keeps keys and values in a layer of one storage.

    Row j of the first head pairs the target's state at position j, behind its final norm, with
    token j + 1, and says what token j + 2 is. A row drafted behind it reads its output in place of
    a state: another row of the same head where there is one, row j of the next head where there
    are several. A row's rotary position is j in every head.

    Args:
        hparams: Of the heads' layers; as many layers as heads.
        dtype: Of products.
        heads: In the order in which they draft.
        target_norm: The target's final norm.
        draft_token_ids: [draft_vocab] int64 target id of each token that they know; None for all.
        own_bytes: Of matrices that their ends do not share with the target.

    Source: DeepSeek-V3 (arXiv:2412.19437), section 2.2; its published code and Qwen3-Next's.
    """

    def __init__(
        self,
        hparams: Hparams,
        dtype: torch.dtype,
        heads: Sequence[MtpHead],
        attention: AttentionBackend,
        target_norm: RmsNorm,
        draft_token_ids: Tensor | None,
        own_bytes: int,
    ) -> None:
        self.hparams = hparams
        self.dtype = dtype
        self.heads = tuple(heads)
        self.attention = attention
        self.target_norm = target_norm
        self.draft_token_ids = draft_token_ids
        self._zeroes_first = False
        self._tables: dict[RotaryParams, RotaryTable] = {
            layer.rotary: RotaryTable(layer.rotary, hparams.rotary_dim) for layer in hparams.layers
        }
        self.weight_bytes = own_bytes + sum(_num_bytes(head) for head in heads)

    def zeroing_first(self) -> MtpHeads:
        """The same heads, to which the embedding of a text's first row counts as zero.

        So vLLM computes DeepSeek-V3's; transformers and SGLang do not, and nor does a drafter.
        """
        heads = copy(self)
        heads._zeroes_first = True
        return heads

    @property
    def num_heads(self) -> int:
        """How many there are."""
        return len(self.heads)

    def most_drafts(self, wanted: int) -> int:
        """Longest chain: one head reads its own output again and again, several draft in turn."""
        return wanted if self.num_heads == 1 else min(wanted, self.num_heads)

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes of one token's keys and values in all heads."""
        return self.hparams.kv_shape.bytes_per_token(dtype)

    def storage(self, num_slots: int, dtype: torch.dtype) -> KvStorage:
        """A storage of keys and values for all heads."""
        return self.hparams.kv_shape.storage(num_slots, dtype)

    def run(self, index: int, rows: MtpRows, storage: KvStorage) -> Tensor:
        """Compute rows of one head; each row's key and value are stored in its slot on the way.

        Returns: [rows, hidden] float32 behind the head's final norm: what its logits are made of,
        and what rows behind them read.
        """
        head, num_rows = self.heads[index], len(rows.tokens)
        positions, slots = _of_rows(rows.branches, num_rows)
        with torch.inference_mode():
            embedded = head.ends.embed(rows.tokens)
            if self._zeroes_first:
                embedded = embedded.masked_fill((positions == 0).unsqueeze(1), 0.0)
            halves = head.embedding_norm(embedded), head.hidden_norm(rows.hidden)
            x = head.fusion(torch.cat(halves, -1).to(self.dtype)).float()
            return head.final_norm(head.layer(x, self._context(rows, positions, slots, storage)))

    def logits(self, index: int, hidden: Tensor) -> Tensor:
        """[rows, hidden] as `run` returns it -> [rows, draft_vocab] float32."""
        with torch.inference_mode():
            return self.heads[index].ends.head(hidden)

    def token_ids(self) -> Tensor:
        """[draft_vocab] int64 target id of each token that the heads know."""
        if self.draft_token_ids is not None:
            return self.draft_token_ids
        return torch.arange(self.hparams.vocab_size)

    def rotary_table(self, params: RotaryParams) -> RotaryTable:
        """Angles of layers that rotate like this."""
        return self._tables[params]

    def _context(
        self, rows: MtpRows, positions: Tensor, slots: Tensor, storage: KvStorage
    ) -> LayerContext:
        num_rows, last = len(positions), int(positions.max())
        windows = {layer.window for layer in self.hparams.layers}
        return LayerContext(
            dtype=self.dtype,
            cuts=(num_rows,),  # drafts need no exact rows, so no product is cut
            cover=lambda count: (count,),
            slots=slots,
            attention={
                window: self.attention.prepare(rows.branches, num_rows, window)
                for window in windows
            },
            rotations={
                params: Rotation(*table.angles(positions, last))
                for params, table in self._tables.items()
            },
            storage=storage,
        )


def _of_rows(branches: Sequence[Rows], num_rows: int) -> tuple[Tensor, Tensor]:
    """Position and slot of every row: [rows] int64 each."""
    positions = torch.zeros(num_rows, dtype=torch.int64)
    slots = torch.zeros(num_rows, dtype=torch.int64)
    for branch in branches:
        rows = torch.from_numpy(branch.rows)
        positions[rows] = torch.from_numpy(branch.positions)
        slots[rows] = torch.from_numpy(branch.slots[branch.positions])
    return positions, slots


def _num_bytes(head: MtpHead) -> int:
    linears = (head.fusion, *head.layer.linears())
    own = (head.embedding_norm, head.hidden_norm, head.final_norm)
    norms = (*own, *head.layer.norms())
    of_norms: int = sum(norm.nbytes for norm in norms)
    return sum(linear.nbytes for linear in linears) + of_norms
