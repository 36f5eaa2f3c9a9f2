"""Drafts by multi-token-prediction heads change nothing, whatever becomes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.audit.loaded_target import LoadedTarget
from slipstream.audit.mtp_replay import MtpReplay
from slipstream.models.mtp.heads import MtpHeads
from slipstream.models.mtp.load import load_heads
from slipstream.sampling.params import SamplingParams
from slipstream.weights.open import open_checkpoint
from tests.laws.test_lossless_families import (
    MAX_DRAFT_LEN,
    TIGHT,
    DraftingLLM,
    KnowingDrafter,
    cases,
    check_nothing_is_left,
    plain_answers,
    preemptions,
    run_all,
)
from tests.support.mtp import write_head_folder
from tests.support.native import native_kernels
from tests.support.tiny import write_tiny_checkpoint
from tests.support.tiny_families import CONFIGS, VOCAB_SIZE, write_tiny_family
from tests.support.tiny_llm import tiny_llm

pytestmark = pytest.mark.usefixtures("one_thread")

# Random heads are never sure, and their drafts are to be made all the same.
MTP: dict[str, Any] = {"kind": "mtp", "min_score": 0.0, "max_draft_len": 3}
HEADLESS = ("qwen3_moe", "llama")
DRAFTERS: dict[str, list[Any]] = {"mtp": [MTP], "mtp and suffix": [MTP, "suffix"]}


def with_mtp(path: Path, family: str, dtype: str, drafters: str) -> dict[str, Any]:
    """Settings; a family whose files have no head gets one from another folder."""
    head: dict[str, Any] = {"dtype": dtype}
    if family in HEADLESS:
        head["source"] = str(write_head_folder(path.parent / "head", path))
    chosen = [MTP | head, *DRAFTERS[drafters][1:]]
    return TIGHT | {"model.dtype": dtype, "speculation.drafters": chosen}


def faults(llm: DraftingLLM) -> bool:
    """Whether a drafter failed; that a busy machine was slow is no fault of its own."""
    lines = str(llm.engine.call("metrics")).splitlines()
    counted = [line for line in lines if line.startswith("slipstream_drafter_faults_total{")]
    return any("timed_out" not in line for line in counted)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("drafters", DRAFTERS)
@pytest.mark.parametrize("family", CONFIGS)
def test_heads_under_pressure_give_the_plain_answers(
    tmp_path: Path, family: str, drafters: str, dtype: str
) -> None:
    """Prompts in chunks, prefix hits, drafts of others that stay up to any depth."""
    path = write_tiny_family(tmp_path / "target", family)
    answers = plain_answers(path, dtype)
    texts = [[*case.prompt, *answer] for case, answer in zip(cases(), answers, strict=True)]
    knowing = KnowingDrafter(texts)
    with DraftingLLM(path, with_mtp(path, family, dtype, drafters), [knowing]) as llm:
        for _ in range(2):  # the second time prompts come from the prefix cache
            assert run_all(llm) == answers
            llm.engine.check_integrity()
        assert knowing.depths >= set(range(MAX_DRAFT_LEN))
        assert llm.engine.kv.usage().num_hit_tokens > 0
        assert not faults(llm)
        check_nothing_is_left(llm)


@pytest.mark.parametrize("family", CONFIGS)
def test_heads_alone_draft_and_change_no_token(tmp_path: Path, family: str) -> None:
    path = write_tiny_family(tmp_path / "target", family)
    answers = plain_answers(path, "float32")
    with DraftingLLM(path, with_mtp(path, family, "float32", "mtp"), []) as llm:
        done = dict(
            llm.completed([case.prompt for case in cases()], [case.params for case in cases()])
        )
        assert [done[index].token_ids for index in range(len(answers))] == answers
        stats = [item.choices[0].speculation for item in done.values()]
        assert sum(item.num_draft_tokens for item in stats) > 60
        assert not faults(llm)
        check_nothing_is_left(llm)


@pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_next"])
def test_preempted_requests_go_on_with_their_heads(tmp_path: Path, family: str) -> None:
    path = write_tiny_family(tmp_path / "target", family)
    answers = plain_answers(path, "float32")
    few_pages = with_mtp(path, family, "float32", "mtp")
    few_pages |= {"memory.kv_bytes": kv_bytes(path, 26), "memory.high_at": 1.0}
    with DraftingLLM(path, few_pages, []) as llm:
        assert run_all(llm) == answers
        metrics = llm.engine.call("metrics")
        assert isinstance(metrics, str)
        assert preemptions(metrics) > 0
        assert not faults(llm)
        check_nothing_is_left(llm)


@pytest.mark.parametrize("drafters", DRAFTERS)
def test_heads_in_native_calls_under_pressure_give_the_plain_answers(
    tmp_path: Path, drafters: str, caplog: pytest.LogCaptureFixture
) -> None:
    """So few pages that requests are preempted, too."""
    native_kernels()
    path = write_tiny_checkpoint(tmp_path / "target", vocab_size=VOCAB_SIZE)
    answers = plain_answers(path, "bfloat16")
    texts = [[*case.prompt, *answer] for case, answer in zip(cases(), answers, strict=True)]
    settings = with_mtp(path, "llama", "bfloat16", drafters)
    settings |= {"memory.kv_bytes": "64KiB", "memory.high_at": 1.0}
    caplog.set_level("INFO", "slipstream.speculation")
    with DraftingLLM(path, settings, [KnowingDrafter(texts)]) as llm:
        assert "native calls draft" in caplog.text
        for _ in range(2):  # the second time prompts come from the prefix cache
            assert run_all(llm) == answers
            llm.engine.check_integrity()
        assert llm.engine.kv.usage().num_hit_tokens > 0
        assert preemptions(str(llm.engine.call("metrics"))) > 0
        assert not faults(llm)
        check_nothing_is_left(llm)


def kv_bytes(path: Path, num_pages: int) -> int:
    """Of so many pages of four tokens, the heads' part included."""
    target, heads = loaded(path)
    shapes = (target.model.hparams.kv_shape, heads.hparams.kv_shape)
    return num_pages * 4 * sum(shape.bytes_per_token(torch.float32) for shape in shapes)


