"""Folders to serve a trained net from, each with the story of how it was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from slipstream.training.draft_files import our_config, speculators_config, write_draft_folder
from slipstream.training.run_folder import PROVENANCE_FILE, Progress, RunRecord, write_json
from slipstream.training.session import RestoredRun, TrainingTarget, stored_parameters

Layout = Literal["slipstream", "speculators"]
Story = Mapping[str, Any]  # Any: JSON


def export_run(
    run: RestoredRun,
    target: TrainingTarget,
    path: Path,
    layout: Layout,
    dtype: torch.dtype,
    story: Story,
) -> None:
    """Write config.json, model.safetensors and provenance.json into the folder `path`."""
    net = run.net
    parameters = stored_parameters(net)
    hparams = replace(net.hparams, has_own_head="lm_head.weight" in parameters)
    if layout == "slipstream":
        config = our_config(hparams, target.identity, dtype)
    else:
        config = speculators_config(hparams, target.identity, target.source, dtype)
    write_draft_folder(path, config, parameters, net.token_ids, dtype)
    write_json(path / PROVENANCE_FILE, story)


def tell_story(
    record: RunRecord,
    progress: Progress,
    provenance: Mapping[str, Any],  # Any: JSON
    scores: Mapping[str, Any] | None = None,  # Any: JSON
) -> dict[str, Any]:  # Any: JSON
    """What a drafter's provenance file says.

    Args:
        provenance: Command, commit, versions, machine and date of the program that writes it.
        scores: Further measurements.
    """
    return {
        "run": record.model_dump(),
        "step": progress.step,
        "num_answer_tokens": progress.num_tokens,
        "training_seconds": round(progress.seconds, 1),
        "seed": record.settings.fit.seed,
        "scores": {
            "history": [score.model_dump() for score in progress.history[-1:]],
            **(scores or {}),
        },
        "provenance": dict(provenance),
    }
