"""Known bugs of speculative servers: tokens that mean something else, and characters cut in two.

Each test names the public report it is taken from; docs/concepts/known-bugs.md has all of them.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from slipstream.errors import VocabularyMismatchError
from slipstream.sampling.params import SamplingParams
from slipstream.tokenization.detokenizer import IncrementalDetokenizer
from tests.support.drafters import OracleDrafter, true_outputs_by_prompt
from tests.support.engine import EngineHarness, EngineSetup, tiny_tokenizer
from tests.support.runs import PROMPT, saying
from tests.support.tiny_llm import tiny_llm, write_tiny_model

TEXTS = [
    "naïve café",
    "日本語のテキスト",
    "👩‍👩‍👧‍👦 family 🇩🇪 flag 👍🏽",
    "mixed ascii, ελληνικά, 한국어 and 🦀🦀🦀",
]


@pytest.mark.parametrize(("target_padding", "draft_padding"), [(20, 0), (0, 20), (20, 8), (0, 0)])
def test_padding_of_the_vocabulary_is_neither_refused_nor_proposed(
    tmp_path: Path, target_padding: int, draft_padding: int
) -> None:
    """vllm#7252, #10913: models of one tokenizer were refused because their heads are padded to
    different sizes. Padded ids are never drawn, proposed or kept."""
    named = 300
    target = write_tiny_model(
        tmp_path / "target", vocab_size=named + target_padding, num_unnamed=target_padding
    )
    draft = write_tiny_model(
        tmp_path / "draft", seed=2, vocab_size=named + draft_padding, num_unnamed=draft_padding
    )
    drafter = {"kind": "draft_model", "source": str(draft), "num_children": 3}
    params = SamplingParams(temperature=3.0, max_tokens=60, ignore_eos=True)
    with tiny_llm(target) as plain, tiny_llm(target, [drafter]) as drafting:
        expected = plain.generate([[5, 6, 7]], params, n=4)[0]
        drafted = drafting.generate([[5, 6, 7]], params, n=4)[0]
        for ours, theirs in zip(drafted.choices, expected.choices, strict=True):
            assert ours.token_ids == theirs.token_ids
            assert max(ours.token_ids) < named
            assert ours.speculation.num_draft_tokens > 0
        assert 'slipstream_drafter_active{drafter="draft_model"} 1' in str(
            drafting.engine.call("metrics")
        )


def test_a_draft_model_with_another_vocabulary_is_refused_by_its_first_other_token(
    tmp_path: Path,
) -> None:
    """llama.cpp#3812, koboldcpp#2325, EAGLE#258: a draft model with another tokenizer gave garbage
    drafts, or was refused long after the start."""
    target, draft = write_tiny_model(tmp_path / "target"), write_tiny_model(tmp_path / "draft")
    file = draft / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(VocabularyMismatchError, match="token 100 is 'a' for the target and 'b'"):
        tiny_llm(target, [{"kind": "draft_model", "source": str(draft)}])


def byte_tokens(text: str) -> list[int]:
    """One token per byte: the worst that a tokenizer can do."""
    return [3 + byte for byte in text.encode()]


@pytest.mark.parametrize("draft_len", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize("text", TEXTS)
def test_no_character_is_cut_in_two_however_many_tokens_a_step_gives(
    text: str, draft_len: int
) -> None:
    """Blaizzy/mlx-vlm#1778, waybarrios/vllm-mlx#109: U+FFFD appeared where a step ended within a
    character."""
    output = byte_tokens(text)
    drafter = OracleDrafter(true_outputs_by_prompt({PROMPT: output}), wrong_every=7)
    setup = EngineSetup(max_draft_len=max(draft_len, 1), max_draft_nodes=max(draft_len, 1))
    harness = EngineHarness(
        [drafter] if draft_len else [], logits_of=saying(len(PROMPT), output), setup=setup
    )
    result = harness.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=200))
    assert "".join(event.text for event in result.events) == text
    assert all("\ufffd" not in event.text for event in result.events)


@pytest.mark.parametrize("draft_len", [1, 4, 8])
def test_a_stop_string_of_many_bytes_is_found_within_a_block(draft_len: int) -> None:
    """Blaizzy/mlx-vlm#1778: the same with a stop string that is a character of four bytes."""
    output = byte_tokens("before 🛑 after")
    drafter = OracleDrafter(true_outputs_by_prompt({PROMPT: output}))
    setup = EngineSetup(max_draft_len=draft_len, max_draft_nodes=draft_len)
    harness = EngineHarness([drafter], logits_of=saying(len(PROMPT), output), setup=setup)
    params = SamplingParams(temperature=0.0, max_tokens=200, stop=("🛑",))
    result = harness.generate(PROMPT, params)
    assert result.text[0] == "before "
    assert len(result.token_ids[0]) == len(b"before ") + 4


def test_decoding_a_text_that_never_becomes_valid_takes_linear_time() -> None:
    """sglang#34740: the detokenizer decoded everything again for each token, for as long as the
    text ended in a replacement character."""
    tokenizer = tiny_tokenizer()
    for token in (3 + 0xE2, 3 + 0xF0, 3 + 0x80):
        seconds = []
        for count in (10_000, 40_000):
            detokenizer = IncrementalDetokenizer(tokenizer)
            started_s = time.process_time()
            text = "".join(detokenizer.push(token) for _ in range(count)) + detokenizer.flush()
            seconds.append(time.process_time() - started_s)
            assert set(text) == {"\ufffd"}
        assert seconds[1] < 8 * seconds[0] + 0.1
