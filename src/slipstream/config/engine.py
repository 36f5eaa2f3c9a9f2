"""Section `engine`: the process that computes."""

from __future__ import annotations

from pydantic import Field

from slipstream.config.section import Section


class EngineConfig(Section):
    """The engine process, its threads and its restarts."""

    num_threads: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Threads that compute; null takes one for each physical core that the process "
        "may use, within its quota. More than there are processors are refused. Answers do not "
        "depend on it.",
    )
    restart_limit: int = Field(
        default=5,
        ge=0,
        description="Restarts of a crashed engine in a row before the service gives up; 0 never "
        "restarts. A minute of readiness ends a row.",
    )
    restart_backoff_s: float = Field(
        default=1.0,
        gt=0.0,
        description="Wait before the first restart; it doubles with each further one.",
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        le=2**64 - 1,
        description=(
            "Start of the stream that seeds are drawn from for requests that give none; null "
            "starts from the system's randomness."
        ),
    )
