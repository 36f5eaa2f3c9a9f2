"""Embeddings and vocabulary of a multi-token-prediction head."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from slipstream.models.drafts.ends import ModelEnds
from slipstream.models.layers.embedding import Embedding, PackedEmbedding, PackedEnds
from slipstream.models.layers.linear import Linear, NativeLinear


@dataclass(frozen=True, slots=True)
class HeadEnds:
    """See `TokenEnds`: the target's, but for what the head has to itself.

    Attributes:
        embedding, vocabulary: Of the head alone; None where it shares the target's.
    """

    target: ModelEnds
    embedding: Embedding | None
    vocabulary: Linear | None

    def embed(self, tokens: Tensor) -> Tensor:
        """See `TokenEnds`."""
        return self.target.embed(tokens) if self.embedding is None else self.embedding(tokens)

    def head(self, hidden: Tensor) -> Tensor:
        """See `TokenEnds`; [rows, hidden]."""
        if self.vocabulary is None:
            return self.target.head(hidden)
        return self.vocabulary(hidden.to(self.vocabulary.dtype)).float()

    def packed(self) -> PackedEnds | None:
        """See `TokenEnds`."""
        ends = self.target.packed()
        if ends is None:
            return None
        embeddings, head, scale = ends.embeddings, ends.head, ends.embedding_scale
        if self.embedding is not None:
            if not isinstance(self.embedding, PackedEmbedding):
                return None
            embeddings, scale = self.embedding.matrix, 0.0
        if self.vocabulary is not None:
            if not isinstance(self.vocabulary, NativeLinear):
                return None
            head = self.vocabulary.matrix
        return PackedEnds(embeddings, head, scale)
