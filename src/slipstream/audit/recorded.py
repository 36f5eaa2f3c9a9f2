"""Arrays of a golden fixture, and comparisons with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from slipstream.audit.fixture import Check, FixtureError


class Recorded:
    """Arrays by name; what is missing is the fixture's fault.

    Args:
        place: Prefix of these names in the file.
    """

    def __init__(self, arrays: Mapping[str, Tensor], place: str = "") -> None:
        self.arrays = dict(arrays)
        self.place = place

    @classmethod
    def read(cls, path: Path) -> Recorded:
        """All arrays of a safetensors file.

        Raises:
            FixtureError: It cannot be read.
        """
        try:
            return cls(load_file(path))
        except (SafetensorError, OSError) as error:
            raise FixtureError(f"{path.name} cannot be read: {error}") from error

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.arrays:
            raise FixtureError(f"the array {self.place}{name} is missing")
        return self.arrays[name]

    def below(self, prefix: str) -> Recorded:
        """The arrays called `prefix` and something."""
        arrays = {
            name.removeprefix(prefix): array
            for name, array in self.arrays.items()
            if name.startswith(prefix)
        }
        return Recorded(arrays, self.place + prefix)

    def prefixes(self, name: str) -> list[str]:
        """What stands in front of `.name`, dot included, in order."""
        ends = f".{name}"
        return sorted(key.removesuffix(name) for key in self.arrays if key.endswith(ends))

    def ints(self, name: str) -> list[int]:
        """A list of whole numbers."""
        return [int(value) for value in self[name].flatten().tolist()]


def close(name: str, actual: Tensor, expected: Tensor, bound: float) -> Check:
    """Largest absolute difference against `bound`; two values that are no number are equal."""
    if actual.shape != expected.shape:
        note = f"shape {list(actual.shape)} instead of {list(expected.shape)}"
        return Check(name, error=math.inf, bound=bound, note=note)
    actual, expected = actual.double(), expected.double()
    both_nan = actual.isnan() & expected.isnan()
    difference = (actual - expected).abs().masked_fill(both_nan | (actual == expected), 0.0)
    error = difference.max().item() if difference.numel() else 0.0
    return Check(name, error=error, bound=bound)


def equal(name: str, actual: Tensor, expected: Tensor) -> Check:
    """Every whole number must be the recorded one."""
    if actual.shape != expected.shape:
        note = f"shape {list(actual.shape)} instead of {list(expected.shape)}"
        return Check(name, num_compared=expected.numel(), num_wrong=expected.numel(), note=note)
    wrong = (actual.long() != expected.long()).nonzero()
    note = ""
    if len(wrong):
        place = tuple(wrong[0].tolist())
        note = f"at {list(place)}: {int(actual[place])} instead of {int(expected[place])}"
    return Check(name, num_compared=expected.numel(), num_wrong=len(wrong), note=note)


def compare(
    ours: Mapping[str, Tensor], recorded: Recorded, bounds: Mapping[str, float]
) -> list[Check]:
    """One check per recorded array that we have: numbers within their bound, others exactly.

    Recorded rows may be fewer than ours: some arrays were kept for the first rounds only.

    Args:
        bounds: Array -> bound; the one of `""` is for all others.
    """
    checks: list[Check] = []
    for name, expected in sorted(recorded.arrays.items()):
        actual = ours.get(name)
        if actual is None:
            continue
        if actual.ndim == expected.ndim > 0:
            actual = actual[: len(expected)]
        label = recorded.place + name
        if expected.is_floating_point():
            checks.append(close(label, actual, expected, bounds.get(name, bounds[""])))
        else:
            checks.append(equal(label, actual, expected))
    return checks
