"""Memory and time of recurrent states by the length of drafts, and steps of a whole engine.

The model of `recurrent_states.py`. Its drafter knows the answer and says it, or lies, and takes no
time: a step is scheduling, the target's pass with replay, sampling and commit. Keeping and rolling
back are measured by themselves, behind a pass. One request at a time. Run with:

    python benchmarks/recurrent_steps.py --out benchmarks/recurrent-steps.json
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from recurrent_states import DRAFT_LENS, VOCAB, Bench, record, write_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from slipstream.clock import SystemClock
from slipstream.engine.build import build_engine
from slipstream.engine.llm import LLM
from slipstream.kernels.library import KernelLibrary
from slipstream.sampling.params import SamplingParams
from slipstream.speculation.drafter import DraftContext, DrafterNeeds, Observation
from slipstream.speculation.tree import DraftTree

PROMPT = [7 + 5 * index % 200 for index in range(64)]
NUM_STEPS, REPEATS = 12, 3

Json = dict[str, Any]  # Any: JSON values


class KnowingDrafter:
    """Drafts the answer, or a wrong token in front of it.

    Attributes:
        draft_len: How many tokens.
        text: Prompt and answer.
        is_right: Whether the first draft is the answer's.
    """

    name = "knowing"
    needs = DrafterNeeds()

    def __init__(self) -> None:
        self.draft_len = 0
        self.text: list[int] = []
        self.is_right = True

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftTree]:
        """A chain for each context."""
        return [self._chain(context) for context in contexts]

    def observe(self, observations: Sequence[Observation]) -> None:
        """Nothing."""

    def release(self, request_ids: Sequence[str]) -> None:
        """Nothing."""

    def memory_bytes(self) -> int:
        """None."""
        return 0

    def _chain(self, context: DraftContext) -> DraftTree:
        rest = self.text[len(context.tokens) :][: min(self.draft_len, context.max_draft_len)]
        if not self.is_right and rest:
            rest[0] = (rest[0] + 1) % VOCAB
        return DraftTree.chain(rest, [0.9] * len(rest), self.name)


class KnowingLLM(LLM):
    """An engine whose only drafter is this one."""

    def __init__(self, path: Path, drafter: KnowingDrafter, settings: Mapping[str, Any]) -> None:
        super().__init__(str(path), settings=settings)
        self.engine = build_engine(self.config, SystemClock(), [drafter])


def write_tokenizer(folder: Path) -> None:
    """Bytes, then tokens that no text has."""
    vocab = {letter: index for index, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    vocab |= {f"<|unused_{index}|>": index for index in range(len(vocab), VOCAB)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|unused_300|>"}))


def step_ms(llm: LLM, num_tokens: int) -> tuple[float, list[int]]:
    """Milliseconds a step behind the first token, and the answer."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    stamps, answer = [], list[int]()
    for event in llm.stream(PROMPT, params):
        stamps.append(time.perf_counter())
        answer += event.token_ids
    gaps = [after - before for before, after in itertools.pairwise(stamps)]
    return statistics.median(gaps) * 1e3, answer


def state_costs(bench: Bench, draft_len: int) -> Json:
    """Bytes of a request's state, and the time of what follows a pass over drafts."""
    return {
        "draft_len": draft_len,
        "state_bytes": bench.shape.bytes_per_state(draft_len),
        "bytes_of_a_state_for_each_row": (1 + draft_len) * bench.shape.bytes_per_state(0),
        "roll_back_ms": bench.keep_ms(draft_len, 0),
        "keep_ms": bench.keep_ms(draft_len, draft_len),
        "pass_ms": bench.pass_ms(draft_len, 0),
        "pass_with_replay_ms": bench.pass_ms(draft_len, draft_len),
    }


def measure() -> Json:
    """All results, on a model of their own."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder))
        write_tokenizer(path)
        return {"num_threads": torch.get_num_threads(), "by_draft_len": by_draft_len(path)}


def by_draft_len(path: Path) -> list[Json]:
    """A line for each draft length."""
    drafter, lines = KnowingDrafter(), list[Json]()
    bench = Bench(path, KernelLibrary(), max(DRAFT_LENS))
    settings = {
        "memory.kv_bytes": "32MiB",
        "memory.state_bytes": "96MiB",
        "memory.prefix_cache": False,
        "model.max_model_len": 512,
        "speculation.controller": "fixed",
        "speculation.drafters": [],
        "speculation.max_draft_len": max(DRAFT_LENS),
    }
    with KnowingLLM(path, drafter, settings) as llm:
        _, answer = step_ms(llm, 2 + NUM_STEPS * (1 + max(DRAFT_LENS)))
        drafter.text = [*PROMPT, *answer]
        for drafter.draft_len in DRAFT_LENS:
            num_all = 2 + NUM_STEPS * (1 + drafter.draft_len)
            line = state_costs(bench, drafter.draft_len)
            for name, drafter.is_right, count in (
                ("all_kept_step_ms", True, num_all),
                ("none_kept_step_ms", False, 2 + NUM_STEPS),
            ):
                taken = [step_ms(llm, count) for _ in range(REPEATS)]
                assert all(said == answer[:count] for _, said in taken), "drafts changed an answer"
                line[name] = min(ms for ms, _ in taken)
            lines.append(line)
    return lines


if __name__ == "__main__":
    record(measure, __doc__, sys.argv[1:])
