"""A token whose numbers are no numbers fails the texts that hold it, and no others.

No sound model has one. Where weights are broken, a request still depends on its own text alone: not
on a draft that was rejected, on a neighbour, or on whose pages it finds in the prefix cache.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream.engine.messages import Failed, Submit, Tokens
from slipstream.sampling.params import SamplingParams
from slipstream.speculation.drafter import Drafter
from tests.laws.test_lossless_families import DraftingLLM
from tests.support.drafters import ScriptedDrafter
from tests.support.engine import VOCAB_SIZE as ENGINE_VOCAB_SIZE
from tests.support.engine import EngineHarness
from tests.support.scripted_target import LogitsOf, hashed_logits
from tests.support.tiny import write_tiny_checkpoint
from tests.support.tiny_families import VOCAB_SIZE, write_tiny_family

pytestmark = pytest.mark.usefixtures("one_thread")

BROKEN = 300
BROKEN_LOGIT = 250
SHARED = list(range(60, 90))
PROMPT = [*SHARED, 91]
PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logit_bias={BROKEN: -100.0})
TARGETS = ["llama", "gemma3_text", "deepseek_v3", "qwen3_next"]
SETTINGS: dict[str, Any] = {"memory.kv_bytes": "2MiB", "speculation.drafters": []}


@pytest.fixture(params=[f"{name} {dtype}" for name in TARGETS for dtype in ("float32", "bfloat16")])
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A checkpoint and the settings to run it with."""
    name, dtype = str(request.param).split()
    if name in ("llama", "gemma3_text"):
        sizes: dict[str, Any] = {"head_dim": 32, "tie_word_embeddings": False}
        write_tiny_checkpoint(tmp_path, name, vocab_size=VOCAB_SIZE, **sizes)
    else:
        write_tiny_family(tmp_path, name)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.embed_tokens.weight"][BROKEN] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    return tmp_path, SETTINGS | {"model.dtype": dtype}


def answers(llm: DraftingLLM, *prompts: list[int]) -> list[list[int] | str]:
    """Of each prompt, all in one batch, its tokens or the error."""
    given: dict[str, list[int] | str] = {}
    for number, prompt in enumerate(prompts):
        given[str(number)] = []
        llm.engine.submit(Submit(str(number), tuple(prompt), PARAMS))
    while llm.engine.has_work:
        for event in llm.engine.step():
            if isinstance(event, Failed):
                given[event.request_id] = event.error
            elif isinstance(event, Tokens):
                tokens = given[event.request_id]
                assert isinstance(tokens, list)
                tokens.extend(event.token_ids)
    return list(given.values())


def test_a_rejected_draft_of_it_changes_no_answer(broken: tuple[Path, dict[str, Any]]) -> None:
    path, settings = broken
    drafter: Drafter = ScriptedDrafter(dict.fromkeys(range(VOCAB_SIZE), (BROKEN, 5)))
    with DraftingLLM(path, settings, []) as plain, DraftingLLM(path, settings, [drafter]) as llm:
        assert answers(llm, PROMPT) == answers(plain, PROMPT)
        assert len(answers(plain, PROMPT)[0]) == PARAMS.max_tokens


def test_a_text_that_holds_it_fails_and_harms_no_other(broken: tuple[Path, dict[str, Any]]) -> None:
    path, settings = broken
    with DraftingLLM(path, settings, []) as plain, DraftingLLM(path, settings, []) as llm:
        expected = answers(plain, PROMPT)
        failed, *others = answers(llm, [*SHARED, BROKEN, *SHARED[:5]], PROMPT)
        assert failed == "EngineFailureError"
        assert others == expected
        assert answers(llm, PROMPT) == expected
        llm.engine.call("reset_prefix_cache")
        assert answers(llm, PROMPT) == expected


def test_a_prompt_without_log_probabilities_fails_alone() -> None:
    params, logits_of = replace(PARAMS, logit_bias={}), broken_behind(PROMPT[7])
    harness = EngineHarness(logits_of=logits_of)
    harness.submit("bad", PROMPT, replace(params, prompt_logprobs=True), n=2)
    harness.submit("good", PROMPT, params)
    harness.run()
    good, bad = harness.results["good"], harness.results["bad"]
    assert good.token_ids == EngineHarness(logits_of=logits_of).generate(PROMPT, params).token_ids
    assert len(good.token_ids[0]) == params.max_tokens
    assert bad.failed is not None
    assert (bad.failed.error, bad.token_ids) == ("EngineFailureError", {})


@pytest.mark.parametrize("num_right", [0, 2, 5])
def test_an_output_without_log_probabilities_fails_where_it_has_none(num_right: int) -> None:
    """What is infinite is not drawn, so that the text goes on; its log-probabilities cannot."""
    params = replace(PARAMS, allowed_token_ids=tuple(range(100, 140)), logit_bias={})
    plain = EngineHarness().generate(PROMPT, params).token_ids[0]
    logits_of, asked = broken_behind(plain[3]), replace(params, logprobs=True)
    drafter = ScriptedDrafter({PROMPT[-1]: plain[:num_right], plain[0]: plain[1 : 1 + num_right]})
    harness = EngineHarness([drafter], logits_of=logits_of)
    harness.submit("good", PROMPT, params)
    bad = harness.generate(PROMPT, asked)
    assert harness.results["good"].token_ids == {0: plain}
    assert bad.failed is not None
    assert (bad.failed.error, bad.token_ids[0]) == ("EngineFailureError", plain[:4])
    assert len(bad.logprobs[0]) == 4


def broken_behind(token: int) -> LogitsOf:
    """A model whose logit of `BROKEN_LOGIT` is infinite where `token` comes last."""
    model = hashed_logits(ENGINE_VOCAB_SIZE)

    def logits(tokens: tuple[int, ...]) -> torch.Tensor:
        row = model(tokens).clone()
        row[BROKEN_LOGIT] = torch.inf if tokens[-1] == token else row[BROKEN_LOGIT]
        return row

    return logits
