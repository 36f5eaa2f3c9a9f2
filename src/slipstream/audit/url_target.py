"""Auditing a live server over its own API."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from slipstream.audit.counters import counter_sum
from slipstream.audit.law import NUM_TOP, Draw
from slipstream.audit.outcome import Job, Outcome, RunResult, TopTwo
from slipstream.audit.plan import DrafterSet, Setting
from slipstream.errors import EngineFailureError, EngineUnavailableError, InvalidRequestError
from slipstream.observability.catalogue import DRAFTER_FAULTS, PREEMPTIONS
from slipstream.sampling.params import SamplingParams

TIMEOUT_S = 3600.0

Json = dict[str, Any]  # Any: JSON values


class UrlTarget:
    """A server that is reached by HTTP.

    Prompts that are conversations go to `/v1/chat/completions`, texts to `/v1/completions`. A
    client cannot force preemptions or chunks; what the server does by itself is counted.

    Args:
        client: With the server's address as its base, and a key if it needs one.

    Raises:
        EngineUnavailableError: The server does not answer.
    """

    can_preempt = False

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._url = str(client.base_url).rstrip("/")
        self._model = str(self._get("/v1/models")["data"][0]["id"])
        self._facts: Json = {"model": self._model, "server": self._get("/version")}

    @property
    def verification(self) -> str:
        server: Json = self._facts["server"]
        return str(server.get("verification") or "exact")

    @property
    def facts(self) -> Mapping[str, Any]:
        return self._facts

    def run(self, setting: Setting, jobs: Sequence[Job], on_done: Callable[[], None]) -> RunResult:
        def work(job: Job) -> Outcome:
            outcome = self._generate(job, setting.drafters)
            on_done()
            return outcome

        before = self._counts()
        with ThreadPoolExecutor(setting.concurrency) as pool:
            outcomes = tuple(pool.map(work, jobs))
        after = self._counts()
        self._facts["fingerprint"] = outcomes[-1].fingerprint
        if before is None or after is None:
            return RunResult(outcomes, None, None)
        return RunResult(outcomes, after[0] - before[0], after[1] - before[1])

    def top_two(self, token_ids: Sequence[int]) -> TopTwo:
        body = {
            "model": self._model,
            "prompt": list(token_ids),
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": 2,
            "return_tokens_as_token_ids": True,
            "speculation": {"enabled": False},
        }
        answer = self._post("/v1/completions", body)
        top: Mapping[str, float] = answer["choices"][0]["logprobs"]["top_logprobs"][0]
        best = sorted(top.items(), key=lambda item: -item[1])[:2]
        ids = tuple(int(name.removeprefix("token_id:")) for name, _ in best)
        return TopTwo(ids, best[0][1] - best[1][1])

    def token_text(self, token: int) -> str:
        answer = self._post("/detokenize", {"tokens": [token]})
        return str(answer.get("prompt", ""))

    def _generate(self, job: Job, drafters: DrafterSet) -> Outcome:
        body = {
            "model": self._model,
            "return_token_ids": True,
            "cache_salt": job.salt,
            "speculation": _speculation(drafters),
            **_sampling(job.params),
        }
        if job.params.logprobs:
            num_top = job.params.top_logprobs
            is_text = job.case.text is not None
            body |= (
                {"logprobs": num_top} if is_text else {"logprobs": True, "top_logprobs": num_top}
            )
            body |= {
                "logprobs_mode": job.params.logprobs_mode,
                "ignore_eos": job.params.ignore_eos,
                "return_tokens_as_token_ids": True,
            }
        if job.case.text is not None:
            answer = self._post("/v1/completions", body | {"prompt": job.case.text})
            choice = answer["choices"][0]
            text, prompt_ids = choice["text"], choice.get("prompt_token_ids")
        else:
            messages = list(job.case.messages)
            answer = self._post("/v1/chat/completions", body | {"messages": messages})
            choice = answer["choices"][0]
            text, prompt_ids = choice["message"]["content"], answer.get("prompt_token_ids")
        if choice.get("token_ids") is None or prompt_ids is None:
            raise EngineFailureError(
                f"{self._url} does not return token ids, so its answers cannot be compared",
                hint="audit a server that knows return_token_ids",
            )
        usage = answer.get("usage") or {}
        stats = (answer.get("metrics") or {}).get("speculative_decoding") or {}
        return Outcome(
            prompt_token_ids=tuple(prompt_ids),
            token_ids=tuple(choice["token_ids"]),
            text=text,
            finish_reason=choice["finish_reason"],
            num_draft_tokens=stats.get("num_draft_tokens", 0),
            num_accepted_tokens=stats.get("num_accepted_tokens", 0),
            num_cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
            fingerprint=answer.get("system_fingerprint") or "",
            draws=_draws(choice.get("logprobs") or {}) if job.params.logprobs else (),
        )

    def _counts(self) -> tuple[int, int] | None:
        """Preemptions and drafter faults so far; None where the metrics cannot be read."""
        try:
            response = self._client.get("/metrics")
        except httpx.HTTPError:
            return None
        if response.status_code != httpx.codes.OK:
            return None
        return counter_sum(response.text, PREEMPTIONS), counter_sum(response.text, DRAFTER_FAULTS)

    def _get(self, path: str) -> Json:
        return self._answer(path, lambda: self._client.get(path))

    def _post(self, path: str, body: Json) -> Json:
        return self._answer(path, lambda: self._client.post(path, json=body))

    def _answer(self, path: str, send: Callable[[], httpx.Response]) -> Json:
        try:
            response = send()
            answer = response.json()
        except httpx.HTTPError as error:
            raise EngineUnavailableError(
                f"{self._url}{path} does not answer: {error}",
                hint="start a server with `slipstream serve`, or audit without --url",
            ) from error
        except ValueError as error:
            raise EngineFailureError(
                f"{self._url}{path} answered {response.status_code} with something else than JSON"
            ) from error
        if response.status_code != httpx.codes.OK:
            message = (answer.get("error") or {}).get("message", response.text)
            is_ours = response.status_code < httpx.codes.INTERNAL_SERVER_ERROR
            kind = InvalidRequestError if is_ours else EngineFailureError
            raise kind(f"{self._url}{path} answered {response.status_code}: {message}")
        content: Json = answer
        return content


def _speculation(drafters: DrafterSet) -> Json:
    if drafters.is_off:
        return {"enabled": False}
    names = None if drafters.names is None else list(drafters.names)
    return {"enabled": True, "drafters": names}


def _sampling(params: SamplingParams) -> Json:
    return {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "repetition_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "max_tokens": params.max_tokens,
        "seed": params.seed,
    }


def _draws(logprobs: Json) -> tuple[Draw, ...]:
    """Of a completion's or a chat's log-probabilities, with tokens named by their ids."""
    if "content" in logprobs:
        tops = [
            (item["token"], {top["token"]: top["logprob"] for top in item["top_logprobs"]})
            for item in logprobs["content"]
        ]
    else:
        named = zip(logprobs.get("tokens", ()), logprobs.get("top_logprobs", ()), strict=True)
        tops = [(token, top or {}) for token, top in named]
    return tuple(_draw(token, top) for token, top in tops)


def _draw(token: str, logprobs: Mapping[str, float]) -> Draw:
    best = sorted(logprobs, key=lambda name: -logprobs[name])[:NUM_TOP]
    probs = tuple(math.exp(logprobs[name]) for name in best)
    return Draw(best.index(token) if token in best else None, probs)
