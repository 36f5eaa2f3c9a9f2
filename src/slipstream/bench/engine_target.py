"""Measuring an engine in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream import errors
from slipstream.bench.counters import read_step_times
from slipstream.bench.engine_facts import engine_facts
from slipstream.bench.prompts import Message
from slipstream.bench.results import Answer, DraftCounts, GroupRun, StepTimes, Turn
from slipstream.bench.target import Job
from slipstream.clock import Clock
from slipstream.engine.llm import LLM
from slipstream.engine.messages import (
    Failed,
    PromptDone,
    SpeculationOptions,
    SpeculationStats,
    Submit,
    Tokens,
)
from slipstream.errors import EngineFailureError, RequestError
from slipstream.tokenization.chat_template import ChatTemplate, load_chat_template


class EngineTarget:
    """Drives the engine of `llm` step by step; nothing else runs in it meanwhile.

    Speculation off is the request option `enabled: false`, as a client would send it.

    Args:
        clock: Times every turn.
    """

    def __init__(self, llm: LLM, clock: Clock) -> None:
        self._llm = llm
        self._engine = llm.engine
        self._clock = clock
        self._template: ChatTemplate | None = None
        self._num_requests = 0

    @property
    def facts(self) -> Mapping[str, Any]:
        return engine_facts(self._engine)

    def run(self, jobs: Sequence[Job], *, is_drafting: bool) -> GroupRun:
        options = SpeculationOptions(enabled=is_drafting)
        sessions = [_Session(job, options) for job in jobs]
        live: dict[str, _Session] = {}
        before = self._step_times()
        try:
            for session in sessions:
                self._begin_turn(session, live)
            while live:
                for event in self._engine.step():
                    assert isinstance(event, PromptDone | Tokens | Failed), f"unexpected {event}"
                    session = live[event.request_id]
                    if session.take(event, self._clock.now()):
                        del live[event.request_id]
                        self._begin_turn(session, live)
        finally:
            self._engine.cancel_all()
        return GroupRun(
            answers=tuple(session.answer() for session in sessions),
            times=self._step_times().since(before),
        )

    def _begin_turn(self, session: _Session, live: dict[str, _Session]) -> None:
        """Submit the next turn, if there is one."""
        if not session.has_next:
            return
        self._num_requests += 1
        request_id = f"bench-{self._num_requests}"
        try:
            prompt = self._tokens(session)
            submit = session.submit(request_id, prompt)
            session.started_s = self._clock.now()
            self._engine.submit(submit)
        except RequestError as error:
            session.refusal = refusal_of(error)
            return
        live[request_id] = session

    def _tokens(self, session: _Session) -> list[int]:
        text, tokenizer = session.job.prompt.text, self._llm.tokenizer
        if text is not None:
            session.next_messages()
            return tokenizer.encode(text)
        if self._template is None:
            path = self._llm.config.model.chat_template
            self._template = load_chat_template(tokenizer, path=path)
        rendered = self._template.render(session.next_messages())
        return tokenizer.encode(rendered, add_special=False)

    def _step_times(self) -> StepTimes:
        times = read_step_times(self._engine.observer.metrics.exposition().decode())
        assert times is not None, "the engine counts its steps"
        return times


class _Session:
    """One job on its way through its turns."""

    def __init__(self, job: Job, options: SpeculationOptions) -> None:
        self.job = job
        self.started_s = 0.0
        self.refusal: str | None = None
        self._options = options
        self._waiting = list(job.prompt.turns())
        self._messages: list[Message] = []
        self._turns: list[Turn] = []
        self._prompt_len = 0
        self._num_cached = 0
        self._token_ids: list[int] = []
        self._texts: list[str] = []
        self._first: tuple[float, int] | None = None

    @property
    def has_next(self) -> bool:
        return bool(self._waiting) and self.refusal is None

    def next_messages(self) -> list[Message]:
        """The conversation up to the next turn's question."""
        self._messages.extend(self._waiting.pop(0))
        return self._messages

    def submit(self, request_id: str, prompt: Sequence[int]) -> Submit:
        """The request of the turn that begins."""
        self._prompt_len, self._num_cached = len(prompt), 0
        self._token_ids, self._texts, self._first = [], [], None
        return Submit(
            request_id=request_id,
            prompt=tuple(prompt),
            params=self.job.params,
            speculation=self._options,
            cache_salt=self.job.salt,
        )

    def take(self, event: PromptDone | Tokens | Failed, now_s: float) -> bool:
        """Take an event of the running turn; whether the turn has ended."""
        if isinstance(event, Failed):
            kind = getattr(errors, event.error, EngineFailureError)
            self.refusal = refusal_of(kind(event.message, param=event.param, hint=event.hint))
            return True
        if isinstance(event, PromptDone):
            self._num_cached = event.num_cached_tokens
            return False
        self._token_ids.extend(event.token_ids)
        self._texts.append(event.text)
        if self._first is None:
            self._first = (now_s, len(event.token_ids))
        if event.finish_reason is None:
            return False
        self._end_turn(event, self._first, now_s)
        return True

    def answer(self) -> Answer:
        """All turns so far."""
        return Answer(tuple(self._turns), self.refusal)

    def _end_turn(self, event: Tokens, first: tuple[float, int], now_s: float) -> None:
        self._messages.append({"role": "assistant", "content": "".join(self._texts)})
        self._turns.append(
            Turn(
                token_ids=tuple(self._token_ids),
                num_first_tokens=first[1],
                started_s=self.started_s,
                first_token_s=first[0],
                finished_s=now_s,
                counts=_counts(event.speculation or SpeculationStats()),
                prompt_len=self._prompt_len,
                num_cached_tokens=self._num_cached,
                finish_reason=event.finish_reason or "stop",
            )
        )


def refusal_of(error: RequestError) -> str:
    """The reason why a prompt cannot be run.

    Raises:
        RequestError: `error`, if it does not lie in the prompt.
    """
    if error.status not in (400, 413):
        raise error
    return error.message


def _counts(stats: SpeculationStats) -> DraftCounts:
    return DraftCounts(
        num_steps=stats.num_steps,
        num_drafts=stats.num_drafts,
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted_tokens=stats.num_accepted_tokens,
        drafted_at=stats.num_draft_tokens_per_pos,
        accepted_at=stats.num_accepted_tokens_per_pos,
    )
