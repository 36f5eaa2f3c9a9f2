"""The response extension `metrics`, from what the engine reports."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from slipstream.engine.messages import SpeculationStats, Timings
from slipstream.protocol.request_metrics import RequestMetrics, SpeculativeDecoding


def request_metrics(
    stats: Sequence[SpeculationStats], timings: Timings | None, num_tokens: int
) -> RequestMetrics | None:
    """Metrics of one choice, or of several when `timings` is None; None when nothing is known."""
    speculation = _speculation(stats) if stats else None
    if timings is None:
        return None if speculation is None else RequestMetrics(speculative_decoding=speculation)
    decode_s = max(timings.end_to_end_s - timings.time_to_first_token_s, 0.0)
    inference_s = timings.end_to_end_s - timings.queue_s
    return RequestMetrics(
        queue_time_ms=timings.queue_s * 1000,
        time_to_first_token_ms=max(timings.time_to_first_token_s - timings.queue_s, 0.0) * 1000,
        generation_time_ms=decode_s * 1000,
        mean_itl_ms=decode_s / (num_tokens - 1) * 1000 if num_tokens > 1 else None,
        tokens_per_second=num_tokens / inference_s if inference_s > 0 else None,
        speculative_decoding=speculation,
    )


def _speculation(stats: Sequence[SpeculationStats]) -> SpeculativeDecoding:
    num_drafts = sum(item.num_drafts for item in stats)
    num_draft_tokens = sum(item.num_draft_tokens for item in stats)
    num_accepted = sum(item.num_accepted_tokens for item in stats)
    accepted_at = _sums([item.num_accepted_tokens_per_pos for item in stats])
    drafted_at = _sums([item.num_draft_tokens_per_pos for item in stats])
    longest = max(len(accepted_at), len(drafted_at), *(item.max_draft_len for item in stats))
    drafters: dict[str, int] = {}
    for item in stats:
        for name, num_tokens in item.drafters.items():
            drafters[name] = drafters.get(name, 0) + num_tokens
    return SpeculativeDecoding(
        num_drafts=num_drafts,
        num_draft_tokens=num_draft_tokens,
        num_accepted_tokens=num_accepted,
        num_accepted_tokens_per_pos=accepted_at,
        mean_acceptance_length=1.0 + num_accepted / num_drafts if num_drafts else 1.0,
        draft_acceptance_rate=num_accepted / num_draft_tokens if num_draft_tokens else 0.0,
        acceptance_histogram=_histogram(num_drafts, accepted_at, longest),
        num_spec_steps=num_drafts,
        num_accepted_draft_tokens=num_accepted,
        num_spec_tokens=longest,
        num_steps=sum(item.num_steps for item in stats),
        num_draft_tokens_per_pos=drafted_at,
        drafters=drafters,
    )


def _sums(rows: Sequence[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*rows, fillvalue=0)]


def _histogram(num_drafts: int, accepted_at: Sequence[int], longest: int) -> list[int]:
    """[j] = drafted steps that kept exactly j draft tokens, for j up to `longest`."""
    at_least = [num_drafts, *accepted_at, *[0] * (longest + 1 - len(accepted_at))]
    return [at_least[j] - at_least[j + 1] for j in range(longest + 1)]
