"""What `slipstream models show` says about a checkpoint that is a drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slipstream.errors import WeightsError

Json = dict[str, Any]  # Any: JSON values


def draft_facts(path: Path, target: Path | None) -> Json | None:
    """Facts by name; None for a checkpoint that is no drafter.

    Args:
        target: Checkpoint that it is compared with, if any.
    Raises:
        WeightsError: A checkpoint cannot be opened, or `target` is no target.
    """
    # Imported here because it brings torch, which the other commands do without.
    from slipstream.models.drafts.hparams import DFlashHparams, default_tap_layer_ids
    from slipstream.models.drafts.load import describe_checkpoint, misfits
    from slipstream.models.load import read_hparams
    from slipstream.weights.open import open_checkpoint

    checkpoint = open_checkpoint(path)
    try:
        draft = describe_checkpoint(checkpoint)
    except WeightsError as error:
        return {"problems": [error.message]}
    if draft is None:
        return None
    hparams = draft.hparams
    taps, depth = hparams.tap_layer_ids, draft.num_target_layers
    problems: list[str] | None = list(draft.problems) or None
    if target is not None:
        fitted = read_hparams(open_checkpoint(target).config)
        problems, depth = misfits(draft, fitted), fitted.num_layers
    if taps is None and depth is not None:
        taps = default_tap_layer_ids(hparams, depth)
    block = hparams if isinstance(hparams, DFlashHparams) else None
    return {
        "family": draft.layout.family,
        "layout": draft.layout.name,
        "target": {
            "name": draft.layout.target_name,
            "hidden_size": hparams.target_hidden_size,
            "num_layers": draft.num_target_layers,
            "vocab_size": hparams.body.vocab_size,
        },
        "tap_layer_ids": None if taps is None else list(taps),
        "num_taps": hparams.num_taps,
        "draft_block_len": None if block is None else block.draft_block_len,
        "max_draft_len": None if block is None else block.max_draft_len,
        "draft_vocab_size": hparams.draft_vocab_size,
        "max_positions": hparams.body.max_positions,
        "problems": problems,
    }


def draft_rows(facts: Json) -> list[tuple[str, str]]:
    """The same in words, for a table."""
    problems: list[str] | None = facts["problems"]
    if "family" not in facts:
        return [
            ("drafter", "; ".join(problems or [])),
            ("fits the target", "no: it cannot be loaded"),
        ]
    target, taps = facts["target"], facts["tap_layer_ids"]
    depth = target["num_layers"]
    made_for = [
        target["name"] or "unnamed",
        f"{target['hidden_size']} wide",
        f"{depth} layers" if depth else "depth not said",
        f"{target['vocab_size']} tokens",
    ]
    rows = [
        ("drafter", f"{facts['family']}, {facts['layout']} layout"),
        ("made for", ", ".join(made_for)),
        (
            "taps",
            f"{facts['num_taps']}, by the family's rule"
            if taps is None
            else f"after layers {', '.join(map(str, taps))} (from 0; -1: the embedding)",
        ),
        ("draft vocabulary", f"{facts['draft_vocab_size']} tokens"),
        ("drafts for", f"texts of up to {facts['max_positions']} tokens"),
    ]
    if facts["draft_block_len"] is not None:
        rows.append(
            ("block", f"{facts['draft_block_len']} rows, {facts['max_draft_len']} drafts at most")
        )
    if problems is not None:
        rows.append(("fits the target", "yes" if not problems else f"no: {'; '.join(problems)}"))
    return rows
