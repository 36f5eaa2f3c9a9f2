"""Activations in 8 bit: within the setting, rows, drafts, hits and preemption change no answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from shutil import copy

import pytest
import torch

from slipstream.engine.llm import LLM
from slipstream.errors import ConfigError
from slipstream.kernels.library import KernelLibrary, open_kernels
from slipstream.sampling.params import SamplingParams
from tests.support.gguf_files import write_tiny_gguf
from tests.support.tiny_llm import tiny_llm, write_tiny_model

INT8 = {"model.activations": "int8", "model.dtype": "bfloat16"}
DRAFT_MODEL = {"kind": "draft_model", "source": "target"}
PROMPTS = [
    "the cat sat on the mat and the cat sat on the",
    "the cat sat on the mat and the dog ran",
    "one two three one two three one two",
    "the cat sat on the mat and the cat",
]
PARAMS = [
    SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True, logprobs=True),
    SamplingParams(max_tokens=24, temperature=0.9, seed=5, ignore_eos=True, logprobs=True),
]


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> KernelLibrary:
    library = open_kernels()
    if library is None:
        pytest.skip("the native kernels were not built")
    return library


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


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


def answers(llm: LLM, params: SamplingParams) -> list[object]:
    """What a client sees of each prompt."""
    return [
        (generation.token_ids, generation.choices[0].logprobs)
        for generation in llm.generate(PROMPTS, params)
    ]


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