def loaded(path: Path) -> tuple[LoadedTarget, MtpHeads]:
    target = LoadedTarget(path, 128)
    return target, load_heads(open_checkpoint(path), target.model, torch.float32)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [(family, ("float32", "bfloat16")[number % 2]) for number, family in enumerate(CONFIGS)],
)
def test_a_conversation_of_thirty_turns_stays_the_plain_one(
    tmp_path: Path, family: str, dtype: str
) -> None:
    """Earlier answers come back as prompts."""
    path = write_tiny_family(tmp_path / "target", family)
    rng = np.random.default_rng(0)
    settings = with_mtp(path, family, dtype, "mtp and suffix")
    settings |= {"memory.kv_bytes": "4MiB", "model.max_model_len": 512}
    off = {"model.dtype": dtype}
    text: list[int] = []
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=8, ignore_eos=True)
    with DraftingLLM(path, settings, []) as llm, tiny_llm(path, [], off) as plain:
        for turn in range(30):
            text += rng.integers(3, VOCAB_SIZE, 6).tolist()
            asked = replace(params, temperature=float(turn % 2))
            answer = llm.generate([text], asked)[0].token_ids
            assert answer == plain.generate([text], asked)[0].token_ids
            text += answer
        assert llm.engine.kv.usage().num_hit_tokens > 0
        assert not faults(llm)
        check_nothing_is_left(llm)


@pytest.mark.parametrize("num_heads", [1, 3])
@pytest.mark.parametrize("accept_len", range(4))
def test_after_any_acceptance_the_heads_know_what_a_fresh_pass_would(
    tmp_path: Path, num_heads: int, accept_len: int
) -> None:
    """Rows that heads made from outputs of their own are replaced by those of true states."""
    path = write_tiny_family(tmp_path, "deepseek_v3", num_nextn_predict_layers=num_heads)
    target, heads = loaded(path)
    prompt = np.random.default_rng(5).integers(3, VOCAB_SIZE, 12).tolist()
    replay = MtpReplay(target, heads, prompt, 3)
    for _ in range(3):
        replay.draft(3)
        replay.verify(true_drafts(target, [*replay.committed, replay.anchor], accept_len))
    chain = replay.draft(3)
    fresh = MtpReplay(target, heads, replay.committed, 3)
    assert fresh.anchor == replay.anchor
    expected = fresh.draft(3)
    assert chain.tokens.tolist() == expected.tokens.tolist()
    torch.testing.assert_close(chain.logits, expected.logits, atol=1e-4, rtol=1e-4)


def true_drafts(target: LoadedTarget, text: list[int], num_true: int) -> list[int]:
    """Three drafts, of which the target says so many itself."""
    sequence = target.sequence()
    said = [int(torch.as_tensor(sequence.extend(text).logits)[-1].argmax())]
    while len(said) < 3:
        logits = torch.as_tensor(sequence.extend(said[-1:]).logits)
        said.append(int(logits[-1].argmax()))
    sequence.close()
    lie = [(token + 1) % VOCAB_SIZE for token in said]
    return [*said[:num_true], *lie[num_true:]]
