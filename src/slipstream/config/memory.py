"""Section `memory`: one budget for weights, key/value pages and workspace."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from slipstream.config.section import ByteSize, Section

KvDtype = Literal["auto", "float32", "bfloat16", "int8"]


class MemoryConfig(Section):
    """How much memory the engine may take and how its key/value cache is laid out."""

    utilization: float = Field(
        default=0.5,
        gt=0.0,
        le=0.95,
        description="Share of the machine's memory that the engine may take in all.",
    )
    kv_bytes: ByteSize | None = Field(
        default=None,
        ge=1,
        description=(
            "Bytes for the target's key/value pages; null gives them what the budget leaves."
        ),
    )
    page_size: int = Field(
        default=16, ge=1, le=256, description="Tokens per key/value page; prefixes share pages."
    )
    state_bytes: ByteSize | None = Field(
        default=None,
        ge=1,
        description=(
            "Bytes for the states of a target's recurrent layers: one for each running request, "
            "the others for snapshots. null gives four for each request that may run, but at most "
            "half of what weights and workspace leave."
        ),
    )
    snapshot_interval: int = Field(
        default=256,
        ge=1,
        le=2**20,
        description=(
            "Tokens between snapshots of recurrent layers, from which a shared prefix is reused; "
            "rounded up to whole pages."
        ),
    )
    kv_dtype: KvDtype = Field(
        default="auto",
        description=(
            "Type of the target's keys and values; `auto` is the model's type. `int8` takes half "
            "the memory of bfloat16 and changes answers a little."
        ),
    )
    draft_kv_dtype: KvDtype = Field(
        default="auto",
        description=(
            "Type of a draft model's keys and values; `auto` is the draft model's type. It never "
            "changes an answer."
        ),
    )
    prefix_cache: bool = Field(
        default=True, description="Keep finished prompts' pages so that a shared prefix is reused."
    )
    warn_at: float = Field(
        default=0.80,
        gt=0.0,
        le=1.0,
        description="Share of pages in use (not evictable) at which the log warns.",
    )
    high_at: float = Field(
        default=0.90,
        gt=0.0,
        le=1.0,
        description="Share of pages in use at which drafts shrink and then no request starts.",
    )

    @model_validator(mode="after")
    def _watermarks_in_order(self) -> Self:
        if self.high_at < self.warn_at:
            raise ValueError(
                "must have high_at at or above warn_at, "
                f"got high_at {self.high_at:g} and warn_at {self.warn_at:g}"
            )
        return self
