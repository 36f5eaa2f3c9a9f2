"""The answer to a chat request, whole or streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from slipstream.engine.messages import PromptDone, TokenLogprob, Tokens
from slipstream.protocol import sse
from slipstream.protocol.requests import ChatRequest
from slipstream.protocol.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    Usage,
)
from slipstream.server.generation import Progress
from slipstream.server.logprobs import chat_logprobs, prompt_logprobs
from slipstream.server.plan import Plan
from slipstream.server.tally import ChoiceTally, Tally


class ChatAnswer:
    """Writes one chat answer.

    Args:
        request, plan: What was asked.
        tally: Counts along; keeps the output if the answer is not streamed.
    """

    def __init__(self, request: ChatRequest, plan: Plan, tally: Tally) -> None:
        self._request = request
        self._plan = plan
        self._tally = tally

    async def whole(self, events: AsyncGenerator[Progress, None]) -> ChatCompletion:
        """The body, when all choices are finished."""
        async with aclosing(events):
            async for progress in events:
                self._tally.add(progress)
        plan, request = self._plan, self._request
        done = self._tally.prompts[0]
        wants_prompt = request.prompt_logprobs is not None
        prompt = done.logprobs if wants_prompt and done is not None else None
        return ChatCompletion(
            id=plan.response_id,
            created=plan.created,
            model=plan.model,
            choices=[self._choice(i, choice) for i, choice in enumerate(self._tally.choices)],
            usage=self._tally.usage(),
            system_fingerprint=plan.fingerprint,
            seed=plan.seed,
            prompt_token_ids=self._prompt_token_ids(),
            prompt_logprobs=(
                None if prompt is None else prompt_logprobs(prompt, request.prompt_logprobs or 0)
            ),
            metrics=self._tally.metrics(),
        )

    async def chunks(self, events: AsyncGenerator[Progress, None]) -> AsyncGenerator[bytes, None]:
        """The events of the stream: role, content, finish for each choice, usage, `[DONE]`."""
        async with aclosing(events):
            async for progress in events:
                self._tally.add(progress)
                event = progress.event
                if isinstance(event, PromptDone):
                    for index in range(self._plan.n):
                        yield self._role_chunk(index)
                    continue
                if self._has_content(event):
                    yield self._content_chunk(event)
                if event.finish_reason is not None:
                    yield self._finish_chunk(event.index)
        if self._request.include_usage:
            yield self._chunk([], usage=self._tally.usage(), has_metrics=True)
        yield sse.DONE

    def _choice(self, index: int, choice: ChoiceTally) -> ChatChoice:
        assert choice.finish_reason is not None
        return ChatChoice(
            index=index,
            message=ChatMessage(content="".join(choice.texts)),
            logprobs=self._logprobs(choice.logprobs),
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            token_ids=choice.token_ids if self._request.return_token_ids else None,
            metrics=choice.metrics if self._plan.n > 1 else None,
        )

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        request = self._request
        if not request.logprobs:
            return None
        return chat_logprobs(
            entries, request.num_alternatives, as_ids=request.return_tokens_as_token_ids
        )

    def _prompt_token_ids(self) -> list[int] | None:
        return list(self._plan.submits[0].prompt) if self._request.return_token_ids else None

    def _has_content(self, event: Tokens) -> bool:
        wants_tokens = self._request.logprobs or self._request.return_token_ids
        return bool(event.text) or (wants_tokens and bool(event.token_ids))

    def _role_chunk(self, index: int) -> bytes:
        delta = ChatDelta(role="assistant", content="")
        ids = self._prompt_token_ids() if index == 0 else None
        return self._chunk([ChatChunkChoice(index=index, delta=delta)], prompt_token_ids=ids)

    def _content_chunk(self, event: Tokens) -> bytes:
        choice = ChatChunkChoice(
            index=event.index,
            delta=ChatDelta(content=event.text),
            logprobs=self._logprobs(event.logprobs or ()),
            token_ids=list(event.token_ids) if self._request.return_token_ids else None,
        )
        return self._chunk([choice])

    def _finish_chunk(self, index: int) -> bytes:
        tally = self._tally.choices[index]
        choice = ChatChunkChoice(
            index=index,
            delta=ChatDelta(),
            finish_reason=tally.finish_reason,
            stop_reason=tally.stop_reason,
            metrics=tally.metrics if self._plan.n > 1 else None,
        )
        is_last = self._plan.n == 1 and not self._request.include_usage
        return self._chunk([choice], has_metrics=is_last)

    def _chunk(
        self,
        choices: list[ChatChunkChoice],
        *,
        usage: Usage | None = None,
        prompt_token_ids: list[int] | None = None,
        has_metrics: bool = False,
    ) -> bytes:
        plan = self._plan
        chunk = ChatChunk(
            id=plan.response_id,
            created=plan.created,
            model=plan.model,
            choices=choices,
            system_fingerprint=plan.fingerprint,
            seed=plan.seed,
            usage=usage,
            prompt_token_ids=prompt_token_ids,
            metrics=self._tally.metrics() if has_metrics else None,
        )
        left_out = set() if self._request.include_usage else {"usage"}
        return sse.event(chunk.model_dump_json(exclude=left_out))
