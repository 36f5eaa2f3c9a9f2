"""Section `server`: the HTTP side."""

from __future__ import annotations

from pydantic import Field

from slipstream.config.section import ByteSize, FilePath, Section


class ServerConfig(Section):
    """Where the service listens, whom it answers and its limits.

    API keys are no setting: they come from the variable `SLIPSTREAM_API_KEYS` or from the file
    that `api_keys_file` names (see `slipstream.config.secrets`).
    """

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address to listen on; the default answers this machine only.",
    )
    port: int = Field(
        default=8000, ge=0, le=65535, description="Port to listen on; 0 takes any free one."
    )
    api_keys_file: FilePath | None = Field(
        default=None,
        description="File with one API key per line (`#` starts a comment); null is no file.",
    )
    allow_public_without_auth: bool = Field(
        default=False,
        description="Listen on a public address although no API key is set.",
    )
    max_body_bytes: ByteSize = Field(
        default=4 * 2**20,
        ge=1024,
        description="Largest request body; a larger one is refused with status 413.",
    )
    max_concurrency: int = Field(
        default=256,
        ge=1,
        description="Most requests in the API process at once; one more gets status 429.",
    )
    request_timeout_s: float | None = Field(
        default=600.0,
        gt=0.0,
        description="Longest time that one HTTP request may take in all; null is no limit.",
    )
    drain_timeout_s: float = Field(
        default=30.0,
        ge=0.0,
        description="After SIGTERM or SIGINT (Ctrl-C), how long running requests may still finish.",
    )
    access_log: bool = Field(
        default=True, description="Log one line per request; prompt text is never logged."
    )
