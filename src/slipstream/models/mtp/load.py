"""From a checkpoint to multi-token-prediction heads that fit a target."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from slipstream.errors import WeightsError
from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.matrix import PackedMatrix, StoredWeight
from slipstream.models.decoder import Model, attention_backend
from slipstream.models.drafts.ends import ModelEnds
from slipstream.models.drafts.vocabulary import read_token_ids
from slipstream.models.hparams import Hparams
from slipstream.models.layers.embedding import Embedding, PackedEmbedding, TableEmbedding
from slipstream.models.layers.linear import Linear
from slipstream.models.load import read_hparams
from slipstream.models.mtp.ends import HeadEnds
from slipstream.models.mtp.heads import MtpHead, MtpHeads
from slipstream.models.mtp.layout import HeadNames, MtpLayout, find_heads, without_heads
from slipstream.models.mtp.parts import HeadParts, problems_of
from slipstream.models.weight_reader import Products, WeightReader
from slipstream.weights.checkpoint import Checkpoint

log = logging.getLogger("slipstream.models")

_MAPS = {"d2t", "t2d"}
_MAX_NAMED = 8
_CHUNK = 256  # columns of the target's head that are read at once


@dataclass(frozen=True, slots=True)
class MtpCheckpoint:
    """Heads of a checkpoint, told from its headers.

    Attributes:
        hparams: Of their layers; as many layers as heads.
        target: Of the decoder that they are for, as far as this checkpoint says.
        num_parameters: That are held for the heads alone, rows of the target's head that they take
            for a reduced vocabulary included.
        num_token_parameters: In matrices over tokens, which are not loaded where they are those of
            the decoder.
        problems: What is missing or of the wrong shape, in words.
    """

    layout: MtpLayout
    hparams: Hparams
    target: Hparams
    num_parameters: int
    num_token_parameters: int
    problems: tuple[str, ...]


def describe_heads(checkpoint: Checkpoint) -> MtpCheckpoint | None:
    """The heads of an open checkpoint; None where it has none.

    Raises:
        WeightsError: They are of a kind that is not supported.
    """
    layout = find_heads(checkpoint.config, checkpoint.names())
    if layout is None:
        return None
    decoder = read_hparams(_decoder_config(checkpoint))
    # Of the decoder's layers a head's is one with attention, and of these like the last.
    attention = [layer for layer in decoder.layers if layer.delta is None]
    sizes = {
        name: math.prod(checkpoint.shape(name))
        for name in checkpoint.names()
        if name.startswith(layout.prefixes)
    }
    over_tokens = {name for head in layout.heads for name in (head.embeddings, head.vocabulary)}
    hparams = replace(decoder, layers=(attention[-1],) * len(layout.heads))
    return MtpCheckpoint(
        layout,
        hparams,
        decoder,
        sum(size for name, size in sizes.items() if name not in over_tokens | _MAPS)
        + (layout.draft_vocab_size or 0) * decoder.hidden_size * over_tokens.isdisjoint(sizes),
        sum(size for name, size in sizes.items() if name in over_tokens),
        tuple(problems_of(checkpoint, layout, hparams)),
    )


def misfits(heads: MtpCheckpoint, target: Hparams) -> list[str]:
    """Why heads cannot serve a target, in words; nothing where they can."""
    problems = list(heads.problems[:_MAX_NAMED])
    if more := len(heads.problems) - len(problems):
        problems.append(f"and {more} more like these")
    mine, depth = heads.hparams, heads.layout.num_target_layers
    if mine.hidden_size != target.hidden_size:
        problems.append(
            f"it reads states of {mine.hidden_size} values, the target's have {target.hidden_size}"
        )
    if mine.vocab_size != target.vocab_size:
        problems.append(
            f"its vocabulary has {mine.vocab_size} tokens, the target's {target.vocab_size}"
        )
    if depth != target.num_layers:
        problems.append(
            f"it was made for a target of {depth} layers, this one has {target.num_layers}"
        )
    return problems


def require_fit(checkpoint: Checkpoint, heads: MtpCheckpoint, target: Hparams) -> None:
    """Refuse a checkpoint's heads where they cannot serve a target.

    Raises:
        WeightsError: Says why.
    """
    problems = misfits(heads, target)
    if problems:
        raise WeightsError(
            f"the multi-token-prediction head in {checkpoint.path} does not fit the target: "
            f"{'; '.join(problems)}",
            hint="use a head that was trained with this target",
        )


def no_heads(checkpoint: Checkpoint) -> WeightsError:
    """What to raise where a checkpoint should have heads."""
    return WeightsError(
        f"{checkpoint.path} holds no multi-token-prediction head: no tensor mtp.fc.weight and no "
        "num_nextn_predict_layers in its configuration",
        hint="name a checkpoint that has one as the drafter's source, or use another kind",
    )


def load_heads(
    checkpoint: Checkpoint,
    target: Model,
    dtype: torch.dtype,
    kernels: KernelLibrary | None = None,
) -> MtpHeads:
    """Read the heads of a checkpoint, the target's own or another, for `target`.

    Args:
        dtype: Of products.
        kernels: Multiply, if the type is bfloat16.
    Raises:
        WeightsError: There are none, they do not fit, or tensors are missing, left over or of the
            wrong shape; names them.
    """
    described = describe_heads(checkpoint)
    if described is None:
        raise no_heads(checkpoint)
    require_fit(checkpoint, described, target.hparams)
    loader = _HeadLoader(checkpoint, described, target, _products(dtype, kernels))
    return loader.load()


class _HeadLoader:
    """Reads the heads of one checkpoint."""

    def __init__(
        self, checkpoint: Checkpoint, described: MtpCheckpoint, target: Model, products: Products
    ) -> None:
        self._checkpoint = checkpoint
        self._described = described
        self._target = target
        self._reader = WeightReader(checkpoint, products)
        self._parts = HeadParts(self._reader, described.hparams)
        self._own_bytes = 0
        self._compared: dict[str, Tensor] = {}

    def load(self) -> MtpHeads:
        layout, hparams = self._described.layout, self._described.hparams
        token_ids = self._token_ids()
        lacks_own = any(not self._reader.has(names.vocabulary) for names in layout.heads)
        shared = (
            self._some_of_the_targets(token_ids) if token_ids is not None and lacks_own else None
        )
        heads = [self._head(index, names, shared) for index, names in enumerate(layout.heads)]
        self._checkpoint.finish(layout.prefixes)
        loaded = MtpHeads(
            hparams,
            self._reader.dtype,
            heads,
            attention_backend(hparams, self._reader.kernels),
            self._target.final_norm,
            token_ids,
            self._own_bytes,
        )
        log.info(
            "%d multi-token-prediction heads of %.1f MiB, %s layout",
            loaded.num_heads,
            loaded.weight_bytes / 2**20,
            layout.name,
        )
        return loaded

    def _head(self, index: int, names: HeadNames, shared: Linear | None) -> MtpHead:
        return self._parts.read(index, names)(
            HeadEnds(
                ModelEnds(self._target),
                self._embedding(names.embeddings),
                self._vocabulary(names.vocabulary, shared),
            ),
        )

    def _token_ids(self) -> Tensor | None:
        names = {name: name for name in ("d2t", "t2d") if self._reader.has(name)}
        known = self._described.layout.draft_vocab_size
        vocab_size = self._target.hparams.vocab_size
        if known is not None and known < vocab_size and "d2t" not in names:
            raise WeightsError(
                f"the head in {self._checkpoint.path} knows {known} of {vocab_size} tokens, which "
                "takes the tensor d2t; it has none"
            )
        return read_token_ids(self._checkpoint, names, vocab_size, known or vocab_size)

    def _embedding(self, name: str) -> Embedding | None:
        """None is the target's."""
        main = f"{self._described.hparams.weights_prefix}.embed_tokens.weight"
        own = self._own(name, main, self._described.hparams.vocab_size)
        if own is None:
            return None
        embedding: Embedding
        if self._reader.kernels is not None:
            matrix = PackedMatrix(self._reader.kernels, [own])
            embedding = PackedEmbedding(matrix, None, is_heads=False)
        else:
            assert isinstance(own, Tensor)
            embedding = TableEmbedding(own, None)
        self._own_bytes += embedding.nbytes
        return embedding

    def _vocabulary(self, name: str, shared: Linear | None) -> Linear | None:
        """None is the target's; `shared` has some rows of it."""
        known = self._described.layout.draft_vocab_size or self._described.hparams.vocab_size
        own = self._own(name, "lm_head.weight", known)
        return shared if own is None else self._product(own)

    def _own(self, name: str, main: str, num_rows: int) -> StoredWeight | None:
        """A matrix over tokens that the head has to itself, ready to multiply.

        Published checkpoints repeat the decoder's in every head: a copy is not loaded.
        """
        hidden = self._described.hparams.hidden_size
        if not self._reader.has(name):
            return None
        if not self._reader.has(main) or self._checkpoint.shape(main) != (num_rows, hidden):
            stored = self._reader.weight(name, num_rows, hidden)
            return stored.to(self._reader.dtype) if isinstance(stored, Tensor) else stored
        own = self._reader.tensor(name, num_rows, hidden)
        if main not in self._compared:
            self._compared[main] = self._reader.tensor(main, *own.shape)
        if torch.equal(self._compared[main], own):
            return None
        return own.to(self._reader.dtype)

    def _some_of_the_targets(self, token_ids: Tensor) -> Linear:
        """Rows of the target's head; read through it, so that it may hold them in any format."""
        hidden = self._target.hparams.hidden_size
        rows = torch.empty(len(token_ids), hidden)
        unit = torch.eye(hidden)
        with torch.inference_mode():
            for first in range(0, hidden, _CHUNK):
                columns = self._target.vocabulary_logits(unit[first : first + _CHUNK])
                rows[:, first : first + _CHUNK] = columns[:, token_ids].t()
        return self._product(rows.to(self._reader.dtype))

    def _product(self, matrix: StoredWeight) -> Linear:
        reader = self._reader
        # Native sums are float32 by themselves; torch's are in the type of the weights.
        make = reader.linear_of if reader.kernels is None else reader.exact_linear_of
        linear = make([matrix])
        self._own_bytes += linear.nbytes
        return linear


def _decoder_config(checkpoint: Checkpoint) -> dict[str, Any]:  # Any: JSON
    config = without_heads(checkpoint.config)
    if isinstance(config.get("text_config"), dict):
        config["text_config"] = without_heads(config["text_config"])
    return config


def _products(dtype: torch.dtype, kernels: KernelLibrary | None) -> Products:
    return Products(dtype, kernels if dtype == torch.bfloat16 else None)
