"""Recorded EAGLE-3 passes, chains, trees and decoding against ours.

A file holds, under prefixes, passes over a prompt (`taps`, `draft_logits`, `chain_tokens`, and a
tree's arrays behind `tree.`) and traces of greedy rounds (`prompt`, `ctx_len`, and the trees'
arrays with one entry per round). A JSON file beside it says how large the trees may get.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from slipstream.audit.block_replay import greedy_tokens
from slipstream.audit.draft_folder import DraftFolder, NamedDraft
from slipstream.audit.eagle_replay import DraftedTree, EagleReplay, TreeSettings, Verified
from slipstream.audit.fixture import Check, FixtureError
from slipstream.audit.loaded_target import LoadedTarget
from slipstream.audit.recorded import Recorded, compare, equal
from slipstream.models.drafts.eagle3 import Eagle3Net
from slipstream.models.drafts.ends import ModelEnds
from slipstream.models.drafts.hparams import Eagle3Hparams
from slipstream.models.drafts.load import load_draft
from slipstream.models.drafts.parts import empty_context
from slipstream.speculation.tree import DraftTree
from slipstream.weights.open import open_checkpoint

BOUND = 1e-4
SCORE_BOUND = 5e-4
STATE_BOUND = 2e-4  # states in front of a norm are several times as large as logits
_BOUNDS = {
    "": BOUND,
    **dict.fromkeys(("scores", "cut_gap", "root_logp"), SCORE_BOUND),
    **dict.fromkeys(("taps", "fused", "draft_hidden", "chain_hidden"), STATE_BOUND),
}


class EagleAudit:
    """Replays everything in a file with the draft checkpoints that it was recorded with."""

    def __init__(self, folder: DraftFolder, path: Path) -> None:
        self._folder = folder
        self._path = path

    def checks(self) -> list[Check]:
        """Every comparison; arrays over different draft vocabularies are of different drafts.

        Raises:
            WeightsError: A checkpoint cannot be loaded.
            FixtureError: No draft of the folder fits the arrays, or arrays are missing.
        """
        recorded = Recorded.read(self._path)
        groups: dict[int, list[str]] = {}
        for name in ("draft_logits", "root_logp"):
            for prefix in recorded.prefixes(name):
                if not prefix.endswith("tree."):
                    width = recorded[prefix + name].shape[-1]
                    groups.setdefault(width, []).append(prefix)
        checks: list[Check] = []
        for width, prefixes in groups.items():
            parts = [recorded.below(prefix) for prefix in prefixes]
            drafts = [draft for draft in self._folder.drafts if _fits(draft, width)]
            checks += self._folder.best_of(
                drafts,
                self._path,
                lambda draft, parts=parts: self._of(draft, parts),  # type: ignore[misc]  # a default binds the loop's value
            )
        return checks

    def _of(self, draft: NamedDraft, parts: Sequence[Recorded]) -> list[Check]:
        settings = _tree_settings(self._path.parent)
        lens = [
            part[name].numel()
            for part in parts
            for name in ("input_ids", "output_ids")
            if name in part
        ]
        target = LoadedTarget(self._folder.target, max(lens) + settings.total_token + 1)
        checkpoint = open_checkpoint(draft.path)
        ends = ModelEnds(target.model)
        net = load_draft(checkpoint, target.model.hparams, ends, torch.float32)
        assert isinstance(net, Eagle3Net)
        checks: list[Check] = []
        for part in parts:
            audit = _prompt_checks if "input_ids" in part else _trace_checks
            checks += audit(target, net, part, settings)
        return checks


def is_trace(names: Mapping[str, object] | frozenset[str]) -> bool:
    """Whether arrays of these names are such a file."""
    return any(name.endswith(".chain_tokens") for name in names)


def _fits(draft: NamedDraft, width: int) -> bool:
    hparams = draft.described.hparams
    return isinstance(hparams, Eagle3Hparams) and hparams.draft_vocab_size == width


def _prompt_checks(
    target: LoadedTarget, net: Eagle3Net, part: Recorded, settings: TreeSettings
) -> list[Check]:
    """One pass over a prompt, a chain and a tree behind it."""
    prompt = part.ints("input_ids")
    replay = EagleReplay(target, net, prompt)
    fused = net.fuse(replay.taps)
    count = len(prompt)
    with torch.inference_mode():
        rows = net.extend(
            torch.tensor([*prompt[1:], replay.anchor]).view(1, 1, -1),
            fused.view(1, 1, count, -1),
            torch.arange(count).view(1, 1, -1),
            empty_context(net.hparams.body, 1, 1),
            (),
            torch.ones(count, count, dtype=torch.bool).tril(),
        )
        logits = net.head(rows.normed)[0, 0]
    tokens, chain_logits, chain_hidden = replay.chain(part["chain_tokens"].numel())
    ours = {
        "target_next": torch.tensor([replay.anchor]),
        "taps": replay.taps,
        "fused": fused.detach(),
        "draft_hidden": rows.hidden[0, 0],
        "draft_logits": logits,
        "chain_tokens": torch.tensor(tokens),
        "chain_logits": chain_logits,
        "chain_hidden": chain_hidden,
    }
    tree = part.below("tree.")
    drafted = _tree_arrays(replay.anchor, replay.draft(settings))
    replay.close()
    return [*compare(ours, part, _BOUNDS), *compare(drafted, tree, _BOUNDS)]


def _trace_checks(
    target: LoadedTarget, net: Eagle3Net, part: Recorded, settings: TreeSettings
) -> list[Check]:
    """Greedy rounds, tree by tree."""
    prompt, output = part.ints("prompt"), part.ints("output_ids")
    replay = EagleReplay(target, net, prompt)
    rounds: list[dict[str, Tensor]] = []
    width = part["accepted_path"].shape[-1]
    for _ in range(len(part["ctx_len"])):
        context_len, root = len(replay.committed), replay.anchor
        drafted = replay.draft(settings)
        verified = replay.verify(drafted.best)
        rounds.append(
            _tree_arrays(root, drafted)
            | _verified_arrays(root, drafted.best, verified, width)
            | {"ctx_len": torch.tensor(context_len)}
        )
    replay.close()
    same_rounds = [name for name in rounds[0] if len({item[name].shape for item in rounds}) == 1]
    ours = {name: torch.stack([item[name] for item in rounds]) for name in same_rounds}
    ours["output_ids"] = torch.tensor(replay.committed)
    plain = greedy_tokens(target, prompt, len(output) - len(prompt))
    expected = torch.tensor(output[len(prompt) :])
    name = f"{part.place}output_ids by plain decoding"
    return [*compare(ours, part, _BOUNDS), equal(name, torch.tensor(plain), expected)]


def _tree_arrays(root: int, drafted: DraftedTree) -> dict[str, Tensor]:
    """A tree with its root, under the names of the recordings."""
    tree = drafted.best
    paths = [
        (0,),
        *(tuple(step + 1 for step in (-1, *tree.path(node))) for node in range(len(tree))),
    ]
    mask = torch.zeros(len(paths), len(paths), dtype=torch.uint8)
    for row, path in enumerate(paths):
        mask[row, list(path)] = 1
    leaves = [path for node, path in enumerate(paths) if not tree.children(node - 1)]
    retrieve = torch.full((len(leaves), max(map(len, leaves))), -1)
    for row, path in enumerate(leaves):
        retrieve[row, : len(path)] = torch.tensor(path)
    return {
        "tokens": torch.tensor([root, *tree.tokens]),
        "parents": torch.tensor([-1, *(parent + 1 for parent in tree.parents)]),
        "depth": torch.tensor([0, *tree.depths]),
        "scores": torch.tensor([1.0, *tree.scores], dtype=torch.float64).log(),
        "tree_mask": mask,
        "retrieve_indices": retrieve,
        "root_logp": drafted.root_logp,
        "cut_gap": torch.tensor(drafted.cut_gap),
    }


def _verified_arrays(
    root: int, tree: DraftTree, verified: Verified, width: int
) -> dict[str, Tensor]:
    accepted = torch.full((width,), -1)
    kept = [root, *(tree.tokens[node] for node in verified.path)][:width]
    accepted[: len(kept)] = torch.tensor(kept)
    return {
        "accept_len": torch.tensor(len(verified.path)),
        "accepted_path": accepted,
        "bonus": torch.tensor(verified.bonus),
        "bonus_margin": torch.tensor(verified.bonus_margin),
    }


def _tree_settings(folder: Path) -> TreeSettings:
    """From the JSON file of the folder that has them."""
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return TreeSettings(
                **{name: int(content["tree"][name]) for name in ("total_token", "depth", "top_k")}
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
    raise FixtureError(
        "no JSON file beside the arrays says how large the trees may get: "
        '{"tree": {"total_token", "depth", "top_k"}}'
    )
