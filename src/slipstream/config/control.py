"""What decides how much each step drafts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slipstream.config.section import Section


class FixedControl(Section):
    """Every step drafts up to the limits."""

    kind: Literal["fixed"] = Field(default="fixed", description="Which controller this is.")


class CostControl(Section):
    """A request drafts only as deep as measured acceptance pays for the measured cost."""

    kind: Literal["cost"] = Field(default="cost", description="Which controller this is.")
    decay: float = Field(
        default=0.95,
        gt=0.0,
        lt=1.0,
        description="Weight that old acceptances keep each time a new one is counted.",
    )
    probe_interval: int = Field(
        default=32,
        ge=1,
        le=65536,
        description="Steps after which a drafter that a request stopped asking is tried again.",
    )
    min_gain: float = Field(
        default=1.05,
        ge=1.0,
        le=10.0,
        description="Expected tokens per second, as a multiple of plain decoding, worth a draft.",
    )
