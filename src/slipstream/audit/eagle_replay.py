"""EAGLE-3 chains and trees behind a growing sequence, as the recordings were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.audit.loaded_target import LoadedTarget
from slipstream.execution.batch import ForwardOutput
from slipstream.kv.storage import KvStorage
from slipstream.models.drafts.eagle3 import Eagle3Net
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.state import SamplingState
from slipstream.speculation.drafter import DraftContext
from slipstream.speculation.growth import Child, Growth, GrowthLimits
from slipstream.speculation.learned.eagle import CommittedRows, Eagle3Passes, NodeRows, OwnRow
from slipstream.speculation.learned.eagle_tree import EagleTree
from slipstream.speculation.learned.kv import DraftKv
from slipstream.speculation.tree import ROOT, DraftTree


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """How large a recorded tree may get.

    Attributes:
        total_token: Most nodes, the root included.
        depth: Levels below the first one.
        top_k: Children per node and nodes with children per level.
    """

    total_token: int
    depth: int
    top_k: int


@dataclass(frozen=True, slots=True)
class DraftedTree:
    """A tree and what decided about it.

    Attributes:
        best: The nodes to verify.
        cut_gap: Log-score of the worst of them minus that of the best one left out.
        root_logp: [draft_vocab] log-probabilities behind the anchor.
    """

    best: DraftTree
    cut_gap: float
    root_logp: Tensor


@dataclass(frozen=True, slots=True)
class Verified:
    """What the target made of a tree: kept nodes, the bonus token and how clear it was."""

    path: tuple[int, ...]
    bonus: int
    bonus_margin: float


class EagleReplay:
    """State between rounds: the target's sequence, the net's rows, the anchor.

    Attributes:
        committed: Tokens in front of the anchor.
        anchor: The target's next token.
        taps: [prompt, taps * target hidden] states of the prompt.
    """

    def __init__(self, target: LoadedTarget, net: Eagle3Net, prompt: Sequence[int]) -> None:
        self.net = net
        self._tap_layer_ids = net.hparams.tap_layer_ids or ()
        body = net.hparams.body
        storage = KvStorage(
            target.kv.num_slots, body.num_layers, body.kv_heads, body.head_dim, torch.float32
        )
        self._passes = Eagle3Passes(net, DraftKv(storage))
        self._sequence = target.sequence()
        output = self._sequence.extend(prompt, self._tap_layer_ids)
        self.committed = list(prompt)
        self.anchor = int(output.logits[-1].argmax())
        self.taps = self._taps(output)
        self._newest = self._absorb(self.taps, [*prompt[1:], self.anchor], None)

    def chain(self, count: int) -> tuple[list[int], Tensor, Tensor]:
        """Tokens of a greedy chain (target ids), their logits and the rows' hidden states."""
        rows = [self._newest]
        logits = [self._passes.logits(rows)[0]]
        tokens = [self._best(logits[-1])]
        while len(tokens) < count:
            places = list(range(len(rows)))
            node = NodeRows(
                self._sequence.slots(), tuple(rows), tokens[-1:], [places[-1]], [places]
            )
            rows.extend(self._passes.extend([node])[0])
            logits.append(self._passes.logits(rows[-1:])[0])
            tokens.append(self._best(logits[-1]))
        return tokens, torch.stack(logits), torch.stack([row.hidden for row in rows])

    def draft(self, settings: TreeSettings) -> DraftedTree:
        """Grow a tree by the draft's own probabilities."""
        max_nodes = settings.total_token - 1
        limits = GrowthLimits(settings.depth + 1, max_nodes, settings.top_k, 0.0)
        growth = Growth(_context([*self.committed, self.anchor]), limits, frozenset())
        root_logp = self._grow(growth, settings.top_k)
        ranked = torch.tensor([*sorted(growth.scores, reverse=True), 0.0]).log()
        cut = min(max_nodes, len(growth.scores))
        cut_gap = float(ranked[cut - 1] - ranked[cut])
        return DraftedTree(growth.tree("eagle3"), cut_gap, root_logp)

    def verify(self, tree: DraftTree) -> Verified:
        """Keep the nodes that the target says itself, and absorb them."""
        tokens = [self.anchor, *tree.tokens]
        parents = [-1, *(parent + 1 for parent in tree.parents)]
        output = self._sequence.compute(tokens, parents, self._tap_layer_ids)
        said: list[int] = output.logits.argmax(-1).tolist()
        path: list[int] = []
        child = tree.child(ROOT, said[0])
        while child is not None:
            path.append(child)
            child = tree.child(child, said[child + 1])
        rows = [0, *(node + 1 for node in path)]
        self._sequence.keep(rows)
        accepted = [tree.tokens[node] for node in path]
        bonus = said[rows[-1]]
        self.committed += [self.anchor, *accepted]
        self.anchor = bonus
        taps = self._taps(output)[rows]
        self._newest = self._absorb(taps, [*accepted, bonus], self._newest)
        best = output.logits[rows[-1]].topk(2).values
        return Verified(tuple(path), bonus, float(best[0] - best[1]))

    def close(self) -> None:
        """Give the target's pages back."""
        self._sequence.close()

    def _grow(self, growth: Growth, top_k: int) -> Tensor:
        """Give nodes children until none is worth a row; returns the root's log-probabilities."""
        tree = EagleTree(growth, self._newest, self._sequence.slots())
        nodes, rows = tree.rows_of_root()
        root_logp = self._passes.logits(rows)[0].log_softmax(-1)
        while True:
            best = self._passes.logits(rows).softmax(-1).topk(top_k)
            token_ids = self.net.target_token_ids()[best.indices].tolist()
            for node, tokens, probs in zip(nodes, token_ids, best.values.tolist(), strict=True):
                growth.add_children(node, map(Child, tokens, probs))
            wanted = tree.next_rows()
            if wanted is None:
                return root_logp
            rows = self._passes.extend([wanted])[0]
            nodes = tree.add_rows(rows)

    def _absorb(self, taps: Tensor, next_tokens: list[int], newest: OwnRow | None) -> OwnRow:
        return self._passes.absorb(CommittedRows(taps, next_tokens, self._sequence.slots()), newest)

    def _best(self, logits: Tensor) -> int:
        return int(self.net.target_token_ids()[logits.argmax()])

    def _taps(self, output: ForwardOutput) -> Tensor:
        return torch.cat([output.taps[layer] for layer in self._tap_layer_ids], -1)


def _context(tokens: Sequence[int]) -> DraftContext:
    return DraftContext(
        request_id="request",
        tokens=tokens,
        prompt_len=len(tokens),
        params=SamplingParams(),
        state=SamplingState(),
        seed=0,
        salt="",
        max_draft_len=1,
        max_draft_nodes=1,
    )
