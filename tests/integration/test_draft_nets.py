"""Draft nets with real weights, from the configuration to the tokens."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from slipstream.engine.llm import LLM, Generation
from slipstream.errors import VocabularyMismatchError, WeightsError
from slipstream.sampling.params import SamplingParams
from tests.support.drafts import CONFIGS, FAMILIES, NUM_TARGET_LAYERS, tiny_tensors_of, write_draft
from tests.support.paths import shared_dir
from tests.support.tiny import write_tiny_checkpoint, write_tiny_tokenizer

PROMPTS = [list(range(10, 50)), list(range(60, 65)), [*range(10, 40), 99], list(range(10, 50))]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(
    temperature=1.0, top_p=0.95, repetition_penalty=1.1, max_tokens=24, seed=5, ignore_eos=True
)
KINDS = {"eagle3": "eagle3", "dflash": "dflash", "dflash2": "dflash", "dspark": "dspark"}


def load(
    target: Path,
    drafters: Sequence[dict[str, Any]],  # Any: settings
    **settings: Any,  # Any: settings
) -> LLM:
    defaults = {
        "model.dtype": "float32",
        "memory.kv_bytes": "16MiB",
        "memory.page_size": 4,
        "model.max_model_len": 128,
        "engine.num_threads": 1,
        "scheduler.max_step_tokens": 16,
        "speculation.controller": "fixed",
        "speculation.drafters": list(drafters),
    }
    return LLM(str(target), settings=defaults | settings)


def write_pair(path: Path, family: str) -> tuple[Path, dict[str, Any]]:
    """A target and the configuration of a drafter for it."""
    target = write_tiny_checkpoint(path / "target", num_layers=NUM_TARGET_LAYERS)
    draft = write_draft(path / "draft", CONFIGS[family], tiny_tensors_of(CONFIGS[family]))
    return target, {"kind": KINDS[family], "source": str(draft), "dtype": "float32"}


def token_ids(generations: Sequence[Generation]) -> list[list[int]]:
    return [choice.token_ids for item in generations for choice in item.choices]


def drafted_and_accepted(generations: Sequence[Generation]) -> tuple[int, int]:
    stats = [choice.speculation for item in generations for choice in item.choices]
    return (
        sum(item.num_draft_tokens for item in stats),
        sum(item.num_accepted_tokens for item in stats),
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("num_children", [1, 3], ids=["chain", "tree"])
def test_a_draft_net_changes_no_token(tmp_path: Path, family: str, num_children: int) -> None:
    """Chunked prompts, several requests in a pass, prefix hits in the second round."""
    target, drafter = write_pair(tmp_path, family)
    plain, drafting = load(target, []), load(target, [drafter | {"num_children": num_children}])
    for params in (GREEDY, SAMPLED):
        expected = token_ids(plain.generate(PROMPTS, params))
        for _ in range(2):
            generations = drafting.generate(PROMPTS, params)
            assert token_ids(generations) == expected
            assert drafted_and_accepted(generations)[0] > 20
    drafting.engine.check_integrity()
    assert "slipstream_drafter_faults_total{" not in str(drafting.engine.call("metrics"))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("num_children", [1, 3], ids=["chain", "tree"])
def test_a_draft_net_beside_a_target_in_bfloat16_changes_no_token(
    tmp_path: Path, family: str, num_children: int
) -> None:
    """Both in native kernels where these are built, with fewer pages than the requests want."""
    target, drafter = write_pair(tmp_path, family)
    in_bfloat16 = {"model.dtype": "bfloat16", "memory.kv_bytes": "300KiB"}
    net = drafter | {"dtype": "bfloat16", "num_children": num_children}
    plain, drafting = load(target, [], **in_bfloat16), load(target, [net], **in_bfloat16)
    for params in (GREEDY, replace(SAMPLED, repetition_penalty=1.0), SAMPLED):
        expected = token_ids(plain.generate(PROMPTS, params))
        for _ in range(2):
            generations = drafting.generate(PROMPTS, params)
            assert token_ids(generations) == expected
            assert drafted_and_accepted(generations)[0] > 20
    drafting.engine.check_integrity()
    assert "slipstream_drafter_faults_total{" not in str(drafting.engine.call("metrics"))


@pytest.mark.parametrize("family", FAMILIES)
def test_preempted_requests_go_on_with_their_drafts(tmp_path: Path, family: str) -> None:
    target, drafter = write_pair(tmp_path, family)
    plain, tight = load(target, []), load(target, [drafter], **{"memory.kv_bytes": "400KiB"})
    prompts = [list(range(start, start + 5)) for start in range(10, 70, 10)]
    params = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True)
    expected = token_ids(plain.generate(prompts, params))
    assert token_ids(tight.generate(prompts, params)) == expected
    tight.engine.check_integrity()
    metrics = str(tight.engine.call("metrics"))
    preemptions = re.search(r"^slipstream_preemptions_total (\S+)$", metrics, re.M)
    assert preemptions is not None
    assert float(preemptions[1]) > 0


def test_a_net_that_drafts_for_shorter_texts_than_the_target_takes_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As the public EAGLE-3 nets, whose configurations say the length of their training texts."""
    target, drafter = write_pair(tmp_path, "eagle3")
    load(target, [drafter])
    assert "texts of up to" not in caplog.text
    config = CONFIGS["eagle3"] | {"max_position_embeddings": 24}
    write_draft(Path(drafter["source"]), config, tiny_tensors_of(config))

    llm = load(target, [drafter])

    assert "eagle3 drafts for texts of up to 24 tokens" in caplog.text
    assert "the target takes 128" in caplog.text
    short, long = (llm.generate([list(range(10, 10 + size))], GREEDY) for size in (5, 40))
    assert drafted_and_accepted(short)[0] > 0
    assert drafted_and_accepted(long)[0] == 0


