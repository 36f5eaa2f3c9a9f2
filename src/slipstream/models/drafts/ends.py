"""A served target's embeddings and head, as a draft net uses them."""

from __future__ import annotations

from torch import Tensor

from slipstream.models.decoder import Model
from slipstream.models.layers.embedding import PackedEnds


class ModelEnds:
    """See `TokenEnds`: those of a loaded model, without a copy."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def embed(self, tokens: Tensor) -> Tensor:
        """See `TokenEnds`."""
        return self._model.embed(tokens.flatten()).view(*tokens.shape, -1)

    def head(self, hidden: Tensor) -> Tensor:
        """See `TokenEnds`."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        return self._model.vocabulary_logits(rows).view(*hidden.shape[:-1], -1)

    def packed(self) -> PackedEnds | None:
        """See `TokenEnds`."""
        return self._model.packed_ends()
