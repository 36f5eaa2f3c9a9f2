"""Speculation changes nothing: any drafts, any batch, any memory pressure, any cancellation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.sampling.params import SamplingParams
from slipstream.speculation.drafter import DraftContext, Drafter
from slipstream.speculation.tree import EMPTY_TREE, DraftTree
from tests.support.drafters import HostileDrafter, RecordingDrafter
from tests.support.engine import VOCAB_SIZE, EngineHarness, EngineSetup

EOS = 1

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    top_p=st.sampled_from([1.0, 0.9]),
    top_k=st.sampled_from([0, 5]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    max_tokens=st.integers(1, 24),
    seed=st.integers(0, 3),
    stop_token_ids=st.sampled_from([(), (7, 11, 19)]),
)


@dataclass(frozen=True)
class Case:
    prompt: tuple[int, ...]
    params: SamplingParams
    n: int


CASES = st.lists(
    st.builds(
        Case,
        prompt=st.one_of(
            st.lists(st.integers(3, VOCAB_SIZE - 1), min_size=1, max_size=30).map(tuple),
            st.sampled_from([tuple(range(10, 30)), tuple(range(10, 38))]),
        ),
        params=PARAMS,
        n=st.integers(1, 2),
    ),
    min_size=1,
    max_size=5,
)


class HalfRightDrafter(RecordingDrafter):
    """Trees that hold the truth on a branch whose place changes, among wrong siblings."""

    def __init__(self, truth: dict[tuple[str, int], Sequence[int]]) -> None:
        super().__init__("half-right")
        self.truth = truth

    def tree_for(self, context: DraftContext) -> DraftTree:
        name, index = context.request_id.split("#")
        output = self.truth.get((name, int(index)), ())
        rest = list(output[len(context.tokens) - context.prompt_len :])
        if not rest or len(context.tokens) % 5 == 0:
            return EMPTY_TREE
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for depth, token in enumerate(rest[: context.max_draft_len]):
            wrong = (token + 1) % VOCAB_SIZE
            is_lie = (len(context.tokens) + depth) % 7 == 3
            siblings = [wrong] if is_lie else ([token, wrong] if depth % 2 else [wrong, token])
            first = len(tokens)
            tokens += siblings
            parents += [parent] * len(siblings)
            parent = first if is_lie else first + siblings.index(token)
        size = min(len(tokens), context.max_draft_nodes)
        return DraftTree(
            tuple(tokens[:size]),
            tuple(parents[:size]),
            (0.5,) * size,
            (frozenset((self.name,)),) * size,
        )


def serial_outputs(cases: Sequence[Case]) -> dict[tuple[str, int], list[int]]:
    outputs: dict[tuple[str, int], list[int]] = {}
    for number, case in enumerate(cases):
        harness = EngineHarness(setup=EngineSetup(prefix_cache=False))
        harness.submit("only", case.prompt, case.params, n=case.n)
        harness.run()
        for index, tokens in harness.results["only"].token_ids.items():
            outputs[f"c{number}", index] = tokens
    return outputs


@settings(max_examples=60, deadline=None)
@given(
    cases=CASES,
    num_pages=st.sampled_from([24, 30, 256]),
    max_step_tokens=st.sampled_from([5, 17, 64]),
    is_hostile=st.booleans(),
    late=st.integers(0, 6),
)
def test_any_batch_any_drafts_any_memory_give_the_serial_plain_output(
    cases: list[Case], num_pages: int, max_step_tokens: int, is_hostile: bool, late: int
) -> None:
    expected = serial_outputs(cases)
    drafters: list[Drafter] = [HalfRightDrafter(dict(expected))]
    if is_hostile:
        drafters.append(HostileDrafter(VOCAB_SIZE))
    harness = EngineHarness(
        drafters,
        setup=EngineSetup(num_pages=num_pages, max_step_tokens=max_step_tokens, max_model_len=90),
    )
    for number, case in enumerate(cases):
        harness.submit(f"c{number}", case.prompt, case.params, n=case.n)
        for _ in range(late):
            harness.step()
    harness.run()
    for (name, index), tokens in expected.items():
        assert harness.results[name].token_ids[index] == tokens


@settings(max_examples=30, deadline=None)
@given(cases=CASES, cancel_at=st.integers(0, 12), num_pages=st.sampled_from([24, 256]))
def test_cancelling_one_request_changes_no_other_and_leaves_nothing(
    cases: list[Case], cancel_at: int, num_pages: int
) -> None:
    expected = serial_outputs(cases)
    drafter = HalfRightDrafter(dict(expected))
    harness = EngineHarness([drafter], setup=EngineSetup(num_pages=num_pages, max_model_len=90))
    for number, case in enumerate(cases):
        harness.submit(f"c{number}", case.prompt, case.params, n=case.n)
    harness.run(on_step=lambda step: harness.engine.cancel("c0") if step == cancel_at else None)
    for (name, index), tokens in expected.items():
        if name != "c0":
            assert harness.results[name].token_ids[index] == tokens
    assert not drafter.live