def test_a_draft_net_of_another_kind_is_refused(tmp_path: Path) -> None:
    target, drafter = write_pair(tmp_path, "dspark")
    with pytest.raises(WeightsError, match="family dspark") as caught:
        load(target, [drafter | {"kind": "dflash"}])
    assert caught.value.hint == "say kind: dspark"


def test_a_draft_net_of_another_target_is_refused(tmp_path: Path) -> None:
    _, drafter = write_pair(tmp_path, "dflash")
    other = write_tiny_checkpoint(tmp_path / "other", num_layers=6)
    with pytest.raises(WeightsError, match="made for a target of 8 layers"):
        load(other, [drafter])


def test_a_draft_net_with_another_tokenizer_is_refused_by_a_token(tmp_path: Path) -> None:
    target, drafter = write_pair(tmp_path, "eagle3")
    write_tiny_tokenizer(tmp_path / "draft", 320)
    assert load(target, [drafter]).engine.info.drafters == ("eagle3",)

    file = tmp_path / "draft/tokenizer.json"
    file.write_text(file.read_text().replace("<|im_end|>", "<|the_end|>"))
    with pytest.raises(VocabularyMismatchError, match=r"token 2 is '<\|im_end\|>' for the target"):
        load(target, [drafter])


@pytest.mark.parametrize(
    ("folder", "draft", "recorded"),
    [
        ("dflash", "draft", "expected.safetensors"),
        ("dflash", "draft_swa", "expected_swa.safetensors"),
        ("dflash2", "draft_plain", "expected_plain.safetensors"),
        ("dspark", "draft_vanilla", "expected_vanilla.safetensors"),
        ("dspark", "draft_rnn", "expected_rnn.safetensors"),
    ],
)
def test_the_engine_accepts_what_the_published_loop_accepted(
    tmp_path: Path, folder: str, draft: str, recorded: str
) -> None:
    root = shared_dir("golden", "open", folder)
    target = tmp_path / "target"
    shutil.copytree(root / "target", target)
    arrays = load_file(root / recorded)
    vocab_size = load_file(target / "model.safetensors")["model.embed_tokens.weight"].shape[0]
    write_tiny_tokenizer(target, vocab_size)
    kind = "dspark" if folder == "dspark" else "dflash"
    drafter = {"kind": kind, "source": str(root / draft), "dtype": "float32", "min_score": 0.0}
    llm = load(target, [drafter])
    prompt, output = arrays["e2e0.prompt"].tolist(), arrays["e2e0.output_ids"].tolist()
    count = len(output) - len(prompt)

    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    cold, warm = llm.generate([prompt], params), llm.generate([prompt], params)

    assert token_ids(cold) == token_ids(warm) == [output[len(prompt) :]]
    accepted, by_round = drafted_and_accepted(cold)[1], arrays["e2e0.accept_len"].tolist()
    # The last round was recorded beyond the end.
    assert sum(by_round[:-1]) <= accepted <= sum(by_round)
    assert warm[0].choices[0].speculation == cold[0].choices[0].speculation
    assert warm[0].num_cached_tokens > 0


@pytest.mark.parametrize(("draft", "prefix"), [("draft", "p0"), ("draft_full_vocab", "full_vocab")])
def test_the_engine_drafts_the_published_chain(tmp_path: Path, draft: str, prefix: str) -> None:
    root = shared_dir("golden", "open", "eagle3")
    target = tmp_path / "target"
    shutil.copytree(root / "target", target)
    arrays = load_file(root / "expected.safetensors")
    write_tiny_tokenizer(target, 384)
    drafter = {"kind": "eagle3", "source": str(root / draft), "dtype": "float32"}
    llm = load(target, [drafter | {"max_draft_len": 5}])
    prompt = arrays[f"{prefix}.input_ids"].tolist()
    drafted: list[tuple[int, ...]] = []

    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    for _ in llm.stream(prompt, params):
        report = llm.engine.last_report
        assert report is not None
        drafted += [commit.tree.tokens for commit in report.commits if commit.tree]

    chain = arrays[f"{prefix}.chain_tokens"].tolist()
    assert len(drafted[0]) >= 2
    assert list(drafted[0]) == chain[: len(drafted[0])]
