"""Measuring a server over its own API, as a client sees it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from slipstream.bench.counters import read_step_times
from slipstream.bench.prompts import Message
from slipstream.bench.results import Answer, DraftCounts, GroupRun, StepTimes, Turn
from slipstream.bench.target import Job
from slipstream.clock import Clock
from slipstream.errors import EngineFailureError, EngineUnavailableError

Json = dict[str, Any]  # Any: JSON values
TIMEOUT_S = 3600.0

_PROMPT_FAULTS = (httpx.codes.BAD_REQUEST, httpx.codes.REQUEST_ENTITY_TOO_LARGE)
_EVENT = "data: "
_DONE = "[DONE]"


class UrlTarget:
    """A server that streams its answers.

    Conversations go to `/v1/chat/completions`, texts to `/v1/completions`. Turns of one group run
    in threads, so the server should have a machine of its own.

    Args:
        client: Its base URL is the server's, without `/v1`.
        clock: Times every turn.

    Raises:
        EngineUnavailableError: The server does not answer.
    """

    def __init__(self, client: httpx.Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        model = str(self._get("/v1/models")["data"][0]["id"])
        server = self._get("/version")
        self._facts: Json = {
            "url": str(client.base_url),
            "model": model,
            "server": server,
            "verification": server.get("verification") or "exact",
        }

    @property
    def facts(self) -> Mapping[str, Any]:
        return self._facts

    def run(self, jobs: Sequence[Job], *, is_drafting: bool) -> GroupRun:
        before = self._step_times()
        with ThreadPoolExecutor(len(jobs)) as pool:
            answers = tuple(pool.map(lambda job: self._converse(job, is_drafting), jobs))
        after = self._step_times()
        times = None if before is None or after is None else after.since(before)
        return GroupRun(answers, times)

    def _converse(self, job: Job, is_drafting: bool) -> Answer:
        turns: list[Turn] = []
        messages: list[Message] = []
        for added in job.prompt.turns():
            messages.extend(added)
            body = self._body(job, messages, is_drafting)
            try:
                stream = self._generate(body)
            except _RefusedError as error:
                return Answer(tuple(turns), str(error))
            turns.append(stream.turn())
            messages.append({"role": "assistant", "content": "".join(stream.texts)})
        return Answer(tuple(turns))

    def _body(self, job: Job, messages: Sequence[Message], is_drafting: bool) -> Json:
        params = job.params
        body: Json = {
            "model": self._facts["model"],
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "cache_salt": job.salt,
            "speculation": {"enabled": is_drafting},
            "temperature": params.temperature,
            "top_p": params.top_p,
            "max_tokens": params.max_tokens,
            "seed": params.seed,
        }
        if job.prompt.text is not None:
            return body | {"prompt": job.prompt.text}
        return body | {"messages": [dict(message) for message in messages]}

    def _generate(self, body: Json) -> _Stream:
        path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
        stream = _Stream(self._clock.now())
        try:
            with self._client.stream("POST", path, json=body) as response:
                if response.status_code != httpx.codes.OK:
                    response.read()
                    self._raise(path, response)
                for event in _events(response):
                    stream.take(event, self._clock.now())
        except httpx.HTTPError as error:
            raise self._unavailable(path, error) from error
        self._facts.setdefault("fingerprint", stream.fingerprint)
        return stream

    def _raise(self, path: str, response: httpx.Response) -> None:
        try:
            message = response.json()["error"]["message"]
        except (ValueError, LookupError, TypeError):
            message = response.text
        if response.status_code in _PROMPT_FAULTS:
            raise _RefusedError(message)
        raise EngineFailureError(f"{path} answered {response.status_code}: {message}")

    def _step_times(self) -> StepTimes | None:
        try:
            response = self._client.get("/metrics")
        except httpx.HTTPError:
            return None
        is_read = response.status_code == httpx.codes.OK
        return read_step_times(response.text) if is_read else None

    def _get(self, path: str) -> Json:
        try:
            response = self._client.get(path)
            if response.status_code != httpx.codes.OK:
                self._raise(path, response)
            content: Json = response.json()
        except httpx.HTTPError as error:
            raise self._unavailable(path, error) from error
        except (_RefusedError, ValueError) as error:
            raise EngineFailureError(f"{path} is not what Slipstream answers: {error}") from error
        return content

    def _unavailable(self, path: str, error: Exception) -> EngineUnavailableError:
        return EngineUnavailableError(
            f"{str(self._client.base_url).rstrip('/')}{path} does not answer: {error}",
            hint="start a server with `slipstream serve`, or measure without --url",
        )


class _RefusedError(Exception):
    """The server does not take this prompt."""


class _Stream:
    """One streamed answer."""

    def __init__(self, started_s: float) -> None:
        self.texts: list[str] = []
        self.fingerprint = ""
        self._started_s = started_s
        self._last_s = started_s
        self._first: tuple[float, int] | None = None
        self._token_ids: list[int] = []
        self._finish_reason: str | None = None
        self._usage: Json = {}
        self._metrics: Json = {}

    def take(self, event: Json, now_s: float) -> None:
        """Take one event of the stream."""
        if "error" in event:
            raise EngineFailureError(f"the server gave up: {event['error'].get('message')}")
        self.fingerprint = event.get("system_fingerprint") or self.fingerprint
        self._usage = event.get("usage") or self._usage
        self._metrics = event.get("metrics") or self._metrics
        for choice in event.get("choices", ()):
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            self.texts.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
            token_ids = choice.get("token_ids") or ()
            if token_ids:
                self._last_s = now_s
                self._first = self._first or (now_s, len(token_ids))
                self._token_ids.extend(token_ids)

    def turn(self) -> Turn:
        """The finished answer.

        Raises:
            EngineFailureError: It has no end, or no token ids.
        """
        if self._first is None or self._finish_reason is None:
            raise EngineFailureError(
                "the answer has no end or no token ids, so it cannot be measured",
                hint="measure a server that knows return_token_ids",
            )
        details = self._usage.get("prompt_tokens_details") or {}
        return Turn(
            token_ids=tuple(self._token_ids),
            num_first_tokens=self._first[1],
            started_s=self._started_s,
            first_token_s=self._first[0],
            finished_s=self._last_s,
            counts=_counts(self._metrics.get("speculative_decoding") or {}),
            prompt_len=self._usage.get("prompt_tokens", 0),
            num_cached_tokens=details.get("cached_tokens", 0),
            finish_reason=self._finish_reason,
        )


def _events(response: httpx.Response) -> Iterator[Json]:
    for line in response.iter_lines():
        data = line.removeprefix(_EVENT)
        if line.startswith(_EVENT) and data != _DONE:
            yield json.loads(data)


def _counts(stats: Json) -> DraftCounts:
    return DraftCounts(
        num_steps=stats.get("num_steps", 0),
        num_drafts=stats.get("num_drafts", 0),
        num_draft_tokens=stats.get("num_draft_tokens", 0),
        num_accepted_tokens=stats.get("num_accepted_tokens", 0),
        drafted_at=tuple(stats.get("num_draft_tokens_per_pos", ())),
        accepted_at=tuple(stats.get("num_accepted_tokens_per_pos", ())),
    )
