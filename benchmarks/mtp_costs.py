"""When a multi-token-prediction head loses: long prompts, little memory, many streams, few hits.

Two engines in turn, one plain and one that drafts in every step with the head of `--head`:

- the head's share of reading a prompt, by its length (random tokens, one token of answer);
- tokens that a cache holds with and without the head's;
- tokens a step and tokens per second by draft length, temperature and number of streams, on prompts
  of the set that ships with Slipstream. A head pays where it gives more tokens a step than its
  steps cost plain ones, `needed`.

Times are least ones of `--repeats`. Usage:

    python benchmarks/mtp_costs.py --head FOLDER [--model default] [--repeats 3]
        [--out benchmarks/mtp-costs.json]
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from slipstream.bench.prompts import default_prompts
from slipstream.bench.provenance import read_provenance
from slipstream.clock import SystemClock
from slipstream.engine.llm import LLM
from slipstream.engine.messages import SpeculationOptions
from slipstream.sampling.params import SamplingParams

PROMPT_LENS = (64, 256, 1024)
NUM_TOKENS, KV_BYTES, REQUEST_LEN = 40, "128MiB", 512
LOADS = ((1, 1, 0.0), (1, 2, 0.0), (1, 3, 0.0), (1, 2, 1.0), (4, 2, 0.0), (16, 2, 0.0))
"""Streams, draft length, temperature."""

Json = dict[str, Any]  # Any: JSON values


def engine(model: str, drafters: list[Json]) -> LLM:
    """One that drafts in every step."""
    settings = {
        "memory.kv_bytes": KV_BYTES,
        "model.max_model_len": 2048,
        "speculation.controller": "fixed",
        "speculation.drafters": drafters,
        "speculation.max_draft_len": 3,
    }
    return LLM(model, settings=settings)


def step_and_draft_ms(llm: LLM) -> tuple[float, float]:
    """Milliseconds so far in steps, and of these in drafting."""
    metrics = str(llm.engine.call("metrics"))
    names = ("slipstream_step_seconds_sum", "slipstream_draft_seconds_total")
    found = [re.search(rf"^{name}\S* (\S+)", metrics, re.MULTILINE) for name in names]
    step, draft = (1e3 * float(match[1]) if match else 0.0 for match in found)
    return step, draft


def prompt_costs(drafting: LLM, length: int, repeats: int) -> Json:
    """The head's share of reading prompts of one length, each of which is read once."""
    taken = []
    for repeat in range(repeats):
        draw = random.Random(1000 * length + repeat)
        prompt = [draw.randrange(100, 40000) for _ in range(length)]
        before = step_and_draft_ms(drafting)
        drafting.generate([prompt], SamplingParams(temperature=0.0, max_tokens=1))
        after = step_and_draft_ms(drafting)
        taken.append((after[0] - before[0], after[1] - before[1]))
    step_ms = min(step for step, _ in taken)
    head_ms = min(head for _, head in taken)
    return {
        "prompt_len": length,
        "prompt_ms": step_ms,
        "head_ms": head_ms,
        "head_share": head_ms / step_ms,
    }


def told(part: Json) -> Json:
    """The same, printed."""
    sys.stdout.write(f"{json.dumps(part)}\n")
    sys.stdout.flush()
    return part


def memory_costs(plain: LLM, drafting: LLM) -> Json:
    """What fits in the same bytes."""
    tokens = {
        name: llm.engine.kv.usage().num_pages * llm.config.memory.page_size
        for name, llm in (("plain", plain), ("drafting", drafting))
    }
    requests = {name: count // REQUEST_LEN for name, count in tokens.items()}
    return {
        "kv_bytes": KV_BYTES,
        "tokens": tokens,
        f"requests_of_{REQUEST_LEN}_tokens": requests,
        "kept_share": tokens["drafting"] / tokens["plain"],
    }


def load_costs(plain: LLM, drafting: LLM, load: tuple[int, int, float], repeats: int) -> Json:
    """One load on both engines in turn."""
    num_streams, draft_len, temperature = load
    prompts = default_prompts()[:: max(1, len(default_prompts()) // max(4, num_streams))]
    groups = [
        [plain.render(prompt.messages) for prompt in prompts[first : first + num_streams]]
        for first in range(0, max(4, num_streams), num_streams)
    ]
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=NUM_TOKENS, ignore_eos=True)
    options = SpeculationOptions(max_draft_len=draft_len)
    taken: dict[str, list[float]] = {"plain": [], "drafting": []}
    num_steps = num_tokens = 0
    for _ in range(repeats):
        answers = []
        for name, llm in (("plain", plain), ("drafting", drafting)):
            llm.engine.call("reset_prefix_cache")
            start = time.perf_counter()
            done = [llm.generate(group, params, speculation=options) for group in groups]
            taken[name].append(time.perf_counter() - start)
            answers.append([item.token_ids for group in done for item in group])
        assert answers[0] == answers[1], "drafts changed an answer"
        stats = [item.choices[0].speculation for group in done for item in group]
        num_steps = sum(item.num_steps for item in stats)
        num_tokens = sum(len(answer) for answer in answers[1])
    gain = min(taken["plain"]) / min(taken["drafting"])
    tokens_a_step = num_tokens / num_steps
    return {
        "num_streams": num_streams,
        "draft_len": draft_len,
        "temperature": temperature,
        "tokens_a_step": tokens_a_step,
        "needed": tokens_a_step / gain,
        "plain_tokens_per_s": num_tokens / min(taken["plain"]),
        "drafting_tokens_per_s": num_tokens / min(taken["drafting"]),
        "gain": gain,
    }


def main(arguments: Sequence[str]) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--head", required=True)
    parser.add_argument("--model", default="default")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    command = ["python", f"benchmarks/{Path(sys.argv[0]).name}", *arguments]
    provenance = read_provenance(command, [], SystemClock())
    head = {"kind": "mtp", "source": options.head, "min_score": 0.0, "max_draft_len": 3}
    plain, drafting = engine(options.model, []), engine(options.model, [head])
    for llm in (plain, drafting):  # what comes first is slow
        llm.generate([[100] * 64], SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True))
    results: Json = {
        "num_threads": torch.get_num_threads(),
        "memory": told(memory_costs(plain, drafting)),
        "prompts": [
            told(prompt_costs(drafting, length, options.repeats)) for length in PROMPT_LENS
        ],
        "loads": [told(load_costs(plain, drafting, load, options.repeats)) for load in LOADS],
    }
    if options.out:
        document = {"provenance": asdict(provenance), "results": results}
        options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
