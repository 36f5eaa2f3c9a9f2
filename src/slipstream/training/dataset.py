"""A folder of answers to train on: what is in it, for which target, and which part is held out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from slipstream.errors import WeightsError
from slipstream.models.identity import TargetIdentity
from slipstream.training.answers import DISK_HINT, Answer, digest_of, read_answers
from slipstream.weights.disk import disk_errors, replace_text

ANSWERS_FILE = "answers.jsonl"
MANIFEST_FILE = "manifest.json"

Split = Literal["train", "validation"]


class Counts(BaseModel):
    """How much there is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    answers: int
    prompt_tokens: int
    response_tokens: int


class DatasetManifest(BaseModel):
    """What a folder of answers says about itself.

    Attributes:
        target: Whose answers they are.
        validation_share: Share of prompts that is held out.
        sources: Where answers came from, with digests and seeds, in words.
        dropped: Reason -> prompts or answers left out.
        sha256: Of the file of answers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: Literal[1] = 1
    target: TargetIdentity
    validation_share: float
    sources: tuple[str, ...]
    splits: dict[Split, Counts]
    categories: dict[str, int]
    temperatures: dict[str, int]
    dropped: dict[str, int]
    sha256: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset in memory.

    Attributes:
        answers: In the file's order; other modules name them by their index in it.
    """

    path: Path
    manifest: DatasetManifest
    answers: tuple[Answer, ...]

    def indices(self, side: Split) -> list[int]:
        """The answers of one side of the split, ascending."""
        share = self.manifest.validation_share
        return [
            index
            for index, answer in enumerate(self.answers)
            if split_of(answer.prompt_id, share) == side
        ]

    def of_side(self, side: Split) -> list[Answer]:
        """See `indices`."""
        return [self.answers[index] for index in self.indices(side)]


def split_of(prompt_id: str, validation_share: float) -> Split:
    """The side of a prompt: by its hash, so that adding prompts moves none."""
    digest = hashlib.sha256(prompt_id.encode()).digest()
    is_held_out = int.from_bytes(digest[:8], "big") < validation_share * 2**64
    return "validation" if is_held_out else "train"


def write_manifest(
    path: Path,
    target: TargetIdentity,
    validation_share: float,
    sources: Sequence[str],
    dropped: Counter[str],
) -> DatasetManifest:
    """Describe the answers that lie in the folder `path`.

    Args:
        sources: Added to those of the manifest that is there.
    Raises:
        CapacityError: The disk is full; the manifest that was there stays.
    """
    if (path / MANIFEST_FILE).exists():
        sources = tuple(dict.fromkeys((*read_manifest(path).sources, *sources)))
    answers = list(read_answers(path / ANSWERS_FILE))
    sides: dict[Split, list[Answer]] = {"train": [], "validation": []}
    for answer in answers:
        sides[split_of(answer.prompt_id, validation_share)].append(answer)
    manifest = DatasetManifest(
        target=target,
        validation_share=validation_share,
        sources=tuple(sources),
        splits={side: _counts(members) for side, members in sides.items()},
        categories=dict(Counter(answer.category or "none" for answer in answers)),
        temperatures=dict(Counter(f"{answer.temperature:g}" for answer in answers)),
        dropped=dict(dropped),
        sha256=digest_of(path / ANSWERS_FILE),
    )
    with disk_errors(path, DISK_HINT):
        replace_text(path / MANIFEST_FILE, manifest.model_dump_json(indent=1) + "\n")
    return manifest


def read_manifest(path: Path) -> DatasetManifest:
    """The manifest of a folder of answers.

    Raises:
        WeightsError: There is none, or it is damaged.
    """
    file = path / MANIFEST_FILE
    try:
        return DatasetManifest.model_validate_json(file.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise WeightsError(
            f"{file} is damaged: {first['msg']}",
            hint="make another folder with `slipstream train data`, and give it these answers with "
            "--import",
        ) from error
    except OSError as error:
        raise WeightsError(
            f"{path} is no folder of training data: {file.name} cannot be read",
            hint="make one with `slipstream train data`; one that was interrupted is finished by "
            "the same command",
        ) from error


def open_dataset(path: Path, target: TargetIdentity) -> Dataset:
    """Read a folder of answers for training drafters of `target`.

    Raises:
        WeightsError: It is not there, has changed since its manifest, or is another target's.
    """
    manifest = read_manifest(path)
    target.require_same(manifest.target, f"the answers in {path}")
    file = path / ANSWERS_FILE
    if not file.is_file():
        raise WeightsError(
            f"{path} holds no answers: {ANSWERS_FILE} is missing",
            hint="run `slipstream train data` again on this folder",
        )
    if digest_of(file) != manifest.sha256:
        raise WeightsError(
            f"{file} is not what its manifest describes",
            hint="run `slipstream train data` again on this folder: it keeps complete answers",
        )
    return Dataset(path, manifest, tuple(read_answers(file)))


def _counts(answers: Iterable[Answer]) -> Counts:
    members = list(answers)
    return Counts(
        answers=len(members),
        prompt_tokens=sum(len(answer.prompt_ids) for answer in members),
        response_tokens=sum(len(answer.response_ids) for answer in members),
    )
