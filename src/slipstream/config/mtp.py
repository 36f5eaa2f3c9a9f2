"""Section `speculation.drafters[]`, kind `mtp`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slipstream.config.drafters import INSTANCE_NAME, MAX_DRAFT_LEN, TARGET_SOURCE, Weights


class MtpConfig(Weights):
    """MTP: heads that were trained with the target and often lie in its own file; a chain."""

    kind: Literal["mtp"] = Field(default="mtp", description="Which drafter this is.")
    name: str = Field(
        default="mtp",
        pattern=INSTANCE_NAME,
        description="Name of the instance in requests, metrics and logs.",
    )
    source: str = Field(
        default=TARGET_SOURCE,
        min_length=1,
        description="Where the heads are, as in `model.source`; `target` is the target's own file.",
    )
    max_draft_len: int = Field(
        default=2,
        ge=1,
        le=MAX_DRAFT_LEN,
        description=(
            "Most tokens of one draft. A single head drafts them all, each from its own output of "
            "the one before; of several heads each drafts one."
        ),
    )
    min_score: float = Field(
        default=0.3,
        ge=0.0,
        lt=1.0,
        description="Tokens that are less likely to be accepted, by the head's word, end a draft.",
    )
