"""Golden fixtures made on the spot: a tiny checkpoint beside what it computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.passes import Chunk, SlotSource, make_runner, run_chunks
from tests.support.tiny import write_tiny_checkpoint

PROMPT_LEN, PREFILL_LEN, NUM_GREEDY = 24, 17, 6
RECORDED = "recorded.safetensors"


def write_target_fixture(path: Path, family: str = "llama", **sizes: Any) -> Path:
    """A fixture that passes: recorded arrays come from one pass of our own runner."""
    write_tiny_checkpoint(path, family, seed=2, hidden_size=32, num_layers=2, **sizes)
    arrays: dict[str, Tensor] = {}
    for prefix in ("x", "y"):
        arrays |= {f"{prefix}.{name}": array for name, array in _arrays(path, prefix).items()}
    save_file(arrays, path / RECORDED)
    return path


def change_arrays(path: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    """Rewrite a fixture's recorded arrays."""
    arrays = load_file(path / RECORDED)
    change(arrays)
    save_file(arrays, path / RECORDED)


def write_json(path: Path, content: object) -> Path:
    """Write `content` and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def _arrays(path: Path, prefix: str) -> dict[str, Tensor]:
    runner = make_runner(path, num_slots=256)
    hparams = runner.model.hparams
    generator = torch.Generator().manual_seed(ord(prefix))
    prompt = torch.randint(hparams.vocab_size, (PROMPT_LEN,), generator=generator)
    slots = SlotSource(256).take(PROMPT_LEN + NUM_GREEDY)
    layer_ids = tuple(range(-1, hparams.num_layers))
    output = run_chunks(runner, [Chunk(prompt.tolist(), 0, slots)], layer_ids)
    taps = [output.taps[layer] for layer in layer_ids]
    tokens = [int(output.logits[-1].argmax())]
    while len(tokens) < NUM_GREEDY:
        position = PROMPT_LEN + len(tokens) - 1
        logits = run_chunks(runner, [Chunk(tokens[-1:], position, slots)]).logits
        tokens.append(int(logits[-1].argmax()))
    return {
        "input_ids": prompt,
        "logits": output.logits.contiguous(),
        "hidden_states": torch.stack([*taps[:-1], runner.model.final_norm(taps[-1])]),
        "last_layer_out_prenorm": taps[-1].clone(),
        "prefill_len": torch.tensor([PREFILL_LEN]),
        "step_logits": output.logits[PREFILL_LEN - 1 :].clone(),
        "greedy": torch.tensor(tokens),
    }
