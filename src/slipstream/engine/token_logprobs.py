"""Log-probabilities as the client sees them: with text, bytes, rank and alternatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from slipstream.engine.messages import TokenLogprob, TopLogprob
from slipstream.errors import RequestError
from slipstream.sampling.logprobs import TokenScore, score_drawn, score_tokens
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.sampler import RowRequest, Sampler, SamplingError
from slipstream.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Reported:
    """Entries of tokens in their order, as far as there are any.

    Attributes:
        fault: What the request fails with where its next entry should be; None behind the last.
    """

    entries: tuple[TokenLogprob, ...]
    fault: RequestError | None = None


@dataclass(frozen=True, slots=True)
class DrawnRows:
    """Rows of a pass that kept tokens were drawn from.

    Attributes:
        rows: Row of the logits of each token.
        requests: What the sampler was given for each.
        tokens: The tokens.
    """

    rows: tuple[int, ...]
    requests: tuple[RowRequest, ...]
    tokens: tuple[int, ...]


class LogprobReporter:
    """Scores tokens on the rows that they were drawn from or that precede them in the prompt."""

    def __init__(self, sampler: Sampler, tokenizer: Tokenizer) -> None:
        self._sampler = sampler
        self._tokenizer = tokenizer

    def of_output(self, logits: Tensor, drawn: DrawnRows) -> Reported:
        """Entries of tokens that one step drew for one request."""
        entries: list[TokenLogprob] = []
        rows = logits[list(drawn.rows)]
        try:
            for score in score_drawn(self._sampler, rows, drawn.requests, drawn.tokens):
                entries.append(self._entry(score))
        except SamplingError as error:
            return Reported(tuple(entries), error.error)
        return Reported(tuple(entries))

    def of_prompt(
        self, logits: Tensor, rows: Sequence[int], tokens: Sequence[int], params: SamplingParams
    ) -> Reported:
        """Entries of prompt tokens, each judged by the row before it; all of them or none."""
        try:
            scores = score_tokens(
                logits[list(rows)],
                tokens,
                vocab_size=self._sampler.vocab_size,
                num_top=params.top_logprobs,
            )
        except SamplingError as error:
            return Reported((), error.error)
        return Reported(tuple(map(self._entry, scores)))

    def unconditional(self, token: int) -> TokenLogprob:
        """The entry of the first prompt token, which nothing predicts."""
        return TokenLogprob(
            token_id=token,
            logprob=None,
            text=self._tokenizer.token_text(token),
            token_bytes=tuple(self._tokenizer.token_bytes(token)),
            rank=0,
        )

    def _entry(self, score: TokenScore) -> TokenLogprob:
        return TokenLogprob(
            token_id=score.token_id,
            logprob=score.logprob,
            text=self._tokenizer.token_text(score.token_id),
            token_bytes=tuple(self._tokenizer.token_bytes(score.token_id)),
            rank=score.rank,
            top=tuple(
                TopLogprob(
                    item.token_id,
                    item.logprob,
                    self._tokenizer.token_text(item.token_id),
                    tuple(self._tokenizer.token_bytes(item.token_id)),
                )
                for item in score.top
            ),
        )
