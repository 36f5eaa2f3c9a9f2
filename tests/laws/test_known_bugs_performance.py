"""Known bugs of speculative servers: slower with drafts than without, and numbers that lie.

Time is simulated: a pass costs what its rows cost, so the comparisons are exact and repeatable.
Each test names the public report it is taken from; docs/concepts/known-bugs.md has all of them.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from random import Random

import pytest

from slipstream.config.speculation import SuffixConfig
from slipstream.speculation.drafter import DraftContext
from slipstream.speculation.tree import DraftTree
from tests.support.drafters import (
    HostileDrafter,
    OracleDrafter,
    RecordingDrafter,
    Truth,
    true_outputs_by_prompt,
)
from tests.support.engine import VOCAB_SIZE, EngineHarness, EngineSetup
from tests.support.runs import (
    COPYING,
    GREEDY,
    MODEL,
    PROMPT,
    SAMPLED,
    Ask,
    configured,
    drafter_sets,
    num_accepted,
    plainly,
    stats_of,
    together,
)
from tests.support.simulated import REGIMES, SimulatedEngine, truth_of

NUM_TOKENS = 50


class LuckyDrafter(RecordingDrafter):
    """Each token of the draft is right with the same chance, and its scores say so (or 1)."""

    def __init__(self, truth: Truth, chance: float, *, is_honest: bool) -> None:
        super().__init__("lucky")
        self._truth = truth
        self._chance = chance
        self._claim = chance if is_honest else 1.0
        self._random = Random(3)

    def tree_for(self, context: DraftContext) -> DraftTree:
        tokens = [
            token if self._random.random() < self._chance else (token + 1) % VOCAB_SIZE
            for token in self._truth(context)[: context.max_draft_len]
        ]
        scores = [self._claim ** (depth + 1) for depth in range(len(tokens))]
        return DraftTree.chain(tokens, scores, self.name)


@functools.cache
def plain(regime: str, num_running: int) -> tuple[Truth, float]:
    """What the requests are answered, and in how many seconds without drafts."""
    engine = SimulatedEngine(REGIMES[regime], max_num_requests=num_running)
    seconds = engine.serve(4 * num_running, NUM_TOKENS)
    return truth_of(engine), seconds


def speedup(
    regime: str, num_running: int, drafter: RecordingDrafter, draft_s: float = 0.0
) -> float:
    """Of the same requests with drafts, the controller's learning included."""
    engine = SimulatedEngine(
        REGIMES[regime], drafter, draft_s=draft_s, max_num_requests=num_running
    )
    return plain(regime, num_running)[1] / engine.serve(4 * num_running, NUM_TOKENS)


# ---- never slower ----


@pytest.mark.parametrize("regime", list(REGIMES))
@pytest.mark.parametrize("num_running", [1, 8, 32])
def test_a_hostile_drafter_costs_next_to_nothing_at_any_load(regime: str, num_running: int) -> None:
    """ArcticInference#185, vllm#49369: drafting lost above some twenty requests, and halved the
    throughput of a saturated batch."""
    truth, _ = plain(regime, num_running)
    assert speedup(regime, num_running, HostileDrafter(VOCAB_SIZE, truth)) > 0.98


@pytest.mark.parametrize("regime", list(REGIMES))
@pytest.mark.parametrize("num_running", [1, 32])
@pytest.mark.parametrize("chance", [0.2, 0.5])
def test_a_drafter_that_promises_too_much_costs_next_to_nothing(
    regime: str, num_running: int, chance: float
) -> None:
    """llama.cpp#25908, #10664: by default every draft was verified, whatever it was worth."""
    truth, _ = plain(regime, num_running)
    drafter = LuckyDrafter(truth, chance, is_honest=False)
    assert speedup(regime, num_running, drafter) > 0.97


def test_a_slow_drafter_is_given_up_even_if_it_is_nearly_always_right() -> None:
    """llama.cpp#25908: slower than plain decoding even with nine of ten tokens accepted, because
    drafting took longer than what it saved. A warm server has learned that."""
    truth, plain_s = plain("compute", 8)
    engine = SimulatedEngine(
        REGIMES["compute"],
        LuckyDrafter(truth, 0.9, is_honest=True),
        draft_s=0.5,
        max_num_requests=8,
    )
    engine.serve(32, NUM_TOKENS)
    assert plain_s / engine.serve(32, NUM_TOKENS, name="w") > 0.97


def test_drafting_stops_within_few_steps_when_its_latency_dominates() -> None:
    """sglang#6949: 59 instead of 61 tokens per second, for as long as the server ran."""
    truth, _ = plain("memory", 1)
    drafter = LuckyDrafter(truth, 0.2, is_honest=True)
    engine = SimulatedEngine(REGIMES["memory"], drafter, draft_s=0.5, max_num_requests=1)
    engine.serve(1, 200)
    drafter.contexts.clear()
    engine.serve(1, 200, name="w")
    assert len(drafter.contexts) < 40


def test_a_request_that_drafts_slows_nobody_who_does_not() -> None:
    """ArcticInference#185: at saturation a draft takes time from the whole batch."""
    truth, plain_s = plain("compute", 8)
    drafter = LuckyDrafter(truth, 0.5, is_honest=True)
    engine = SimulatedEngine(REGIMES["compute"], drafter, max_num_requests=8)
    assert plain_s / engine.serve(32, NUM_TOKENS, num_opted_out=28) > 0.98


# ---- and faster where it can be ----


