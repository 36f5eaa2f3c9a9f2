"""A scripted engine and a byte tokenizer: a service without a model."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from slipstream.engine.client import EngineState, RequestEvent
from slipstream.engine.messages import (
    EngineInfo,
    Failed,
    PromptDone,
    SpeculationStats,
    Submit,
    Timings,
    TokenLogprob,
    Tokens,
    TopLogprob,
)
from slipstream.errors import EngineUnavailableError, TokenizerError

BOS, EOS, VOCAB_SIZE = 256, 257, 260
STATS = SpeculationStats(
    num_steps=5,
    num_drafts=4,
    num_draft_tokens=10,
    num_draft_tokens_per_pos=(4, 3, 3),
    num_accepted_tokens=6,
    num_accepted_tokens_per_pos=(3, 2, 1),
    mean_acceptance_length=2.5,
    drafters={"suffix": 6},
    max_draft_len=4,
)
TIMINGS = Timings(queue_s=0.1, time_to_first_token_s=0.3, end_to_end_s=1.3)


class ByteTokenizer:
    """Token i is byte i; two special tokens follow, then padding that means nothing."""

    vocab_size = 258
    special_ids = frozenset({BOS, EOS})

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        ids = list(text.encode())
        return [BOS, *ids] if add_special else ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        parts = (
            b"" if skip_special and i in self.special_ids else self.token_bytes(i) for i in ids
        )
        return b"".join(parts).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return {BOS: b"<s>", EOS: b"</s>"}.get(token_id) or bytes([token_id])

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")


class LineTemplate:
    """`role: content` lines; refuses what a template would refuse."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        if messages[0]["role"] == "assistant":
            raise TokenizerError("conversations must begin with the user")
        text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        text += "".join(f"[{key}={value}]" for key, value in sorted(kwargs.items()))
        return text + ("assistant:" if add_generation_prompt else "")


def text_reply(text: str) -> Callable[[Submit, int], list[int]]:
    """A script that always says `text` and ends."""
    return lambda submit, index: [*text.encode(), EOS]


def seeded_reply(submit: Submit, index: int) -> list[int]:
    """A script whose answer depends on the seed and the choice."""
    return [*f"{submit.params.seed}/{index}".encode(), EOS]


