"""A draft model in a whole engine: it changes the speed and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.sampling.params import SamplingParams
from slipstream.speculation.drafters.draft_model.parts import DraftModelRules
from tests.support.draft_models import VOCAB_SIZE, DraftModel, disturbed, make_draft_model
from tests.support.drafters import HostileDrafter
from tests.support.engine import EngineHarness, EngineSetup, Result
from tests.support.scripted_target import LogitsOf, hashed_logits

MODEL = hashed_logits(VOCAB_SIZE)
HALF_RIGHT = disturbed(MODEL, 1.0)
PENALISED = {"top_p": 0.9, "repetition_penalty": 1.2, "presence_penalty": 0.3, "min_tokens": 4}
PROMPTS = [tuple(range(10, 31)), (40, 41, 42), (*range(10, 26), 90), (7,)]


def params_of(index: int, temperature: float, **fields: object) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=index, max_tokens=40, **fields)  # type: ignore[arg-type]  # passed on


def run_all(
    harness: EngineHarness, requests: Sequence[tuple[Sequence[int], SamplingParams]]
) -> None:
    for index, (prompt, params) in enumerate(requests):
        harness.submit(f"q{index}", prompt, params)
    harness.run()


def tokens_of(harness: EngineHarness) -> dict[str, dict[int, list[int]]]:
    return {name: result.token_ids for name, result in harness.results.items()}


def drafted_and_accepted(results: Sequence[Result]) -> tuple[int, int]:
    stats = [last.speculation for result in results for last in result.last.values()]
    known = [item for item in stats if item is not None]
    return (
        sum(item.num_draft_tokens for item in known),
        sum(item.num_accepted_tokens for item in known),
    )


def num_preemptions(harness: EngineHarness) -> float:
    line = re.search(
        r"^slipstream_preemptions_total (\S+)$", harness.metrics.exposition().decode(), re.M
    )
    assert line is not None
    return float(line[1])


def assert_empty(model: DraftModel) -> None:
    """Nothing is leased any more, and no page is lost."""
    model.kv.check_integrity()
    usage = model.kv.usage()
    assert usage.num_leased == usage.num_leases == 0
    assert model.drafter.memory_bytes() == 0


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("fields", [{}, PENALISED], ids=["plain", "penalised"])
def test_all_drafts_of_a_model_equal_to_the_target_are_accepted(
    temperature: float, fields: dict[str, object]
) -> None:
    model = make_draft_model(MODEL)
    harness = EngineHarness([model.drafter], logits_of=MODEL)

    run_all(
        harness, [(prompt, params_of(i, temperature, **fields)) for i, prompt in enumerate(PROMPTS)]
    )

    drafted, accepted = drafted_and_accepted(list(harness.results.values()))
    assert drafted == accepted > 60
    assert_empty(model)


@pytest.mark.parametrize("num_children", [1, 3])
def test_a_draft_model_that_errs_is_partly_accepted_and_never_believed(num_children: int) -> None:
    requests = [(prompt, params_of(i, 1.0, **PENALISED)) for i, prompt in enumerate(PROMPTS)]
    plain = EngineHarness(logits_of=MODEL)
    run_all(plain, requests)
    model = make_draft_model(HALF_RIGHT, rules=DraftModelRules(num_children, 4))
    harness = EngineHarness([model.drafter], logits_of=MODEL)

    run_all(harness, requests)

    assert tokens_of(harness) == tokens_of(plain)
    drafted, accepted = drafted_and_accepted(list(harness.results.values()))
    assert 30 < accepted < drafted
    assert_empty(model)


def test_the_drafts_merge_with_those_of_another_drafter() -> None:
    requests = [(prompt, params_of(i, 0.7)) for i, prompt in enumerate(PROMPTS)]
    plain = EngineHarness(logits_of=MODEL)
    run_all(plain, requests)
    model = make_draft_model(HALF_RIGHT, rules=DraftModelRules(2, 4))
    harness = EngineHarness([HostileDrafter(VOCAB_SIZE), model.drafter], logits_of=MODEL)
    run_all(harness, requests)
    assert tokens_of(harness) == tokens_of(plain)
    assert_empty(model)


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from([*PROMPTS, tuple(range(3, 43))]),
        st.builds(
            SamplingParams,
            temperature=st.sampled_from([0.0, 1.0]),
            repetition_penalty=st.sampled_from([1.0, 1.3]),
            top_k=st.sampled_from([0, 5]),
            max_tokens=st.integers(1, 24),
            stop_token_ids=st.sampled_from([(), (7, 11, 19)]),
            seed=st.integers(0, 3),
        ),
        st.integers(1, 2),
    ),
    min_size=1,
    max_size=5,
)


def serial_outputs(
    requests: Sequence[tuple[Sequence[int], SamplingParams, int]], logits_of: LogitsOf
) -> dict[tuple[str, int], list[int]]:
    outputs: dict[tuple[str, int], list[int]] = {}
    for number, (prompt, params, n) in enumerate(requests):
        harness = EngineHarness(logits_of=logits_of)
        result = harness.generate(prompt, params, n=n)
        outputs |= {(f"q{number}", index): tokens for index, tokens in result.token_ids.items()}
    return outputs


def cancel_first(harness: EngineHarness, at_step: int) -> Callable[[int], None]:
    return lambda step: harness.engine.cancel("q0") if step == at_step else None


@settings(max_examples=40, deadline=None)
@given(
    requests=REQUESTS,
    num_pages=st.sampled_from([18, 30, 256]),
    num_draft_pages=st.sampled_from([8, 20, 256]),
    num_children=st.sampled_from([1, 3]),
    max_known_rows=st.sampled_from([7, 512]),
    cancel_at=st.integers(0, 30),
)
def test_no_memory_pressure_and_no_cancellation_changes_an_answer_or_leaves_a_page(
    requests: list[tuple[Sequence[int], SamplingParams, int]],
    num_pages: int,
    num_draft_pages: int,
    num_children: int,
    max_known_rows: int,
    cancel_at: int,
) -> None:
    expected = serial_outputs(requests, MODEL)
    rules = DraftModelRules(num_children, 4, max_known_rows=max_known_rows)
    model = make_draft_model(HALF_RIGHT, rules=rules, num_pages=num_draft_pages)
    setup = EngineSetup(num_pages=num_pages, max_step_tokens=17, max_model_len=72)
    harness = EngineHarness([model.drafter], logits_of=MODEL, setup=setup)
    for number, (prompt, params, n) in enumerate(requests):
        harness.submit(f"q{number}", prompt, params, n=n)

    harness.run(on_step=cancel_first(harness, cancel_at))

    for (name, index), tokens in expected.items():
        got = harness.results[name].token_ids.get(index, [])
        assert got == tokens[: len(got)] if name == "q0" else got == tokens
    assert_empty(model)


def test_preempted_requests_are_drafted_for_again() -> None:
    requests = [(prompt, params_of(i, 1.0, ignore_eos=True)) for i, prompt in enumerate(PROMPTS)]
    plain = EngineHarness(logits_of=MODEL)
    run_all(plain, requests)
    model = make_draft_model(MODEL, num_pages=40)
    setup = EngineSetup(num_pages=26, max_model_len=72)
    harness = EngineHarness([model.drafter], logits_of=MODEL, setup=setup)

    run_all(harness, requests)

    assert num_preemptions(harness) > 0
    assert tokens_of(harness) == tokens_of(plain)
    drafted, accepted = drafted_and_accepted(list(harness.results.values()))
    assert drafted == accepted > 0
    assert_empty(model)
