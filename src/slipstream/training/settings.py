"""Everything that decides how a draft net is trained; kept with the run and compared on resume."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from slipstream.models.drafts.hparams import DraftFamily


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class NetSettings(_Settings):
    """The net; sizes that are not named are the target's.

    Attributes:
        tap_layer_ids: Layers of the target whose output it reads.
        max_draft_len: Drafts of a block, or steps that are unrolled for EAGLE-3 and MTP.
        trains_head: Whether the head moves away from the target's rows that it starts with.
        markov_rank: Width of DSpark's previous token; 0 is no Markov head.
        selector_rank: Width of the codebooks of DFlash 2.
    """

    family: DraftFamily
    num_layers: int = Field(ge=1)
    tap_layer_ids: tuple[int, ...] = Field(min_length=1)
    max_draft_len: int = Field(ge=1, le=31)
    draft_vocab_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    mask_token_id: int = Field(ge=0)
    trains_head: bool
    markov_rank: int = Field(default=128, ge=0)
    markov_kind: Literal["vanilla", "gated", "rnn"] = "vanilla"
    selector_rank: int = Field(default=64, ge=1)
    selector_top_k: int = Field(default=16, ge=1)


class LossSettings(_Settings):
    """Scales of the parts of the loss; a part that the family lacks is not read.

    Attributes:
        label, soft, distance, shared: See `LossScales`.
        confidence: Of the cross entropy of the confidence head.
        selector: Of the cross entropy among the candidates of DFlash 2.
        depth_decay: Weight of depth d is exp(-d / it) in blocks, and it^d in EAGLE-3 and MTP.
    """

    label: float
    soft: float
    distance: float
    shared: float = 0.0
    confidence: float
    selector: float
    depth_decay: float = Field(gt=0.0)


class FitSettings(_Settings):
    """The course of training.

    Attributes:
        pack_len: Tokens of a packed sequence.
        step_packs: Packs of an optimiser's step; `pass_packs` of them go through the net at once.
        num_anchors: Blocks of each pack.
        repeat_weight: How likely a block is whose first draft repeats the text so far, beside
            others: greedy answers go round in circles, and a drafter that copies is at hand.
        num_steps: Steps of the optimiser.
        learning_rate: At its highest, behind a warm-up over `warmup_share` of all steps; a cosine
            leads from there to `final_share` of it.
        optimiser: Of the matrices between hidden states; the rest is AdamW's, see `Optimiser`.
        clip_norm: Longest gradient.
        dtype: Of matrix products; everything between them is float32, and so are the weights that
            are optimised.
        recomputes: Trade time for memory in the backward pass (block drafters).
    """

    pack_len: int = Field(default=512, ge=16)
    step_packs: int = Field(default=8, ge=1)
    pass_packs: int = Field(default=8, ge=1)
    num_anchors: int = Field(default=120, ge=1)
    repeat_weight: float = Field(default=0.15, gt=0.0)
    num_steps: int = Field(ge=1)
    learning_rate: float = Field(gt=0.0)
    warmup_share: float = Field(default=0.04, ge=0.0, lt=1.0)
    final_share: float = Field(default=0.02, ge=0.0, le=1.0)
    weight_decay: float = Field(default=0.0, ge=0.0)
    optimiser: Literal["muon", "adamw"] = "muon"
    clip_norm: float = Field(default=1.0, gt=0.0)
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    recomputes: bool = False
    seed: int = Field(default=1, ge=0)


class RunSettings(_Settings):
    """All of a run."""

    net: NetSettings
    losses: LossSettings
    fit: FitSettings

    def to_measure(self) -> RunSettings:
        """The same with all text alike, repeated or not: what a drafter meets."""
        fit = self.fit.model_copy(update={"repeat_weight": 1.0})
        return self.model_copy(update={"fit": fit})
