"""Which requests can run at all, and for how long they may wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.engine.messages import Submit
from slipstream.engine.request import Phase, Request
from slipstream.errors import ContextLengthError, InvalidRequestError, RequestTimeoutError
from slipstream.sampling.params import check_token_ids

MAX_CHOICES = 128


@dataclass(frozen=True, slots=True)
class RequestChecker:
    """Bounds that a request must keep.

    Attributes:
        vocab_size: Token ids are below this.
        max_model_len: Most tokens of prompt and output.
        drafters: Names that a request may choose from.
        queue_timeout_s: Longest wait for admission; None is no limit.
        request_timeout_s: Longest life of a request that sets no deadline; None is no limit.
    """

    vocab_size: int
    max_model_len: int
    drafters: tuple[str, ...]
    queue_timeout_s: float | None
    request_timeout_s: float | None

    def check(self, submit: Submit) -> None:
        """Refuse a request that can never run.

        Raises:
            ContextLengthError: The prompt leaves no room for a token.
            InvalidRequestError: Anything else; names the field.
        """
        if not submit.prompt:
            raise InvalidRequestError("the prompt has no tokens", param="prompt")
        if len(submit.prompt) >= self.max_model_len:
            raise ContextLengthError(
                f"the prompt has {len(submit.prompt)} tokens and the context holds "
                f"{self.max_model_len}, of which at least one must be left for the answer",
                param="prompt",
                hint="shorten the prompt",
            )
        if not 1 <= submit.n <= MAX_CHOICES:
            raise InvalidRequestError(f"n must be 1 to {MAX_CHOICES}, got {submit.n}", param="n")
        self._check_prompt(submit.prompt)
        check_token_ids(submit.params, self.vocab_size)
        self._check_speculation(submit)

    def timeout_s(self, submit: Submit) -> float | None:
        """Seconds from arrival until the request is given up."""
        return self.request_timeout_s if submit.timeout_s is None else submit.timeout_s

    def overdue(self, requests: Sequence[Request], now_s: float) -> RequestTimeoutError | None:
        """Whether a submission has waited or run for too long."""
        group = requests[0].group
        waited_s = now_s - group.arrival_s
        if group.deadline_s is not None and now_s >= group.deadline_s:
            return RequestTimeoutError(
                f"the request was not finished {waited_s:.1f} s after it arrived",
                hint="ask for fewer tokens, or for a longer timeout",
            )
        has_started = any(request.admitted_s is not None for request in requests)
        is_waiting = requests[0].phase is Phase.WAITING and not has_started
        if is_waiting and self.queue_timeout_s is not None and waited_s >= self.queue_timeout_s:
            return RequestTimeoutError(
                f"the request waited {waited_s:.1f} s in the queue, longer than "
                f"scheduler.queue_timeout_s allows",
                hint="try again later",
            )
        return None

    def _check_prompt(self, prompt: Sequence[int]) -> None:
        bad = next((token for token in prompt if not 0 <= token < self.vocab_size), None)
        if bad is not None:
            raise InvalidRequestError(
                f"the prompt holds token id {bad}; this model's ids are 0 to {self.vocab_size - 1}",
                param="prompt",
            )

    def _check_speculation(self, submit: Submit) -> None:
        options = submit.speculation
        unknown = [name for name in options.drafters or () if name not in self.drafters]
        if unknown:
            known = ", ".join(self.drafters) or "none (speculation is off on this server)"
            raise InvalidRequestError(
                f"speculation.drafters names {unknown[0]!r}; this server has: {known}",
                param="speculation",
            )
        for name, value in (
            ("max_draft_len", options.max_draft_len),
            ("max_draft_nodes", options.max_draft_nodes),
        ):
            if value is not None and value < 0:
                raise InvalidRequestError(
                    f"speculation.{name} must be 0 or more, got {value}", param="speculation"
                )
