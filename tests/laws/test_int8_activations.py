"""Activations in 8 bit: within the setting, rows, drafts, hits and preemption change no answer."""

from __future__ import annotations

import re
from pathlib import Path
from shutil import copy

import pytest

from slipstream.errors import ConfigError
from slipstream.kernels.library import KernelLibrary
from tests.support.gguf_files import write_tiny_gguf
from tests.support.native import native_kernels
from tests.support.repetitive import DRAFT_MODEL, PARAMS, PROMPTS, answers
from tests.support.tiny_llm import tiny_llm, write_tiny_model

INT8 = {"model.activations": "int8", "model.dtype": "bfloat16"}


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> KernelLibrary:
    return native_kernels()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_tiny_model(folder, hidden_size=64, intermediate_size=96, head_dim=32)


@pytest.fixture(scope="module")
def gguf(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blocks")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        copy(checkpoint / name, folder)
    return write_tiny_gguf(folder / "model.gguf", checkpoint, matrix_type="Q4_1")


@pytest.fixture
def settings(checkpoint: Path) -> dict[str, object]:
    return INT8 | {"model.tokenizer": str(checkpoint), "model.max_model_len": 96}


def test_drafts_hits_and_preemption_change_no_answer(
    gguf: Path, settings: dict[str, object]
) -> None:
    plain = settings | {"memory.prefix_cache": False, "scheduler.max_num_requests": 1}
    with tiny_llm(gguf, [], plain) as llm:
        expected = [answers(llm, params) for params in PARAMS]
    drafters = [{"kind": "ngram", "min_n": 1}, DRAFT_MODEL | {"dtype": "bfloat16"}]
    # Room for one request of the longest kind and little more.
    with tiny_llm(gguf, drafters, settings | {"memory.kv_bytes": "128KiB"}) as llm:
        for _ in range(2):
            assert [answers(llm, params) for params in PARAMS] == expected
        metrics = llm.engine.observer.metrics.exposition().decode()
        assert float(re.findall(r"^slipstream_preemptions_total (\S+)$", metrics, re.M)[0]) > 0
        assert llm.generate(PROMPTS[:1], PARAMS[0])[0].num_cached_tokens > 0


def test_threads_change_no_answer(gguf: Path, settings: dict[str, object]) -> None:
    got = []
    for num_threads in (1, 2):
        with tiny_llm(gguf, [], settings | {"engine.num_threads": num_threads}) as llm:
            got.append([answers(llm, params) for params in PARAMS])
    assert got[0] == got[1]


def test_a_drafters_activations_change_no_answer(gguf: Path, settings: dict[str, object]) -> None:
    exact = settings | {"model.activations": "auto"}
    with tiny_llm(gguf, [], exact) as llm:
        expected = [answers(llm, params) for params in PARAMS]
    drafter = DRAFT_MODEL | {"dtype": "bfloat16", "activations": "int8"}
    with tiny_llm(gguf, [drafter], exact) as llm:
        assert [answers(llm, params) for params in PARAMS] == expected


def test_fingerprint_and_metrics_name_the_activations(
    gguf: Path, settings: dict[str, object]
) -> None:
    fingerprints = set()
    for activations in ("auto", "bfloat16", "int8"):
        with tiny_llm(gguf, [], settings | {"model.activations": activations}) as llm:
            fingerprints.add(llm.engine.info.fingerprint)
            llm.generate(PROMPTS[:1], PARAMS[0])
            metrics = llm.engine.observer.metrics.exposition().decode()
            assert ("-int8:Q4_1" in metrics) == (activations == "int8")
    assert len(fingerprints) == 2


def test_a_model_in_bfloat16_refuses_int8_activations(
    checkpoint: Path, settings: dict[str, object]
) -> None:
    with (
        pytest.raises(ConfigError, match="no matrix of the model is stored in Q8_0, Q4_0 or Q4_1"),
        tiny_llm(checkpoint, [], settings),
    ):
        pass


def test_a_model_that_torch_computes_refuses_int8_activations(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    folder = tmp_path / "model"
    checkpoint = write_tiny_model(folder, hidden_size=64, intermediate_size=96, head_dim=8)
    gguf = write_tiny_gguf(tmp_path / "model.gguf", checkpoint, matrix_type="Q8_0")
    with (
        pytest.raises(ConfigError, match="native kernels, which take them, do not compute"),
        tiny_llm(gguf, [], settings),
    ):
        pass


def test_float32_refuses_int8_activations(gguf: Path, settings: dict[str, object]) -> None:
    with (
        pytest.raises(ConfigError, match="must have dtype bfloat16 for int8 activations"),
        tiny_llm(gguf, [], settings | {"model.dtype": "float32"}),
    ):
        pass
