"""Drafters for tests: one that follows a script, one that knows, one that errs, one that fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, cast

from slipstream.clock import ManualClock
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.state import SamplingState
from slipstream.speculation.drafter import DraftContext, DrafterNeeds, Observation
from slipstream.speculation.tree import EMPTY_TREE, DraftTree

Truth = Callable[[DraftContext], Sequence[int]]
"""The true continuation of a context, from the token after the anchor on."""

FaultKind = Literal[
    "raises",
    "slow",
    "too_few",
    "too_many",
    "not_a_tree",
    "unknown_token",
    "too_deep",
    "too_wide",
    "observe_raises",
    "release_raises",
]


def draft_context(
    tokens: Sequence[int],
    *,
    request_id: str = "request",
    prompt_len: int | None = None,
    params: SamplingParams | None = None,
    salt: str = "",
    max_draft_len: int = 8,
    max_draft_nodes: int = 16,
) -> DraftContext:
    """A context with everything but the tokens defaulted; all of them are prompt unless said."""
    return DraftContext(
        request_id=request_id,
        tokens=tokens,
        prompt_len=len(tokens) if prompt_len is None else prompt_len,
        params=params or SamplingParams(),
        state=SamplingState(),
        seed=0,
        salt=salt,
        max_draft_len=max_draft_len,
        max_draft_nodes=max_draft_nodes,
    )


def committed(
    tokens: Sequence[int],
    num_new: int,
    *,
    request_id: str = "request",
    prompt_len: int = 1,
    salt: str = "",
    is_finished: bool = False,
) -> Observation:
    """An observation with everything but the tokens defaulted."""
    return Observation(
        request_id=request_id,
        salt=salt,
        tokens=tokens,
        num_new=num_new,
        prompt_len=prompt_len,
        is_finished=is_finished,
    )


def true_outputs(outputs: Mapping[str, Sequence[int]]) -> Truth:
    """Truth looked up by request id: the whole output of each request."""

    def truth(context: DraftContext) -> Sequence[int]:
        num_output = len(context.tokens) - context.prompt_len
        return outputs.get(context.request_id, ())[num_output:]

    return truth


def true_outputs_by_prompt(outputs: Mapping[tuple[int, ...], Sequence[int]]) -> Truth:
    """Truth looked up by prompt, for tests that do not choose the request ids."""

    def truth(context: DraftContext) -> Sequence[int]:
        num_output = len(context.tokens) - context.prompt_len
        return outputs.get(tuple(context.tokens[: context.prompt_len]), ())[num_output:]

    return truth


def clip(tree: DraftTree, context: DraftContext) -> DraftTree:
    """The first nodes of `tree` that fit the context's bounds."""
    shallow = [n for n, depth in enumerate(tree.depths) if depth <= context.max_draft_len]
    return tree.keep(shallow[: context.max_draft_nodes])


class RecordingDrafter:
    """Base of the test drafters: proposes nothing and remembers every call.

    Attributes:
        contexts, observations, released: What the engine passed, in order.
        live: Ids that were proposed for or observed unfinished, and not released.
    """

    def __init__(self, name: str = "recording") -> None:
        self._name = name
        self.contexts: list[DraftContext] = []
        self.observations: list[Observation] = []
        self.released: list[str] = []
        self.live: set[str] = set()

    @property
    def name(self) -> str:
        return self._name

    @property
    def needs(self) -> DrafterNeeds:
        return DrafterNeeds()

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftTree]:
        self.contexts.extend(contexts)
        self.live.update(context.request_id for context in contexts)
        return [clip(self.tree_for(context), context) for context in contexts]

    def tree_for(self, context: DraftContext) -> DraftTree:
        """What to propose; clipped to the bounds afterwards."""
        return EMPTY_TREE

    def observe(self, observations: Sequence[Observation]) -> None:
        self.observations.extend(observations)

    def release(self, request_ids: Sequence[str]) -> None:
        self.released.extend(request_ids)
        self.live.difference_update(request_ids)

    def memory_bytes(self) -> int:
        return 0


class ScriptedDrafter(RecordingDrafter):
    """Proposes what the script says after each anchor token, and nothing after others.

    Args:
        script: Anchor token -> a tree, or the tokens of a chain (scores 0.5).
    """

    def __init__(
        self, script: Mapping[int, DraftTree | Sequence[int]], name: str = "scripted"
    ) -> None:
        super().__init__(name)
        self._script = script

    def tree_for(self, context: DraftContext) -> DraftTree:
        entry = self._script.get(context.tokens[-1], EMPTY_TREE)
        if isinstance(entry, DraftTree):
            return entry
        return DraftTree.chain(entry, [0.5] * len(entry), self.name)


