"""Section `observability`: logs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slipstream.config.section import Section


class ObservabilityConfig(Section):
    """What the service writes about itself; metrics are always at `/metrics`."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe message that is logged."
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="`text` for people, `json` with one object per line."
    )
