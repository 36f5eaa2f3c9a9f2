"""What the drafters' sections have in common."""

from __future__ import annotations

from pydantic import Field

from slipstream.config.model import Dtype
from slipstream.config.section import Section

MAX_DRAFT_LEN = 32
MAX_DRAFT_NODES = 128
INSTANCE_NAME = "^[a-z][a-z0-9_-]{0,31}$"
TARGET_SOURCE = "target"
"""As the source of a drafter's weights: the target's own."""


class Weights(Section):
    """What every drafter says of its weights besides where they are."""

    sha256: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{64}$",
        description="Checksum that the weights file must have; null checks none of ours.",
    )
    revision: str | None = Field(
        default=None, description="Branch, tag or commit of a model-hub source; null is its main."
    )
    dtype: Dtype = Field(
        default="auto", description="Type that its weights are held in; `auto` is bfloat16."
    )
