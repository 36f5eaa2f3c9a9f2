"""A drafter that was told of nothing while nobody drafted drafts as one that always was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from slipstream.engine.llm import LLM
from slipstream.sampling.params import SamplingParams
from slipstream.speculation.control import NO_DRAFT, DraftLimit, FixedController
from slipstream.speculation.drafter import DraftContext, TargetRows
from slipstream.speculation.tree import DraftTree
from tests.integration.test_draft_nets import load, write_pair
from tests.support.drafts import FAMILIES

NATIVE = {"model.dtype": "bfloat16"}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
PROMPT = list(range(10, 40))
LEN = len(PROMPT)


class MutedWhere(FixedController):
    """Nothing is drafted in the steps of a request that `is_muted` chooses by number."""

    def __init__(self, is_muted: Callable[[int], bool]) -> None:
        self._is_muted = is_muted
        self._num_steps: dict[str, int] = {}

    def limit(self, request_id: str, bounds: DraftLimit) -> DraftLimit:
        number = self._num_steps[request_id] = self._num_steps.get(request_id, 0) + 1
        return NO_DRAFT if self._is_muted(number) else bounds


class Watched:
    """What the net of an engine is told, and what it drafts by the text in front of it."""

    def __init__(self, llm: LLM, is_muted: Callable[[int], bool]) -> None:
        self.llm = llm
        self.drafts: dict[tuple[int, ...], DraftTree] = {}
        self.num_told: list[int] = []
        (guard,) = llm.engine._stages.proposer.drafters
        drafter: Any = guard._drafter  # type: ignore[attr-defined]  # Any: its methods are replaced
        self._propose, self._absorb = drafter.propose, drafter.absorb
        drafter.propose, drafter.absorb = self.propose, self.absorb
        llm.engine._stages.proposer.controller = MutedWhere(is_muted)

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftTree]:
        trees: list[DraftTree] = self._propose(contexts)
        for context, tree in zip(contexts, trees, strict=True):
            self.drafts[tuple(context.tokens)] = tree
        return trees

    def absorb(self, rows: Sequence[TargetRows]) -> None:
        self.num_told.append(sum(len(item.rows) for item in rows))
        self._absorb(rows)

    def generate(self, *prompts: list[int]) -> list[list[int]]:
        return [item.token_ids for item in self.llm.generate(list(prompts), GREEDY)]


def watched(
    path: Path, family: str, is_muted: Callable[[int], bool], settings: Mapping[str, str]
) -> Watched:
    path.mkdir()
    target, drafter = write_pair(path, family)
    # With bounds on scores, drafts of a random net would stop after roundings.
    net = drafter | {"min_score": 0.0, "dtype": settings.get("model.dtype", "float32")}
    return Watched(load(target, [net], **settings), is_muted)


def assert_same_drafts(some: Watched, every: Watched) -> None:
    texts = some.drafts.keys() & every.drafts.keys()  # kept drafts step over some
    assert len(texts) >= 6
    for text in texts:
        assert some.drafts[text]
        assert some.drafts[text].tokens == every.drafts[text].tokens
        assert some.drafts[text].parents == every.drafts[text].parents


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("settings", [{}, NATIVE], ids=["float32", "bfloat16"])
def test_unmuted_in_the_middle(tmp_path: Path, family: str, settings: dict[str, str]) -> None:
    late = watched(tmp_path / "late", family, lambda step: step <= 12 or step == 15, settings)
    always = watched(tmp_path / "always", family, lambda _: False, settings)

    answers = late.generate(PROMPT, PROMPT[:7])

    assert always.generate(PROMPT, PROMPT[:7]) == answers
    assert_same_drafts(late, always)
    assert len(late.num_told) < len(always.num_told)
    assert max(late.num_told) >= 20


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_muted_request_left_in_the_prefix_cache(tmp_path: Path, family: str) -> None:
    """The second request finds prompt and answer of the first, for which nothing was drafted."""
    muted = watched(tmp_path / "muted", family, lambda _: True, NATIVE)
    always = watched(tmp_path / "always", family, lambda _: False, NATIVE)
    for engine in (muted, always):
        (answer,) = engine.generate(PROMPT)
        engine.drafts.clear()
        engine.llm.engine._stages.proposer.controller = FixedController()
        engine.generate([*PROMPT, *answer, 9])
    assert_same_drafts(muted, always)
    muted.llm.engine.check_integrity()


@pytest.mark.parametrize("family", FAMILIES)
def test_muted_requests_that_are_preempted(tmp_path: Path, family: str) -> None:
    settings = NATIVE | {"memory.kv_bytes": "300KiB"}
    late = watched(tmp_path / "late", family, lambda step: step <= 20, settings)
    always = watched(tmp_path / "always", family, lambda _: False, NATIVE)
    prompts = [list(range(start, start + 5)) for start in range(10, 70, 10)]

    answers = late.generate(*prompts)

    assert always.generate(*prompts) == answers
    late.llm.engine.check_integrity()
