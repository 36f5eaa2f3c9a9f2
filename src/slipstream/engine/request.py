"""One sequence being generated, and the single place where a token becomes output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from slipstream.engine.messages import (
    SpeculationStats,
    Submit,
    Timings,
    TokenLogprob,
    Tokens,
)
from slipstream.errors import RequestError
from slipstream.kv.cache import Lease
from slipstream.sampling.bad_words import BadWords
from slipstream.sampling.state import SamplingState, advance, initial_state
from slipstream.speculation.stats import AcceptanceCounter
from slipstream.tokenization.detokenizer import IncrementalDetokenizer
from slipstream.tokenization.stop import StopStrings
from slipstream.tokenization.tokenizer import Tokenizer


class Phase(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True)
class Group:
    """What the choices of one submission share.

    Attributes:
        num_unfinished: Choices that have not ended.
        is_prompt_cached: The first choice has computed the prompt, so the others may start and
            find it in the prefix cache.
        num_cached_tokens: Prompt tokens that the first choice did not have to compute.
        prompt_logprobs: Filled as the prompt is computed, if they were asked for.
        prompt_fault: Why there are none, which the submission fails with.
        stops: The stop strings; each choice watches its own output for them.
        bad_words: Prepared for the vocabulary, where the submission has any.
    """

    submit: Submit
    arrival_s: float
    deadline_s: float | None
    num_unfinished: int
    is_prompt_cached: bool = False
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_fault: RequestError | None = None
    bad_words: BadWords | None = None
    stops: StopStrings = field(init=False)

    def __post_init__(self) -> None:
        params = self.submit.params
        self.stops = StopStrings(params.stop, include_stop=params.include_stop)


class Request:
    """One choice of a submission: its tokens, sampler state, KV lease and text.

    All output passes through `accept_token`, token by token and in order; what a stop cuts off is
    absent from text, counters, logprobs and caches.

    Args:
        group: Shared by the choices of one submission.
        index: Which choice this is.
        seed: Of this choice's noise.
        max_len: Most tokens of prompt and output (the model's context).
        max_draft_len: Longest draft that it may get, for its counters.
    """

    def __init__(
        self,
        group: Group,
        index: int,
        *,
        seed: int,
        tokenizer: Tokenizer,
        max_len: int,
        max_draft_len: int = 0,
    ) -> None:
        submit = group.submit
        self.group = group
        self.index = index
        self.request_id = f"{submit.request_id}#{index}"
        self.params = submit.params
        self.salt = submit.cache_salt
        self.seed = seed
        self.tokens: list[int] = list(submit.prompt)
        self.prompt_len = len(submit.prompt)
        self.max_draft_len = max_draft_len
        self.max_output = min(submit.params.max_tokens, max_len - self.prompt_len)
        self.state: SamplingState = initial_state(self.params, submit.prompt, group.bad_words)
        self.lease: Lease | None = None
        self.phase = Phase.WAITING
        self.counter = AcceptanceCounter()
        self.admitted_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.num_preemptions = 0
        self._eos = frozenset() if self.params.ignore_eos else frozenset(tokenizer.eos_token_ids)
        self._stop_ids = frozenset(self.params.stop_token_ids)
        self._detokenizer = IncrementalDetokenizer(tokenizer, submit.prompt[-8:])
        self._stops = group.stops.restarted()
        self._finish_reason: str | None = None
        self._stop_reason: str | int | None = None
        self._new_text: list[str] = []
        self._new_tokens: list[int] = []
        self._new_logprobs: list[TokenLogprob] = []

    @property
    def submission_id(self) -> str:
        return self.group.submit.request_id

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def num_computed(self) -> int:
        """Tokens whose keys and values are in the cache."""
        return self.lease.num_tokens if self.lease is not None else 0

    @property
    def num_remaining(self) -> int:
        """Tokens not yet in the cache: 1 when decoding (the anchor), more during prefill."""
        return len(self.tokens) - self.num_computed

    @property
    def finish_reason(self) -> str | None:
        """`stop` or `length` once the output has ended."""
        return self._finish_reason

    @property
    def is_finished(self) -> bool:
        return self._finish_reason is not None

    def publish_snapshots(self) -> None:
        """In the prefix tree a snapshot can be evicted; in the lease it could not."""
        lease = self.lease
        if lease is not None and lease.state is not None and lease.state.pending:
            lease.publish(self.tokens[: lease.num_tokens])

    def accept_token(self, token: int) -> bool:
        """Make `token` the next output token; False when the output ends with it.

        In this order: EOS and stop ids, stop strings in the text so far, the length limit. The
        token that ends the output counts as output; text after a stop string does not.
        """
        self.tokens.append(token)
        self.state = advance(self.params, self.state, token)
        self._new_tokens.append(token)
        if token in self._stop_ids:
            return self._finish("stop", token, text=self._stop_token_text(token))
        if token in self._eos:
            return self._finish("stop", None)
        if self._push_text(self._detokenizer.push(token)):
            return False
        if self.num_output >= self.max_output:
            return self._finish("length", None)
        return True

    def add_logprobs(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Attach the entries of the tokens accepted in this step, in their order."""
        self._new_logprobs.extend(logprobs)

    def take_event(self, now_s: float) -> Tokens | None:
        """What this step added, as an event; None when there is nothing to tell."""
        if not self._new_tokens:
            return None
        event = Tokens(
            request_id=self.submission_id,
            index=self.index,
            token_ids=tuple(self._new_tokens),
            text="".join(self._new_text),
            num_output_tokens=self.num_output,
            logprobs=tuple(self._new_logprobs) if self.params.logprobs else None,
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
            speculation=self.speculation_stats() if self.is_finished else None,
            timings=self._timings(now_s) if self.is_finished else None,
        )
        self._new_tokens, self._new_text, self._new_logprobs = [], [], []
        return event

    def speculation_stats(self) -> SpeculationStats:
        """The counters so far, as sent to the client."""
        counter = self.counter
        return SpeculationStats(
            num_steps=counter.num_steps,
            num_drafts=counter.num_drafts,
            num_draft_tokens=counter.num_draft_tokens,
            num_draft_tokens_per_pos=tuple(counter.drafted_per_pos),
            num_accepted_tokens=counter.num_accepted_tokens,
            num_accepted_tokens_per_pos=tuple(counter.accepted_per_pos),
            mean_acceptance_length=counter.mean_acceptance_length,
            drafters=dict(counter.by_drafter),
            max_draft_len=self.max_draft_len,
        )

    def _push_text(self, text: str) -> bool:
        """Emit text; whether a stop string ended the output. None is sought before min_tokens."""
        if self.num_output < self.params.min_tokens:
            self._new_text.append(text)
            return False
        result = self._stops.push(text)
        self._new_text.append(result.text)
        if result.matched is None:
            return False
        self._finish_reason, self._stop_reason = "stop", result.matched
        return True

    def _finish(self, reason: str, stop_reason: str | int | None, *, text: str = "") -> bool:
        """End the output; what the detokenizer still holds may complete a stop string."""
        if not self._push_text(self._detokenizer.flush() + text):
            self._new_text.append(self._stops.flush())
            self._finish_reason, self._stop_reason = reason, stop_reason
        return False

    def _stop_token_text(self, token: int) -> str:
        return self._detokenizer.push(token) if self.params.include_stop else ""

    def _timings(self, now_s: float) -> Timings:
        arrival_s = self.group.arrival_s
        first_s = now_s if self.first_token_s is None else self.first_token_s
        admitted_s = now_s if self.admitted_s is None else self.admitted_s
        return Timings(
            queue_s=admitted_s - arrival_s,
            time_to_first_token_s=first_s - arrival_s,
            end_to_end_s=now_s - arrival_s,
        )
