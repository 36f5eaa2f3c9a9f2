"""When a draft net drafts in vain."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from slipstream.engine.acceptance_watch import WINDOW_DRAFTS, AcceptanceWatch
from slipstream.speculation.drafter import DraftContext, DrafterNeeds, Observation
from slipstream.speculation.tree import EMPTY_TREE, DraftTree


class Named:
    """A drafter of a name, which reads the target's states or not."""

    def __init__(self, name: str, *layers: int) -> None:
        self.name = name
        self.needs = DrafterNeeds(target_layer_ids=layers)

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftTree]:
        return [EMPTY_TREE] * len(contexts)

    def observe(self, observations: Sequence[Observation]) -> None:
        """Nothing."""

    def release(self, request_ids: Sequence[str]) -> None:
        """Nothing."""

    def memory_bytes(self) -> int:
        return 0


def watched(accepted_every: int, num_drafts: int, *drafters: Named) -> AcceptanceWatch:
    watch = AcceptanceWatch(drafters)
    for number in range(1, num_drafts + 1):
        is_kept = accepted_every and number % accepted_every == 0
        kept = {item.name: 1 for item in drafters} if is_kept else {}
        watch.verified({item.name: 4 for item in drafters}, kept)
    return watch


def test_a_net_that_drafts_in_vain_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        watched(20, 3 * WINDOW_DRAFTS, Named("eagle", 1, 2))
    (message,) = caplog.messages
    assert 'drafter "eagle"' in message
    assert "mean acceptance length 1.05" in message
    assert "slipstream doctor" in message


def test_a_net_that_is_accepted_now_and_then_is_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        watched(3, 3 * WINDOW_DRAFTS, Named("eagle", 1, 2))
    assert not caplog.messages


def test_a_few_drafts_are_no_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        watched(0, WINDOW_DRAFTS - 1, Named("eagle", 1, 2))
    assert not caplog.messages


def test_drafters_that_copy_texts_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        watched(0, 2 * WINDOW_DRAFTS, Named("suffix"), Named("dspark", 3))
    (message,) = caplog.messages
    assert "dspark" in message
