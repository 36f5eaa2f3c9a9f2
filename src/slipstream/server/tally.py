"""What the events of one request add up to."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.engine.messages import PromptDone, SpeculationStats, Timings, TokenLogprob, Tokens
from slipstream.protocol.request_metrics import RequestMetrics
from slipstream.protocol.responses import FinishReason, PromptTokensDetails, Usage
from slipstream.server.generation import Progress
from slipstream.server.plan import Plan
from slipstream.server.record import RequestRecord
from slipstream.server.request_metrics import request_metrics


@dataclass(slots=True)
class ChoiceTally:
    """One choice so far; text and tokens are kept only where the whole answer is collected."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    num_output_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    speculation: SpeculationStats | None = None
    timings: Timings | None = None

    @property
    def metrics(self) -> RequestMetrics | None:
        stats = [] if self.speculation is None else [self.speculation]
        return request_metrics(stats, self.timings, self.num_output_tokens)


class Tally:
    """Adds up a request's events.

    Args:
        plan: The request.
        record: Learns the token counts.
        keeps_output: Whether text, tokens and logprobs are kept.
    """

    def __init__(self, plan: Plan, record: RequestRecord, *, keeps_output: bool) -> None:
        self._plan = plan
        self._record = record
        self._keeps_output = keeps_output
        self.prompts: list[PromptDone | None] = [None] * len(plan.submits)
        self.choices = [ChoiceTally() for _ in range(len(plan.submits) * plan.n)]
        record.response_id = plan.response_id
        record.num_prompt_tokens = sum(len(submit.prompt) for submit in plan.submits)
        record.num_output_tokens = 0

    def add(self, progress: Progress) -> None:
        """Take one event."""
        event = progress.event
        if isinstance(event, PromptDone):
            self.prompts[progress.prompt_index] = event
            return
        choice = self.choices[self.choice_index(progress.prompt_index, event)]
        if event.finish_reason is not None:
            choice.finish_reason = "length" if event.finish_reason == "length" else "stop"
            choice.stop_reason = event.stop_reason
            choice.speculation = event.speculation
            choice.timings = event.timings
        if self._plan.is_score_only:
            choice.finish_reason = choice.finish_reason and "length"
            choice.stop_reason = None
            return
        choice.num_output_tokens = event.num_output_tokens
        self._record.num_output_tokens = sum(c.num_output_tokens for c in self.choices)
        if self._keeps_output:
            choice.texts.append(event.text)
            choice.token_ids.extend(event.token_ids)
            choice.logprobs.extend(event.logprobs or ())

    def choice_index(self, prompt_index: int, event: Tokens) -> int:
        """Index on the wire: all choices of the first prompt, then those of the second, ..."""
        return prompt_index * self._plan.n + event.index

    def usage(self) -> Usage:
        """Tokens so far."""
        num_prompt = sum(len(submit.prompt) for submit in self._plan.submits)
        num_output = sum(choice.num_output_tokens for choice in self.choices)
        num_cached = sum(done.num_cached_tokens for done in self.prompts if done is not None)
        return Usage(
            prompt_tokens=num_prompt,
            completion_tokens=num_output,
            total_tokens=num_prompt + num_output,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached),
        )

    def metrics(self) -> RequestMetrics | None:
        """Of the only choice, or the sums over several."""
        if len(self.choices) == 1:
            return self.choices[0].metrics
        stats = [c.speculation for c in self.choices if c.speculation is not None]
        return request_metrics(stats, None, 0)
