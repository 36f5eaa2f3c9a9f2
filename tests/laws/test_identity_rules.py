"""The ten rules that make the answer the same bit for bit, each exercised on a whole engine.

The rules are those of docs/decisions/0001-verification-is-sampling.md and concepts/verification.md;
the parts have laws of their own beside this file. Here each rule is seen from outside: a request
goes in, tokens and log-probabilities come out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream.engine.llm import LLM, Generation
from slipstream.errors import ConfigError, WeightsError
from slipstream.sampling.noise import derive, gumbel_at, gumbel_noise
from slipstream.sampling.params import SamplingParams
from slipstream.speculation.drafter import DraftContext
from slipstream.speculation.tree import ROOT, DraftTree
from tests.support.draft_models import make_draft_model
from tests.support.drafters import OracleDrafter, RecordingDrafter, true_outputs_by_prompt
from tests.support.engine import VOCAB_SIZE, EngineHarness, EngineSetup, tiny_tokenizer
from tests.support.runs import (
    COPYING,
    GREEDY,
    MODEL,
    PROMPT,
    SAMPLED,
    Ask,
    drafter_sets,
    metric,
    num_accepted,
    plainly,
    together,
    tokens_of,
)
from tests.support.tiny_llm import tiny_llm, write_tiny_model

ALL_PARAMS = SamplingParams(
    temperature=0.9,
    top_p=0.95,
    top_k=40,
    min_p=0.02,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.2,
    logit_bias={110: 2.0, 111: -2.0},
    bad_words=("u", "fg"),
    min_tokens=5,
    max_tokens=30,
    seed=11,
)
DRAFTERS = [
    {"kind": "ngram", "min_n": 1},
    {"kind": "suffix", "tree": True},
    {"kind": "draft_model", "source": "target", "dtype": "bfloat16", "num_children": 2},
]
TEXT = [*range(10, 34), *range(10, 30)]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def engines(request: pytest.FixtureRequest, model_path: Path) -> tuple[LLM, LLM]:
    """The same weights without and with drafters; a prefix cache in both."""
    settings = {"model.dtype": request.param, "scheduler.max_step_tokens": 48}
    return tiny_llm(model_path, [], settings), tiny_llm(model_path, DRAFTERS, settings)


def outputs(generations: Sequence[Generation]) -> list[list[list[int]]]:
    return [[choice.token_ids for choice in item.choices] for item in generations]


def accepted(generations: Sequence[Generation]) -> int:
    return sum(
        choice.speculation.num_accepted_tokens for item in generations for choice in item.choices
    )


# ---- 1: noise is a hash of seed, position and token ----


def test_rule_1_the_same_seed_gives_the_same_answer_at_any_time_and_in_any_company() -> None:
    alone = plainly([Ask(PROMPT, SAMPLED)])["q0", 0]
    others = [Ask(tuple(range(start, start + 9)), SAMPLED) for start in (50, 60, 70)]
    for asks in ([Ask(PROMPT, SAMPLED), *others], [Ask(PROMPT, SAMPLED)] * 3):
        assert tokens_of(together(asks))["q0", 0] == alone


def test_rule_1_another_seed_gives_another_answer() -> None:
    answers = {
        tuple(plainly([Ask(PROMPT, replace(SAMPLED, seed=seed))])["q0", 0]) for seed in range(6)
    }
    assert len(answers) == 6


def test_rule_1_choice_0_draws_with_the_seed_itself_and_choice_i_with_a_derived_one() -> None:
    choices = plainly([Ask(PROMPT, SAMPLED, n=3)])
    assert derive(SAMPLED.seed, 0) == SAMPLED.seed
    for index in range(3):
        own = replace(SAMPLED, seed=derive(SAMPLED.seed, index))
        assert plainly([Ask(PROMPT, own)])["q0", 0] == choices["q0", index]


def test_rule_1_the_position_is_the_index_in_the_sequence_and_not_in_the_output() -> None:
    """Cutting the answer anywhere and sending it back as prompt continues it."""
    whole = plainly([Ask(PROMPT, SAMPLED)])["q0", 0]
    for cut in (1, 4, 13):
        rest = replace(SAMPLED, max_tokens=30 - cut)
        assert plainly([Ask((*PROMPT, *whole[:cut]), rest)])["q0", 0] == whole[cut:]


def test_rule_1_noise_is_finite_at_every_position_and_the_same_for_single_tokens() -> None:
    positions = list(range(200))
    noise = gumbel_noise([3] * 200, positions, 5000)
    assert torch.isfinite(noise).all()
    single = gumbel_at(3, 7, [0, 17, 4999])
    assert torch.equal(torch.as_tensor(single), noise[7][[0, 17, 4999]])


def test_rule_1_the_lowest_id_wins_a_tie() -> None:
    harness = EngineHarness(logits_of=lambda tokens: torch.zeros(VOCAB_SIZE))
    assert harness.generate((5,), replace(GREEDY, max_tokens=4)).token_ids[0] == [0] * 4


# ---- 2: one order of processors, filters, noise; one order of reductions ----


@pytest.mark.parametrize("kind", list(drafter_sets(COPYING)))
def test_rule_2_every_parameter_means_the_same_with_drafts(kind: str) -> None:
    asks = [Ask(PROMPT, ALL_PARAMS), Ask(PROMPT[:11], replace(ALL_PARAMS, temperature=0.0))]
    harness = together(asks, drafter_sets(COPYING)[kind](), logits_of=COPYING)
    assert tokens_of(harness) == plainly(asks, COPYING)


def test_rule_2_a_drafter_with_logits_follows_the_same_order_and_is_always_right() -> None:
    """A draft model that equals the target proposes exactly what the target draws."""
    asks = [Ask(PROMPT, ALL_PARAMS), Ask(PROMPT[:9], replace(ALL_PARAMS, seed=4))]
    harness = together(asks, [make_draft_model(COPYING).drafter], logits_of=COPYING)
    assert tokens_of(harness) == plainly(asks, COPYING)
    for result in harness.results.values():
        stats = result.last[0].speculation
        assert stats is not None
        assert stats.num_accepted_tokens == stats.num_draft_tokens > 15


# ---- 3: one pure state, advanced token by token ----


@pytest.mark.parametrize("draft_len", [1, 3, 8])
@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 1.0},
        {"frequency_penalty": 0.7},
        {"min_tokens": 12, "stop_token_ids": tuple(range(100, 110))},
        {"bad_words": ("de", "klm")},
    ],
)
def test_rule_3_what_depends_on_earlier_tokens_sees_the_tokens_of_its_own_block(
    fields: dict[str, object], draft_len: int
) -> None:
    params = replace(SAMPLED, **fields)  # type: ignore[arg-type]  # fields of SamplingParams
    truth = plainly([Ask(PROMPT, params)], COPYING)
    drafter = OracleDrafter(true_outputs_by_prompt({PROMPT: truth["q0", 0]}), wrong_every=5)
    setup = EngineSetup(max_draft_len=draft_len, max_draft_nodes=draft_len)
    harness = together([Ask(PROMPT, params)], [drafter], logits_of=COPYING, setup=setup)
    assert tokens_of(harness) == truth
    assert num_accepted(harness) > 0


@pytest.mark.parametrize("kind", list(drafter_sets(COPYING)))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rule_3_bad_words_see_the_text_of_their_own_branch(kind: str, temperature: float) -> None:
    """Words lie across tokens, and each node of a draft has a text of its own behind it."""
    free = replace(SAMPLED, temperature=temperature, max_tokens=60)
    text = tiny_tokenizer().decode(plainly([Ask(PROMPT, free)], COPYING)["q0", 0])
    pairs = [text[start : start + 2] for start in range(len(text) - 1)]
    params = replace(free, bad_words=tuple(pair for pair in pairs if pair.isascii())[:3])
    harness = together([Ask(PROMPT, params)], drafter_sets(COPYING)[kind](), logits_of=COPYING)
    tokens = plainly([Ask(PROMPT, params)], COPYING)
    assert tokens_of(harness) == tokens
    assert num_accepted(harness) > 0
    kept = tiny_tokenizer().decode(tokens["q0", 0])
    assert [word in text and word not in kept for word in params.bad_words] == [True] * 3


def test_rule_3_what_a_stop_cuts_off_reaches_no_counter_no_cache_and_no_drafter() -> None:
    whole = plainly([Ask(PROMPT, SAMPLED)])["q0", 0]
    drafter = OracleDrafter(true_outputs_by_prompt({PROMPT: whole}))
    params = replace(SAMPLED, stop_token_ids=(whole[4],))
    harness = together([Ask(PROMPT, params)], [drafter])
    end = whole.index(whole[4]) + 1
    assert tokens_of(harness)["q0", 0] == whole[:end]
    assert metric(harness, "generation_tokens_total") == end
    assert metric(harness, "spec_decode_num_accepted_tokens_total") <= end
    assert list(drafter.observations[-1].tokens) == [*PROMPT, *whole[:end]]
    assert drafter.observations[-1].is_finished
    assert harness.kv.usage().num_cached * 4 <= len(PROMPT) + end


# ---- 4: a row does not depend on the rows that are computed with it ----


@pytest.mark.parametrize("max_step_tokens", [7, 64])
def test_rule_4_chunks_batches_and_drafts_change_no_bit(
    model_path: Path, max_step_tokens: int
) -> None:
    settings = {"scheduler.max_step_tokens": max_step_tokens, "memory.prefix_cache": False}
    prompts = [TEXT, TEXT[:5], TEXT[3:30], [7]]
    params = SamplingParams(max_tokens=12, seed=3, logprobs=True, ignore_eos=True)
    with tiny_llm(model_path) as one_by_one, tiny_llm(model_path, DRAFTERS, settings) as batched:
        plain = [one_by_one.generate([prompt], params)[0] for prompt in prompts]
        one_by_one.engine.call("reset_prefix_cache")
        drafted = batched.generate(prompts, params)
    assert outputs(drafted) == outputs(plain)
    for ours, theirs in zip(drafted, plain, strict=True):
        assert ours.choices[0].logprobs == theirs.choices[0].logprobs  # equal to the last bit
    assert accepted(drafted) > 0


def test_rule_4_greedy_and_seeded_requests_share_a_batch_without_a_trace(
    engines: tuple[LLM, LLM],
) -> None:
    plain, drafting = engines
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, max_tokens=24, seed=5, ignore_eos=True)
        expected = [plain.generate([TEXT[i:]], params, n=2)[0] for i in range(4)]
        together = drafting.generate([TEXT[i:] for i in range(4)], params, n=2)
        assert outputs(together) == outputs(expected)
        assert accepted(together) > 0


# ---- 5: attention reduces by position; a tree's node reads its ancestors ----


class ForkedDrafter(RecordingDrafter):
    """The truth at the end of a comb: at each depth a wrong sibling comes first."""

    def __init__(self, truth: Sequence[int]) -> None:
        super().__init__("forked")
        self._truth = truth

    def tree_for(self, context: DraftContext) -> DraftTree:
        rest = self._truth[len(context.tokens) - context.prompt_len :][:4]
        tokens: list[int] = []
        parents: list[int] = []
        parent = ROOT
        for token in rest:
            tokens += [(token + 1) % 300, token]
            parents += [parent, parent]
            parent = len(tokens) - 1
        size = len(tokens)
        return DraftTree(
            tuple(tokens), tuple(parents), (0.5,) * size, (frozenset({"forked"}),) * size
        )


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3_text"])
def test_rule_5_a_node_of_a_tree_has_the_logits_of_the_same_token_decoded_plainly(
    family: str, tmp_path: Path
) -> None:
    """Log-probabilities of all kept tokens are equal bit for bit, behind sliding windows too."""
    path = write_tiny_model(tmp_path / "model", family, sliding_window=12)
    params = SamplingParams(temperature=0.0, max_tokens=24, logprobs=True, ignore_eos=True)
    with tiny_llm(path) as plain, tiny_llm(path, ["ngram"]) as drafting:
        expected = plain.generate([TEXT], params)[0].choices[0]
        forked = ForkedDrafter(expected.token_ids)
        drafting.engine._stages.proposer.drafters = (forked,)
        (generation,) = drafting.generate([TEXT], params)
    assert generation.choices[0].logprobs == expected.logprobs
    assert generation.choices[0].speculation.num_accepted_tokens > 15


# ---- 6: keys and values are read as stored; compaction copies bits ----


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8"])
def test_rule_6_stored_keys_give_the_same_answer_cold_warm_and_after_rejections(
    model_path: Path, kv_dtype: str
) -> None:
    settings = {"memory.kv_dtype": kv_dtype}
    params = SamplingParams(max_tokens=20, seed=8, ignore_eos=True, logprobs=True)
    with tiny_llm(model_path, [], settings | {"memory.prefix_cache": False}) as plain:
        expected = plain.generate([TEXT], params)[0]
    with tiny_llm(model_path, DRAFTERS, settings) as llm:
        cold = llm.generate([TEXT], params)[0]
        warm = llm.generate([TEXT], params)[0]
    assert cold.num_cached_tokens == 0
    assert warm.num_cached_tokens == 40
    for generation in (cold, warm):
        assert generation.token_ids == expected.token_ids
        assert generation.choices[0].logprobs == expected.choices[0].logprobs
        stats = generation.choices[0].speculation
        assert stats.num_accepted_tokens < stats.num_draft_tokens


def test_rule_6_the_precision_of_the_cache_is_part_of_the_fingerprint(model_path: Path) -> None:
    names = set()
    for kv_dtype in ("float32", "bfloat16", "int8"):
        with tiny_llm(model_path, [], {"memory.kv_dtype": kv_dtype}) as llm:
            names.add(llm.engine.info.fingerprint)
    assert len(names) == 3


# ---- 7 and 8: what has no exact form here is refused, not approximated ----


def test_rule_7_eight_bit_activations_are_refused(model_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'model.dtype.*"float32" or "bfloat16"'):
        tiny_llm(model_path, [], {"model.dtype": "int8"})


def test_rule_7_checkpoints_with_quantised_activations_are_refused(
    model_path: Path, tmp_path: Path
) -> None:
    path = _with_config(model_path, tmp_path, quantization_config={"quant_method": "fp8"})
    with pytest.raises(WeightsError, match="quantization_config"):
        tiny_llm(path)


def test_rule_8_recurrent_layers_without_exact_replay_are_refused(
    model_path: Path, tmp_path: Path
) -> None:
    """Those that are served have laws in test_recurrent_rows and test_lossless_families."""
    path = _with_config(
        model_path, tmp_path, model_type="mamba2", architectures=["Mamba2ForCausalLM"]
    )
    with pytest.raises(WeightsError, match=r"'mamba2'.*not supported; supported are"):
        tiny_llm(path)


def _with_config(source: Path, target: Path, **fields: object) -> Path:
    """A copy of the checkpoint with other fields in config.json."""
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | fields))
    return target


# ---- 9: prompt log-probabilities bypass prefix hits ----


def test_rule_9_prompt_logprobs_are_complete_and_equal_cold_and_warm(
    engines: tuple[LLM, LLM],
) -> None:
    params = SamplingParams(
        temperature=0.0, max_tokens=4, prompt_logprobs=True, top_logprobs=3, ignore_eos=True
    )
    entries = []
    for llm in engines:
        llm.engine.call("reset_prefix_cache")
        cold = llm.generate([TEXT], params)[0]
        warm = llm.generate([TEXT], params, n=2)[0]
        assert cold.num_cached_tokens == warm.num_cached_tokens == 0
        assert [entry.token_id for entry in cold.prompt_logprobs or ()] == TEXT
        entries += [cold.prompt_logprobs, warm.prompt_logprobs]
        assert llm.generate([TEXT], replace(params, prompt_logprobs=False))[0].num_cached_tokens > 0
    assert entries[0] is not None
    assert entries[0][0].logprob is None
    assert all(entry == entries[0] for entry in entries)


def test_rule_9_prompt_logprobs_survive_chunks_and_preemption() -> None:
    params = replace(SAMPLED, prompt_logprobs=True, top_logprobs=2)
    prompts = [tuple(range(20 * i, 20 * i + 26)) for i in range(3, 6)]
    expected = [EngineHarness(logits_of=MODEL).generate(prompt, params) for prompt in prompts]
    setup = EngineSetup(num_pages=22, max_step_tokens=10, max_model_len=80)
    harness = together([Ask(prompt, params) for prompt in prompts], setup=setup)
    assert metric(harness, "preemptions_total") > 0
    for number, alone in enumerate(expected):
        prompt = harness.results[f"q{number}"].prompt
        assert prompt is not None
        assert alone.prompt is not None
        assert prompt.logprobs == alone.prompt.logprobs


# ---- 10: the scope of the promise has a name ----


def test_rule_10_threads_change_neither_the_answer_nor_the_fingerprint(model_path: Path) -> None:
    params = SamplingParams(max_tokens=6, seed=2, logprobs=True, ignore_eos=True)
    seen = []
    for num_threads in (1, 2):
        with tiny_llm(model_path, ["ngram"], {"engine.num_threads": num_threads}) as llm:
            generation = llm.generate([TEXT], params)[0]
            seen.append((llm.engine.info.fingerprint, generation.choices[0].logprobs))
    assert seen[0] == seen[1]


def test_rule_10_the_fingerprint_names_what_may_change_a_bit(model_path: Path) -> None:
    with tiny_llm(model_path) as float32, tiny_llm(model_path, DRAFTERS) as drafting:
        numerics = float32.engine.info.details["numerics"]
        assert {"torch", "isa", "dtype", "kv_dtype"} <= numerics.keys()
        assert float32.engine.info.fingerprint == drafting.engine.info.fingerprint
    with tiny_llm(model_path, [], {"model.dtype": "bfloat16"}) as bfloat16:
        assert bfloat16.engine.info.fingerprint != float32.engine.info.fingerprint


def test_rule_10_lossy_verification_is_not_offered(model_path: Path) -> None:
    """Rejection keeps the target's law: it is offered, and test_rejection_laws proves it."""
    with pytest.raises(ConfigError, match=r"speculation\.verification"):
        tiny_llm(model_path, [], {"speculation.verification": "typical"})


