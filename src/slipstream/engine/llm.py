"""The same engine in this process: `LLM(...)` for scripts, notebooks and tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from slipstream import errors
from slipstream.clock import SystemClock
from slipstream.config.load import load_config
from slipstream.config.schema import Config
from slipstream.engine.build import build_engine
from slipstream.engine.messages import (
    Failed,
    PromptDone,
    SpeculationOptions,
    SpeculationStats,
    Submit,
    TokenLogprob,
    Tokens,
)
from slipstream.errors import RequestError
from slipstream.sampling.params import SamplingParams
from slipstream.tokenization.chat_template import load_chat_template

Prompt = str | Sequence[int]


@dataclass(slots=True)
class Choice:
    """One generated text."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    speculation: SpeculationStats = field(default_factory=SpeculationStats)


@dataclass(slots=True)
class Generation:
    """Everything that one prompt gave.

    Attributes:
        prompt_token_ids: The prompt as the model saw it.
        num_cached_tokens: Prompt tokens that a prefix hit saved.
        prompt_logprobs: If they were asked for.
        choices: One per `n`.
    """

    prompt_token_ids: tuple[int, ...]
    num_cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    choices: list[Choice] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        """Tokens of the first choice."""
        return self.choices[0].token_ids


class LLM:
    """An engine in this process. Not thread-safe; use the server for concurrent callers.

    The caller waits for as long as it takes, so the scheduler's timeouts are switched off.

    Args:
        model: As `model.source` in the configuration.
        config: A whole configuration instead.
        settings: Single settings by dotted name, such as `{"speculation.drafters": []}`.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        config: Config | None = None,
        settings: Mapping[str, Any] | None = None,  # Any: a setting's value has the setting's type
    ) -> None:
        if config is None:
            overrides = dict(settings or {})
            if model is not None:
                overrides["model.source"] = model
            config = load_config(file=None, env={}, overrides=overrides)
        self.config = config = _without_timeouts(config)
        self.engine = build_engine(config, SystemClock())
        self.tokenizer = self.engine.tokenizer
        self._num_requests = 0
        self._inboxes: dict[str, deque[PromptDone | Tokens | Failed]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what is running."""
        self.engine.cancel_all()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        n: int = 1,
        speculation: SpeculationOptions | None = None,
        cache_salt: str = "",
    ) -> list[Generation]:
        """Complete all prompts together, in one batch.

        Raises:
            RequestError: The first request that failed; the others are cancelled.
        """
        batch = _as_batch(prompts)
        done = dict(
            self.completed(batch, params, n=n, speculation=speculation, cache_salt=cache_salt)
        )
        return [done[index] for index in range(len(batch))]

    def completed(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        n: int = 1,
        speculation: SpeculationOptions | None = None,
        cache_salt: str = "",
    ) -> Iterator[tuple[int, Generation]]:
        """Complete prompts in one batch and give each, with its index, when it is complete.

        Args:
            params: Of all prompts, or of each; None is the default.
        Raises:
            RequestError: The first request that failed; the others are cancelled.
        """
        options = speculation or SpeculationOptions()
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        submits = [
            self._submit(prompt, of_prompt, n, options, cache_salt)
            for prompt, of_prompt in zip(prompts, params, strict=True)
        ]
        indices = {item.request_id: index for index, item in enumerate(submits)}
        generations = [
            Generation(item.prompt, choices=[Choice() for _ in range(n)]) for item in submits
        ]
        for event in self._events(submits):
            index = indices[event.request_id]
            _collect(generations[index], event)
            if all(choice.finish_reason for choice in generations[index].choices):
                yield index, generations[index]

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        speculation: SpeculationOptions | None = None,
    ) -> Iterator[Tokens]:
        """Tokens of one prompt as they come; closing the iterator cancels the request."""
        options = speculation or SpeculationOptions()
        submit = self._submit(prompt, params or SamplingParams(), 1, options, "")
        for event in self._events([submit]):
            if isinstance(event, Tokens):
                yield event

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],  # Any: message values are the template's business
        params: SamplingParams | None = None,
        *,
        n: int = 1,
        speculation: SpeculationOptions | None = None,
        **template_args: Any,  # Any: passed to the chat template as they are
    ) -> Generation:
        """Answer a conversation."""
        prompt = self.render(messages, **template_args)
        return self.generate([prompt], params, n=n, speculation=speculation)[0]

    def render(self, messages: Sequence[Mapping[str, Any]], **template_args: Any) -> list[int]:
        """Token ids of a conversation, ready for the model's answer."""
        template = load_chat_template(self.tokenizer, path=self.config.model.chat_template)
        text = template.render(messages, **template_args)
        return self.tokenizer.encode(text, add_special=False)

    def _submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        n: int,
        speculation: SpeculationOptions,
        cache_salt: str,
    ) -> Submit:
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        self._num_requests += 1
        return Submit(
            request_id=f"llm-{self._num_requests}",
            prompt=tuple(tokens),
            params=params,
            n=n,
            speculation=speculation,
            cache_salt=cache_salt,
        )

    def _events(self, submits: Sequence[Submit]) -> Iterator[PromptDone | Tokens]:
        """Events of these requests until all are done; the queue is fed as it has room."""
        waiting = list(reversed(submits))
        unfinished: dict[str, int] = {}
        try:
            while waiting or unfinished:
                while waiting and (self.engine.has_room(waiting[-1].n) or not self.engine.has_work):
                    submit = waiting.pop()
                    self.engine.submit(submit)
                    self._inboxes[submit.request_id] = deque()
                    unfinished[submit.request_id] = submit.n
                self._step()
                for request_id in list(unfinished):
                    for event in self._taken(request_id):
                        if isinstance(event, Tokens) and event.finish_reason is not None:
                            unfinished[request_id] -= 1
                            if unfinished[request_id] == 0:
                                del unfinished[request_id]
                        yield event
        finally:
            for request_id in unfinished:
                self.engine.cancel(request_id)
            for submit in submits:
                self._inboxes.pop(submit.request_id, None)

    def _step(self) -> None:
        """One step; every event goes to the inbox of its request, whoever reads that."""
        for event in self.engine.step():
            assert isinstance(event, PromptDone | Tokens | Failed), f"unexpected {event}"
            self._inboxes[event.request_id].append(event)

    def _taken(self, request_id: str) -> Iterator[PromptDone | Tokens]:
        """Empty an inbox.

        Raises:
            RequestError: The request failed.
        """
        inbox = self._inboxes[request_id]
        while inbox:
            event = inbox.popleft()
            if isinstance(event, Failed):
                raise _error(event)
            yield event


def _without_timeouts(config: Config) -> Config:
    patient = {"queue_timeout_s": None, "request_timeout_s": None}
    scheduler = config.scheduler.model_copy(update=patient)
    return config.model_copy(update={"scheduler": scheduler})


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]  # the test above shows it is one prompt
    return list(prompts)  # type: ignore[arg-type]  # and here that it is several


def _collect(generation: Generation, event: PromptDone | Tokens) -> None:
    if isinstance(event, PromptDone):
        generation.num_cached_tokens = event.num_cached_tokens
        generation.prompt_logprobs = event.logprobs
        return
    choice = generation.choices[event.index]
    choice.text += event.text
    choice.token_ids.extend(event.token_ids)
    choice.logprobs.extend(event.logprobs or ())
    if event.finish_reason is not None:
        choice.finish_reason = event.finish_reason
        choice.stop_reason = event.stop_reason
        choice.speculation = event.speculation or SpeculationStats()


def _error(event: Failed) -> RequestError:
    kind = getattr(errors, event.error, errors.EngineFailureError)
    error: RequestError = kind(event.message, param=event.param, hint=event.hint)
    return error
