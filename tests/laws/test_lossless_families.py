"""Speculation changes nothing for targets with experts, latent attention or recurrent layers.

Whole engines: chunked prompts, prefix hits, preemption, drafts that are right up to any depth.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.clock import SystemClock
from slipstream.engine.build import build_engine
from slipstream.engine.llm import LLM
from slipstream.errors import CapacityError, ConfigError
from slipstream.kv.state_storage import StateShape
from slipstream.models.hparams import Hparams
from slipstream.models.load import read_hparams
from slipstream.sampling.params import SamplingParams
from slipstream.speculation.drafter import DraftContext, Drafter
from slipstream.speculation.tree import DraftTree
from tests.support.drafters import RecordingDrafter
from tests.support.tiny_families import CONFIGS, VOCAB_SIZE, write_tiny_family
from tests.support.tiny_llm import tiny_llm

pytestmark = pytest.mark.usefixtures("one_thread")

RECURRENT = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
MAX_DRAFT_LEN = 4
TIGHT: dict[str, Any] = {
    "memory.kv_bytes": "256KiB",
    "memory.snapshot_interval": 8,
    "memory.state_bytes": "256KiB",
    "scheduler.max_step_tokens": 24,
    "scheduler.max_num_requests": 4,
    "speculation.max_draft_len": MAX_DRAFT_LEN,
    "model.max_model_len": 96,
}


class KnowingDrafter(RecordingDrafter):
    """Drafts the true continuation up to a depth that changes from step to step, then lies.

    Args:
        answers: Prompt and answer of each request.
        branches: Also offer a wrong sibling in front of each node.
    """

    def __init__(self, answers: Sequence[Sequence[int]], *, branches: bool = False) -> None:
        super().__init__("knowing")
        self._answers = answers
        self._branches = branches
        self.depths: set[int] = set()

    def tree_for(self, context: DraftContext) -> DraftTree:
        tokens = list(context.tokens)
        texts = (text for text in self._answers if list(text[: len(tokens)]) == tokens)
        rest = list(next(texts, ()))[len(tokens) :][: context.max_draft_len]
        num_true = len(tokens) % (MAX_DRAFT_LEN + 1)
        drafted = [
            token if depth < num_true else (token + 1) % VOCAB_SIZE
            for depth, token in enumerate(rest)
        ]
        self.depths.add(min(num_true, len(rest)))
        if not self._branches or len(drafted) < 2:
            return DraftTree.chain(drafted, [0.9] * len(drafted), self.name)
        wrong = (drafted[0] + 7) % VOCAB_SIZE
        return DraftTree(
            (wrong, *drafted[:-1]),
            (-1, -1, *range(1, len(drafted) - 1)),
            (0.5, *(0.9 for _ in drafted[:-1])),
            (frozenset((self.name,)),) * len(drafted),
        )


class DraftingLLM(LLM):
    """An LLM with drafters of the test's own behind those of its settings."""

    def __init__(self, path: Path, settings: Mapping[str, Any], drafters: Sequence[Drafter]):
        defaults = {
            "model.dtype": "float32",
            "memory.page_size": 4,
            "engine.num_threads": 1,
            "speculation.controller": "fixed",
            "speculation.drafters": ["suffix"],
        }
        super().__init__(str(path), settings=defaults | dict(settings))
        self.engine = build_engine(self.config, SystemClock(), drafters)


@dataclass(frozen=True)
class Case:
    prompt: list[int]
    params: SamplingParams


def cases() -> list[Case]:
    """Prompts that share beginnings and repeat themselves, greedy and seeded."""
    rng = np.random.default_rng(3)
    shared = rng.integers(3, VOCAB_SIZE, 21).tolist()
    made: list[Case] = []
    for number in range(6):
        own = rng.integers(3, VOCAB_SIZE, 3 + 5 * number).tolist()
        prompt = [*shared, *own] if number % 2 else [*own, *own]
        params = SamplingParams(
            temperature=0.0 if number % 3 else 1.0,
            seed=number,
            logit_bias=dict.fromkeys(own[:3], 9.0) if number > 2 else {},
            max_tokens=18,
            ignore_eos=True,
        )
        made.append(Case(prompt, params))
    return made


def plain_answers(path: Path, dtype: str, asked: Sequence[Case] | None = None) -> list[list[int]]:
    """Each case (None: those above) alone, without cache or drafts."""
    with tiny_llm(path, [], {"model.dtype": dtype, "memory.prefix_cache": False}) as llm:
        return [llm.generate([case.prompt], case.params)[0].token_ids for case in asked or cases()]


def run_all(llm: LLM) -> list[list[int]]:
    """All cases in one batch."""
    done = dict(llm.completed([case.prompt for case in cases()], [case.params for case in cases()]))
    return [done[index].token_ids for index in range(len(cases()))]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", CONFIGS)
