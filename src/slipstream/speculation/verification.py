"""How drafts are checked: by the target's own sampler, or by rejection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from torch import Tensor

from slipstream.errors import RequestError
from slipstream.sampling.distribution import Probs, distribution, draw_at
from slipstream.sampling.noise import FloatArray
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.sampler import RowRequest, Sampler, SamplingError, host_rows
from slipstream.sampling.state import advance
from slipstream.sampling.streams import Stream, stream_seed, uniform_at
from slipstream.speculation.rejection import (
    block_accepted_len,
    block_ratios,
    block_thresholds,
    chain_accepted_len,
    chain_thresholds,
    residual_probs,
)
from slipstream.speculation.tree import DraftTree
from slipstream.speculation.verify import Candidate, Verdict, verify

Rule = Literal["chain", "block"]


class Verification(Protocol):
    """Decides which drafts are kept."""

    def wants_laws(self, params: SamplingParams) -> bool:
        """Whether drafts for such a request must be draws with their laws."""
        ...

    def verify(
        self, sampler: Sampler, logits: Tensor | FloatArray, candidates: Sequence[Candidate]
    ) -> list[Verdict]:
        """One verdict per candidate; arguments as of `slipstream.speculation.verify.verify`."""
        ...


class ExactVerification:
    """Keeps what the target's sampler says, token by token."""

    def wants_laws(self, params: SamplingParams) -> bool:
        return False

    def verify(
        self, sampler: Sampler, logits: Tensor | FloatArray, candidates: Sequence[Candidate]
    ) -> list[Verdict]:
        return verify(sampler, logits, candidates)


class RejectionVerification:
    """Keeps drafts by the ratio of their probabilities; the law of the answer is the target's.

    The answer of a seed depends on what was drafted. Greedy requests, and steps without a draft,
    are verified exactly.

    Args:
        rule: Each draft is judged by itself (`chain`), or the whole draft at once (`block`), which
            keeps more on average.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def wants_laws(self, params: SamplingParams) -> bool:
        return not params.is_greedy

    def verify(
        self, sampler: Sampler, logits: Tensor | FloatArray, candidates: Sequence[Candidate]
    ) -> list[Verdict]:
        rows = host_rows(logits)
        drafted = {
            index: _judged(self._rule, _given(sampler, rows, candidate), candidate)
            for index, candidate in enumerate(candidates)
            if candidate.tree and self.wants_laws(candidate.params)
        }
        return _filled_in(drafted, sampler, rows, candidates)


@dataclass(frozen=True, slots=True)
class _Given:
    """What is known about a drafted chain.

    Attributes:
        target: [drafts + 1, vocab] in front of each draft and behind the last.
        draft: [drafts, vocab] what each was drawn from.
        fault: Why the last row of `target` is zeros: there is nothing to draw behind the drafts.
    """

    target: Probs
    draft: Probs
    fault: RequestError | None


def _filled_in(
    drafted: Mapping[int, Verdict],
    sampler: Sampler,
    rows: FloatArray,
    candidates: Sequence[Candidate],
) -> list[Verdict]:
    """The verdicts, with those of all other candidates by the sampler."""
    others = [item for index, item in enumerate(candidates) if index not in drafted]
    plain = iter(verify(sampler, rows, others))
    return [drafted.get(index) or next(plain) for index in range(len(candidates))]


def _given(sampler: Sampler, rows: FloatArray, candidate: Candidate) -> _Given:
    """The target's distributions along the chain, as far as there are any."""
    tree = candidate.tree
    assert tree.is_chain, "only chains are verified by rejection"
    target: list[Probs] = []
    state, fault = candidate.state, None
    for node in range(-1, len(tree)):
        if node >= 0:
            state = advance(candidate.params, state, tree.tokens[node])
        position = candidate.position + node + 1
        request = RowRequest(candidate.params, state, candidate.seed, position)
        try:
            target.append(distribution(sampler, rows[candidate.row(node)], request))
        except SamplingError as error:
            fault = error.error
            target.append(np.zeros(sampler.vocab_size))
            break
    num_drafts = len(target) - 1
    return _Given(np.stack(target), _draft_probs(tree, num_drafts, sampler.vocab_size), fault)


def _draft_probs(tree: DraftTree, num_drafts: int, vocab_size: int) -> Probs:
    """[num_drafts, vocab_size]; what was not drawn is certain."""
    probs = np.zeros((num_drafts, vocab_size))
    for node in range(num_drafts):
        if tree.laws is None:
            probs[node, tree.tokens[node]] = 1.0
        else:
            probs[node, tree.laws[node].token_ids] = tree.laws[node].probs
    return probs


def _judged(rule: Rule, given: _Given, candidate: Candidate) -> Verdict:
    num_drafts = len(given.draft)
    start = candidate.position
    tokens = np.array(candidate.tree.tokens[:num_drafts], np.int64)
    coin_seed = stream_seed(candidate.seed, Stream.COIN, start)
    coins = np.array([uniform_at(coin_seed, start + index) for index in range(num_drafts)])
    ratio = np.ones(())
    accepted_len = 0
    if rule == "block" and num_drafts:
        ratios = block_ratios(given.target, given.draft, tokens)
        thresholds = block_thresholds(ratios, given.target, given.draft)
        accepted_len = int(block_accepted_len(thresholds, coins))
        ratio = ratios[accepted_len - 1] if accepted_len else ratio
    elif num_drafts:
        thresholds = chain_thresholds(given.target, given.draft, tokens)
        accepted_len = int(chain_accepted_len(thresholds, coins))
    path = tuple(range(accepted_len))
    kept = candidate.tree.tokens[:accepted_len]
    rows = tuple(candidate.row(node) for node in range(-1, accepted_len))
    last = given.target[accepted_len]
    if accepted_len < num_drafts:
        last = residual_probs(last, given.draft[accepted_len], ratio)
    elif given.fault is not None:
        return Verdict(kept, path, rows[:-1], given.fault)
    position = start + accepted_len
    residual_seed = stream_seed(candidate.seed, Stream.RESIDUAL, start)
    token = draw_at(last, uniform_at(residual_seed, position))
    return Verdict((*kept, token), path, rows)
