"""Known bugs of speculative servers: caches that remembered what was never said, and memory.

Each test names the public report it is taken from; docs/concepts/known-bugs.md has all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from slipstream.config.speculation import NgramConfig, SuffixConfig
from slipstream.engine.llm import LLM
from slipstream.errors import CapacityError
from slipstream.sampling.params import SamplingParams
from tests.support.drafters import HostileDrafter, committed, draft_context
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
    metric,
    num_accepted,
    plainly,
    stats_of,
    submit_all,
    together,
    tokens_of,
)
from tests.support.tiny_llm import tiny_llm, write_tiny_model

# ---- what the prefix cache remembers ----


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "seeded"])
def test_a_warm_answer_equals_a_cold_one_after_many_rejections(params: SamplingParams) -> None:
    """vllm#53912, #43559, #57128: rows of rejected drafts stayed reachable and corrupted later
    answers without a sign."""
    asks = [Ask(PROMPT, params)]
    expected = plainly(asks)["q0", 0]
    hostile = HostileDrafter(VOCAB_SIZE)
    harness = together(asks, [hostile])
    (stats,) = stats_of(harness)
    assert stats.num_draft_tokens > 200
    assert stats.num_accepted_tokens < 3
    for _ in range(2):
        warm = harness.generate(PROMPT, params)
        assert warm.token_ids[0] == expected
        assert warm.prompt is not None
        assert warm.prompt.num_cached_tokens == 16
    continued = harness.generate((*PROMPT, *expected, 7), params)
    assert continued.token_ids[0] == plainly([Ask((*PROMPT, *expected, 7), params)])["q0", 0]
    assert continued.prompt is not None
    assert continued.prompt.num_cached_tokens == 48


@pytest.mark.parametrize("kind", ["suffix chain", "draft_model tree", "all merged"])
def test_sixty_four_requests_share_a_prefix_at_once(kind: str) -> None:
    """vllm#39690: drafts, prefix cache and concurrency together gave mixed-script garbage."""
    prefix = tuple(range(100, 117))
    asks = [
        Ask(
            (*prefix, 118 + number % 20, 100 + number), replace(SAMPLED, seed=number, max_tokens=12)
        )
        for number in range(64)
    ]
    harness = EngineHarness(
        drafter_sets(COPYING)[kind](),
        logits_of=COPYING,
        setup=EngineSetup(max_num_requests=64, max_step_tokens=256, num_pages=1024),
    )
    harness.generate((*prefix, 5), GREEDY)
    del harness.results["r0"]
    submit_all(harness, asks)
    harness.run()
    assert tokens_of(harness) == plainly(asks, COPYING)
    cached = [
        result.prompt.num_cached_tokens for result in harness.results.values() if result.prompt
    ]
    assert cached == [16] * 64


def test_speculation_costs_no_prefix_hits() -> None:
    """vllm#54360, #53670: switching speculation on cut every hit by the last large block."""
    asks = [Ask((*PROMPT, *PROMPT, number), GREEDY) for number in range(30, 40)]
    hits = []
    for kind in (None, "suffix chain", "draft_model chain", "all merged"):
        drafters = drafter_sets(COPYING)[kind]() if kind else []
        harness = EngineHarness(drafters, logits_of=COPYING)
        for ask in asks:
            harness.generate(ask.prompt, ask.params)
        hits.append(metric(harness, "prefix_hit_tokens_total"))
    assert hits == [9 * 40] * 4


def test_fifty_runs_with_random_cancellations_change_no_answer() -> None:
    """sglang#24175: lookup drafts and the prefix tree diverged after cancellations."""
    rng = Random(24175)
    asks = [
        Ask(PROMPT[: rng.randint(5, 20)], replace(SAMPLED, seed=number % 5, max_tokens=16))
        for number in range(12)
    ]
    expected = plainly(asks, COPYING)
    harness = EngineHarness(
        [configured(NgramConfig(min_n=1)), configured(SuffixConfig(tree=True))],
        logits_of=COPYING,
        setup=EngineSetup(num_pages=48, max_model_len=80),
    )
    num_compared = 0
    for _ in range(50):
        chosen = rng.sample(range(len(asks)), 3)
        for number in chosen:
            harness.submit(f"q{number}", asks[number].prompt, asks[number].params)
        harness.run(on_step=_cancel(harness, f"q{rng.choice(chosen)}", rng.randint(0, 8)))
        for number in chosen:
            got = harness.results[f"q{number}"].token_ids.get(0, [])
            assert got == expected[f"q{number}", 0][: len(got)]
            num_compared += len(got) == len(expected[f"q{number}", 0])
    assert num_compared > 75


def _cancel(harness: EngineHarness, victim: str, at_step: int) -> Callable[[int], None]:
    return lambda step: harness.engine.cancel(victim) if step == at_step else None


