"""One memory budget: what weights and workspace leave becomes pages of both caches."""

from __future__ import annotations

import pytest

from slipstream.errors import CapacityError
from slipstream.kv.budget import MemoryPlan, StateNeeds, plan_memory

MIB = 2**20


def plan(
    *,
    utilization: float = 0.5,
    weight_bytes: int = 200 * MIB,
    draft_kv_bytes_per_token: int = 16 * 1024,
    kv_bytes: int | None = None,
    states: StateNeeds | None = None,
) -> MemoryPlan:
    return plan_memory(
        total_bytes=1000 * MIB,
        utilization=utilization,
        weight_bytes=weight_bytes,
        draft_weight_bytes=50 * MIB,
        workspace_bytes=50 * MIB,
        kv_bytes_per_token=48 * 1024,
        draft_kv_bytes_per_token=draft_kv_bytes_per_token,
        page_size=16,
        max_model_len=2048,
        kv_bytes=kv_bytes,
        states=states,
    )


def test_the_rest_of_the_budget_becomes_pages_of_target_and_drafter() -> None:
    memory = plan()
    assert (
        memory.num_pages == memory.num_draft_pages == 199
    )  # 200 MiB of 1 MiB pages, one is scratch
    assert memory.kv_bytes == 150 * MIB
    assert memory.draft_kv_bytes == 50 * MIB
    assert memory.used_bytes == memory.budget_bytes == 500 * MIB
    assert memory.num_tokens == 199 * 16


def test_without_a_draft_cache_the_target_gets_all_pages() -> None:
    memory = plan(draft_kv_bytes_per_token=0)
    assert memory.num_draft_pages == 0
    assert memory.draft_kv_bytes == 0
    assert memory.num_pages == 265
    assert memory.used_bytes <= memory.budget_bytes


def test_given_kv_bytes_override_the_utilization() -> None:
    memory = plan(kv_bytes=300 * MIB, utilization=0.01)
    assert memory.num_pages == 299
    assert memory.budget_bytes == 600 * MIB


def test_one_longest_request_must_fit() -> None:
    assert plan(kv_bytes=129 * MIB).num_pages == 128
    with pytest.raises(CapacityError, match="cannot hold one request of 2048 tokens"):
        plan(kv_bytes=129 * MIB - 1)


def test_a_refusal_names_every_share() -> None:
    with pytest.raises(CapacityError) as refusal:
        plan(utilization=0.31)
    message = refusal.value.message
    for share in ("1000.00 MiB memory", "310.00 MiB may be used", "weights 200.00 MiB"):
        assert share in message
    for share in ("draft weights 50.00 MiB", "workspace 50.00 MiB", "KV cache 10.00 MiB"):
        assert share in message
    assert refusal.value.hint is not None


def test_weights_larger_than_the_budget_are_refused() -> None:
    with pytest.raises(CapacityError, match=r"KV cache 0\.00 MiB \(0 pages"):
        plan(weight_bytes=3 * 2**30)


def test_more_kv_bytes_than_the_machine_has_are_refused() -> None:
    with pytest.raises(CapacityError, match="more than the machine has"):
        plan(kv_bytes=900 * MIB)


NEEDS = StateNeeds(bytes_each=2 * MIB, max_requests=4, total_bytes=None)


def test_states_take_their_share_of_what_weights_and_workspace_leave() -> None:
    without = plan()
    with_states = plan(states=NEEDS)

    assert with_states.num_states == 16
    assert with_states.state_bytes == 17 * 2 * MIB
    assert with_states.used_bytes <= with_states.budget_bytes == without.budget_bytes
    assert with_states.num_pages < without.num_pages


def test_states_with_bytes_of_their_own_leave_the_pages_theirs() -> None:
    own = StateNeeds(bytes_each=2 * MIB, max_requests=4, total_bytes=7 * MIB)

    with_states = plan(states=own, kv_bytes=200 * MIB)

    assert with_states.num_states == 2
    assert with_states.num_pages == plan(kv_bytes=200 * MIB).num_pages


def test_a_budget_without_room_for_one_state_is_refused_by_its_size() -> None:
    own = StateNeeds(bytes_each=2 * MIB, max_requests=4, total_bytes=3 * MIB)
    with pytest.raises(CapacityError, match=r"a request needs a recurrent state of 2\.00 MiB"):
        plan(states=own)
