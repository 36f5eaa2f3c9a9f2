"""Recorded decoding with block drafters (DFlash, DFlash 2, DSpark) against ours.

A file holds, per prompt, a trace of greedy rounds: `prompt`, `n_new_context`, what was drafted in
each round, what the target said, and for some rounds what was computed on the way. Beside them
may stand runs with a threshold (`thrK.`, of the prompt of `e2eK.`) and drafts at a temperature
along a given path (`T07.rR.sS.`: temperature 0.7, round R of the first prompt).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from slipstream.audit.block_arrays import conv_checks, round_arrays, sampled_arrays
from slipstream.audit.block_replay import AnyBlockNet, BlockReplay, Round, greedy_tokens
from slipstream.audit.draft_folder import DraftFolder, NamedDraft
from slipstream.audit.fixture import Check, FixtureError
from slipstream.audit.loaded_target import LoadedTarget
from slipstream.audit.recorded import Recorded, compare, equal
from slipstream.models.drafts.dflash import BlockNet
from slipstream.models.drafts.ends import ModelEnds
from slipstream.models.drafts.hparams import DFlash2Hparams, DFlashHparams, DSparkHparams
from slipstream.models.drafts.load import load_draft
from slipstream.weights.open import open_checkpoint

BOUND = 2e-4
_BOUNDS = {"": BOUND}
_LOOSE_GAP = 1e-3  # two candidates that are nearer than this may change places


class BlockAudit:
    """Replays every trace of a file with one draft checkpoint."""

    def __init__(self, folder: DraftFolder, path: Path) -> None:
        self._folder = folder
        self._path = path

    def checks(self) -> list[Check]:
        """Every comparison, with the draft that the arrays are of.

        Raises:
            WeightsError: A checkpoint cannot be loaded.
            FixtureError: No draft of the folder fits the arrays, or arrays are missing.
        """
        recorded = Recorded.read(self._path)
        drafts = [draft for draft in self._folder.drafts if _fits(draft, recorded)]
        return self._folder.best_of(drafts, self._path, lambda draft: self._of(draft, recorded))

    def _of(self, draft: NamedDraft, recorded: Recorded) -> list[Check]:
        prompts = recorded.prefixes("n_new_context")
        longest = max(len(recorded.ints(f"{prefix}output_ids")) for prefix in prompts)
        block_len = _hparams(draft).draft_block_len
        target = LoadedTarget(self._folder.target, longest + 2 * block_len)
        ends = ModelEnds(target.model)
        checkpoint = open_checkpoint(draft.path)
        net = load_draft(checkpoint, target.model.hparams, ends, torch.float32)
        assert isinstance(net, BlockNet)
        checks = conv_checks(net, recorded, BOUND)
        for number, prefix in enumerate(prompts):
            sampled = recorded if number == 0 else Recorded({})
            checks.extend(_TraceAudit(target, net, recorded.below(prefix), sampled).checks())
            threshold_prefix = re.sub(r"^\D+", "thr", prefix)
            if recorded.prefixes("value") and f"{threshold_prefix}draft_tokens" in recorded:
                threshold = float(recorded[recorded.prefixes("value")[0] + "value"])
                trace = recorded.below(threshold_prefix)
                trace.arrays.setdefault("prompt", recorded[f"{prefix}prompt"])
                audit = _TraceAudit(target, net, trace, Recorded({}), threshold)
                checks.extend(audit.checks())
        return checks


class _TraceAudit:
    """One prompt's rounds."""

    def __init__(
        self,
        target: LoadedTarget,
        net: AnyBlockNet,
        trace: Recorded,
        sampled: Recorded,
        threshold: float | None = None,
    ) -> None:
        self._target = target
        self._net = net
        self._trace = trace
        self._sampled = sampled
        self._threshold = threshold

    def checks(self) -> list[Check]:
        prompt, output = self._trace.ints("prompt"), self._trace.ints("output_ids")
        if not prompt or output[: len(prompt)] != prompt:
            raise FixtureError(f"{self._trace.place}output_ids must begin with the prompt")
        replay = BlockReplay(self._target, self._net, prompt)
        first_token = replay.output[-1]
        rounds: list[Round] = []
        checks: list[Check] = []
        for number in range(len(self._trace["start"])):
            rows = replay.draft()
            checks.extend(self._sampled_checks(replay, number))
            walk = replay.walk(rows)
            rounds.append(replay.advance(rows, walk, self._num_proposed(walk.confidence)))
        injected = torch.cat(replay.injected[: len(rounds)])
        replay.close()
        ours = round_arrays(self._net, rounds) | {
            "first_token": torch.tensor(first_token),
            "output_ids": torch.tensor(replay.output[: len(output)]),
            "taps": injected,
            "context_feature": self._net.context_features(injected).detach(),
        }
        _forgive_near_ties(ours, self._trace)
        plain = greedy_tokens(self._target, prompt, len(output) - len(prompt))
        name = f"{self._trace.place}output_ids by plain decoding"
        expected = torch.tensor(output[len(prompt) :])
        return [
            *compare(ours, self._trace, _BOUNDS),
            *checks,
            equal(name, torch.tensor(plain), expected),
        ]

    def _num_proposed(self, confidence: Tensor | None) -> int:
        """Drafts in front of the first one that is trusted less than the threshold."""
        if self._threshold is None or confidence is None:
            max_draft_len: int = self._net.hparams.max_draft_len
            return max_draft_len
        trusted = torch.sigmoid(confidence) >= self._threshold
        return int(trusted.long().cumprod(0).sum())

    def _sampled_checks(self, replay: BlockReplay, number: int) -> Iterator[Check]:
        for prefix in self._sampled.prefixes("path"):
            match = re.fullmatch(r"T(\d)(\d*)\.r(\d+)\.\w+\.", prefix)
            if match is None or int(match[3]) != number:
                continue
            arrays = self._sampled.below(prefix)
            temperature = float(f"{match[1]}.{match[2] or 0}")
            ours = sampled_arrays(replay, arrays.ints("path"), temperature)
            yield from compare(ours, arrays, _BOUNDS)


