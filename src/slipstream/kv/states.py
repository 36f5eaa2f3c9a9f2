"""States of recurrent layers: one for each lease, and snapshots at nodes of the prefix tree.

Keys and values lie by token, so a token can be forgotten; a recurrent state is the sum of all
tokens before it and cannot be cut back. See docs/decisions/0008-one-state-and-replay.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from slipstream.errors import CapacityError
from slipstream.kv.pages import PagePool
from slipstream.kv.radix import RadixNode

EMPTY_STATE = 0
"""The state in front of a text: always zeros, never leased, never written."""


class OutOfStates(CapacityError):
    """A lease needs a recurrent state, and all are in use."""


@dataclass(frozen=True, slots=True)
class StateSpan:
    """One sequence's rows of a pass, as recurrent layers see them.

    Attributes:
        first_row: First of the sequence's rows, which are consecutive in the pass.
        num_known: Rows that are sure to stay; the state takes them in.
        num_drafts: Rows behind them that may be rolled back; the state does not take them in, but
            what they fed to it is kept until the next pass.
        source: State that is read.
        target: State that is written; `EMPTY_STATE` keeps nothing, for passes that are thrown away.
        num_kept: Draft rows of the previous pass that stayed. They are taken in first, again.
        snapshots: (n, state): behind the first n of kept and known rows, the state is also
            written to `state`.
    """

    first_row: int
    num_known: int
    num_drafts: int
    source: int = EMPTY_STATE
    target: int = EMPTY_STATE
    num_kept: int = 0
    snapshots: tuple[tuple[int, int], ...] = ()

    @property
    def num_rows(self) -> int:
        """Rows of the pass."""
        return self.num_known + self.num_drafts


@dataclass(frozen=True, slots=True)
class StateUsage:
    """Where the states are; `num_free + num_evictable + num_leased == num_states`.

    Attributes:
        num_states: States that can be leased or hold snapshots.
        num_free: States without content.
        num_evictable: Snapshots that no lease reads.
        num_leased: States that leases hold, snapshots that they read or took included.
    """

    num_states: int
    num_free: int
    num_evictable: int
    num_leased: int


class StatePool:
    """State ids 1..num_states with their holders; snapshots that nobody uses give way.

    Args:
        num_states: States that can be leased or hold snapshots, at least 1.
        interval: Tokens between snapshots of one text; whole pages.
        max_drafts: Most draft rows of one sequence in a pass.
    """

    def __init__(self, num_states: int, interval: int, max_drafts: int) -> None:
        self.pool = PagePool(num_states)
        self.interval = interval
        self.max_drafts = max_drafts
        self._snapshots: dict[RadixNode, int] = {}  # the least recently used first
        self.num_evicted = self.num_taken = self.num_found = 0  # snapshots, since the start
        self.row_counts: Counter[str] = Counter(known=0, drafted=0, replayed=0)

    @property
    def num_snapshots(self) -> int:
        """Snapshots in the prefix tree."""
        return len(self._snapshots)

    def usage(self) -> StateUsage:
        """Counts of now."""
        num_states, num_free = self.pool.num_pages, self.pool.num_free
        num_evictable = sum(1 for _ in self._evictable())
        return StateUsage(
            num_states, num_free, num_evictable, num_states - num_free - num_evictable
        )

    def snapshot_counts(self) -> dict[str, int]:
        """Snapshots that were taken, found by a prefix and evicted since the start."""
        return {"taken": self.num_taken, "found": self.num_found, "evicted": self.num_evicted}

    def can_take(self) -> bool:
        """Whether `take` would give a state now."""
        return self.pool.num_free > 0 or next(iter(self._evictable()), None) is not None

    def take(self) -> int:
        """A state with one holder; evicts the least recently used snapshot if none is free.

        Raises:
            OutOfStates: All are in use.
        """
        if not self.pool.num_free:
            node = next(iter(self._evictable()), None)
            if node is None:
                raise OutOfStates(
                    f"all {self.pool.num_pages} recurrent states are in use",
                    hint="raise memory.state_bytes, or run fewer requests",
                )
            self.forget(node)
            self.num_evicted += 1
        return self.pool.allocate(1)[0]

    def hold(self, state: int) -> None:
        """Add a holder; the empty state needs none."""
        if state != EMPTY_STATE:
            self.pool.retain((state,))

    def release(self, state: int) -> None:
        """Take a holder away."""
        if state != EMPTY_STATE:
            self.pool.release((state,))

    def attach(self, node: RadixNode, state: int) -> None:
        """Hand a held state over to the tree, as the snapshot behind `node`'s page.

        A node that has one keeps it: equal texts have bit-equal states.
        """
        if node in self._snapshots:
            self.release(state)
            state = self._snapshots.pop(node)
        self._snapshots[node] = state

    def find(self, node: RadixNode | None) -> tuple[RadixNode | None, int]:
        """The deepest snapshot at `node` or above it; (None, the empty state) without any."""
        while node is not None and node not in self._snapshots:
            node = node.parent
        if node is None:
            return None, EMPTY_STATE
        state = self._snapshots[node] = self._snapshots.pop(node)  # now the latest used
        self.num_found += 1
        return node, state

    def forget(self, node: RadixNode) -> None:
        """Drop the snapshot of a node, if it has one; whoever reads it now still holds it."""
        state = self._snapshots.pop(node, None)
        if state is not None:
            self.pool.release((state,))

    def snapshots(self) -> dict[RadixNode, int]:
        """A copy of the snapshots by node."""
        return dict(self._snapshots)

    def _evictable(self) -> Iterable[RadixNode]:
        return (n for n, state in self._snapshots.items() if self.pool.num_holders(state) == 1)


class LeasedState:
    """One lease's live state, and the snapshots it has taken but not published.

    Args:
        source: Held state to start from; the empty one for a new text.
        position: Tokens that `source` covers.
    """

    def __init__(self, states: StatePool, source: int, position: int) -> None:
        self._states = states
        self.live = states.take()
        self.source = source
        self._position = position
        self._num_kept = 0
        self._num_known: int | None = None  # of a pass that is not committed
        self.pending: list[tuple[int, int]] = []
        self._is_decoding = False
        self._passing: RadixNode | None = None  # where the last snapshot of the output hangs

    def held(self) -> list[int]:
        """Every state that this lease holds."""
        read = [] if self.source in (self.live, EMPTY_STATE) else [self.source]
        return [self.live, *read, *(state for _, state in self.pending)]

    def span(
        self, first_row: int, num_known: int, num_drafts: int, boundaries: Iterable[int]
    ) -> StateSpan:
        """The rows of the next pass; `commit` must follow before the next span.

        Args:
            boundaries: Token counts, ascending, at which snapshots are wanted; those that the
                pass does not cross, or for which no state is left, are passed over.
        """
        assert self._num_known is None, "a pass was not committed"
        assert num_drafts <= self._states.max_drafts, f"{num_drafts} draft rows, and no trees"
        end = self._position + self._num_kept + num_known
        self._is_decoding = num_known == 1
        snapshots: list[tuple[int, int]] = []
        for boundary in boundaries:
            if self._position < boundary <= end and self._states.can_take():
                state = self._states.take()
                self._states.num_taken += 1
                snapshots.append((boundary - self._position, state))
                self.pending.append((boundary, state))
        span = StateSpan(
            first_row=first_row,
            num_known=num_known,
            num_drafts=num_drafts,
            source=self.source,
            target=self.live,
            num_kept=self._num_kept,
            snapshots=tuple(snapshots),
        )
        self._states.row_counts.update(known=num_known, drafted=num_drafts, replayed=self._num_kept)
        self._position, self._num_kept, self._num_known = end, 0, num_known
        return span

    def commit(self, count: int) -> None:
        """Of the last pass's rows, the first `count` stay."""
        assert self._num_known is not None, "there was no pass"
        assert count >= self._num_known, "known rows are in the state and cannot go"
        self._num_kept = count - self._num_known
        self._num_known = None
        if self.source != self.live:
            self._states.release(self.source)
            self.source = self.live

    def publish(self, node: RadixNode | None, num_tokens: int, page_size: int) -> None:
        """Hand snapshots over to the tree.

        Of an output only the newest snapshot is left there: whoever goes on with this text wants
        that one, and prompts need the room.

        Args:
            node: Deepest node of the lease's path, behind `num_tokens` tokens.
        """
        kept: list[tuple[int, int]] = []
        for position, state in self.pending:
            if position > num_tokens:
                kept.append((position, state))
                continue
            above = node
            for _ in range((num_tokens - position) // page_size):
                assert above is not None
                above = above.parent
            assert above is not None, "a published token lies below a node"
            self._states.attach(above, state)
            if self._is_decoding:
                if self._passing is not None and self._passing is not above:
                    self._states.forget(self._passing)
                self._passing = above
        self.pending = kept

    def close(self) -> None:
        """Give everything back."""
        for state in self.held():
            self._states.release(state)
        self.pending = []