class FakeEngine:
    """An `EngineClient` that follows a script.

    Args:
        reply: Output tokens of a choice; cut at `max_tokens` and at stop strings.
        tokens_per_step: Tokens of one `Tokens` event.
        failure: Sent instead of the events from the `fail_after`-th on.

    `gate`, when cleared, holds every event back; `submitted` and `cancelled` tell what happened.
    """

    def __init__(
        self,
        reply: Callable[[Submit, int], list[int]] = seeded_reply,
        *,
        tokens_per_step: int = 3,
        max_model_len: int = 200,
        failure: Failed | None = None,
        fail_after: int = 0,
    ) -> None:
        self.reply = reply
        self.tokens_per_step = tokens_per_step
        self.failure = failure
        self.fail_after = fail_after
        self.metrics_text = (
            "# HELP slipstream_x A number.\n# TYPE slipstream_x gauge\nslipstream_x 1\n"
        )
        self.gate = asyncio.Event()
        self.gate.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.submitted: list[Submit] = []
        self.cancelled: list[str] = []
        self.num_running = 0
        self.num_restarts = 0
        self.stopped_with: float | None = None
        self.start_error: Exception | None = None
        self._state: EngineState = "ready"
        self._info: EngineInfo | None = EngineInfo(
            model="fake",
            vocab_size=VOCAB_SIZE,
            max_model_len=max_model_len,
            fingerprint="fp_fake",
            drafters=("ngram", "suffix"),
            eos_token_ids=(EOS,),
            kv_tokens=1000,
            weight_bytes=10,
            max_queue_len=8,
        )

    @property
    def info(self) -> EngineInfo | None:
        return self._info

    @property
    def is_ready(self) -> bool:
        return self._state == "ready"

    @property
    def state(self) -> EngineState:
        return self._state

    def set_state(self, state: EngineState) -> None:
        """Move to another state; a starting engine has no facts to tell."""
        self._state = state
        if state == "starting":
            self._info = None

    async def start(self) -> None:
        if self.start_error is not None:
            raise self.start_error

    async def stop(self, drain_s: float) -> None:
        self._state = "draining"
        self.stopped_with = drain_s
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), drain_s)
        self.failure, self.fail_after = Failed("", "RequestCancelledError", "drained"), 0
        self.gate.set()

    async def call(self, method: str) -> Any:
        if not self.is_ready:
            raise EngineUnavailableError("the engine does not answer now")
        return {"metrics": self.metrics_text}[method]

    async def submit(self, request: Submit) -> AsyncGenerator[RequestEvent, None]:
        self.submitted.append(request)
        self.num_running += 1
        self._idle.clear()
        is_done = False
        try:
            for number, event in enumerate(self._events(request)):
                await asyncio.sleep(0)
                await self.gate.wait()
                if self.failure is not None and number >= self.fail_after:
                    is_done = True
                    yield self.failure
                    return
                yield event
            is_done = True
        finally:
            self.num_running -= 1
            if self.num_running == 0:
                self._idle.set()
            if not is_done:
                self.cancelled.append(request.request_id)

    def _events(self, request: Submit) -> list[RequestEvent]:
        logprobs = None
        if request.params.prompt_logprobs:
            top = request.params.top_logprobs
            logprobs = tuple(
                entry_of(token, top, is_first=i == 0) for i, token in enumerate(request.prompt)
            )
        done = PromptDone(request.request_id, len(request.prompt), 1, logprobs)
        choices = [self._choice(request, index) for index in range(request.n)]
        interleaved = itertools.zip_longest(*choices)
        return [done, *(event for row in interleaved for event in row if event is not None)]

    def _choice(self, request: Submit, index: int) -> list[Tokens]:
        params = request.params
        tokens = self.reply(request, index)
        reason, stop_reason = "stop", None
        if len(tokens) > params.max_tokens:
            tokens, reason = tokens[: params.max_tokens], "length"
        text = bytes(token for token in tokens if token < BOS).decode(errors="replace")
        cuts = [(text.find(stop), stop) for stop in params.stop if stop in text]
        if cuts:
            cut, stop_reason = min(cuts)
            tokens, reason = list(text[: cut + len(stop_reason)].encode()), "stop"
            text = text[:cut]
        events = []
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        num_sent = 0
        for start in range(0, len(tokens), self.tokens_per_step):
            part = tokens[start : start + self.tokens_per_step]
            is_last = start + self.tokens_per_step >= len(tokens)
            piece = decoder.decode(bytes(token for token in part if token < BOS), final=is_last)
            piece = piece[: max(len(text) - num_sent, 0)]
            num_sent += len(piece)
            entries = tuple(entry_of(token, params.top_logprobs) for token in part)
            events.append(
                Tokens(
                    request_id=request.request_id,
                    index=index,
                    token_ids=tuple(part),
                    text=piece,
                    num_output_tokens=start + len(part),
                    logprobs=entries if params.logprobs else None,
                    finish_reason=reason if is_last else None,
                    stop_reason=stop_reason if is_last else None,
                    speculation=STATS if is_last else None,
                    timings=TIMINGS if is_last else None,
                )
            )
        return events


def entry_of(token: int, num_top: int, *, is_first: bool = False) -> TokenLogprob:
    """A made-up log-probability: that of token t is -(t % 7) - 0.5, the best ones follow t."""
    tokenizer = ByteTokenizer()
    top = tuple(
        TopLogprob(
            other,
            -0.25 * (rank + 1),
            tokenizer.token_text(other),
            tuple(tokenizer.token_bytes(other)),
        )
        for rank, other in enumerate((token + 1 + i) % 256 for i in range(num_top))
    )
    return TokenLogprob(
        token_id=token,
        logprob=None if is_first else -(token % 7) - 0.5,
        text=tokenizer.token_text(token),
        token_bytes=tuple(tokenizer.token_bytes(token)),
        rank=0 if is_first else num_top + 1,
        top=() if is_first else top,
    )