# ---- all rules together ----


@pytest.mark.parametrize("kind", list(drafter_sets(COPYING)))
@pytest.mark.parametrize("num_pages", [22, 256])
def test_every_drafter_greedy_and_seeded_in_a_mixed_batch_changes_nothing(
    kind: str, num_pages: int
) -> None:
    prefix = tuple(range(100, 124))
    asks = [
        Ask(prefix, GREEDY),
        Ask(prefix, replace(SAMPLED, temperature=0.7), n=2),
        Ask((*prefix[:16], 130), replace(SAMPLED, repetition_penalty=1.2)),
        Ask((5, 6, 7), replace(GREEDY, stop_token_ids=(101, 102, 103))),
    ]
    setup = EngineSetup(num_pages=num_pages, max_step_tokens=24, max_model_len=80, high_at=1.0)
    harness = together(asks, drafter_sets(COPYING)[kind](), logits_of=COPYING, setup=setup)
    assert tokens_of(harness) == plainly(asks, COPYING)
    assert num_accepted(harness) > 0
    assert (metric(harness, "preemptions_total") > 0) is (num_pages < 256)


def test_real_weights_give_the_same_text_with_every_drafter(engines: tuple[LLM, LLM]) -> None:
    plain, drafting = engines
    rng = np.random.default_rng(0)
    phrase = rng.integers(3, 300, 12).tolist()
    prompts = [phrase * 3, [*phrase, 5, *phrase], rng.integers(3, 300, 30).tolist()]
    for params in (
        SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True),
        SamplingParams(temperature=1.0, max_tokens=30, seed=1, ignore_eos=True),
        replace(ALL_PARAMS, ignore_eos=True),
    ):
        generated = drafting.generate(prompts, params)
        assert outputs(generated) == outputs(plain.generate(prompts, params))
        assert [item.text for item in generated] == [
            item.text for item in plain.generate(prompts, params)
        ]
        assert accepted(generated) > 0
