"""Logits processors: what a request asks for besides temperature and filters.

Fixed order: repetition penalty (prompt and output), presence and frequency penalty (output),
logit_bias, bad_words, allowed_token_ids, min_tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from slipstream.sampling.noise import FloatArray, IntArray
from slipstream.sampling.params import SamplingParams, check_token_ids
from slipstream.sampling.state import SamplingState

_MINUS_INF = np.float32(-np.inf)


class Processors:
    """The processors of one request, prepared once.

    Args:
        params: The request's parameters.
        vocab_size: Size of the target's real vocabulary.
        eos_token_ids: Tokens that end an output; `min_tokens` bans them, ignored or not.

    Attributes:
        is_idle: Whether they never change a logit.

    Raises:
        InvalidRequestError: `params` names a token outside the vocabulary.
    """

    def __init__(
        self, params: SamplingParams, vocab_size: int, eos_token_ids: Iterable[int]
    ) -> None:
        check_token_ids(params, vocab_size)
        self.params = params
        self._vocab_size = vocab_size
        self._bias_ids = _ids(params.logit_bias)
        self._bias = np.fromiter(params.logit_bias.values(), dtype=np.float32)
        self._banned_ids = _ids(word[0] for word in params.bad_words if len(word) == 1)
        self._long_words = tuple(word for word in params.bad_words if len(word) > 1)
        self._forbidden_ids: IntArray | None = None
        if params.allowed_token_ids is not None:
            is_forbidden = np.ones(vocab_size, dtype=np.bool_)
            is_forbidden[_ids(params.allowed_token_ids)] = False
            self._forbidden_ids = np.flatnonzero(is_forbidden)
        stops = {token for token in eos_token_ids if token < vocab_size}
        self._stop_ids = _ids(sorted(stops | set(params.stop_token_ids)))
        self._last_prompt: tuple[frozenset[int], IntArray] = (frozenset(), _ids(()))
        self.is_idle = not (
            params.has_penalties
            or params.logit_bias
            or params.bad_words
            or self._forbidden_ids is not None
            or params.min_tokens
        )

    def apply(
        self,
        logits: FloatArray,  # [vocab]
        state: SamplingState,
        out: FloatArray,  # [vocab], overwritten when there is anything to do
    ) -> FloatArray:
        """The processed logits: `logits` itself, never written, when nothing is to be done."""
        if self.is_idle:
            return logits
        np.copyto(out, logits)
        with np.errstate(all="ignore"):  # what becomes infinite is found by who looks for the best
            self._change(out, state)
        return out

    def _change(self, out: FloatArray, state: SamplingState) -> None:
        if self.params.has_penalties:
            self._penalise(out, state)
        out[self._bias_ids] += self._bias
        out[self._banned_ids] = _MINUS_INF
        for word in self._long_words:
            prefix = word[:-1]
            if state.recent[-len(prefix) :] == prefix:
                out[word[-1]] = _MINUS_INF
        if self._forbidden_ids is not None:
            out[self._forbidden_ids] = _MINUS_INF
        if state.num_output < self.params.min_tokens:
            out[self._stop_ids] = _MINUS_INF

    def _penalise(self, logits: FloatArray, state: SamplingState) -> None:
        params = self.params
        drawn = _ids(state.output_counts)
        if params.repetition_penalty != 1.0:
            is_seen = np.zeros(logits.size, dtype=np.bool_)
            is_seen[self._prompt_ids(state.prompt_tokens)] = True
            is_seen[drawn] = True
            seen = np.flatnonzero(is_seen)
            # CTRL (arXiv:1909.05858), section 4.1, with the sign rule that all servers follow.
            values, penalty = logits[seen], np.float32(params.repetition_penalty)
            logits[seen] = np.where(values > 0, values / penalty, values * penalty)
        if drawn.size and (params.presence_penalty or params.frequency_penalty):
            counts = np.fromiter(state.output_counts.values(), dtype=np.float32)
            logits[drawn] -= np.float32(params.presence_penalty)
            logits[drawn] -= np.float32(params.frequency_penalty) * counts

    def _prompt_ids(self, tokens: frozenset[int]) -> IntArray:
        """The prompt's drawable tokens as an array, kept while states share the same set."""
        if self._last_prompt[0] is not tokens:
            ids = _ids(tokens)
            self._last_prompt = (tokens, ids[ids < self._vocab_size])
        return self._last_prompt[1]


def _ids(tokens: Iterable[int]) -> IntArray:
    return np.fromiter(tokens, dtype=np.int64)
