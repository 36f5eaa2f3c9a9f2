"""Keys and values in 8 bit: within the setting, drafts, hits and preemption change no answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.repetitive import DRAFT_MODEL, PARAMS, PROMPTS, answers
from tests.support.tiny_llm import tiny_llm, write_tiny_model

INT8 = {"memory.kv_dtype": "int8", "memory.draft_kv_dtype": "int8"}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), head_dim=32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_drafts_hits_and_preemption_change_no_answer(model_path: Path, dtype: str) -> None:
    settings = INT8 | {"model.dtype": dtype, "model.max_model_len": 96}
    plain = settings | {"memory.prefix_cache": False, "scheduler.max_num_requests": 1}
    with tiny_llm(model_path, [], plain) as llm:
        expected = [answers(llm, params) for params in PARAMS]
    drafters = [{"kind": "ngram", "min_n": 1}, DRAFT_MODEL | {"dtype": dtype}]
    # Room for one request of the longest kind and little more.
    with tiny_llm(model_path, drafters, settings | {"memory.kv_bytes": "64KiB"}) as llm:
        for _ in range(2):
            assert [answers(llm, params) for params in PARAMS] == expected
        metrics = llm.engine.observer.metrics.exposition().decode()
        assert float(re.findall(r"^slipstream_preemptions_total (\S+)$", metrics, re.M)[0]) > 0
        assert llm.generate(PROMPTS[:1], PARAMS[0])[0].num_cached_tokens > 0


def test_an_int8_draft_cache_changes_no_answer(model_path: Path) -> None:
    with tiny_llm(model_path, []) as llm:
        expected = [answers(llm, params) for params in PARAMS]
    with tiny_llm(model_path, [DRAFT_MODEL], {"memory.draft_kv_dtype": "int8"}) as llm:
        assert [answers(llm, params) for params in PARAMS] == expected