@pytest.mark.parametrize(
    ("regime", "num_running", "chance", "least"),
    [
        ("memory", 1, 0.8, 3.5),
        ("memory", 8, 0.8, 2.8),
        ("memory", 32, 0.8, 1.8),
        ("memory", 1, 0.5, 1.7),
        ("balanced", 1, 0.8, 2.1),
        ("balanced", 8, 0.8, 1.25),
    ],
)
def test_the_controller_takes_what_a_good_drafter_gives(
    regime: str, num_running: int, chance: float, least: float
) -> None:
    """sgl-project/sglang#15319: between 5 and 50 % of the speed was left on the table."""
    truth, _ = plain(regime, num_running)
    drafter = LuckyDrafter(truth, chance, is_honest=True)
    assert speedup(regime, num_running, drafter) > least


def test_a_drafter_that_is_always_right_is_used_to_the_full() -> None:
    """sgl-project/sglang#15319: the bound is one pass for nine tokens."""
    truth, _ = plain("memory", 1)
    assert speedup("memory", 1, OracleDrafter(truth)) > 7.0


# ---- acceptance ----


@pytest.mark.parametrize("kind", ["ngram longest_latest", "draft_model chain", "draft_model tree"])
def test_acceptance_at_sixteen_requests_is_that_of_each_alone(kind: str) -> None:
    """llama.cpp#27117: drafts of concurrent requests were mixed up, and acceptance collapsed."""
    asks = [
        Ask(PROMPT[: 5 + number % 15], replace(SAMPLED, seed=number), salt=f"tenant{number}")
        for number in range(16)
    ]
    setup = EngineSetup(max_step_tokens=512, num_pages=512)
    harness = together(asks, drafter_sets(COPYING)[kind](), logits_of=COPYING, setup=setup)
    for number, ask in enumerate(asks):
        alone = EngineHarness(drafter_sets(COPYING)[kind](), logits_of=COPYING, setup=setup)
        result = alone.generate(ask.prompt, ask.params)
        assert harness.results[f"q{number}"].last[0].speculation == result.last[0].speculation


def test_the_acceptance_of_a_pinned_pair_does_not_fall() -> None:
    """vllm#33497: acceptance fell from one release to the next, and nobody noticed."""
    params = replace(SAMPLED, max_tokens=200, ignore_eos=True)
    asks = [Ask(PROMPT, params, n=4)]
    lengths = {}
    for kind in ("ngram longest_latest", "suffix chain", "suffix tree", "draft_model chain"):
        harness = together(asks, drafter_sets(COPYING)[kind](), logits_of=COPYING)
        drafts = sum(stats.num_drafts for stats in stats_of(harness))
        lengths[kind] = 1 + num_accepted(harness) / drafts
    least = {  # 95 % of what they were when this was written
        "ngram longest_latest": 1.32,
        "suffix chain": 1.31,
        "suffix tree": 1.62,
        "draft_model chain": 2.57,
    }
    assert all(lengths[kind] >= least[kind] for kind in least), lengths


def test_the_counters_can_be_recomputed_from_the_raw_steps() -> None:
    """vllm#42508: tools disagreed about acceptance, because each had its own formula."""
    truth = plainly([Ask(PROMPT)])["q0", 0]
    drafter = OracleDrafter(true_outputs_by_prompt({PROMPT: truth}), wrong_every=4)
    harness = together([Ask(PROMPT)], [drafter])
    (stats,) = stats_of(harness)
    rows = [len(batch.tokens) - 1 for batch in harness.target.batches[1:]]
    kept = [observation.num_new - 1 for observation in drafter.observations[1:]]
    assert stats.num_draft_tokens == sum(rows)
    assert stats.num_accepted_tokens == sum(kept)
    drafted = [(drawn, accepted) for drawn, accepted in zip(rows, kept, strict=True) if drawn]
    assert stats.num_drafts == len(drafted)
    mean = 1 + sum(accepted for _, accepted in drafted) / len(drafted)
    assert stats.mean_acceptance_length == pytest.approx(mean)
    assert stats.num_steps == len(harness.target.batches)


@pytest.mark.parametrize("wrong_at", range(5))
def test_only_the_leading_run_counts_as_accepted(wrong_at: int) -> None:
    """vllm#9565, #7301: tokens behind the first rejection were counted as accepted."""
    truth = plainly([Ask(PROMPT)])["q0", 0]

    class WrongOnce(OracleDrafter):
        def tree_for(self, context: DraftContext) -> DraftTree:
            if len(context.tokens) != len(PROMPT) + 1:
                return DraftTree()
            tokens = truth[1:7]
            tokens[wrong_at] = (tokens[wrong_at] + 1) % VOCAB_SIZE
            return DraftTree.chain(tokens, [1.0] * 6, self.name)

    harness = together([Ask(PROMPT, GREEDY)], [WrongOnce(lambda context: ())])
    (stats,) = stats_of(harness)
    assert stats.num_draft_tokens == 6
    assert stats.num_accepted_tokens == wrong_at


def test_a_later_request_gains_from_what_an_earlier_one_said() -> None:
    """Source: our own design. Suffix drafts of a finished answer serve its repetition."""
    harness = EngineHarness([configured(SuffixConfig())], logits_of=MODEL)
    first = harness.generate(PROMPT, GREEDY).last[0].speculation
    second = harness.generate(PROMPT, GREEDY).last[0].speculation
    assert first is not None
    assert second is not None
    assert second.num_accepted_tokens > first.num_accepted_tokens + 10