def _hparams(draft: NamedDraft) -> DFlashHparams:
    hparams = draft.described.hparams
    assert isinstance(hparams, DFlashHparams)
    return hparams


def _fits(draft: NamedDraft, recorded: Recorded) -> bool:
    """Whether shapes allow that the arrays were computed with this draft."""
    hparams = draft.described.hparams
    if not isinstance(hparams, DFlashHparams):
        return False
    has_selector = bool(recorded.prefixes("candidate_ids"))
    if has_selector != isinstance(hparams, DFlash2Hparams):
        return False
    has_confidence = bool(recorded.prefixes("confidence_logits"))
    if has_confidence != (isinstance(hparams, DSparkHparams) and hparams.has_confidence):
        return False
    taps_width = hparams.num_taps * hparams.target_hidden_size
    widths = {
        "noise_ids": hparams.draft_block_len,
        "block": hparams.max_draft_len + 1,
        "draft_tokens": hparams.max_draft_len,
        "taps": taps_width,
        "context_feature": hparams.body.hidden_size,
    }
    return all(
        recorded[prefix + name].shape[-1] == width
        for name, width in widths.items()
        for prefix in recorded.prefixes(name)
    )


def _forgive_near_ties(ours: dict[str, Tensor], trace: Recorded) -> None:
    """Where the last candidate is next to a tie, either of the two is right."""
    if "candidate_ids" not in ours or "topk_cut_gap" not in trace:
        return
    recorded = trace["candidate_ids"]
    if ours["candidate_ids"].shape != recorded.shape:
        return
    near = trace["topk_cut_gap"] < _LOOSE_GAP
    ours["candidate_ids"][..., -1][near] = recorded[..., -1][near]


def is_trace(names: Mapping[str, object] | frozenset[str]) -> bool:
    """Whether arrays of these names are such a file."""
    return any(name.endswith(".n_new_context") for name in names)
