"""A prefix cache as a dictionary, to hold the real one against."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st

Prefix = tuple[str, tuple[int, ...]]
"""A salt and all tokens up to the end of a page (or, for a row, up to that row)."""

SALTS = st.sampled_from(["a", "a", "b"])

TOKENS = st.builds(
    lambda num_zeros, num_ones: [0] * num_zeros + [1] * num_ones,
    st.integers(0, 12),
    st.integers(0, 3),
).filter(len)
"""Sequences that share prefixes often, so that hits, duplicates and branches are common."""


@dataclass
class PrefixModel:
    """Prefix cache as a dictionary: every cached prefix with the time of its last use."""

    last_used: dict[Prefix, int] = field(default_factory=dict)
    time: int = 0

    def hit_len(self, salt: str, tokens: list[int], page_size: int) -> int:
        length = 0
        while length + page_size <= len(tokens) and (
            (salt, tuple(tokens[: length + page_size])) in self.last_used
        ):
            length += page_size
        return length

    def touch(self, prefixes: list[Prefix]) -> None:
        self.time += 1
        for prefix in prefixes:
            self.last_used[prefix] = self.time

    def evict(self, count: int, locked: set[Prefix]) -> list[Prefix]:
        """Forget the oldest prefixes that no longer prefix extends and no lease uses."""
        evicted: list[Prefix] = []
        while len(evicted) < count:
            leaves = [
                prefix
                for prefix in self.last_used
                if prefix not in locked and not self._is_extended(prefix)
            ]
            if not leaves:
                break
            oldest = min(leaves, key=lambda leaf: self.last_used[leaf])
            del self.last_used[oldest]
            evicted.append(oldest)
        return evicted

    def _is_extended(self, prefix: Prefix) -> bool:
        salt, tokens = prefix
        return any(
            other_salt == salt and len(other) > len(tokens) and other[: len(tokens)] == tokens
            for other_salt, other in self.last_used
        )


def page_prefixes(
    salt: str, tokens: list[int], first: int, stop: int, page_size: int
) -> list[Prefix]:
    """Prefixes that end with the pages first..stop-1."""
    return [(salt, tuple(tokens[: (page + 1) * page_size])) for page in range(first, stop)]
