"""What drafters are asked in a step."""

from __future__ import annotations

from slipstream.engine.request import Request
from slipstream.engine.scheduler import StepPlan
from slipstream.execution.batch import IntArray
from slipstream.sampling.streams import Stream, stream_seed
from slipstream.speculation.control import NO_DRAFT
from slipstream.speculation.drafter import DraftContext
from slipstream.speculation.propose import Ask
from slipstream.speculation.verification import Verification


def draft_asks(plan: StepPlan, verification: Verification) -> list[Ask]:
    """One for each request of the plan that may get a draft."""
    asks: list[Ask] = []
    for item in plan.items:
        if item.draft is NO_DRAFT:
            continue
        request = item.request
        names = request.group.submit.speculation.drafters
        wants_laws = verification.wants_laws(request.params)
        context = DraftContext(
            request_id=request.request_id,
            tokens=request.tokens,
            prompt_len=request.prompt_len,
            params=request.params,
            state=request.state,
            seed=_draft_seed(request) if wants_laws else request.seed,
            salt=request.salt,
            max_draft_len=item.draft.max_draft_len,
            max_draft_nodes=item.draft.max_draft_nodes,
            wants_laws=wants_laws,
            slots=_text_slots(request),
        )
        asks.append(Ask(context, None if names is None else frozenset(names)))
    return asks


def _draft_seed(request: Request) -> int:
    return stream_seed(request.seed, Stream.DRAFT, len(request.tokens))


def _text_slots(request: Request) -> IntArray:
    assert request.lease is not None, "a planned request holds a lease"
    return request.lease.slots(0, request.lease.num_tokens)
