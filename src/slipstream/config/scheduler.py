"""Section `scheduler`: what runs together, and how long anything waits."""

from __future__ import annotations

from pydantic import Field

from slipstream.config.section import Section


class SchedulerConfig(Section):
    """Limits of the batch and of the queue before it."""

    max_num_requests: int = Field(
        default=32, ge=1, le=4096, description="Most sequences that run at the same time."
    )
    max_step_tokens: int = Field(
        default=512,
        ge=1,
        le=65536,
        description=(
            "Most rows of one step: prompt chunks, and one plus the draft of each decoding "
            "sequence. Smaller values chop long prompts finer, so running outputs wait less."
        ),
    )
    max_queue_len: int = Field(
        default=256,
        ge=1,
        description="Most waiting requests; one more is refused with status 429.",
    )
    queue_timeout_s: float | None = Field(
        default=60.0,
        gt=0.0,
        description="Longest wait before a request starts; null waits without limit.",
    )
    request_timeout_s: float | None = Field(
        default=600.0,
        gt=0.0,
        description=(
            "Longest time from a request's arrival to its last token, for requests that name "
            "no timeout; null is no limit."
        ),
    )
    starvation_s: float = Field(
        default=5.0,
        gt=0.0,
        description="Each time a request has waited this long, its priority rises by one level.",
    )
