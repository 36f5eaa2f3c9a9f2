"""Known bugs of speculative servers: answers that drafts changed.

Each test names the public report it is taken from; docs/concepts/known-bugs.md has all of them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from slipstream.cli.main import COMMANDS
from slipstream.engine.llm import LLM
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.sampler import Sampler
from slipstream.sampling.state import SamplingState
from slipstream.speculation.tree import DraftTree
from slipstream.speculation.verify import Candidate, verify
from tests.support.drafters import OracleDrafter, true_outputs_by_prompt
from tests.support.engine import VOCAB_SIZE
from tests.support.paths import REPOSITORY
from tests.support.runs import (
    COPYING,
    GREEDY,
    MODEL,
    PROMPT,
    Ask,
    drafter_sets,
    num_accepted,
    plainly,
    together,
    tokens_of,
)
from tests.support.tiny_llm import tiny_llm, write_tiny_model

DRAFTERS = [
    {"kind": "ngram", "min_n": 1},
    {"kind": "suffix", "tree": True},
    {"kind": "draft_model", "source": "target", "dtype": "bfloat16"},
]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LLM, LLM]:
    """The same weights without and with drafters."""
    path = write_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=2048)
    settings = {"model.dtype": request.param}
    return tiny_llm(path, [], settings), tiny_llm(path, DRAFTERS, settings)


def random_prompts(count: int) -> list[list[int]]:
    """Prompts of 1 to 40 tokens that repeat themselves in part."""
    rng = np.random.default_rng(count)
    prompts = []
    for _ in range(count):
        phrase = rng.integers(3, 300, int(rng.integers(1, 14))).tolist()
        prompts.append((phrase * 3)[: int(rng.integers(1, 41))])
    return prompts


def test_two_hundred_greedy_answers_are_the_same_with_drafts(engines: tuple[LLM, LLM]) -> None:
    """ml-explore/mlx-lm#1423, huggingface/transformers#39421: greedy output with a draft differed
    from plain greedy output, in bfloat16 on near-ties. Here it must not differ in either type."""
    plain, drafting = engines
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    prompts = random_prompts(200)
    expected = [item.token_ids for item in plain.generate(prompts, params)]
    generated = drafting.generate(prompts, params)
    assert [item.token_ids for item in generated] == expected
    assert sum(item.choices[0].speculation.num_accepted_tokens for item in generated) > 50


def test_the_guarantee_is_written_down_and_a_command_proves_it() -> None:
    """vllm-project/vllm#7627, #5313: users asked for a written guarantee that they can check."""
    text = (REPOSITORY / "docs" / "concepts" / "verification.md").read_text(encoding="utf-8")
    assert "any tree from any source is lossless" in text
    guide = (REPOSITORY / "docs" / "guides" / "proving.md").read_text(encoding="utf-8")
    assert "slipstream audit lossless" in guide
    assert "--url" in guide
    assert "audit" in COMMANDS


def test_no_length_of_a_prompt_is_special(engines: tuple[LLM, LLM]) -> None:
    """vllm#10559: gibberish at some lengths, where padded rows of a captured graph were stale.
    There are no graphs here, but rows are padded to admitted counts."""
    plain, drafting = engines
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    tokens = np.random.default_rng(1).integers(3, 300, 90).tolist()
    prompts = [tokens[:length] for length in range(1, 91)]
    batched = drafting.generate(prompts, params)
    for prompt, generation in zip(prompts, batched, strict=True):
        assert generation.token_ids == plain.generate([prompt], params)[0].token_ids


def test_thirty_turns_of_a_conversation_stay_the_same(engines: tuple[LLM, LLM]) -> None:
    """vllm#47087: answers degenerated into loops deep in a conversation, only with drafts."""
    plain, drafting = engines
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    messages: list[dict[str, str]] = []
    num_cached = 0
    for turn in range(30):
        messages.append({"role": "user", "content": f"turn {turn}"})
        answer = drafting.chat(messages, params)
        assert answer.token_ids == plain.chat(messages, params).token_ids
        messages.append({"role": "assistant", "content": f"answer {turn}"})
        num_cached = answer.num_cached_tokens
    assert num_cached > 600


@pytest.mark.parametrize("kind", list(drafter_sets(COPYING)))
def test_a_slight_repetition_penalty_changes_no_greedy_answer(kind: str) -> None:
    """vllm#22987: a tenth of the answers differed with repetition_penalty 1.05, a fiftieth
    without."""
    params = replace(GREEDY, repetition_penalty=1.05)
    asks = [Ask(PROMPT[:length], params) for length in range(4, 20, 3)]
    harness = together(asks, drafter_sets(COPYING)[kind](), logits_of=COPYING)
    assert tokens_of(harness) == plainly(asks, COPYING)


