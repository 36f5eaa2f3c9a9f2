"""The response extension `metrics`: where a request's time went and what speculation did.

Field names and meanings are those of vLLM 0.33, so that its benchmark tools read them; under
`speculative_decoding` the same facts also stand under the names of the Prometheus counters:

    vLLM's response field        also as                       meaning
    num_spec_steps               num_drafts                    steps that verified a non-empty draft
    num_draft_tokens             num_draft_tokens              draft tokens verified
    num_accepted_draft_tokens    num_accepted_tokens           draft tokens kept, bonus excluded
    acceptance_histogram         num_accepted_tokens_per_pos   [j] steps that kept exactly j;
                                                               [i] steps that kept depth i+1
    mean_acceptance_length       mean_acceptance_length        1 + accepted / steps, bonus included
    draft_acceptance_rate                                      accepted / draft tokens
    num_spec_tokens                                            longest draft; histogram's bound

vLLM drafts chains. For a tree `num_draft_tokens` counts its nodes, so `draft_acceptance_rate` is
then the node utilisation, and `num_draft_tokens_per_pos` holds the depths that were reached.
"""

from __future__ import annotations

from slipstream.protocol.base import WireModel, optional


class SpeculativeDecoding(WireModel):
    """Speculation over all that the enclosing object describes; see the module's table."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: list[int]
    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_spec_tokens: int
    num_steps: int
    num_draft_tokens_per_pos: list[int]
    drafters: dict[str, int]


class RequestMetrics(WireModel):
    """Timing of a single choice, and its speculation; sums of the latter over several choices.

    Attributes:
        queue_time_ms: From arrival to the first step.
        time_to_first_token_ms: From the first step to the first token, the queue excluded.
        generation_time_ms: From the first token to the last.
        mean_itl_ms: `generation_time_ms` per token after the first.
        tokens_per_second: Output tokens over the time from the first step to the last token.
    """

    time_to_first_token_ms: float | None = optional()
    generation_time_ms: float | None = optional()
    queue_time_ms: float | None = optional()
    mean_itl_ms: float | None = optional()
    tokens_per_second: float | None = optional()
    speculative_decoding: SpeculativeDecoding | None = None
