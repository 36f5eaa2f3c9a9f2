"""Which packs a step reads and how fast it learns: functions of the step and the seed alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from slipstream.training.packing import Piece, arrange
from slipstream.training.settings import FitSettings


class PackStream:
    """Packs of one epoch after the other, each in an order of its own.

    Args:
        pieces: All of an epoch.
    """

    def __init__(self, pieces: Sequence[Piece], settings: FitSettings) -> None:
        self._pieces = pieces
        self._settings = settings
        self._epoch = -1
        self._first = 0  # number of the epoch's first pack
        self._packs: list[tuple[Piece, ...]] = []

    def of_step(self, step: int) -> list[tuple[Piece, ...]]:
        """The packs of a step; asking backwards starts again from the first epoch."""
        count = self._settings.step_packs
        return [self._pack(number) for number in range(step * count, (step + 1) * count)]

    def _pack(self, number: int) -> tuple[Piece, ...]:
        if number < self._first:
            self._epoch, self._first, self._packs = -1, 0, []
        while number >= self._first + len(self._packs):
            self._first += len(self._packs)
            self._epoch += 1
            seed = derived_seed(self._settings.seed, self._epoch)
            self._packs = arrange(self._pieces, self._settings.pack_len, seed)
        return self._packs[number - self._first]


def derived_seed(*parts: int) -> int:
    """A seed of its own for each combination of numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def learning_rate(settings: FitSettings, step: int) -> float:
    """Of step `step`, from 0: a straight warm-up, then a cosine."""
    num_warmup = max(1, round(settings.num_steps * settings.warmup_share))
    if step < num_warmup:
        return settings.learning_rate * (step + 1) / num_warmup
    share = (step - num_warmup) / max(1, settings.num_steps - num_warmup)
    cosine = 0.5 * (1.0 + math.cos(math.pi * min(share, 1.0)))
    return settings.learning_rate * (settings.final_share + (1.0 - settings.final_share) * cosine)
