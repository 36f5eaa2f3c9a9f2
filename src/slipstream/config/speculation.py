"""Section `speculation`: who drafts, how far, and when drafting stops.

`drafters` and `controller` are tagged unions: `kind` chooses the class, and a bare name such as
`suffix` is short for `{kind: suffix}`.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from slipstream.config.control import CostControl, FixedControl
from slipstream.config.drafters import INSTANCE_NAME, MAX_DRAFT_LEN, MAX_DRAFT_NODES, Weights
from slipstream.config.model import Activations
from slipstream.config.mtp import MtpConfig
from slipstream.config.section import ByteSize, Section, tagged
from slipstream.config.verification import ExactConfig, VerificationConfig


class NgramConfig(Section):
    """Prompt lookup: what followed the last tokens where they occurred before is drafted."""

    kind: Literal["ngram"] = Field(default="ngram", description="Which drafter this is.")
    name: str = Field(
        default="ngram",
        pattern=INSTANCE_NAME,
        description="Name of the instance in requests, metrics and logs.",
    )
    match: Literal["longest_earliest", "first_leftmost", "longest_latest"] = Field(
        default="longest_latest",
        description=(
            "Which occurrence counts when there are several: the longest match, earliest or "
            "latest in the text; or the leftmost match of the first length that has one."
        ),
    )
    min_n: int = Field(default=2, ge=1, le=64, description="Shortest run of tokens to look up.")
    max_n: int = Field(default=5, ge=1, le=64, description="Longest run of tokens to look up.")
    max_draft_len: int = Field(
        default=8, ge=1, le=MAX_DRAFT_LEN, description="Most tokens of one draft."
    )
    cut_at_eos: bool = Field(
        default=True, description="End a draft before an end-of-sequence token that it copies."
    )

    @model_validator(mode="after")
    def _lengths_in_order(self) -> Self:
        if self.min_n > self.max_n:
            raise ValueError(
                f"must have min_n at or below max_n, got min_n {self.min_n} and max_n {self.max_n}"
            )
        return self


class SuffixConfig(Section):
    """Suffix tree over the request's own text and over finished requests with the same salt."""

    kind: Literal["suffix"] = Field(default="suffix", description="Which drafter this is.")
    name: str = Field(
        default="suffix",
        pattern=INSTANCE_NAME,
        description="Name of the instance in requests, metrics and logs.",
    )
    max_depth: int = Field(
        default=24, ge=2, le=256, description="Longest suffix that the tree remembers, in tokens."
    )
    max_cached_requests: int = Field(
        default=1000,
        ge=0,
        description="Finished requests that are remembered; 0 remembers none, oldest go first.",
    )
    max_memory_bytes: ByteSize = Field(
        default=64 * 2**20, ge=2**20, description="Most memory that the trees may take."
    )
    max_text_tokens: int = Field(
        default=32768,
        ge=1,
        le=2**24,
        description="Of a longer prompt only the last so many tokens are indexed, which bounds the "
        "time of the first draft.",
    )
    max_spec_factor: float = Field(
        default=2.0,
        ge=0.0,
        le=64.0,
        description="Draft length allowed per token of the match: factor * match length + offset.",
    )
    max_spec_offset: float = Field(
        default=0.0, ge=-32.0, le=32.0, description="The offset of that rule."
    )
    min_token_prob: float = Field(
        default=0.1,
        ge=0.0,
        le=1.0,
        description="A draft ends where its estimated probability falls below this.",
    )
    tree: bool = Field(
        default=False, description="Propose a tree of likely continuations instead of one chain."
    )


class _Branching(Section):
    num_children: int = Field(
        default=1,
        ge=1,
        le=16,
        description="Best tokens proposed after each node: 1 drafts a chain, more draft a tree.",
    )


class DraftModelConfig(_Branching, Weights):
    """A smaller model with the same vocabulary, or the target itself with cheaper weights."""

    kind: Literal["draft_model"] = Field(
        default="draft_model", description="Which drafter this is."
    )
    name: str = Field(
        default="draft_model",
        pattern=INSTANCE_NAME,
        description="Name of the instance in requests, metrics and logs.",
    )
    source: str = Field(
        min_length=1,
        description="Where its weights are, as in `model.source`; `target` is the target's own.",
    )
    activations: Activations = Field(
        default="auto",
        description="As `model.activations`, for its own products; never changes an answer.",
    )
    max_draft_len: int = Field(
        default=4, ge=1, le=MAX_DRAFT_LEN, description="Most tokens from root to leaf."
    )
    max_len: int | None = Field(
        default=None,
        ge=2,
        description="Longest text it drafts for, in tokens; null is the draft model's own limit.",
    )


