"""Folders to serve a trained net from, each with the story of how it was made."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from slipstream.errors import ConfigError
from slipstream.models.drafts.calibration import CALIBRATION_FILE
from slipstream.models.drafts.hparams import DraftHparams
from slipstream.models.drafts.load import describe_checkpoint
from slipstream.models.drafts.origin import PEAKS_FIELD, PROVENANCE_FILE
from slipstream.training.draft_files import (
    WEIGHTS_FILE,
    our_config,
    require_same_net,
    speculators_config,
    write_draft_folder,
)
from slipstream.training.draft_gguf import GgufType, write_draft_gguf
from slipstream.training.export_folder import export_folder
from slipstream.training.families.table import family_for
from slipstream.training.gguf_vocabulary import vocabulary_keys
from slipstream.training.run_folder import Progress, RunRecord, write_json
from slipstream.training.session import RestoredRun, TrainingTarget
from slipstream.weights.layout import DRAFT_FOLDER
from slipstream.weights.open import open_checkpoint

Layout = Literal["slipstream", "speculators", "gguf"]
GGUF_FILE = "draft.gguf"
TENSOR_TYPES: Mapping[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
GGUF_TYPES: Mapping[str, GgufType] = {
    "q8_0": "q8_0",
    "q4_1": "q4_1",
    "q4_0": "q4_0",
    "bf16": "bf16",
    "f32": "f32",
}
Story = Mapping[str, Any]  # Any: JSON


def export_run(
    run: RestoredRun,
    target: TrainingTarget,
    path: Path,
    layout: Layout,
    stored: str,
    story: Story,
) -> None:
    """Write the net, provenance.json and, if there is one, its calibration into the folder `path`.

    Args:
        stored: Type of the matrices.
    Raises:
        ConfigError: The layout has no such type, or cannot express the net, or the folder holds
            something else.
        CapacityError: The disk is full; the folder is as it was.
    """
    kinds = GGUF_TYPES if layout == "gguf" else TENSOR_TYPES
    if stored not in kinds:
        raise ConfigError(f"layout {layout} stores {', '.join(kinds)}; got {stored}")
    net = run.net
    family_for(net.hparams).require_layout(layout)
    parameters, hparams = net.stored(), net.stored_hparams()
    name = GGUF_FILE if layout == "gguf" else WEIGHTS_FILE
    with export_folder(
        path,
        name,
        is_speculators=layout == "speculators",
        is_runs_own=path == run.path / DRAFT_FOLDER,
    ) as folder:
        if layout == "gguf":
            loaded = target.loaded
            vocabulary = vocabulary_keys(loaded.path, loaded.tokenizer, hparams.body.vocab_size)
            kind = GGUF_TYPES[stored]
            write_draft_gguf(folder / name, hparams, parameters, net.token_ids, kind, vocabulary)
        else:
            dtype = TENSOR_TYPES[stored]
            config = (
                our_config(hparams, target.identity, dtype)
                if layout == "slipstream"
                else speculators_config(hparams, target.identity, target.source, dtype)
            )
            write_draft_folder(folder, config, parameters, net.token_ids, dtype)
        _require_read_back(folder / name, hparams, layout)
        peaks = {PEAKS_FIELD: target.identity.embedding_peaks}
        write_json(folder / PROVENANCE_FILE, {**story, **peaks})
        if (run.path / CALIBRATION_FILE).exists():
            shutil.copyfile(run.path / CALIBRATION_FILE, folder / CALIBRATION_FILE)


def _require_read_back(weights: Path, hparams: DraftHparams, layout: Layout) -> None:
    """Refuse weights that would be read as those of another net."""
    described = describe_checkpoint(open_checkpoint(weights))
    if described is not None:  # a head for multi-token prediction has no options
        require_same_net(hparams, described.hparams, layout)


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
