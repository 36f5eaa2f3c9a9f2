"""A faulty drafter costs its drafts, never a request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import index
from typing import Protocol

from slipstream.clock import Clock
from slipstream.speculation.drafter import (
    DraftContext,
    Drafter,
    DrafterNeeds,
    Observation,
    TapReader,
    TargetRows,
)
from slipstream.speculation.tree import EMPTY_TREE, DraftLaw, DraftTree

SUM_TOLERANCE = 1e-6
"""Most by which the sum of a law's probabilities may differ from 1."""


class DrafterEvents(Protocol):
    """Who is told of faults: the metrics."""

    def count_drafter_fault(self, name: str, kind: str) -> None:
        """A drafter `raised`, `timed_out` or proposed something `invalid`."""
        ...

    def set_drafter_active(self, name: str, *, is_active: bool) -> None:
        """A drafter was benched or came back."""
        ...


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """How much a drafter may err.

    Attributes:
        vocab_size: Token ids at or above it do not exist.
        budget_s: Most seconds that one `propose` or `observe` may take. It is there for a drafter
            that hangs, not for a machine that is busy; whether a slow one pays is the controller's
            business.
        backoff_s: First time on the bench; it doubles with every further fault in a row.
        max_faults: After so many faults in a row the drafter stays benched.
        num_good: Proposals without a fault that clear its record.
    """

    vocab_size: int
    budget_s: float = 30.0
    backoff_s: float = 1.0
    max_faults: int = 5
    num_good: int = 100


class InvalidProposalError(Exception):
    """What a drafter proposed cannot be verified; the guard's own word, never raised to others."""


class GuardedDrafter:
    """A drafter whose faults bench it for a while, and in the end for good.

    While it is benched, and in the call that benches it, every proposal is empty and the requests
    decode plainly. Its state is dropped when it is benched, since a fault may have left it half
    changed, and what happens meanwhile is not reported to it; `release` always reaches it.
    """

    def __init__(
        self, drafter: Drafter, limits: GuardLimits, clock: Clock, events: DrafterEvents
    ) -> None:
        self._drafter = drafter
        self._limits = limits
        self._clock = clock
        self._events = events
        self._name = drafter.name
        self._needs = drafter.needs
        self._reader = drafter if isinstance(drafter, TapReader) else None
        self._log = logging.getLogger("slipstream.speculation")
        self._live: set[str] = set()
        self._num_faults = 0
        self._num_good = 0
        self._retry_at_s: float | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def needs(self) -> DrafterNeeds:
        return self._needs

    @property
    def is_benched(self) -> bool:
        """Whether it proposes nothing at the moment."""
        return self.is_benched_for_good or (
            self._retry_at_s is not None and self._clock.now() < self._retry_at_s
        )

    @property
    def is_benched_for_good(self) -> bool:
        """Whether it will not be tried again."""
        return self._num_faults >= self._limits.max_faults

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftTree]:
        """The drafter's proposals if they are sound, else an empty tree for each context."""
        if self.is_benched:
            return [EMPTY_TREE] * len(contexts)
        self._live.update(context.request_id for context in contexts)
        trees: list[DraftTree] = []

        def ask() -> None:
            trees.extend(self._drafter.propose(contexts))
            _check(trees, contexts, self._name, self._limits.vocab_size)

        if not self._run(ask):
            return [EMPTY_TREE] * len(contexts)
        self._count_good()
        return trees

    def observe(self, observations: Sequence[Observation]) -> None:
        """Pass on what was committed, unless the drafter is benched."""
        if self.is_benched:
            return
        self._live.update(item.request_id for item in observations if not item.is_finished)
        self._run(lambda: self._drafter.observe(observations))

    def absorb(self, rows: Sequence[TargetRows]) -> None:
        """Pass on what the target computed, if the drafter reads it, benched or not: others may
        find these rows in the prefix cache when it is back."""
        if self._reader is not None and not self.is_benched_for_good:
            self._run(partial(self._reader.absorb, rows))

    def release(self, request_ids: Sequence[str]) -> None:
        """Free what the drafter holds for these requests."""
        self._live.difference_update(request_ids)
        self._run(lambda: self._drafter.release(request_ids))

    def memory_bytes(self) -> int:
        sizes = [0]
        self._run(lambda: sizes.append(self._drafter.memory_bytes()))
        return sizes[-1]

    def _run(self, action: Callable[[], None]) -> bool:
        """Whether `action` went well and in time; a fault benches the drafter."""
        started_s = self._clock.now()
        try:
            action()
        except InvalidProposalError as error:
            self._bench("invalid", str(error), None)
            return False
        except Exception as error:  # noqa: BLE001 - whatever a drafter raises, the request goes on
            self._bench("raised", f"{type(error).__name__}: {error}", error)
            return False
        elapsed_s = self._clock.now() - started_s
        if elapsed_s > self._limits.budget_s:
            message = f"took {elapsed_s:.3g} s, {self._limits.budget_s:g} s are allowed"
            self._bench("timed_out", message, None)
            return False
        return True

    def _bench(self, kind: str, message: str, error: Exception | None) -> None:
        self._events.count_drafter_fault(self._name, kind)
        if self.is_benched:
            return
        backoff_s = self._limits.backoff_s * 2.0**self._num_faults
        self._num_faults += 1
        self._num_good = 0
        self._retry_at_s = self._clock.now() + backoff_s
        self._events.set_drafter_active(self._name, is_active=False)
        until = "for good" if self.is_benched_for_good else f"for {backoff_s:g} s"
        self._log.warning(
            'drafter "%s" %s and is benched %s (fault %d of %d in a row); requests go on without '
            "its drafts: %s",
            self._name,
            kind,
            until,
            self._num_faults,
            self._limits.max_faults,
            message,
            exc_info=error,
        )
        live, self._live = sorted(self._live), set()
        self._run(lambda: self._drafter.release(live))

    def _count_good(self) -> None:
        if self._retry_at_s is not None:
            self._retry_at_s = None
            self._events.set_drafter_active(self._name, is_active=True)
            self._log.info('drafter "%s" proposes again', self._name)
        self._num_good += 1
        if self._num_good == self._limits.num_good:
            self._num_faults = 0