def test_any_draft_depth_under_pressure_gives_the_plain_answers(
    tmp_path: Path, family: str, dtype: str
) -> None:
    path = write_tiny_family(tmp_path, family)
    answers = plain_answers(path, dtype)
    texts = [[*case.prompt, *answer] for case, answer in zip(cases(), answers, strict=True)]
    drafter = KnowingDrafter(texts, branches=dtype == "bfloat16")
    with DraftingLLM(path, TIGHT | {"model.dtype": dtype}, [drafter]) as llm:
        for _ in range(2):  # the second time prompts come from the prefix cache
            assert run_all(llm) == answers
            llm.engine.check_integrity()
        assert drafter.depths >= set(range(MAX_DRAFT_LEN + 1))
        assert llm.engine.kv.usage().num_hit_tokens > 0
        check_nothing_is_left(llm)


def check_nothing_is_left(llm: LLM) -> None:
    llm.engine.call("reset_prefix_cache")
    llm.engine.check_integrity()
    usage = llm.engine.kv.usage()
    assert usage.num_free == usage.num_pages
    states = llm.engine.kv.states
    assert states is None or states.pool.num_free == states.pool.num_pages


@pytest.mark.parametrize("family", RECURRENT)
def test_preempted_requests_go_on_from_a_snapshot_with_the_same_answer(
    tmp_path: Path, family: str
) -> None:
    path = write_tiny_family(tmp_path, family)
    answers = plain_answers(path, "float32")
    few_pages = TIGHT | {
        "memory.state_bytes": state_bytes(path, 6),
        "memory.kv_bytes": 26 * 4 * hparams_of(path).kv_shape.bytes_per_token(torch.float32),
        "memory.high_at": 1.0,
    }
    with DraftingLLM(path, few_pages, []) as llm:
        assert run_all(llm) == answers
        metrics = llm.engine.call("metrics")
        assert isinstance(metrics, str)
        assert preemptions(metrics) > 0
        check_nothing_is_left(llm)


def preemptions(metrics: str) -> float:
    (line,) = [
        line for line in metrics.splitlines() if line.startswith("slipstream_preemptions_total")
    ]
    return float(line.split()[-1])


def state_bytes(path: Path, count: int) -> int:
    """Of so many states, the empty one included."""
    return count * recurrent_shape(path).bytes_per_state(MAX_DRAFT_LEN)


def recurrent_shape(path: Path) -> StateShape:
    shape = hparams_of(path).state_shape
    assert shape is not None
    return shape


def hparams_of(path: Path) -> Hparams:
    return read_hparams(json.loads((path / "config.json").read_text()))


def test_a_conversation_hits_the_snapshots_of_its_earlier_turns(tmp_path: Path) -> None:
    path = write_tiny_family(tmp_path, "qwen3_5")
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=10, ignore_eos=True)
    check_conversation(path, "4MiB", 7, [params] * 12)


def check_conversation(
    path: Path, kv_bytes: str, num_new: int, turns: Sequence[SamplingParams]
) -> None:
    """Answers come back as prompts, `num_new` tokens behind each: they are those of plain
    decoding, most of each prompt is found in the prefix cache, and nothing is left."""
    rng = np.random.default_rng(0)
    settings = TIGHT | {"memory.kv_bytes": kv_bytes, "model.max_model_len": 512}
    text: list[int] = []
    with DraftingLLM(path, settings, []) as llm, tiny_llm(path, []) as plain:
        for params in turns:
            text += rng.integers(3, VOCAB_SIZE, num_new).tolist()
            before = llm.engine.kv.usage().num_hit_tokens
            answer = llm.generate([text], params)[0].token_ids
            found = llm.engine.kv.usage().num_hit_tokens - before
            assert answer == plain.generate([text], params)[0].token_ids
            assert len(text) < 24 or found >= len(text) - 24
            text += answer
        check_nothing_is_left(llm)


def test_trees_are_refused_at_start_with_the_reason(tmp_path: Path) -> None:
    path = write_tiny_family(tmp_path, "qwen3_5")
    with pytest.raises(ConfigError, match=r"drafter suffix.*recurrent layers.*cannot be verified"):
        tiny_llm(path, [{"kind": "suffix", "tree": True}])


def test_too_few_bytes_for_one_state_are_refused(tmp_path: Path) -> None:
    path = write_tiny_family(tmp_path, "qwen3_5")
    with pytest.raises(CapacityError, match="a request needs a recurrent state of"):
        tiny_llm(path, [], {"memory.state_bytes": 1000})


def test_few_states_run_few_requests_at_once(tmp_path: Path) -> None:
    path = write_tiny_family(tmp_path, "qwen3_5")
    answers = plain_answers(path, "float32")
    settings = TIGHT | {"memory.state_bytes": state_bytes(path, 3)}
    with DraftingLLM(path, settings, []) as llm:
        assert llm.engine.kv.states is not None
        assert llm.engine.kv.states.pool.num_pages == 2
        assert run_all(llm) == answers
        check_nothing_is_left(llm)
