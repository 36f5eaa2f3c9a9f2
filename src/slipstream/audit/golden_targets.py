"""Target models against recorded logits, hidden states and greedy continuations.

A folder holds config.json, weights, and a safetensors file with arrays of one or several inputs;
the arrays of an input share a prefix (`a.logits`, `b.logits`):

    input_ids               [tokens] int64
    logits                  [tokens, vocab] of one pass; these two are always there
    hidden_states           [layers + 1, tokens, hidden]: embeddings, the stream behind each layer
                            but the last, the stream behind the final norm
    last_layer_out_prenorm  [tokens, hidden]
    prefill_len             [1]; step_logits [tokens - prefill_len + 1, vocab]
    greedy                  [n] continuation of the whole prompt
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slipstream.audit.fixture import Check, Fixture, FixtureError
from slipstream.audit.loaded_target import LoadedTarget
from slipstream.audit.paged_sequence import PagedSequence
from slipstream.audit.recorded import Recorded, close
from slipstream.models.load import is_supported

BOUND = 2e-4
RECURRENT_BOUND = 5e-4  # a state carries the rounding of all rows before
_CHUNK_LEN = 7


def fixtures_in(
    folder: Path,
    config: Mapping[str, Any],  # Any: JSON
    arrays: Mapping[Path, frozenset[str]],
) -> Iterator[Fixture]:
    """One fixture per file with recorded arrays beside the weights in `folder`.

    Args:
        arrays: Safetensors file of the folder -> names in it.
    """
    family = str(config.get("model_type", "unknown"))
    recorded = [path for path, names in arrays.items() if _prefixes(names)]
    for path in recorded:
        place = folder if len(recorded) == 1 else path
        run = TargetAudit(folder, path).checks if is_supported(config) else None
        yield Fixture(family, place, run)
    for path in [] if recorded else [path for path, names in arrays.items() if not names]:
        yield Fixture(family, path, TargetAudit(folder, path).checks)  # its run says what is wrong


class TargetAudit:
    """Loads a checkpoint as a user would, in float32, and compares it with recorded arrays."""

    def __init__(self, folder: Path, recorded: Path) -> None:
        self._folder = folder
        self._recorded = recorded

    def checks(self) -> list[Check]:
        """Every comparison for every input.

        Raises:
            WeightsError: The checkpoint cannot be loaded.
            FixtureError: A recorded array is missing or impossible.
        """
        arrays = Recorded.read(self._recorded).arrays
        prefixes = _prefixes(frozenset(arrays))
        inputs = {
            prefix: {
                name.removeprefix(prefix): array
                for name, array in arrays.items()
                if name.startswith(prefix)
            }
            for prefix in prefixes
        }
        longest = max(_total_len(recorded) for recorded in inputs.values())
        model = LoadedTarget(self._folder, longest)
        return [
            check
            for prefix, recorded in inputs.items()
            for check in _InputAudit(model, prefix, recorded).checks()
        ]


class _InputAudit:
    """Comparisons for one recorded input."""

    def __init__(self, target: LoadedTarget, prefix: str, recorded: Mapping[str, Tensor]) -> None:
        self._target = target
        self._prefix = prefix
        self._recorded = recorded
        self._tokens: list[int] = recorded["input_ids"].flatten().tolist()
        vocab_size = target.runner.model.hparams.vocab_size
        if not self._tokens or not all(0 <= token < vocab_size for token in self._tokens):
            raise FixtureError(f"{prefix}input_ids must hold token ids below {vocab_size}")

    def checks(self) -> list[Check]:
        return [
            *self._whole_and_greedy(),
            self._chunked(),
            *([self._stepped()] if "step_logits" in self._recorded else []),
        ]

    def _whole_and_greedy(self) -> list[Check]:
        """One pass over the prompt with every layer's output, then the greedy continuation."""
        sequence = self._target.sequence()
        layer_ids = tuple(range(-1, self._target.num_layers))
        output = sequence.extend(self._tokens, layer_ids)
        taps = [output.taps[layer] for layer in layer_ids]
        final = self._target.runner.model.final_norm(taps[-1])
        checks = [self._close("logits", output.logits, self._recorded["logits"])]
        if "hidden_states" in self._recorded:
            states = torch.stack([*taps[:-1], final])
            checks.append(self._close("hidden states", states, self._recorded["hidden_states"]))
        if "last_layer_out_prenorm" in self._recorded:
            expected = self._recorded["last_layer_out_prenorm"]
            checks.append(self._close("last layer's output", taps[-1], expected))
        if "greedy" in self._recorded:
            checks.append(self._greedy(sequence, output.logits))
        sequence.close()
        return checks

    def _greedy(self, sequence: PagedSequence, logits: Tensor) -> Check:
        expected: list[int] = self._recorded["greedy"].tolist()
        tokens = [int(logits[-1].argmax())]
        while len(tokens) < len(expected):
            tokens.append(int(sequence.extend(tokens[-1:]).logits[-1].argmax()))
        wrong = [step for step, token in enumerate(tokens) if token != expected[step]]
        note = ""
        if wrong:
            step = wrong[0]
            note = f"token {step} is {tokens[step]} instead of {expected[step]}"
        name = f"{self._prefix}greedy tokens"
        return Check(name, num_compared=len(expected), num_wrong=len(wrong), note=note)

    def _chunked(self) -> Check:
        sequence = self._target.sequence()
        parts = [
            sequence.extend(self._tokens[start : start + _CHUNK_LEN]).logits
            for start in range(0, len(self._tokens), _CHUNK_LEN)
        ]
        sequence.close()
        return self._close("logits in chunks", torch.cat(parts), self._recorded["logits"])

    def _stepped(self) -> Check:
        if "prefill_len" not in self._recorded:
            raise FixtureError(f"{self._prefix}step_logits needs {self._prefix}prefill_len")
        prefill_len = int(self._recorded["prefill_len"])
        if not 0 < prefill_len <= len(self._tokens):
            raise FixtureError(f"{self._prefix}prefill_len {prefill_len} is not in the prompt")
        sequence = self._target.sequence()
        rows = [sequence.extend(self._tokens[:prefill_len]).logits[-1:]]
        rows += [sequence.extend([token]).logits for token in self._tokens[prefill_len:]]
        sequence.close()
        return self._close("logits step by step", torch.cat(rows), self._recorded["step_logits"])

    def _close(self, name: str, actual: Tensor, expected: Tensor) -> Check:
        is_recurrent = self._target.runner.model.hparams.state_shape is not None
        bound = RECURRENT_BOUND if is_recurrent else BOUND
        return close(self._prefix + name, actual, expected, bound)


def _prefixes(names: frozenset[str]) -> list[str]:
    """Prefixes, dot included, under which an input and its logits stand."""
    prefixes = [name.removesuffix("input_ids") for name in names if name.endswith(".input_ids")]
    return sorted(prefix for prefix in prefixes if f"{prefix}logits" in names)


def _total_len(recorded: Mapping[str, Tensor]) -> int:
    num_greedy = recorded["greedy"].numel() if "greedy" in recorded else 0
    return recorded["input_ids"].numel() + num_greedy + 1