def _check(
    trees: Sequence[DraftTree], contexts: Sequence[DraftContext], name: str, vocab_size: int
) -> None:
    """Refuse proposals that break the drafter contract.

    Raises:
        InvalidProposalError: Wrong number of trees, or one that is no tree or out of bounds.
    """
    if len(trees) != len(contexts):
        raise InvalidProposalError(f"{len(trees)} trees for {len(contexts)} requests")
    for tree, context in zip(trees, contexts, strict=True):
        if not isinstance(tree, DraftTree):
            raise InvalidProposalError(f"a {type(tree).__name__} instead of a draft tree")
        if not tree:
            continue
        if len(tree) > context.max_draft_nodes:
            raise InvalidProposalError(
                f"{len(tree)} nodes where {context.max_draft_nodes} are allowed"
            )
        if tree.depth > context.max_draft_len:
            raise InvalidProposalError(
                f"a branch of {tree.depth} tokens where {context.max_draft_len} are allowed"
            )
        _check_tokens(tree.tokens, vocab_size)
        if set(tree.sources) != {frozenset((name,))}:
            raise InvalidProposalError(f"nodes from {set(tree.sources)} instead of itself alone")
        if tree.laws is not None:
            _check_draws(tree, context, vocab_size)


def _check_tokens(tokens: Sequence[int], vocab_size: int) -> None:
    """Refuse what stands for no token; numbers of other types, which may be NaN, are none."""
    try:
        most = max(map(index, tokens))
    except TypeError as error:
        raise InvalidProposalError(f"tokens that are no whole numbers: {error}") from error
    if most >= vocab_size:
        raise InvalidProposalError(f"token id {most} where the vocabulary has {vocab_size}")


def _check_draws(tree: DraftTree, context: DraftContext, vocab_size: int) -> None:
    """Refuse drawn tokens that verification by rejection cannot judge."""
    assert tree.laws is not None
    if not context.wants_laws:
        raise InvalidProposalError("drawn tokens where no draws are wanted")
    if not tree.is_chain:
        raise InvalidProposalError("a tree of drawn tokens, which are verified as one chain")
    for token, law in zip(tree.tokens, tree.laws, strict=True):
        if not _is_sound(law, vocab_size):
            raise InvalidProposalError(f"a law of token {token} that is no distribution")
        if not law.probs[law.token_ids == token].sum() > 0.0:
            raise InvalidProposalError(f"token {token} cannot have been drawn from its law")


def _is_sound(law: DraftLaw, vocab_size: int) -> bool:
    """Whether it is a distribution over tokens, as `DraftLaw` says."""
    token_ids, probs = law.token_ids, law.probs
    return (
        len(token_ids) == len(probs) > 0
        and token_ids[0] >= 0
        and token_ids[-1] < vocab_size
        and bool((token_ids[1:] > token_ids[:-1]).all())
        and bool((probs >= 0.0).all())
        and abs(float(probs.sum()) - 1.0) < SUM_TOLERANCE
    )
