"""Logits processors: what a request asks for besides temperature and filters.

Fixed order: repetition penalty (prompt and output), presence and frequency penalty (output),
logit_bias, bad_words, allowed_token_ids, min_tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from slipstream.kernels.address import address_of
from slipstream.sampling.noise import FloatArray, IntArray
from slipstream.sampling.params import SamplingParams, check_token_ids
from slipstream.sampling.state import SamplingState
from slipstream.sampling.transforms import least_weight

_MINUS_INF = np.float32(-np.inf)
_NO_IDS: IntArray = np.empty(0, np.int64)


class Edits(NamedTuple):
    """Changed logits of one row.

    Attributes:
        places: [edits] int64 columns; one that is there twice has the same value both times.
        values: [edits] float32 the processed logits there.
    """

    places: IntArray
    values: FloatArray

    def addresses(self) -> tuple[int, int]:
        """Where both arrays lie, as long as this object holds them; 0 where they are empty."""
        return address_of(self.places), address_of(self.values)


NO_EDITS = Edits(_NO_IDS, np.empty(0, np.float32))


class Processors:
    """The processors of one request, prepared once.

    Args:
        params: The request's parameters.
        vocab_size: Size of the target's real vocabulary.
        eos_token_ids: Tokens that end an output; `min_tokens` bans them, ignored or not.

    Attributes:
        is_idle: Whether they never change a logit.
        only_penalises: Whether nothing but penalties ever changes one.
        only_bans: Whether what they change a logit to never depends on the row, so that the edits
            of one row are those of another.
        numbers: top_p, temperature (0 = greedy), least log-weight, penalties (repetition,
            presence, frequency) and top_k, as the kernels take them.

    Raises:
        InvalidRequestError: `params` names a token outside the vocabulary.
    """

    def __init__(
        self, params: SamplingParams, vocab_size: int, eos_token_ids: Iterable[int]
    ) -> None:
        check_token_ids(params, vocab_size)
        self.params = params
        self.numbers = (
            params.top_p,
            0.0 if params.is_greedy else params.temperature,
            float(least_weight(params)),
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
            min(params.top_k, vocab_size),
        )
        self._vocab_size = vocab_size
        self._bias_ids = _ids(params.logit_bias)
        self._bias = np.fromiter(params.logit_bias.values(), dtype=np.float32)
        self._forbidden_ids: IntArray | None = None
        if params.allowed_token_ids is not None:
            is_forbidden = np.ones(vocab_size, dtype=np.bool_)
            is_forbidden[_ids(params.allowed_token_ids)] = False
            self._forbidden_ids = np.flatnonzero(is_forbidden)
        stops = {token for token in eos_token_ids if token < vocab_size}
        self._stop_ids = _ids(sorted(stops | set(params.stop_token_ids)))
        self._last_prompt: tuple[frozenset[int], IntArray] = (frozenset(), _ids(()))
        does_more = bool(
            params.logit_bias
            or params.bad_words
            or self._forbidden_ids is not None
            or params.min_tokens
        )
        self.is_idle = not (params.has_penalties or does_more)
        self.only_penalises = params.has_penalties and not does_more
        self.only_bans = not (params.has_penalties or params.logit_bias)

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
            drawn = _ids(state.output_counts) if self.params.has_penalties else _NO_IDS
            self._change(out, state, drawn)
        return out

    def edits(
        self,
        logits: FloatArray,  # [columns]
        state: SamplingState,
        scratch: FloatArray,  # [vocab], overwritten in part
        columns: IntArray | None = None,
    ) -> Edits:
        """Where `apply` changes a row, and to what, without copying the row.

        Args:
            columns: [vocab] the column of each token, -1 for those that the row lacks; None where
                column and token are one.
        """
        drawn = _ids(state.output_counts) if self.params.has_penalties else _NO_IDS
        changed = ids = self._changed_ids(state, drawn)
        places = ids if columns is None else columns[ids]
        if columns is not None:
            is_here = places >= 0
            ids, places = ids[is_here], places[is_here]
            scratch[changed] = _MINUS_INF
        scratch[ids] = logits[places]
        with np.errstate(all="ignore"):
            self._change(scratch, state, drawn)
        return Edits(places, scratch[ids])

    def _changed_ids(self, state: SamplingState, drawn: IntArray) -> IntArray:
        """Every token whose logit may change, some of them several times."""
        parts = [self._bias_ids]
        if self.params.has_penalties:
            parts += [self.prompt_ids(state.prompt_tokens), drawn]
        parts += self._banned_ids(state)
        if self._forbidden_ids is not None:
            parts.append(self._forbidden_ids)
        if state.num_output < self.params.min_tokens:
            parts.append(self._stop_ids)
        return np.concatenate(parts)

    def _change(self, out: FloatArray, state: SamplingState, drawn: IntArray) -> None:
        """Process a row in place; only tokens of `_changed_ids` are read or written.

        Args:
            drawn: The keys of `state.output_counts`, where there are penalties.
        """
        if self.params.has_penalties:
            self._penalise(out, state, drawn)
        if self._bias_ids.size:
            out[self._bias_ids] += self._bias
        for ids in self._banned_ids(state):
            out[ids] = _MINUS_INF
        if self._forbidden_ids is not None:
            out[self._forbidden_ids] = _MINUS_INF
        if state.num_output < self.params.min_tokens:
            out[self._stop_ids] = _MINUS_INF

    def _banned_ids(self, state: SamplingState) -> tuple[IntArray, ...]:
        """Tokens that would complete a bad word."""
        words = state.bad_words
        if words is None:
            assert not self.params.bad_words, "the state was started without its bad words"
            return ()
        return words.always, words.completing(state.tail)

    def _penalise(self, logits: FloatArray, state: SamplingState, drawn: IntArray) -> None:
        params = self.params
        if params.repetition_penalty != 1.0:
            # A token that is in both gets the same value twice.
            seen = np.concatenate((self.prompt_ids(state.prompt_tokens), drawn))
            # CTRL (arXiv:1909.05858), section 4.1, with the sign rule that all servers follow.
            values, penalty = logits[seen], np.float32(params.repetition_penalty)
            logits[seen] = np.where(values > 0, values / penalty, values * penalty)
        if drawn.size and (params.presence_penalty or params.frequency_penalty):
            counts = np.fromiter(state.output_counts.values(), np.float32, drawn.size)
            values = logits[drawn]
            values -= np.float32(params.presence_penalty)
            values -= np.float32(params.frequency_penalty) * counts
            logits[drawn] = values

    def prompt_ids(self, tokens: frozenset[int]) -> IntArray:
        """The prompt's drawable tokens as an array, kept while states share the same set."""
        if self._last_prompt[0] is not tokens:
            ids = _ids(tokens)
            self._last_prompt = (tokens, ids[ids < self._vocab_size])
        return self._last_prompt[1]


def _ids(tokens: Iterable[int]) -> IntArray:
    return np.fromiter(tokens, dtype=np.int64)
