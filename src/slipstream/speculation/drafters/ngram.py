"""Prompt lookup: draft what followed the last tokens where they occurred before."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from slipstream.speculation.drafter import DraftContext, DrafterNeeds, Observation
from slipstream.speculation.tree import EMPTY_TREE, DraftTree

Match = Literal["longest_earliest", "first_leftmost", "longest_latest"]

_LONGEST_MATCH = 16
_MASK = 2**64 - 1
_MULTIPLIER = 6364136223846793005
_DICT_ENTRY_BYTES = 130  # dict slots, key and position; measured with tracemalloc on CPython 3.11


@dataclass(frozen=True, slots=True)
class Place:
    """An earlier occurrence of the end of a text.

    Attributes:
        end: Index of the token that followed it.
        match_len: How many tokens before that equal the text's last ones; counted up to 16, even
            where shorter runs are looked up.
    """

    end: int
    match_len: int


class NgramIndex:
    """Where each run of `min_n` to `max_n` tokens of one growing text occurs, one place per run.

    A place counts once a token follows it. The text it starts with is indexed at once into sorted
    arrays (12 bytes a token and length), later tokens go into dicts; a look-up compares tokens, so
    a hash collision can hide a place but never invent one.

    Args:
        tokens: Text so far.
        is_latest: Keep the latest place of a run; else the earliest.
        max_entries: Bound of the arrays: of a longer text only the end is indexed.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        min_n: int,
        max_n: int,
        *,
        is_latest: bool,
        max_entries: int = 2_000_000,
    ) -> None:
        self._min_n = min_n
        self._max_n = max_n
        self._is_latest = is_latest
        self._powers = [pow(_MULTIPLIER, n, 2**64) for n in range(max_n)]
        num_lens = max_n - min_n + 1
        self.tokens = array("i", tokens)
        first = max(len(tokens) - max_entries // num_lens, 0)
        self._sorted = self._index(np.asarray(tokens[first:-1], dtype=np.uint64), first)
        self._recent: list[dict[int, int]] = [{} for _ in range(num_lens)]

    def extend(self, tokens: Sequence[int]) -> None:
        """Let the text grow."""
        for token in tokens:
            start = len(self.tokens)
            for n, key in self._suffix_keys():
                places = self._recent[n - self._min_n]
                if self._is_latest:
                    places[key] = start - n
                else:
                    places.setdefault(key, start - n)
            self.tokens.append(token)

    def find(self) -> Place | None:
        """Where the longest indexed run that ends the text occurs. O(max_n log(text))."""
        tokens = self.tokens
        end = len(tokens)
        match_len = match_end = 0
        for n, key in self._suffix_keys():
            start = self._look_up(n, key)
            if start < 0 or tokens[start : start + n] != tokens[end - n :]:
                break
            match_len, match_end = n, start + n
        if not match_len:
            return None
        longest = min(match_end, _LONGEST_MATCH)
        while match_len < longest and tokens[match_end - match_len - 1] == tokens[-match_len - 1]:
            match_len += 1
        return Place(match_end, match_len)

    def memory_bytes(self) -> int:
        """Estimate of the memory held."""
        return (
            len(self.tokens) * self.tokens.itemsize
            + sum(keys.nbytes + places.nbytes for keys, places in self._sorted)
            + sum(len(places) for places in self._recent) * _DICT_ENTRY_BYTES
        )

    def _suffix_keys(self) -> Iterator[tuple[int, int]]:
        """(n, hash of the last n tokens), for n from `min_n` up."""
        key = 0
        end = len(self.tokens)
        for n in range(1, min(self._max_n, end) + 1):
            key = (key + (self.tokens[end - n] + 1) * self._powers[n - 1]) & _MASK
            if n >= self._min_n:
                yield n, key

    def _look_up(self, n: int, key: int) -> int:
        """Start of the run with this hash; -1 if there is none."""
        recent = self._recent[n - self._min_n].get(key, -1)
        if self._is_latest and recent >= 0:
            return recent
        keys, places = self._sorted[n - self._min_n]
        row = int(keys.searchsorted(np.uint64(key)))
        if row < len(keys) and keys[row] == key:
            return int(places[row])
        return recent

    def _index(
        self, tokens: np.ndarray[tuple[int], np.dtype[np.uint64]], first: int
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        values = tokens + np.uint64(1)
        keys = np.zeros(len(values) + 1, dtype=np.uint64)
        tables = []
        for n in range(1, self._max_n + 1):
            keys = keys[: max(len(values) - n + 1, 0)] * np.uint64(_MULTIPLIER) + values[n - 1 :]
            if n < self._min_n:
                continue
            if self._is_latest:
                unique, rows = np.unique(keys[::-1], return_index=True)
                rows = len(keys) - 1 - rows
            else:
                unique, rows = np.unique(keys, return_index=True)
            tables.append((unique, (rows + first).astype(np.int32)))
        return tables


@dataclass(frozen=True, slots=True)
class NgramRules:
    """How an n-gram drafter matches and copies.

    Attributes:
        match: `longest_earliest` (as vLLM) and `first_leftmost` (as transformers; it means the
            same: lengths are tried from the longest, then places from the left) copy up to the
            end of the text. `longest_latest` takes the most recent place, and where the copy
            reaches the end of the text it goes on into itself, as in LZ77, so that a loop of any
            period fills the draft.
        min_n, max_n: Shortest and longest run of tokens to look up.
        max_draft_len: Most tokens of a draft.
        cut_at_eos: Draft no end-of-sequence token; otherwise it is the draft's last one.
        vocab_size: No id at or above it is drafted.
        eos_token_ids: Tokens that end an output, unless a request ignores them.
    """

    match: Match
    min_n: int
    max_n: int
    max_draft_len: int
    vocab_size: int
    eos_token_ids: frozenset[int] = frozenset()
    cut_at_eos: bool = False


class NgramDrafter:
    """Copies what followed an earlier occurrence of the last tokens."""

    def __init__(self, name: str, rules: NgramRules) -> None:
        self._name = name
        self._rules = rules
        self._indexes: dict[str, NgramIndex] = {}

    @property
    def name(self) -> str:
        return self._name

    @property
    def needs(self) -> DrafterNeeds:
        return DrafterNeeds()

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftTree]:
        """A chain for each context whose last tokens occurred before."""
        return [self._propose_one(context) for context in contexts]

    def observe(self, observations: Sequence[Observation]) -> None:
        """Free what finished; new tokens are read from the next context."""
        self.release([item.request_id for item in observations if item.is_finished])

    def release(self, request_ids: Sequence[str]) -> None:
        """Free the index of each request."""
        for request_id in request_ids:
            self._indexes.pop(request_id, None)

    def memory_bytes(self) -> int:
        """Estimate of what all indexes hold."""
        return sum(index.memory_bytes() for index in self._indexes.values())

    def _propose_one(self, context: DraftContext) -> DraftTree:
        index = self._index_of(context)
        place = index.find()
        if place is None:
            return EMPTY_TREE
        rules = self._rules
        limit = min(rules.max_draft_len, context.max_draft_len, context.max_draft_nodes)
        draft = index.tokens[place.end : place.end + limit].tolist()
        if rules.match == "longest_latest":
            period = len(draft)
            while len(draft) < limit:
                draft.append(draft[len(draft) - period])
        draft = self._cut(draft, is_eos_ignored=context.params.ignore_eos)
        return DraftTree.chain(draft, _scores(place.match_len, len(draft)), self._name)

    def _index_of(self, context: DraftContext) -> NgramIndex:
        tokens = context.tokens
        index = self._indexes.get(context.request_id)
        num_known = len(index.tokens) if index is not None else 0
        if index is None or num_known > len(tokens) or index.tokens[-1] != tokens[num_known - 1]:
            rules = self._rules
            is_latest = rules.match == "longest_latest"
            index = NgramIndex(tokens, rules.min_n, rules.max_n, is_latest=is_latest)
            self._indexes[context.request_id] = index
        else:
            index.extend(tokens[num_known:])
        return index

    def _cut(self, draft: list[int], *, is_eos_ignored: bool) -> list[int]:
        rules = self._rules
        for position, token in enumerate(draft):
            if token >= rules.vocab_size:
                return draft[:position]
            if token in rules.eos_token_ids and not is_eos_ignored:
                return draft[: position if rules.cut_at_eos else position + 1]
        return draft


def _scores(match_len: int, draft_len: int) -> list[float]:
    """Estimated probability that each copied token is accepted.

    A token copied after a match of n tokens is right in about 1 - 0.8 * 0.7^(n - 1) of the cases,
    and each right one makes the match longer. Fitted to benchmarks/replay-drafters.json.
    """
    scores: list[float] = []
    prob = 1.0
    for length in range(match_len, match_len + draft_len):
        prob *= 1.0 - 0.8 * 0.7 ** (length - 1)
        scores.append(prob)
    return scores