class OracleDrafter(RecordingDrafter):
    """Proposes the true continuation.

    Args:
        truth: See `true_outputs` and `true_outputs_by_prompt`.
        wrong_every: Every such output position is proposed wrongly (0: never), so that
            rejections happen at known places. With 3, output tokens 2, 5, 8, ... are wrong.
        vocab_size: Wrong ids stay below it.
    """

    def __init__(
        self, truth: Truth, *, wrong_every: int = 0, vocab_size: int = 2, name: str = "oracle"
    ) -> None:
        super().__init__(name)
        self._truth = truth
        self._wrong_every = wrong_every
        self._vocab_size = vocab_size

    def tree_for(self, context: DraftContext) -> DraftTree:
        num_output = len(context.tokens) - context.prompt_len
        tokens = list(self._truth(context)[: context.max_draft_len])
        for offset, token in enumerate(tokens):
            if self._wrong_every and (num_output + offset + 1) % self._wrong_every == 0:
                tokens[offset] = (token + 1) % self._vocab_size
        return DraftTree.chain(tokens, [1.0] * len(tokens), self.name)


class HostileDrafter(RecordingDrafter):
    """Always wrong, as wide and as deep as it is allowed, and sure of itself.

    Args:
        vocab_size: Proposed ids are below it; at least 2.
        truth: With it the first level never holds the true token. Without it the tokens are
            arbitrary, hence only almost always wrong.
    """

    def __init__(self, vocab_size: int, truth: Truth | None = None, name: str = "hostile") -> None:
        super().__init__(name)
        self._vocab_size = vocab_size
        self._truth = truth

    def tree_for(self, context: DraftContext) -> DraftTree:
        next_tokens = self._truth(context) if self._truth is not None else ()
        start = len(context.tokens) * 7919 + context.tokens[-1] * 104729
        tokens = [(start + 31 * step) % self._vocab_size for step in range(context.max_draft_len)]
        if next_tokens and tokens[0] == next_tokens[0]:
            tokens[0] = (tokens[0] + 1) % self._vocab_size
        siblings = [
            token
            for token in range(min(self._vocab_size, context.max_draft_nodes + 2))
            if token != tokens[0] and (not next_tokens or token != next_tokens[0])
        ]
        num_siblings = max(context.max_draft_nodes - len(tokens), 0)
        siblings = siblings[:num_siblings]
        return DraftTree(
            tokens=(*tokens, *siblings),
            parents=(*range(-1, len(tokens) - 1), *(-1 for _ in siblings)),
            scores=(1.0,) * (len(tokens) + len(siblings)),
            sources=(frozenset((self.name,)),) * (len(tokens) + len(siblings)),
        )


class FaultyDrafter(RecordingDrafter):
    """Breaks the drafter contract in one chosen way; works (proposes nothing) otherwise.

    Args:
        fault: What goes wrong. `slow` moves `clock` by `delay_s` and then answers properly.
        is_failing: Called with the number of the `propose` call (from 0); default: always.
        unknown_token: The id that `unknown_token` proposes.
    """

    def __init__(
        self,
        fault: FaultKind,
        *,
        is_failing: Callable[[int], bool] = lambda _call: True,
        clock: ManualClock | None = None,
        delay_s: float = 60.0,
        unknown_token: int = 2**31,
        name: str = "faulty",
    ) -> None:
        super().__init__(name)
        self._fault = fault
        self._is_failing = is_failing
        self._clock = clock
        self._delay_s = delay_s
        self._unknown_token = unknown_token
        self.num_proposals = 0

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftTree]:
        trees = super().propose(contexts)
        call, self.num_proposals = self.num_proposals, self.num_proposals + 1
        if not self._is_failing(call):
            return trees
        if self._fault == "raises":
            raise RuntimeError("the faulty drafter was asked to fail")
        if self._fault == "slow" and self._clock is not None:
            self._clock.advance(self._delay_s)
        if self._fault == "too_few":
            return trees[:-1]
        if self._fault == "too_many":
            return [*trees, EMPTY_TREE]
        return [self._nonsense(context) for context in contexts]

    def _nonsense(self, context: DraftContext) -> DraftTree:
        if self._fault == "not_a_tree":
            return cast(DraftTree, [1, 2, 3])
        if self._fault == "unknown_token":
            return DraftTree.chain([self._unknown_token], [1.0], self.name)
        if self._fault == "too_deep":
            num_nodes = context.max_draft_len + 1
            return DraftTree.chain([0] * num_nodes, [1.0] * num_nodes, self.name)
        if self._fault == "too_wide":
            num_nodes = context.max_draft_nodes + 1
            return DraftTree(
                tokens=tuple(range(num_nodes)),
                parents=(-1,) * num_nodes,
                scores=(0.5,) * num_nodes,
                sources=(frozenset((self.name,)),) * num_nodes,
            )
        return EMPTY_TREE

    def observe(self, observations: Sequence[Observation]) -> None:
        super().observe(observations)
        if self._fault == "observe_raises" and self._is_failing(self.num_proposals - 1):
            raise RuntimeError("the faulty drafter was asked to fail in observe")

    def release(self, request_ids: Sequence[str]) -> None:
        super().release(request_ids)
        if self._fault == "release_raises":
            raise RuntimeError("the faulty drafter was asked to fail in release")


class RecordedEvents:
    """Stands in for the metrics: remembers what a guard reports."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.active: list[bool] = []

    def count_drafter_fault(self, name: str, kind: str) -> None:
        self.faults.append(kind)

    def set_drafter_active(self, name: str, *, is_active: bool) -> None:
        self.active.append(is_active)