SHIPPED_SOURCE = "shipped"
PAYING_BITS = 12.0
"""Weights of 16 bits pay for a net beside `suffix`, those of 8 and 4 do not (benchmarks/)."""


class _NetLimits(_Branching):
    max_draft_len: int = Field(
        default=8, ge=1, le=MAX_DRAFT_LEN, description="Most tokens from root to leaf."
    )
    min_score: float = Field(
        default=0.3,
        ge=0.0,
        lt=1.0,
        description="Nodes that are less likely to be accepted, by the net's word, end a draft.",
    )


class DraftNetConfig(_NetLimits, Weights):
    """A net that reads the target's hidden states; trained for this very target."""

    kind: str
    name: str
    source: str = Field(
        default=SHIPPED_SOURCE,
        min_length=1,
        description=(
            "Where its weights are, as in `model.source`; `shipped` is the one that comes with "
            "Slipstream for this target."
        ),
    )


class Eagle3Config(DraftNetConfig):
    """EAGLE-3: a layer that drafts token by token from the target's states."""

    kind: Literal["eagle3"] = Field(default="eagle3", description="Which drafter this is.")
    name: str = Field(
        default="eagle3",
        pattern=INSTANCE_NAME,
        description="Name of the instance in requests, metrics and logs.",
    )


class DFlashConfig(DraftNetConfig):
    """DFlash or DFlash 2, whichever the weights are: a block of tokens in one pass."""

    kind: Literal["dflash"] = Field(default="dflash", description="Which drafter this is.")
    name: str = Field(
        default="dflash",
        pattern=INSTANCE_NAME,
        description="Name of the instance in requests, metrics and logs.",
    )


class DSparkConfig(DraftNetConfig):
    """DSpark: a block of tokens in one pass, each corrected by the token in front."""

    kind: Literal["dspark"] = Field(default="dspark", description="Which drafter this is.")
    name: str = Field(
        default="dspark",
        pattern=INSTANCE_NAME,
        description="Name of the instance in requests, metrics and logs.",
    )


class ShippedConfig(_NetLimits):
    """The best drafter that comes with Slipstream for the target; nothing where there is none."""

    kind: Literal["shipped"] = Field(default="shipped", description="Which drafter this is.")
    name: str = Field(
        default="shipped",
        pattern=INSTANCE_NAME,
        description="Name of the instance in requests, metrics and logs.",
    )
    min_target_bits: float = Field(
        default=0.0,
        ge=0.0,
        description="Left out where the target's weights take fewer bits on average: the fewer "
        "they are, the cheaper is a step without drafts, and the less a net can save.",
    )


def _cost_by_default(value: object) -> object:
    value = tagged(value)
    return {"kind": "cost", **value} if isinstance(value, dict) else value


DrafterConfig = Annotated[
    NgramConfig
    | SuffixConfig
    | DraftModelConfig
    | Eagle3Config
    | DFlashConfig
    | DSparkConfig
    | MtpConfig
    | ShippedConfig,
    Field(discriminator="kind"),
]
Control = Annotated[FixedControl | CostControl, Field(discriminator="kind")]


class SpeculationConfig(Section):
    """Drafting and verification."""

    drafters: tuple[Annotated[DrafterConfig, BeforeValidator(tagged)], ...] = Field(
        default=(SuffixConfig(), ShippedConfig(min_target_bits=PAYING_BITS)),
        strict=False,
        description=(
            "Drafter instances; their proposals are merged into one tree. An empty list is "
            "speculation off."
        ),
    )
    max_draft_len: int = Field(
        default=8,
        ge=1,
        le=MAX_DRAFT_LEN,
        description="Most draft tokens from root to leaf in one step.",
    )
    max_draft_nodes: int = Field(
        default=16,
        ge=1,
        le=MAX_DRAFT_NODES,
        description="Most draft tokens of one request in one step, all branches together.",
    )
    verification: VerificationConfig = Field(
        default=ExactConfig(), description="How drafts are checked, and what that promises."
    )
    controller: Annotated[Control, BeforeValidator(_cost_by_default)] = Field(
        default=CostControl(), description="What decides how much each step drafts."
    )

    @field_validator("drafters")
    @classmethod
    def _unique_names(cls, drafters: tuple[DrafterConfig, ...]) -> tuple[DrafterConfig, ...]:
        counts = Counter(drafter.name for drafter in drafters)
        twice = [f'"{name}"' for name, count in counts.items() if count > 1]
        if twice:
            raise ValueError(
                f"must have names that differ, but more than one is named {', '.join(twice)}; "
                "give each instance its own `name`"
            )
        return drafters