def test_tenants_share_neither_pages_nor_drafts() -> None:
    """Derived from llama.cpp's and vLLM's shared draft pools: one tenant could time what another
    had said. A tenant's drafts and hits are those of a server that it has for itself."""
    ask = Ask(PROMPT, replace(SAMPLED, max_tokens=24), salt="theirs")
    for kind in ("suffix chain", "suffix tree", "all merged"):
        cold = EngineHarness(drafter_sets(COPYING)[kind](), logits_of=COPYING)
        shared = EngineHarness(drafter_sets(COPYING)[kind](), logits_of=COPYING)
        for _ in range(3):
            shared.generate(PROMPT, ask.params, cache_salt="ours")
        alone = cold.generate(PROMPT, ask.params, cache_salt="theirs")
        beside = shared.generate(PROMPT, ask.params, cache_salt="theirs")
        again = shared.generate(PROMPT, ask.params, cache_salt="theirs")
        assert beside.last[0].speculation == alone.last[0].speculation
        assert beside.prompt is not None
        assert beside.prompt.num_cached_tokens == 0
        assert again.prompt is not None
        assert again.prompt.num_cached_tokens > 0
        assert beside.token_ids == alone.token_ids == again.token_ids


# ---- memory ----


def test_the_plan_counts_draft_weights_draft_pages_and_the_widest_logits(tmp_path: Path) -> None:
    """vllm#9995, #14067, #48037: draft weights and the expanded logits were missing from the
    profile. NVIDIA/TensorRT-LLM#9279: the draft cache's share was not to be seen."""
    path = write_tiny_model(tmp_path / "model")
    drafter = {"kind": "draft_model", "source": "target", "dtype": "bfloat16"}
    with tiny_llm(path, [drafter], {"memory.kv_bytes": "3MiB"}) as llm:
        memory = _memory(llm)
        logits_bytes = llm.config.scheduler.max_step_tokens * 320 * 4
        kv = llm.engine.kv
    assert memory["draft_weights"] == pytest.approx(memory["weights"] / 2, rel=0.02)
    assert memory["workspace"] > 2 * logits_bytes
    assert memory["draft_kv"] == memory["kv"] / 2
    assert memory["kv"] + memory["draft_kv"] <= 3 * 2**20
    assert memory["kv"] == (kv.num_pages + 1) * kv.page_size * 2 * 2 * 2 * 8 * 4


def _memory(llm: LLM) -> dict[str, float]:
    """Bytes by owner, from the metrics."""
    lines = str(llm.engine.call("metrics")).splitlines()
    prefix = 'slipstream_memory_bytes{owner="'
    entries = [line.removeprefix(prefix).split('"} ') for line in lines if line.startswith(prefix)]
    return {owner: float(value) for owner, value in entries}


@pytest.mark.parametrize("drafters", [[], [{"kind": "draft_model", "source": "target"}]])
def test_a_cache_that_does_not_fit_is_an_error_at_start_that_names_every_share(
    tmp_path: Path, drafters: list[object]
) -> None:
    """ikawrakow/ik_llama.cpp#731: a draft cache that could not be allocated hung the server."""
    path = write_tiny_model(tmp_path / "model")
    with pytest.raises(CapacityError, match=r"weights .* draft weights .* workspace .* KV cache"):
        tiny_llm(path, drafters, {"memory.kv_bytes": "64KiB"})


@pytest.mark.parametrize("kind", ["ngram longest_latest", "suffix chain", "suffix tree"])
def test_the_memory_of_lookup_drafters_is_linear_in_the_prompt_and_reported(kind: str) -> None:
    """sglang#21052: a trie over long inputs grew with the square of their length."""
    rng = Random(21052)
    text = [rng.randrange(3, VOCAB_SIZE) for _ in range(40_000)]
    bytes_at = []
    for length in (10_000, 20_000, 40_000):
        (drafter,) = drafter_sets(MODEL)[kind]()
        drafter.propose([draft_context(text[:length], request_id="a")])
        drafter.observe([committed([*text[:length], 5], 1, request_id="a", prompt_len=length)])
        bytes_at.append(drafter.memory_bytes())
        drafter.release(["a"])
        assert drafter.memory_bytes() <= bytes_at[-1]
    assert 0 < bytes_at[2] < 5 * bytes_at[0]
    assert bytes_at[2] <= 64 * 2**20


def test_the_memory_of_drafters_is_in_the_metrics() -> None:
    """sglang#21052, TensorRT-LLM#9279: nobody could see what drafting took."""
    harness = EngineHarness([configured(SuffixConfig())], logits_of=COPYING)
    harness.generate(PROMPT, GREEDY)
    assert metric(harness, "memory_bytes", owner="drafters") > 0


def test_a_soak_of_random_requests_keeps_every_page_accounted_for() -> None:
    """llama.cpp#23500, #26648: asserts failed on long contexts and after many requests. The
    integrity of the caches is checked after each of some thousand steps."""
    rng = Random(23500)
    harness = EngineHarness(
        drafter_sets(COPYING)["all merged"](),
        logits_of=COPYING,
        setup=EngineSetup(num_pages=60, max_step_tokens=48, max_model_len=150, max_queue_len=500),
    )
    for number in range(150):
        params = SamplingParams(
            temperature=rng.choice([0.0, 1.0]),
            max_tokens=rng.randint(1, 40),
            seed=number,
            stop_token_ids=rng.choice([(), (101, 111, 121)]),
            repetition_penalty=rng.choice([1.0, 1.2]),
        )
        prompt = [rng.randrange(100, 140) for _ in range(rng.randint(1, 100))]
        harness.submit(f"q{number}", prompt, params, n=rng.choice([1, 1, 1, 2]))
        for _ in range(rng.randint(0, 6)):
            harness.step()
    harness.run()
    assert metric(harness, "preemptions_total") > 0
    assert num_accepted(harness) > 300
    assert all(result.failed is None for result in harness.results.values())
