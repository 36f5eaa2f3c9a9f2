"""One memory budget, split into weights, workspace and KV pages."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.errors import CapacityError

_GIB = 2**30
_MIB = 2**20
_STATES_PER_REQUEST = 4  # its own, and snapshots of a few texts


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How the budget is spent; all sizes in bytes.

    Attributes:
        num_pages: Pages that requests can lease in the target's cache.
        num_draft_pages: The same for the drafter's cache; 0 when it has none.
        page_size: Tokens per page of both.
        budget_bytes: What everything together may use.
        weight_bytes, draft_weight_bytes, workspace_bytes: Shares that are not pages.
        kv_bytes, draft_kv_bytes: Memory of the caches, one scratch page each included.
        num_states: Recurrent states that can be leased or hold snapshots; 0 = there are none.
        state_bytes: Memory of these and of the empty state.
    """

    num_pages: int
    num_draft_pages: int
    page_size: int
    budget_bytes: int
    weight_bytes: int
    draft_weight_bytes: int
    workspace_bytes: int
    kv_bytes: int
    draft_kv_bytes: int
    num_states: int = 0
    state_bytes: int = 0

    @property
    def used_bytes(self) -> int:
        """Sum of all shares; at most `budget_bytes`."""
        return (
            self.weight_bytes
            + self.draft_weight_bytes
            + self.workspace_bytes
            + self.kv_bytes
            + self.draft_kv_bytes
            + self.state_bytes
        )

    @property
    def num_tokens(self) -> int:
        """Tokens that fit into the target's cache."""
        return self.num_pages * self.page_size


@dataclass(frozen=True, slots=True)
class StateNeeds:
    """What a model with recurrent layers asks of the budget.

    Attributes:
        bytes_each: Of one state.
        max_requests: Requests that may run at once; each needs a state.
        total_bytes: For all states; None = four for each request, at most half of the caches'
            share.
    """

    bytes_each: int
    max_requests: int
    total_bytes: int | None

    def num_states(self, cache_bytes: int) -> int:
        """States besides the empty one.

        Args:
            cache_bytes: What weights and workspace leave.
        Raises:
            CapacityError: Not one request could run.
        """
        given = self.total_bytes
        num_bytes = max(cache_bytes, 0) // 2 if given is None else given
        count = num_bytes // self.bytes_each - 1
        if count < 1:
            raise CapacityError(
                f"a request needs a recurrent state of {_human(self.bytes_each)}, and the empty "
                f"state as much, but {_human(num_bytes)} are for states",
                hint="raise memory.state_bytes, memory.kv_bytes or memory.utilization",
            )
        return count if given is not None else min(count, _STATES_PER_REQUEST * self.max_requests)


def plan_memory(  # noqa: PLR0913  (each share is one measured number; a class would only rename them)
    *,
    total_bytes: int,
    utilization: float,
    weight_bytes: int,
    draft_weight_bytes: int,
    workspace_bytes: int,
    kv_bytes_per_token: int,
    draft_kv_bytes_per_token: int,
    page_size: int,
    max_model_len: int,
    kv_bytes: int | None = None,
    states: StateNeeds | None = None,
) -> MemoryPlan:
    """Split the budget: what weights and workspace leave becomes pages.

    Target and drafter get the same number of pages, since they cache the same tokens.

    Args:
        total_bytes: The machine's (or device's) memory.
        utilization: Share of it that may be used, above 0 and at most 1.
        weight_bytes, draft_weight_bytes: Weights as they lie in memory.
        workspace_bytes: Peak of everything else in the widest pass, its logits included.
        kv_bytes_per_token, draft_kv_bytes_per_token: `KvStorage.bytes_per_token`; 0 for a
            drafter without a cache.
        page_size: Tokens per page.
        max_model_len: Longest sequence that must fit.
        kv_bytes: Memory of both caches together; overrides `utilization`.
        states: Of recurrent layers, taken from what weights and workspace leave (and so from
            `kv_bytes`, unless they have bytes of their own).

    Raises:
        CapacityError: Not one request of `max_model_len` tokens fits, or `kv_bytes` is more than
            the machine has; the message names every share.
    """
    fixed_bytes = weight_bytes + draft_weight_bytes + workspace_bytes
    budget_bytes = int(total_bytes * utilization) if kv_bytes is None else fixed_bytes + kv_bytes
    cache_bytes = budget_bytes - fixed_bytes
    num_states = 0 if states is None else states.num_states(cache_bytes)
    state_bytes = 0 if states is None else (num_states + 1) * states.bytes_each
    if kv_bytes is not None and states is not None and states.total_bytes is not None:
        budget_bytes += state_bytes  # both have bytes of their own
    else:
        cache_bytes -= state_bytes
    page_bytes = page_size * (kv_bytes_per_token + draft_kv_bytes_per_token)
    num_pages = cache_bytes // page_bytes - 1  # one page of each cache is scratch
    num_needed = -(-max_model_len // page_size)
    shares = (
        f"of {_human(total_bytes)} memory, {_human(budget_bytes)} may be used: weights "
        f"{_human(weight_bytes)}, draft weights {_human(draft_weight_bytes)}, workspace "
        f"{_human(workspace_bytes)}, {_named(state_bytes)}KV cache {_human(max(cache_bytes, 0))} "
        f"({max(num_pages, 0)} pages of {page_size} tokens, {_human(page_bytes)} each)"
    )
    if budget_bytes > total_bytes:
        raise CapacityError(
            f"memory.kv_bytes asks for more than the machine has: {shares}",
            hint="lower memory.kv_bytes",
        )
    if num_pages < num_needed:
        raise CapacityError(
            f"the KV cache cannot hold one request of {max_model_len} tokens, which needs "
            f"{num_needed} pages and one scratch page, {_human((num_needed + 1) * page_bytes)}: "
            f"{shares}",
            hint="raise memory.utilization or memory.kv_bytes, or lower model.max_model_len",
        )
    return MemoryPlan(
        num_pages=num_pages,
        num_draft_pages=num_pages if draft_kv_bytes_per_token else 0,
        page_size=page_size,
        budget_bytes=budget_bytes,
        weight_bytes=weight_bytes,
        draft_weight_bytes=draft_weight_bytes,
        workspace_bytes=workspace_bytes,
        kv_bytes=(num_pages + 1) * page_size * kv_bytes_per_token,
        draft_kv_bytes=(num_pages + 1) * page_size * draft_kv_bytes_per_token,
        num_states=num_states,
        state_bytes=state_bytes,
    )


def _named(state_bytes: int) -> str:
    return f"states {_human(state_bytes)}, " if state_bytes else ""


def _human(num_bytes: int) -> str:
    if num_bytes >= _GIB:
        return f"{num_bytes / _GIB:.2f} GiB"
    return f"{num_bytes / _MIB:.2f} MiB"
