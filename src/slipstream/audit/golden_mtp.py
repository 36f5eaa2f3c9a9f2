"""Recorded multi-token-prediction heads against ours: passes, chains and greedy rounds.

The folder holds one model whose checkpoint has the heads. A file of arrays holds, under prefixes,
passes over a prompt (`input_ids`, `mtp_logits` or `module0.logits`, `chain_tokens`) and traces of
greedy rounds (`prompt`, `draft_tokens`, one entry per round). Below `zero0.` the embedding of the
first token counts as zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from slipstream.audit.block_replay import greedy_tokens
from slipstream.audit.fixture import Check, FixtureError
from slipstream.audit.loaded_target import LoadedTarget
from slipstream.audit.mtp_replay import MtpReplay
from slipstream.audit.recorded import Recorded, compare, equal
from slipstream.errors import SlipstreamError
from slipstream.models.mtp.heads import MtpHeads
from slipstream.models.mtp.load import describe_heads, load_heads
from slipstream.weights.open import open_checkpoint

BOUND = 2e-4
RECURRENT_BOUND = 5e-4
_ZEROED = "zero0."
_DRAFTS = "draft_tokens"


def is_trace(names: Mapping[str, object] | frozenset[str]) -> bool:
    """Whether arrays of these names are such a file."""
    return any(name.endswith(f".{_DRAFTS}") for name in names)


def model_with_heads(folder: Path) -> Path | None:
    """The only model in the sub-folders of `folder`, if its checkpoint has heads."""
    models = sorted(path for path in folder.iterdir() if (path / "config.json").is_file())
    if len(models) != 1:
        return None
    try:
        described = describe_heads(open_checkpoint(models[0]))
    except SlipstreamError:
        return models[0]  # its run says what is wrong
    return None if described is None else models[0]


class MtpAudit:
    """Replays everything in a file with the heads that it was recorded with."""

    def __init__(self, model: Path, path: Path) -> None:
        self._model = model
        self._path = path

    def checks(self) -> list[Check]:
        """Every comparison.

        Raises:
            WeightsError: The checkpoint cannot be loaded.
            FixtureError: Arrays are missing.
        """
        recorded = Recorded.read(self._path)
        parts = [
            recorded.below(prefix)
            for name in ("input_ids", "prompt")
            for prefix in recorded.prefixes(name)
        ]
        texts = [
            part[name].numel()
            for part in parts
            for name in ("input_ids", "output_ids")
            if name in part
        ]
        if not texts:
            raise FixtureError(f"{self._path.name} holds no prompt")
        num_drafts = _num_drafts(parts)
        target = LoadedTarget(self._model, max(texts) + num_drafts + 2)
        heads = load_heads(open_checkpoint(self._model), target.model, torch.float32)
        is_recurrent = target.model.hparams.state_shape is not None
        bounds = {"": RECURRENT_BOUND if is_recurrent else BOUND}
        checks: list[Check] = []
        for part in parts:
            audit = _prompt_checks if "input_ids" in part else _trace_checks
            checks += audit(target, heads, part, num_drafts, bounds)
        return checks


def _num_drafts(parts: list[Recorded]) -> int:
    widths = [part[_DRAFTS].shape[-1] for part in parts if _DRAFTS in part]
    if not widths:
        raise FixtureError(f"no array {_DRAFTS} says how many drafts a round has")
    return int(max(widths))


def _prompt_checks(
    target: LoadedTarget,
    heads: MtpHeads,
    part: Recorded,
    num_drafts: int,
    bounds: Mapping[str, float],
) -> list[Check]:
    """One pass over a prompt with all heads, and a chain behind it."""
    prompt = part.ints("input_ids")
    checks: list[Check] = []
    for below, variant in {"": heads, _ZEROED: heads.zeroing_first()}.items():
        replay = MtpReplay(target, variant, prompt, num_drafts)
        ours = _prompt_arrays(replay, num_drafts)
        replay.close()
        checks += compare(ours, part.below(below), bounds)
    return checks


def _prompt_arrays(replay: MtpReplay, num_drafts: int) -> dict[str, Tensor]:
    chain = replay.draft(num_drafts)
    ours = {
        "target_next": torch.tensor([replay.anchor]),
        "target_hidden_postnorm": replay.states,
        "target_logits": replay.logits,
        "chain_tokens": chain.tokens,
        "chain_logits": chain.logits,
        "chain_hidden": chain.hidden,
    }
    rows = replay.straight()
    ours["mtp_hidden"], ours["mtp_logits"] = rows[0]
    for head, (hidden, logits) in enumerate(rows):
        ours[f"module{head}.hidden"], ours[f"module{head}.logits"] = hidden, logits
    return ours


def _trace_checks(
    target: LoadedTarget,
    heads: MtpHeads,
    part: Recorded,
    num_drafts: int,
    bounds: Mapping[str, float],
) -> list[Check]:
    """Greedy rounds, chain by chain."""
    prompt, output = part.ints("prompt"), part.ints("output_ids")
    replay = MtpReplay(target, heads, prompt, num_drafts)
    rounds: list[dict[str, Tensor]] = []
    for _ in range(len(part["accept_len"])):
        context_len, root = len(replay.committed), replay.anchor
        chain = replay.draft(num_drafts)
        verified = replay.verify(chain.tokens.tolist())
        rounds.append(
            {
                "ctx_len": torch.tensor(context_len),
                "seq_len": torch.tensor(context_len + 1),
                "root": torch.tensor(root),
                "draft_tokens": chain.tokens,
                "draft_logits": chain.logits,
                "draft_margin": _margins(chain.logits),
                "target_argmax": verified.logits.argmax(-1),
                "target_margin": _margins(verified.logits),
                "accept_len": torch.tensor(verified.accept_len),
                "bonus": torch.tensor(replay.anchor),
            }
        )
    ours = {name: torch.stack([item[name] for item in rounds]) for name in rounds[0]}
    ours["output_ids"] = torch.tensor([*replay.committed, replay.anchor])
    replay.close()
    plain = torch.tensor(greedy_tokens(target, prompt, len(output) - len(prompt)))
    expected = torch.tensor(output[len(prompt) :])
    name = f"{part.place}output_ids by plain decoding"
    return [*compare(ours, part, bounds), equal(name, plain, expected)]


def _margins(logits: Tensor) -> Tensor:
    best = logits.topk(2).values
    return best[:, 0] - best[:, 1]
