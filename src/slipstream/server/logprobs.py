"""Log-probabilities in the formats of both endpoints."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence

from slipstream.engine.messages import TokenLogprob, TopLogprob
from slipstream.protocol.responses import (
    ChatLogprobs,
    ChatTokenLogprob,
    ChatTopLogprob,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
)

_LOWEST = -9999.0  # JSON has no -infinity; clients know this number


def chat_logprobs(
    entries: Iterable[TokenLogprob], num_alternatives: int, *, as_ids: bool
) -> ChatLogprobs:
    """`logprobs` of a chat choice."""
    return ChatLogprobs(
        content=[
            ChatTokenLogprob(
                token=_token(entry, as_ids=as_ids),
                logprob=_LOWEST if entry.logprob is None else _finite(entry.logprob),
                bytes=list(entry.token_bytes),
                top_logprobs=[
                    ChatTopLogprob(
                        token=_token(top, as_ids=as_ids),
                        logprob=_finite(top.logprob),
                        bytes=list(top.token_bytes),
                    )
                    for top in entry.top[:num_alternatives]
                ],
            )
            for entry in entries
        ]
    )


class CompletionLogprobsWriter:
    """Writes `logprobs` of a completion choice, chunk by chunk, and keeps the text offset.

    Args:
        num_alternatives: Of `top_logprobs`; the chosen token is always among them.
        special_ids: Tokens that give no text.
        as_ids: Write tokens as `token_id:ID`.
    """

    def __init__(
        self, num_alternatives: int, special_ids: Collection[int], *, as_ids: bool
    ) -> None:
        self._num_alternatives = num_alternatives
        self._special_ids = special_ids
        self._as_ids = as_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def write(self, entries: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """The next tokens of the choice."""
        return CompletionLogprobs(
            tokens=[_written(entry, as_ids=self._as_ids) for entry in entries],
            token_logprobs=[_finite_or_none(entry.logprob) for entry in entries],
            top_logprobs=[self._top(entry) for entry in entries],
            text_offset=[self._advance(entry) for entry in entries],
        )

    def _top(self, entry: TokenLogprob) -> dict[str, float] | None:
        if entry.logprob is None:
            return None
        top: dict[str, float] = {}
        for candidate in entry.top[: self._num_alternatives]:
            text = _written(candidate, as_ids=self._as_ids)
            top.setdefault(text, _finite(candidate.logprob))
        top[_written(entry, as_ids=self._as_ids)] = _finite(entry.logprob)
        return top

    def _advance(self, entry: TokenLogprob) -> int:
        offset = self._offset
        if entry.token_id not in self._special_ids:
            self._offset += len(self._decoder.decode(bytes(entry.token_bytes)))
        return offset


def prompt_logprobs(entries: Iterable[TokenLogprob], num_alternatives: int) -> PromptLogprobs:
    """The extension `prompt_logprobs`: null for the first token, then candidates by token id."""
    result: PromptLogprobs = []
    for entry in entries:
        if entry.logprob is None:
            result.append(None)
            continue
        candidates = {
            top.token_id: PromptLogprob(
                logprob=_finite(top.logprob), rank=rank, decoded_token=_text(top)
            )
            for rank, top in enumerate(entry.top[:num_alternatives], start=1)
        }
        candidates[entry.token_id] = PromptLogprob(
            logprob=_finite(entry.logprob), rank=entry.rank, decoded_token=_text(entry)
        )
        result.append(candidates)
    return result


def _token(entry: TokenLogprob | TopLogprob, *, as_ids: bool) -> str:
    return f"token_id:{entry.token_id}" if as_ids else entry.text


def _written(entry: TokenLogprob | TopLogprob, *, as_ids: bool) -> str:
    return f"token_id:{entry.token_id}" if as_ids else _text(entry)


def _text(entry: TokenLogprob | TopLogprob) -> str:
    """The token's text; a part of a character is written as the OpenAI API does, byte by byte."""
    try:
        bytes(entry.token_bytes).decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.token_bytes)
    return entry.text


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)


def _finite_or_none(logprob: float | None) -> float | None:
    return None if logprob is None else _finite(logprob)
