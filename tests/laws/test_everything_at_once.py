"""Random requests with every parameter, real drafters, any load, any memory: the plain answer.

What is compared is all that a client can see: tokens, text, log-probabilities of output and prompt,
reasons, errors.
"""

from __future__ import annotations

from random import Random

import pytest
import torch

from slipstream.kernels.library import open_kernels
from slipstream.sampling.params import SamplingParams
from slipstream.speculation.cost import StepCost
from slipstream.speculation.cost_control import CostController
from tests.support.drafters import HostileDrafter
from tests.support.engine import VOCAB_SIZE, EngineHarness, EngineSetup, Result
from tests.support.runs import COPYING, MODEL, PROMPT, Ask, drafter_sets, num_accepted
from tests.support.scripted_target import LogitsOf
from tests.support.simulated import REGIMES

EOS = 2
NUM_CASES = 40


def ending(tokens: tuple[int, ...]) -> torch.Tensor:
    """The copying model with EOS among its favourites."""
    logits = COPYING(tokens).clone()
    logits[EOS] = logits.max() - 0.5
    return logits


MODELS: list[LogitsOf] = [MODEL, COPYING, ending]


def letter(random: Random) -> str:
    return chr(97 + random.randrange(26))


def written(*tokens: int) -> str:
    """The text of tokens that are one ASCII letter each; of others a letter instead."""
    return bytes(min(token - 3, 126) for token in tokens).decode()


def draw_params(random: Random) -> SamplingParams:
    choose = random.choice
    most = random.randint(1, 30)
    some = [random.randint(100, 139) for _ in range(4)]
    return SamplingParams(
        temperature=choose([0.0, 0.3, 1.0, 1.7]),
        top_p=choose([1.0, 0.9, 0.5]),
        top_k=choose([0, 0, 3, 20]),
        min_p=choose([0.0, 0.0, 0.05, 0.3]),
        repetition_penalty=choose([1.0, 1.0, 1.2, 0.8]),
        presence_penalty=choose([0.0, 0.7]),
        frequency_penalty=choose([0.0, 0.4, -0.3]),
        logit_bias=choose([{}, {some[0]: 5.0, some[1]: -100.0}]),
        bad_words=choose([(), (written(some[0]), written(some[1], some[2])), ("aa", "ab"), ("b",)]),
        allowed_token_ids=choose([None, None, None, (*range(100, 120), EOS), (100, 101)]),
        max_tokens=most,
        min_tokens=choose([0, 0, min(5, most)]),
        ignore_eos=random.random() < 0.3,
        stop=choose([(), (), (letter(random),), (letter(random) + letter(random),)]),
        include_stop=random.random() < 0.3,
        stop_token_ids=choose([(), (), tuple(some[:2])]),
        seed=random.randint(0, 5),
        logprobs=random.random() < 0.4,
        top_logprobs=choose([0, 3]),
        prompt_logprobs=random.random() < 0.15,
        logprobs_mode=choose(["raw", "processed"]),
    )


def draw_ask(random: Random) -> Ask:
    prompt = PROMPT[: random.randint(1, 20)]
    if random.random() < 0.5:
        prompt = tuple(random.choices(range(100, 140), k=random.randint(1, 40)))
    return Ask(
        prompt, draw_params(random), random.choice([1, 1, 1, 2, 3]), random.choice(["", "a"])
    )


def draw_engine(random: Random, logits_of: LogitsOf) -> EngineHarness:
    drafters = drafter_sets(logits_of)[random.choice(list(drafter_sets(logits_of)))]()
    if random.random() < 0.3:
        drafters.append(HostileDrafter(VOCAB_SIZE))
    controller = None
    if random.random() < 0.5:
        cost = random.choice(list(REGIMES.values()))
        profile = StepCost({rows: cost(rows) for rows in (1, 2, 4, 8, 16, 32, 64, 128)})
        interval = random.choice([1, 4, 32])
        controller = CostController(profile, decay=0.9, probe_interval=interval, min_gain=1.05)
    setup = EngineSetup(
        num_pages=random.choice([24, 30, 40, 256]),
        max_step_tokens=random.choice([3, 7, 17, 64, 256]),
        max_model_len=90,
        high_at=random.choice([0.9, 1.0]),
        max_draft_len=random.choice([1, 3, 8, 16]),
        max_draft_nodes=random.choice([1, 4, 16, 40]),
        max_num_requests=random.choice([2, 16]),
        kernels=open_kernels() if random.random() < 0.7 else None,
    )
    return EngineHarness(drafters, logits_of=logits_of, setup=setup, controller=controller)


def seen(result: Result) -> list[object]:
    """All that a client sees, apart from times and counters."""
    return [
        result.token_ids,
        result.text,
        result.logprobs,
        {i: (last.finish_reason, last.stop_reason) for i, last in result.last.items()},
        result.prompt and result.prompt.logprobs,
        result.failed and (result.failed.error, result.failed.message),
    ]


@pytest.mark.parametrize("case", range(NUM_CASES))
def test_whatever_is_asked_the_client_sees_the_plain_answer(case: int) -> None:
    random = Random(case)
    logits_of = random.choice(MODELS)
    asks = [draw_ask(random) for _ in range(random.randint(1, 6))]
    harness = draw_engine(random, logits_of)
    num_steps_between = random.randint(0, 5)
    cancelled = "q0" if random.random() < 0.2 else ""
    for number, ask in enumerate(asks):
        harness.submit(
            f"q{number}",
            ask.prompt,
            ask.params,
            n=ask.n,
            cache_salt=ask.salt,
            priority=random.choice([0, 0, 1, -1]),
        )
        for _ in range(num_steps_between):
            harness.step()
    harness.run(on_step=lambda step: harness.engine.cancel(cancelled) if step == 3 else None)
    for number, ask in enumerate(asks):
        setup = EngineSetup(prefix_cache=False, max_model_len=90)
        plain = EngineHarness(logits_of=logits_of, setup=setup)
        expected = plain.generate(ask.prompt, ask.params, n=ask.n)
        # A choice that fails cuts the others off, wherever they happen to be.
        is_comparable = expected.failed is None or ask.n == 1
        if f"q{number}" != cancelled and is_comparable:
            assert seen(harness.results[f"q{number}"]) == seen(expected)


def test_the_cases_are_worth_their_time() -> None:
    """Over the cases, drafts are kept, cut off and rejected."""
    accepted = 0
    for case in range(0, NUM_CASES, 5):
        random = Random(case)
        harness = draw_engine(random, COPYING)
        harness.generate(PROMPT, SamplingParams(seed=case, max_tokens=40))
        accepted += num_accepted(harness)
    assert accepted > 50
