"""The answer to a completion request, whole or streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing

from slipstream.engine.messages import PromptDone, TokenLogprob, Tokens
from slipstream.protocol import sse
from slipstream.protocol.requests import CompletionRequest
from slipstream.protocol.responses import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    PromptLogprobs,
    Usage,
)
from slipstream.server.generation import Progress
from slipstream.server.logprobs import CompletionLogprobsWriter, prompt_logprobs
from slipstream.server.plan import Plan
from slipstream.server.tally import ChoiceTally, Tally


class CompletionAnswer:
    """Writes one completion.

    Args:
        request, plan: What was asked.
        tally: Counts along; keeps the output if the answer is not streamed.
        special_ids: Tokens that give no text.
    """

    def __init__(
        self, request: CompletionRequest, plan: Plan, tally: Tally, special_ids: Collection[int]
    ) -> None:
        self._request = request
        self._plan = plan
        self._tally = tally
        alternatives, as_ids = request.num_alternatives, request.return_tokens_as_token_ids
        self._writers = [
            CompletionLogprobsWriter(alternatives, special_ids, as_ids=as_ids)
            for _ in tally.choices
        ]

    async def whole(self, events: AsyncGenerator[Progress, None]) -> Completion:
        """The body, when all choices are finished."""
        async with aclosing(events):
            async for progress in events:
                self._tally.add(progress)
        return Completion(
            id=self._plan.response_id,
            created=self._plan.created,
            model=self._plan.model,
            choices=[self._choice(i, choice) for i, choice in enumerate(self._tally.choices)],
            usage=self._tally.usage(),
            system_fingerprint=self._plan.fingerprint,
            seed=self._plan.seed,
            metrics=self._tally.metrics(),
        )

    async def chunks(self, events: AsyncGenerator[Progress, None]) -> AsyncGenerator[bytes, None]:
        """The events of the stream: the echo, text with the finish on its last, usage, `[DONE]`."""
        async with aclosing(events):
            async for progress in events:
                self._tally.add(progress)
                event = progress.event
                if isinstance(event, PromptDone):
                    for chunk in self._prompt_chunks(progress.prompt_index):
                        yield chunk
                elif self._has_content(event):
                    yield self._text_chunk(progress.prompt_index, event)
        if self._request.include_usage:
            yield self._chunk([], usage=self._tally.usage(), has_metrics=True)
        yield sse.DONE

    def _choice(self, index: int, choice: ChoiceTally) -> CompletionChoice:
        prompt_index = index // self._plan.n
        entries = [*self._echoed_logprobs(prompt_index), *choice.logprobs]
        text = "".join(choice.texts)
        return CompletionChoice(
            index=index,
            text=self._echo(prompt_index) + text,
            logprobs=self._logprobs(index, entries),
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            token_ids=choice.token_ids if self._request.return_token_ids else None,
            prompt_token_ids=self._prompt_token_ids(prompt_index),
            prompt_logprobs=self._prompt_logprobs(prompt_index),
            metrics=choice.metrics if len(self._tally.choices) > 1 else None,
        )

    def _echo(self, prompt_index: int) -> str:
        return self._plan.echo_texts[prompt_index] if self._request.echo else ""

    def _echoed_logprobs(self, prompt_index: int) -> Sequence[TokenLogprob]:
        done = self._tally.prompts[prompt_index]
        if not self._request.echo or done is None:
            return ()
        return done.logprobs or ()

    def _logprobs(self, index: int, entries: Sequence[TokenLogprob]) -> CompletionLogprobs | None:
        return None if self._request.logprobs is None else self._writers[index].write(entries)

    def _prompt_token_ids(self, prompt_index: int) -> list[int] | None:
        if not self._request.return_token_ids:
            return None
        return list(self._plan.submits[prompt_index].prompt)

    def _prompt_logprobs(self, prompt_index: int) -> PromptLogprobs | None:
        done = self._tally.prompts[prompt_index]
        asked = self._request.prompt_logprobs
        if asked is None or done is None or done.logprobs is None:
            return None
        return prompt_logprobs(done.logprobs, asked)

    def _prompt_chunks(self, prompt_index: int) -> list[bytes]:
        """One chunk per choice, if there is something of the prompt to send."""
        request = self._request
        if not (request.echo or request.return_token_ids):
            return []
        first = prompt_index * self._plan.n
        entries = self._echoed_logprobs(prompt_index)
        return [
            self._chunk(
                [
                    CompletionChoice(
                        index=index,
                        text=self._echo(prompt_index),
                        logprobs=self._logprobs(index, entries) if entries else None,
                        finish_reason=None,
                        prompt_token_ids=self._prompt_token_ids(prompt_index),
                    )
                ]
            )
            for index in range(first, first + self._plan.n)
        ]

    def _has_content(self, event: Tokens) -> bool:
        if event.finish_reason is not None:
            return True
        if self._plan.is_score_only:
            return False
        wants_tokens = self._request.logprobs is not None or self._request.return_token_ids
        return bool(event.text) or (wants_tokens and bool(event.token_ids))

    def _text_chunk(self, prompt_index: int, event: Tokens) -> bytes:
        index = self._tally.choice_index(prompt_index, event)
        tally = self._tally.choices[index]
        is_dropped = self._plan.is_score_only
        token_ids = [] if is_dropped else list(event.token_ids)
        entries = () if is_dropped else event.logprobs or ()
        is_only = len(self._tally.choices) == 1
        is_finished = event.finish_reason is not None
        choice = CompletionChoice(
            index=index,
            text="" if is_dropped else event.text,
            logprobs=self._logprobs(index, entries) if entries else None,
            finish_reason=tally.finish_reason,
            stop_reason=tally.stop_reason,
            token_ids=token_ids if self._request.return_token_ids else None,
            metrics=tally.metrics if is_finished and not is_only else None,
        )
        has_metrics = is_finished and is_only and not self._request.include_usage
        return self._chunk([choice], has_metrics=has_metrics)

    def _chunk(
        self,
        choices: list[CompletionChoice],
        *,
        usage: Usage | None = None,
        has_metrics: bool = False,
    ) -> bytes:
        plan = self._plan
        chunk = Completion(
            id=plan.response_id,
            created=plan.created,
            model=plan.model,
            choices=choices,
            usage=usage,
            system_fingerprint=plan.fingerprint,
            seed=plan.seed,
            metrics=self._tally.metrics() if has_metrics else None,
        )
        left_out = set() if self._request.include_usage else {"usage"}
        return sse.event(chunk.model_dump_json(exclude=left_out))
