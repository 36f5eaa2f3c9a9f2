"""`verification: rejection` with real weights: the law of the answer, and what stays token for
token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import pytest

from slipstream.engine.llm import LLM
from slipstream.engine.messages import SpeculationOptions
from slipstream.sampling.params import SamplingParams
from tests.integration.test_draft_nets import (
    GREEDY,
    PROMPTS,
    SAMPLED,
    drafted_and_accepted,
    load,
    token_ids,
    write_pair,
)
from tests.support.statistics import Law, excess

ALLOWED = (10, 46, 91)  # a reduced draft vocabulary has them too
PROMPT = [10, 46, 91, 7, 10, 46, 91, 7, 10, 46]
NUM_TOKENS = 4
SHAPED = SamplingParams(
    temperature=1.3,
    top_p=0.95,
    presence_penalty=0.3,
    repetition_penalty=1.1,
    allowed_token_ids=ALLOWED,
    max_tokens=NUM_TOKENS,
    ignore_eos=True,
)
OFF = SpeculationOptions(enabled=False)


def rejecting(target: Path, drafters: Sequence[Any], **settings: Any) -> LLM:  # Any: settings
    return load(target, drafters, **{"speculation.verification": "rejection"}, **settings)


def law_by_plain_decoding(llm: LLM, num_samples: int = 120) -> Law:
    """What the engine says about itself while it decodes plainly: every conditional law."""
    params = replace(SHAPED, logprobs=True, top_logprobs=len(ALLOWED), logprobs_mode="processed")
    laws: dict[tuple[int, ...], dict[int, float]] = {}
    batch = [replace(params, seed=seed) for seed in range(num_samples)]
    for _, generation in llm.completed([PROMPT] * num_samples, batch, speculation=OFF):
        choice = generation.choices[0]
        for index, item in enumerate(choice.logprobs):
            laws[tuple(choice.token_ids[:index])] = {
                top.token_id: exp(top.logprob) for top in item.top
            }
    whole: Law = {(): 1.0}
    for _ in range(NUM_TOKENS):
        longer: Law = defaultdict(float)
        for tokens, probability in whole.items():
            for token, share in laws.get(tokens, {}).items():
                longer[(*tokens, token)] = probability * share
        whole = dict(longer)
    return whole


def test_its_answers_have_a_fingerprint_of_their_own(tmp_path: Path) -> None:
    target, drafter = write_pair(tmp_path, "dspark")
    rule = {"kind": "rejection", "rule": "chain"}
    engines = (
        load(target, [drafter]),
        load(target, []),
        rejecting(target, []),
        rejecting(target, [drafter]),
        load(target, [drafter], **{"speculation.verification": rule}),
    )
    exact, plain, idle, by_block, by_chain = (llm.engine.info.fingerprint for llm in engines)
    assert exact == plain == idle
    assert len({exact, by_block, by_chain}) == 3


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "dspark", "ngram"])
def test_the_first_tokens_have_the_targets_law(tmp_path: Path, kind: str) -> None:
    target, drafter = write_pair(tmp_path, "dspark" if kind == "ngram" else kind)
    copier = {"kind": "ngram", "min_n": 1}
    llm = rejecting(
        target,
        [copier] if kind == "ngram" else [drafter],
        **{"scheduler.max_step_tokens": 512, "speculation.max_draft_nodes": 3},
    )
    law = law_by_plain_decoding(llm)
    assert sum(law.values()) > 0.98
    num_samples = 600
    batch = [replace(SHAPED, seed=1000 + seed) for seed in range(num_samples)]
    done = dict(llm.completed([PROMPT] * num_samples, batch))
    drawn = [done[index].choices[0].token_ids for index in range(num_samples)]
    drafted, accepted = drafted_and_accepted([done[index] for index in range(num_samples)])
    assert 0.1 * drafted < accepted < 0.95 * drafted
    known = [tokens for tokens in drawn if tuple(tokens) in law]
    assert len(known) > 0.95 * num_samples
    assert excess(known, {tokens: share / sum(law.values()) for tokens, share in law.items()}) < 4.0


@pytest.mark.parametrize("family", ["eagle3", "dflash2", "dspark"])
def test_greedy_answers_stay_token_for_token_and_trees_stay_trees(
    tmp_path: Path, family: str
) -> None:
    target, drafter = write_pair(tmp_path, family)
    plain, drafting = load(target, []), rejecting(target, [drafter | {"num_children": 3}])
    generations = drafting.generate(PROMPTS, GREEDY)
    assert token_ids(generations) == token_ids(plain.generate(PROMPTS, GREEDY))
    assert drafted_and_accepted(generations)[0] > 20


@pytest.mark.parametrize("rule", ["chain", "block"])
def test_a_repeat_gives_the_same_answer_and_no_drafts_give_the_plain_one(
    tmp_path: Path, rule: str
) -> None:
    target, drafter = write_pair(tmp_path, "dspark")
    verification = {"speculation.verification": {"kind": "rejection", "rule": rule}}
    llm, plain = load(target, [drafter], **verification), load(target, [])
    once, again = ([llm.generate([prompt], SAMPLED)[0] for prompt in PROMPTS[:3]] for _ in range(2))
    assert token_ids(once) == token_ids(again)
    assert drafted_and_accepted(once)[1] > 0
    undrafted = llm.generate(PROMPTS[:3], SAMPLED, speculation=OFF)
    assert token_ids(undrafted) == token_ids(plain.generate(PROMPTS[:3], SAMPLED))
    assert token_ids(once) != token_ids(undrafted)
    llm.engine.check_integrity()


def test_requests_with_a_temperature_are_drafted_as_chains(tmp_path: Path) -> None:
    target, drafter = write_pair(tmp_path, "eagle3")
    suffix = {"kind": "suffix", "tree": True}
    llm = rejecting(target, [suffix, drafter | {"num_children": 3}])
    shapes = []
    for params in (GREEDY, SAMPLED):
        is_chain = True
        for _ in llm.stream(PROMPT * 3, params):
            report = llm.engine.last_report
            assert report is not None
            is_chain &= all(commit.tree.is_chain for commit in report.commits)
        shapes.append(is_chain)
    assert shapes == [False, True]
