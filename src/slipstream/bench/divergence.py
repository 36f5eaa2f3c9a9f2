"""Whether the outputs were the same: a speed-up of different answers is none."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slipstream.bench.results import Measurement, Mode, Turn


@dataclass(frozen=True, slots=True)
class Divergence:
    """One output that differs from the one with speculation off.

    Attributes:
        turn: Index of the prompt's turn; later ones had another prompt and are not compared.
        position: Index of the first output token that differs.
    """

    prompt_id: str
    sampling: str
    round_index: int
    mode: Mode
    turn: int
    position: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """All outputs with speculation on (and of the control) against those with it off.

    Attributes:
        law_only: Samplings whose drafted outputs are not compared: the verification keeps their
            distribution, not their tokens.
    """

    num_compared: int
    divergences: tuple[Divergence, ...]
    law_only: tuple[str, ...] = ()

    def num_divergences(self, mode: Mode) -> int:
        """Of one mode."""
        return sum(item.mode == mode for item in self.divergences)


def compare_outputs(
    measurements: Sequence[Measurement], law_only: Collection[str] = ()
) -> Comparison:
    """Compare token by token.

    Args:
        law_only: See `Comparison`.
    """
    num_compared = 0
    divergences: list[Divergence] = []
    for item in measurements:
        for mode, run in item.runs.items():
            if mode == "off" or (mode == "on" and item.sampling in law_only):
                continue
            for prompt_id, base, answer in zip(
                item.prompt_ids, item.runs["off"].answers, run.answers, strict=True
            ):
                where = _first_difference(base.turns, answer.turns)
                num_compared += len(base.turns) if where is None else where[0] + 1
                if where is not None:
                    divergences.append(
                        Divergence(prompt_id, item.sampling, item.round_index, mode, *where)
                    )
    return Comparison(num_compared, tuple(divergences), tuple(law_only))


def _first_difference(base: Sequence[Turn], other: Sequence[Turn]) -> tuple[int, int] | None:
    """Turn and position, or None."""
    for index, (left, right) in enumerate(zip(base, other, strict=True)):
        if left.token_ids != right.token_ids:
            return index, _common_len(left.token_ids, right.token_ids)
    return None


def _common_len(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
