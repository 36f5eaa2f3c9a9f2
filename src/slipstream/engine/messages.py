"""What crosses the wire between the API process and the engine process (msgpack over zmq).

Requests flow down (`Submit`, `Cancel`, `Call`), events flow up. The same types serve the engine
in-process, where nothing is serialised.
"""

from __future__ import annotations

from typing import Any

import msgspec

from slipstream.errors import RequestError
from slipstream.sampling.params import SamplingParams


class SpeculationOptions(msgspec.Struct, frozen=True):
    """The request extension `speculation`; None leaves the server's setting.

    Attributes:
        enabled: False decodes plainly.
        max_draft_len, max_draft_nodes: Lower bounds than the server's; higher ones are clamped.
        drafters: Names of the drafter instances that may propose.
    """

    enabled: bool | None = None
    max_draft_len: int | None = None
    max_draft_nodes: int | None = None
    drafters: tuple[str, ...] | None = None


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Start one request.

    Attributes:
        request_id: Unique among live requests.
        prompt: Token ids, at least one.
        params: Sampling parameters; `seed` is always set by the caller.
        n: Number of choices; choice i draws with `derive(seed, i)`.
        speculation: See `SpeculationOptions`.
        cache_salt: Isolates prefix cache and drafter memory.
        priority: Higher runs earlier; waiting raises it, so nobody starves.
        timeout_s: Deadline from arrival, queue time included; None is the server's.
    """

    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    n: int = 1
    speculation: SpeculationOptions = SpeculationOptions()
    cache_salt: str = ""
    priority: int = 0
    timeout_s: float | None = None


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Stop a request and free all it holds; unknown ids are ignored."""

    request_id: str


class Call(msgspec.Struct, frozen=True, tag=True):
    """A question to the engine, answered by a `Reply` with the same id.

    Attributes:
        method: `metrics` (Prometheus text), `check_integrity`, `reset_prefix_cache`.
    """

    call_id: str
    method: str


class Reply(msgspec.Struct, frozen=True, tag=True):
    """Answer to a `Call`; `error` is set when it failed."""

    call_id: str
    value: Any = None
    error: str | None = None


class TopLogprob(msgspec.Struct, frozen=True):
    """One alternative at one position; fields as in `TokenLogprob`."""

    token_id: int
    logprob: float
    text: str
    token_bytes: tuple[int, ...] = ()


class TokenLogprob(msgspec.Struct, frozen=True):
    """Log-probability of one token and of the best alternatives.

    Attributes:
        logprob: None only for the first prompt token, which nothing predicts.
        token_bytes: UTF-8 bytes of this token alone (may be a part of a character).
        rank: 1 for the most probable token; 0 where `logprob` is None.
    """

    token_id: int
    logprob: float | None
    text: str
    token_bytes: tuple[int, ...]
    rank: int
    top: tuple[TopLogprob, ...] = ()


class SpeculationStats(msgspec.Struct, frozen=True):
    """What speculation did for one choice; counts only what was kept in the output.

    Attributes:
        num_steps: Decode steps, drafted or not.
        num_drafts: Steps that verified a non-empty draft.
        num_draft_tokens: Nodes verified.
        num_draft_tokens_per_pos: Steps whose draft reached depth i+1.
        num_accepted_tokens: Draft tokens kept, bonus excluded.
        num_accepted_tokens_per_pos: Steps that kept a node at depth i+1.
        mean_acceptance_length: Tokens emitted per drafted step, bonus included (1 without drafts).
        drafters: Instance name -> accepted tokens that it had proposed.
        max_draft_len: Longest draft that this request may get; 0 when it gets none.
    """

    num_steps: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_draft_tokens_per_pos: tuple[int, ...] = ()
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: tuple[int, ...] = ()
    mean_acceptance_length: float = 1.0
    drafters: dict[str, int] = msgspec.field(default_factory=dict)
    max_draft_len: int = 0


class Timings(msgspec.Struct, frozen=True):
    """Where a request's time went, in seconds from its arrival."""

    queue_s: float = 0.0
    time_to_first_token_s: float = 0.0
    end_to_end_s: float = 0.0


class PromptDone(msgspec.Struct, frozen=True, tag=True):
    """The prompt is in the cache; sent once, before the first `Tokens` of any choice.

    Attributes:
        num_cached_tokens: Prompt tokens that a prefix hit saved.
        logprobs: One entry per prompt token, if they were asked for.
    """

    request_id: str
    num_prompt_tokens: int
    num_cached_tokens: int
    logprobs: tuple[TokenLogprob, ...] | None = None


class Tokens(msgspec.Struct, frozen=True, tag=True):
    """What one step added to one choice.

    Attributes:
        index: Choice, 0 to n-1.
        token_ids: Kept tokens, in order (the stop token or EOS included).
        text: New text; complete characters only, the stop string cut off.
        logprobs: One entry per token of `token_ids`, if asked for.
        finish_reason: `stop` or `length` on the choice's last event, else None.
        stop_reason: The stop string or stop token id that ended it, if one did.
        speculation, timings: Set on the choice's last event.
        num_output_tokens: Output tokens of this choice so far.
    """

    request_id: str
    index: int
    token_ids: tuple[int, ...]
    text: str
    num_output_tokens: int
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    speculation: SpeculationStats | None = None
    timings: Timings | None = None


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The whole request ended with an error; no further event follows.

    Attributes:
        error: Class name from `slipstream.errors`.
    """

    request_id: str
    error: str
    message: str
    param: str | None = None
    hint: str | None = None


class EngineInfo(msgspec.Struct, frozen=True, tag=True):
    """Sent once when the engine is ready to work.

    Attributes:
        max_model_len: Most tokens of prompt plus output.
        fingerprint: Names everything that may change the numerics (`system_fingerprint`).
        drafters: Instance names, in order.
        eos_token_ids: Tokens that end an output.
        max_queue_len: Most choices that wait for a place at a time.
    """

    model: str
    vocab_size: int
    max_model_len: int
    fingerprint: str
    drafters: tuple[str, ...]
    eos_token_ids: tuple[int, ...]
    kv_tokens: int
    weight_bytes: int
    max_queue_len: int = 2**31 - 1
    details: dict[str, Any] = msgspec.field(default_factory=dict)


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """The engine's loop is turning; sent about once a second."""


class StartFailed(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot start and another try would not help.

    Attributes:
        error: Class name from `slipstream.errors`.
    """

    error: str
    message: str
    hint: str | None = None


Command = Submit | Cancel | Call
Event = EngineInfo | PromptDone | Tokens | Failed | Reply | Heartbeat | StartFailed


def failure(request_id: str, error: RequestError) -> Failed:
    """A refusal or failure as it crosses the wire."""
    return Failed(request_id, type(error).__name__, error.message, error.param, error.hint)
