"""What recurrent states cost: the rule by itself, and passes by the length of drafts.

A random model of the layout of Qwen3.5 (three recurrent layers and one with attention; 32 value
heads and 16 key heads of 128; hidden size 1,024) with bfloat16 weights. A pass has one known row
and the draft's; "replay" means that all drafts of the pass before stayed, so their rows are taken
in again. Run with: python benchmarks/recurrent_states.py --out benchmarks/recurrent-states.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from slipstream.audit.paged_sequence import PagedSequence
from slipstream.bench.provenance import read_provenance
from slipstream.clock import SystemClock
from slipstream.execution.runner import Runner
from slipstream.kernels.library import KernelLibrary
from slipstream.kv.cache import KvCache
from slipstream.kv.state_storage import StateShape
from slipstream.kv.states import StatePool, StateSpan
from slipstream.models.layers.delta_rule import DeltaRows, DeltaRule, TorchDeltaRule
from slipstream.models.layers.native_delta_rule import NativeDeltaRule
from slipstream.models.load import load_model
from slipstream.weights.open import open_checkpoint

HIDDEN, INTERMEDIATE, VOCAB, NUM_LAYERS = 1024, 3072, 4096, 4
KEY_HEADS, VALUE_HEADS, DIM, KERNEL_LEN = 16, 32, 128, 4
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 128
DRAFT_LENS, RULE_ROWS, PROMPT_LEN = (0, 1, 2, 4, 8), (1, 8, 512), 512
REPEATS = 15

Json = dict[str, Any]  # Any: JSON values


def write_model(folder: Path) -> Path:
    """A checkpoint of random weights."""
    text: Json = {
        "full_attention_interval": NUM_LAYERS,
        "head_dim": HEAD_DIM,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "linear_conv_kernel_dim": KERNEL_LEN,
        "linear_key_head_dim": DIM,
        "linear_num_key_heads": KEY_HEADS,
        "linear_num_value_heads": VALUE_HEADS,
        "linear_value_head_dim": DIM,
        "max_position_embeddings": 4096,
        "num_attention_heads": HEADS,
        "num_hidden_layers": NUM_LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "vocab_size": VOCAB,
    }
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    tensors = {name: torch.randn(shape).mul_(0.02).bfloat16() for name, shape in shapes()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Of all tensors."""
    keys, values = KEY_HEADS * DIM, VALUE_HEADS * DIM
    channels = 2 * keys + values
    yield "model.language_model.embed_tokens.weight", (VOCAB, HIDDEN)
    yield "model.language_model.norm.weight", (HIDDEN,)
    for index in range(NUM_LAYERS):
        layer = f"model.language_model.layers.{index}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}.{norm}.weight", (HIDDEN,)
        for name, rows in (("gate_proj", INTERMEDIATE), ("up_proj", INTERMEDIATE)):
            yield f"{layer}.mlp.{name}.weight", (rows, HIDDEN)
        yield f"{layer}.mlp.down_proj.weight", (HIDDEN, INTERMEDIATE)
        if index + 1 == NUM_LAYERS:
            for name, heads in (("q", 2 * HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
                yield f"{layer}.self_attn.{name}_proj.weight", (heads * HEAD_DIM, HIDDEN)
            yield f"{layer}.self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD_DIM)
            for name in ("q_norm", "k_norm"):
                yield f"{layer}.self_attn.{name}.weight", (HEAD_DIM,)
            continue
        delta = f"{layer}.linear_attn"
        for name, size in (("A_log", VALUE_HEADS), ("dt_bias", VALUE_HEADS), ("norm.weight", DIM)):
            yield f"{delta}.{name}", (size,)
        yield f"{delta}.conv1d.weight", (channels, 1, KERNEL_LEN)
        yield f"{delta}.out_proj.weight", (HIDDEN, values)
        for name, rows in (
            ("qkv", channels),
            ("z", values),
            ("b", VALUE_HEADS),
            ("a", VALUE_HEADS),
        ):
            yield f"{delta}.in_proj_{name}.weight", (rows, HIDDEN)


def median_ms(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median time of a call, in milliseconds; the first is not counted."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def rule_ms(rule: DeltaRule, num_rows: int, repeats: int = REPEATS) -> float:
    """One layer's recurrence over rows of one text; each call reads a state from memory."""
    torch.manual_seed(1)
    keys = torch.randn(num_rows, VALUE_HEADS, DIM)
    rows = DeltaRows(
        queries=torch.randn(num_rows, VALUE_HEADS, DIM),
        keys=keys / keys.norm(dim=-1, keepdim=True),
        values=torch.randn(num_rows, VALUE_HEADS, DIM),
        decays=torch.rand(num_rows, VALUE_HEADS),
        rates=torch.rand(num_rows, VALUE_HEADS),
    )
    matrices = torch.zeros(48, VALUE_HEADS, DIM, DIM)  # more than the caches hold
    next_state = iter(range(1, 10**9))

    def call() -> None:
        state = 1 + next(next_state) % 47
        rule(rows, [0], [StateSpan(0, num_rows, 0, source=state, target=state)], matrices)

    return median_ms(call, repeats)


class Bench:
    """A model with room for one sequence, and passes over it."""

    def __init__(self, path: Path, kernels: KernelLibrary, max_drafts: int) -> None:
        model = load_model(open_checkpoint(path), torch.bfloat16, kernels=kernels)
        shape = model.hparams.state_shape
        assert shape is not None
        self.shape: StateShape = shape
        self._kv = KvCache(256, 16, states=StatePool(4, 4096, max_drafts))
        storage = model.hparams.kv_shape.storage(self._kv.num_slots, torch.bfloat16)
        storage.states = shape.storage(4, max_drafts)
        self._states = storage.states
        self._runner = Runner(model, storage)

    def prompt_ms(self) -> float:
        """A pass over a prompt."""

        def call() -> None:
            sequence = PagedSequence(self._runner, self._kv, "prompt")
            sequence.extend([7] * PROMPT_LEN)
            sequence.close()

        return median_ms(call, 3)

    def pass_ms(self, draft_len: int, num_kept: int) -> float:
        """A pass of one known row and drafts, of which `num_kept` stayed in the pass before."""
        sequence = PagedSequence(self._runner, self._kv, "text")
        sequence.extend([7] * 64)

        def call() -> None:
            chain = range(-1, draft_len)
            sequence.compute([9] * (1 + draft_len), chain, num_known=1)
            sequence.keep(range(1 + num_kept))

        taken = median_ms(call)
        sequence.close()
        return taken

    def keep_ms(self, draft_len: int, num_kept: int) -> float:
        """Saying which drafts of a pass stay, and giving back the slots of the others."""
        sequence = PagedSequence(self._runner, self._kv, "text")
        sequence.extend([7] * 64)
        times = []
        for _ in range(REPEATS):
            sequence.compute([9] * (1 + draft_len), range(-1, draft_len), num_known=1)
            start = time.perf_counter()
            sequence.keep(range(1 + num_kept))
            times.append(time.perf_counter() - start)
        sequence.close()
        return statistics.median(times) * 1e3

    def copy_ms(self) -> float:
        """Copying one state of all layers, as a snapshot does."""

        def call() -> None:
            for layer in (*self._states.matrices, *self._states.tails):
                layer[2].copy_(layer[1])

        return median_ms(call)


def by_draft_len(bench: Bench, rule: DeltaRule) -> list[Json]:
    """A line of the table for each draft length."""
    lines = []
    for draft_len in DRAFT_LENS:
        own_ms = rule_ms(rule, 1 + draft_len)
        plain_ms = bench.pass_ms(draft_len, 0)
        lines.append(
            {
                "draft_len": draft_len,
                "state_bytes": bench.shape.bytes_per_state(draft_len),
                "bytes_of_a_state_for_each_row": (1 + draft_len) * bench.shape.bytes_per_state(0),
                "pass_ms": plain_ms,
                "pass_with_replay_ms": bench.pass_ms(draft_len, draft_len),
                "rule_ms_of_all_layers": own_ms * bench.shape.num_layers,
                "share_of_rule": own_ms * bench.shape.num_layers / plain_ms,
            }
        )
    return lines


def measure() -> Json:
    """All results."""
    kernels = KernelLibrary()
    native = NativeDeltaRule(kernels)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(write_model(Path(folder)), kernels, max(DRAFT_LENS))
        rules = {
            rule.name: {rows: rule_ms(rule, rows, 3 if rows > 8 else REPEATS) for rows in RULE_ROWS}
            for rule in (TorchDeltaRule(), native)
        }
        prompt_ms = bench.prompt_ms()
        return {
            "num_threads": torch.get_num_threads(),
            "isa": kernels.isa_name,
            "rule_ms_of_one_layer_by_rows": rules,
            "prompt": {
                "num_rows": PROMPT_LEN,
                "pass_ms": prompt_ms,
                "share_of_rule": bench.shape.num_layers * rules["native"][PROMPT_LEN] / prompt_ms,
                "share_of_rule_in_torch": _share(bench, rules, prompt_ms),
            },
            "snapshot_copy_ms": bench.copy_ms(),
            "by_draft_len": by_draft_len(bench, native),
        }


def _share(bench: Bench, rules: dict[str, dict[int, float]], prompt_ms: float) -> float:
    """Of the pass that would be if torch computed the rule."""
    in_torch, native = (bench.shape.num_layers * rules[name][PROMPT_LEN] for name in rules)
    return in_torch / (prompt_ms - native + in_torch)


def record(measure: Callable[[], Any], description: str | None, arguments: Sequence[str]) -> None:
    """Measure, without gradients, and write it with its provenance to `--out`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    command = [Path(sys.argv[0]).name, *arguments]
    provenance = read_provenance(["python", *command], [], SystemClock())
    with torch.inference_mode():
        results = measure()
    document = {"provenance": asdict(provenance), "results": results}
    options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    record(measure, __doc__, sys.argv[1:])
