"""Where a trainer gets the target's features from: asked for now, or read from a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream.training.answers import Answer
from slipstream.training.target import Features, TargetReader


class FeatureSource(Protocol):
    """Features of a dataset's answers."""

    def features(self, indices: Sequence[int]) -> list[Features]:
        """Of these answers, in order."""


class OnlineSource:
    """See `FeatureSource`: the target reads answers whenever they are needed; no disk is used."""

    def __init__(self, reader: TargetReader, answers: Sequence[Answer]) -> None:
        self._reader = reader
        self._answers = answers

    def features(self, indices: Sequence[int]) -> list[Features]:
        """See `FeatureSource`."""
        return list(self._reader.read([self._answers[index] for index in indices]))
