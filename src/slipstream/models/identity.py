"""Which target something was made for."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from slipstream.errors import WeightsError
from slipstream.models.decoder import Model

_NUM_DIGESTED = 256  # tokens whose embeddings stand for the weights
_LEAST_AGREEMENT = 0.75  # a format of 4 bits moves a few peaks; another model shares next to none


class TargetIdentity(BaseModel):
    """A target by name, shape and weights.

    Attributes:
        name: As it is served; only for messages.
        weights_digest: Of some of its embeddings. Targets of the same shape differ in it; the same
            weights in another format do too, since their hidden states differ.
        embedding_peaks: Where each of those embeddings is largest. Formats of the same weights
            agree in most of them. Only of a loaded target: files do not hold it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    weights_digest: str
    embedding_peaks: tuple[int, ...] = Field(default=(), exclude=True)

    def require_same(self, other: TargetIdentity, what: str) -> None:
        """Refuse what was made for another target.

        Args:
            what: Such as "the answers in data".
        Raises:
            WeightsError: `other` is another target; both are named.
        """
        if self.model_dump(exclude={"name"}) != other.model_dump(exclude={"name"}):
            raise WeightsError(
                f"{what} were made for target {other.describe()}, but the target is "
                f"{self.describe()}",
                hint="give that target with --model, or make them anew for this one",
            )

    def resembles(self, other: TargetIdentity) -> bool | None:
        """Whether `other` is the same model, perhaps in another format or trained further.

        Returns: None where they differ in digest and one has no peaks to compare.
        """
        if self._shape() != other._shape():
            return False
        if self.weights_digest == other.weights_digest:
            return True
        mine, theirs = self.embedding_peaks, other.embedding_peaks
        if not mine or not theirs:
            return None
        num_same = sum(left == right for left, right in zip(mine, theirs, strict=False))
        return num_same >= _LEAST_AGREEMENT * max(len(mine), len(theirs))

    def _shape(self) -> tuple[int, int, int]:
        return self.num_layers, self.hidden_size, self.vocab_size

    def describe(self) -> str:
        """The target in words."""
        return (
            f"{self.name} ({self.num_layers} layers of {self.hidden_size}, {self.vocab_size} "
            f"tokens, weights {self.weights_digest})"
        )


def identify(name: str, model: Model) -> TargetIdentity:
    """Of a loaded target."""
    hparams = model.hparams
    tokens = np.linspace(0, hparams.vocab_size - 1, _NUM_DIGESTED).astype(np.int64)
    with torch.inference_mode():
        rows = model.embed(torch.from_numpy(tokens)).bfloat16()
        peaks = rows.abs().argmax(-1).tolist()
    digest = hashlib.sha256(rows.view(torch.int16).numpy().tobytes()).hexdigest()
    return TargetIdentity(
        name=name,
        num_layers=hparams.num_layers,
        hidden_size=hparams.hidden_size,
        vocab_size=hparams.vocab_size,
        weights_digest=digest[:16],
        embedding_peaks=tuple(peaks),
    )