@pytest.mark.parametrize("kind", ["suffix tree", "draft_model tree", "all merged"])
def test_the_kept_path_of_a_tree_is_the_best_token_at_each_node(kind: str) -> None:
    """SafeAILab/EAGLE#301: tree mode could keep a branch that was not the target's best."""
    harness = together([Ask(PROMPT)], drafter_sets(MODEL)[kind]())
    tokens = list(PROMPT)
    for token in tokens_of(harness)["q0", 0]:
        assert token == int(MODEL(tuple(tokens)).argmax())
        tokens.append(token)


def test_the_same_prompt_sixteen_times_in_one_batch_gives_one_answer(
    engines: tuple[LLM, LLM],
) -> None:
    """snowflakedb/ArcticInference#143: copies of a prompt in one batch got different answers, more
    of them with suffix drafts."""
    plain, drafting = engines
    (prompt,) = random_prompts(1)
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, seed=3, max_tokens=24, ignore_eos=True)
        answers = [item.token_ids for item in drafting.generate([prompt] * 16, params)]
        assert answers == [plain.generate([prompt], params)[0].token_ids] * 16


@pytest.mark.parametrize("draft", ["best", "both"])
def test_a_greedy_draft_leaves_the_distribution_of_sampled_tokens_alone(draft: str) -> None:
    """jaymody/speculative-sampling#3: proposing the best token while accepting by probability
    ratios bent the distribution. 20000 draws over 32 tokens, chi-square within five sigmas."""
    vocab_size, num_draws = 32, 20_000
    logits = torch.randn(2, vocab_size, generator=torch.Generator().manual_seed(1)) * 1.5
    best, worst = int(logits[0].argmax()), int(logits[0].argmin())
    tokens = {"best": (best,), "both": (best, worst)}[draft]
    size = len(tokens)
    tree = DraftTree(tokens, (-1,) * size, (0.5,) * size, (frozenset("t"),) * size)
    rows = torch.cat([logits[:1], logits[1:].expand(size, -1)]).repeat(num_draws, 1)
    params, state = SamplingParams(), SamplingState()
    verdicts = verify(
        Sampler(vocab_size, ()),
        rows,
        [
            Candidate(tree, number * (1 + size), 3, params, state, seed=number)
            for number in range(num_draws)
        ],
    )
    first = np.bincount([verdict.tokens[0] for verdict in verdicts], minlength=vocab_size)
    assert _sigmas(first, logits[0]) < 5
    behind_best = [verdict.tokens[1] for verdict in verdicts if verdict.tokens[0] == best]
    assert len(behind_best) > 1000
    assert _sigmas(np.bincount(behind_best, minlength=vocab_size), logits[1]) < 5


def _sigmas(counts: np.ndarray[tuple[int], np.dtype[np.int64]], logits: torch.Tensor) -> float:
    """How many standard deviations the chi-square statistic lies above its mean."""
    expected = torch.softmax(logits.double(), 0).numpy() * counts.sum()
    degrees = len(counts) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - degrees) / math.sqrt(2 * degrees)


def test_the_chance_of_an_early_end_is_the_same_with_drafts() -> None:
    """vllm#41493: it was proposed to forbid EOS at draft positions. Here every choice ends where
    it ends without drafts, though all drafts go on behind every EOS."""
    eos = 2

    def logits_of(tokens: tuple[int, ...]) -> torch.Tensor:
        logits = MODEL(tokens).clone()
        logits[eos] = 5.0
        return logits

    params = SamplingParams(temperature=1.0, max_tokens=24, seed=9)
    ask = Ask(PROMPT, params, n=48)
    plain = plainly([ask], logits_of)
    lengths = [len(tokens) for tokens in plain.values()]
    assert 10 < sum(length < 24 for length in lengths) < 48
    ignoring = plainly([replace(ask, params=replace(params, ignore_eos=True))], logits_of)
    beyond = {ids[0]: list(ids) for ids in map(tuple, ignoring.values())}
    drafter = OracleDrafter(lambda context: _continuation(context.tokens[len(PROMPT) :], beyond))
    harness = together([ask], [drafter], logits_of=logits_of)
    assert tokens_of(harness) == plain
    assert num_accepted(harness) > 48


def _continuation(output: object, beyond: dict[int, list[int]]) -> list[int]:
    said = list(output)  # type: ignore[call-overload]  # a slice of the context's tokens
    for tokens in beyond.values():
        if tokens[: len(said)] == said:
            return tokens[len(said) :]
    return []


def test_an_oracle_is_believed_only_as_far_as_the_target_agrees() -> None:
    """Source: our own decision 0001. A draft that is right but for one token changes nothing."""
    truth = plainly([Ask(PROMPT)])["q0", 0]
    for wrong_every in (1, 2, 3, 5):
        drafter = OracleDrafter(
            true_outputs_by_prompt({PROMPT: truth}), wrong_every=wrong_every, vocab_size=VOCAB_SIZE
        )
        assert tokens_of(together([Ask(PROMPT)], [drafter]))["q0", 0] == truth
