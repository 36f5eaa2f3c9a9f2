"""The target as a trainer sees it: hidden states and likeliest tokens of whole sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slipstream.engine.loading import LoadedModel
from slipstream.errors import ConfigError
from slipstream.execution.batch import Branch, ForwardBatch
from slipstream.execution.runner import Runner
from slipstream.kv.states import StateSpan
from slipstream.models.drafts.parts import StoredEnds
from slipstream.models.identity import TargetIdentity, identify
from slipstream.training.answers import Answer
from slipstream.weights.open import open_checkpoint

_PASS_ROWS = 512  # wide enough to be fast; wider ones wait for memory
_CHUNK_ROWS = 16


@dataclass(frozen=True, slots=True)
class Features:
    """What the target says about one answer.

    Attributes:
        taps: [tokens, taps * hidden] bfloat16 tapped states of prompt and answer, side by side.
        top_ids: [response tokens, k] int32 likeliest tokens at each place of the answer, given all
            in front of it, the likeliest first.
        top_logprobs: [response tokens, k] float16 their log-probabilities at temperature 1.
    """

    taps: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


def require_layers(tap_layer_ids: Sequence[int], num_layers: int) -> None:
    """Refuse taps that a target lacks, and one that is named twice.

    Raises:
        ConfigError: Says which there are.
    """
    missing = [layer for layer in tap_layer_ids if not -1 <= layer < num_layers]
    if missing or len(set(tap_layer_ids)) != len(tap_layer_ids):
        raise ConfigError(
            f"--taps must name different layers from -1 to {num_layers - 1}, got "
            f"{', '.join(map(str, tap_layer_ids))}"
        )


class TargetReader:
    """Reads a target's states, several answers in a pass.

    Args:
        loaded: The target.
        tap_layer_ids: Layers whose output is wanted, as `DraftHparams.tap_layer_ids`.
        num_top: Likeliest tokens kept per place.
        max_len: Longest prompt with answer; what is longer is refused by whoever cuts answers.
    Raises:
        ConfigError: The target lacks a layer.
    """

    def __init__(
        self, loaded: LoadedModel, tap_layer_ids: Sequence[int], num_top: int, max_len: int
    ) -> None:
        hparams = loaded.model.hparams
        require_layers(tap_layer_ids, hparams.num_layers)
        self.identity: TargetIdentity = identify(loaded.name, loaded.model)
        self.tap_layer_ids = tuple(tap_layer_ids)
        self.num_top = min(num_top, hparams.vocab_size)
        self._vocab_size = loaded.vocab_size
        self._max_rows = max(_PASS_ROWS, max_len)
        num_slots = self._max_rows + 1  # slot 0 is scratch
        storage = hparams.kv_shape.storage(num_slots, loaded.kv_dtype("auto"))
        if hparams.state_shape is not None:
            storage.states = hparams.state_shape.storage(num_states=0, max_drafts=0)
        self._runner = Runner(loaded.model, storage)

    def read(self, answers: Sequence[Answer]) -> Iterator[Features]:
        """Features of each answer, in order."""
        start = 0
        while start < len(answers):
            stop, num_rows = start, 0
            while stop < len(answers):
                num_rows += _length(answers[stop])
                if num_rows > self._max_rows and stop > start:
                    break
                stop += 1
            yield from self._pass(answers[start:stop])
            start = stop

    def _pass(self, answers: Sequence[Answer]) -> Iterator[Features]:
        lengths = [_length(answer) for answer in answers]
        starts = np.cumsum([0, *lengths])
        num_rows = int(starts[-1])
        slots = np.arange(1, num_rows + 1, dtype=np.int64)
        positions = np.concatenate([np.arange(length, dtype=np.int64) for length in lengths])
        branches = tuple(
            Branch(
                rows=np.arange(start, start + length, dtype=np.int64),
                positions=np.arange(length, dtype=np.int64),
                slots=slots[start : start + length],
            )
            for start, length in zip(starts, lengths, strict=False)
        )
        # The row in front of a token has the logits from which it is drawn.
        logit_rows = np.concatenate(
            [
                np.arange(start + len(answer.prompt_ids) - 1, start + length - 1, dtype=np.int64)
                for start, answer, length in zip(starts, answers, lengths, strict=False)
            ]
        )
        tokens = [(*answer.prompt_ids, *answer.response_ids) for answer in answers]
        batch = ForwardBatch(
            tokens=np.concatenate([np.array(ids, dtype=np.int64) for ids in tokens]),
            positions=positions,
            slots=slots,
            branches=branches,
            logit_rows=logit_rows,
            tap_layer_ids=self.tap_layer_ids,
            spans=tuple(
                StateSpan(first_row=int(start), num_known=length, num_drafts=0)
                for start, length in zip(starts, lengths, strict=False)
            ),
        )
        with torch.inference_mode():
            output = self._runner.forward(batch)
            taps = torch.cat([output.taps[layer] for layer in self.tap_layer_ids], -1).bfloat16()
            top = _likeliest(output.logits[:, : self._vocab_size], self.num_top)
        row = 0
        for start, answer, length in zip(starts, answers, lengths, strict=False):
            end = row + len(answer.response_ids)
            yield Features(taps[start : start + length], top[0][row:end], top[1][row:end])
            row = end


def read_ends(loaded: LoadedModel) -> StoredEnds:
    """The target's embeddings and head as plain matrices in bfloat16.

    Raises:
        WeightsError: The checkpoint cannot be read.
    """
    checkpoint = open_checkpoint(loaded.path)
    hparams = loaded.model.hparams
    embeddings = checkpoint.take("model.embed_tokens.weight").bfloat16()
    head = embeddings
    if not hparams.has_tied_embeddings and "lm_head.weight" in checkpoint.names():
        head = checkpoint.take("lm_head.weight").bfloat16()
    if hparams.embedding_scale is not None:
        embeddings = embeddings * torch.tensor(hparams.embedding_scale, dtype=torch.bfloat16)
    return StoredEnds(embeddings, head)


def _likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Ids and log-probabilities, a few rows at a time: they are wide, and stay in the caches so."""
    ids, logprobs = [], []
    for rows in logits.split(_CHUNK_ROWS):  # type: ignore[no-untyped-call]  # torch's own
        top = rows.topk(count, sorted=True)
        best = top.values[:, :1]
        total = (rows - best).exp_().sum(-1, keepdim=True).log_()
        ids.append(top.indices.int())
        logprobs.append((top.values - best - total).half())
    return torch.cat(ids), torch.cat(logprobs)


def _length(answer: Answer) -> int:
    return len(answer.prompt_ids) + len(answer.response_ids)
