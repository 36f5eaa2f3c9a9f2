"""Features on disk: shards of raw arrays, described by a manifest, read through memory maps."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from slipstream.errors import ChecksumError, WeightsError
from slipstream.models.identity import TargetIdentity
from slipstream.training.answers import Answer, digest_of
from slipstream.training.target import Features
from slipstream.weights.disk import disk_errors

MANIFEST_FILE = "manifest.json"
_HINT = "run `slipstream train cache` again: it keeps whole shards and makes the others anew"
DISK_HINT = (
    "free some space or use another disk, then run the same command again: shards that "
    "are whole are kept"
)
_BFLOAT16_BYTES, _ID_BYTES, _LOGPROB_BYTES = 2, 4, 2


class Shard(BaseModel):
    """One file.

    Attributes:
        first, stop: Answers of the dataset that it holds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    first: int
    stop: int
    num_bytes: int
    sha256: str


class CacheManifest(BaseModel):
    """What a cache holds.

    Attributes:
        dataset_sha256: Of the file of answers.
        tap_layer_ids, num_top: See `TargetReader`.
        shards: Those that are complete, in order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: Literal[1] = 1
    target: TargetIdentity
    dataset_sha256: str
    tap_layer_ids: tuple[int, ...]
    num_top: int
    shards: tuple[Shard, ...] = ()


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the parts of one answer lie in a shard."""

    tap_width: int
    num_top: int

    def num_bytes(self, answer: Answer) -> int:
        num_response = len(answer.response_ids)
        num_tokens = len(answer.prompt_ids) + num_response
        of_top = self.num_top * (_ID_BYTES + _LOGPROB_BYTES)
        return num_tokens * self.tap_width * _BFLOAT16_BYTES + num_response * of_top


def cache_bytes(answers: Iterable[Answer], tap_width: int, num_top: int) -> int:
    """Bytes of the features of `answers`.

    Args:
        tap_width: Values of all taps of a token.
    """
    layout = _Layout(tap_width, num_top)
    return sum(layout.num_bytes(answer) for answer in answers)


def write_shard(path: Path, features: Iterable[Features]) -> tuple[int, str]:
    """Write a shard whole or not at all; returns its bytes and SHA-256.

    Raises:
        CapacityError: The disk is full; the shards before are kept.
        WeightsError: The folder cannot be written to.
    """
    staging = path.with_suffix(".partial")
    try:
        with disk_errors(path.parent, DISK_HINT):
            with staging.open("wb") as file:
                for item in features:
                    for tensor in (item.taps.view(torch.int16), item.top_ids, item.top_logprobs):
                        file.write(tensor.contiguous().numpy().tobytes())
                file.flush()
                os.fsync(file.fileno())
            digest = digest_of(staging)
            staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)  # half a shard would only fill the disk
    return path.stat().st_size, digest


def write_cache_manifest(path: Path, manifest: CacheManifest) -> None:
    """Replace the manifest of the cache in `path` at once."""
    staging = path / f"{MANIFEST_FILE}.partial"
    with disk_errors(path, DISK_HINT):
        staging.write_text(json.dumps(manifest.model_dump(), indent=1) + "\n", encoding="utf-8")
        staging.replace(path / MANIFEST_FILE)


def read_cache_manifest(path: Path) -> CacheManifest:
    """The manifest of a cache.

    Raises:
        WeightsError: There is none, or it is damaged.
    """
    try:
        return CacheManifest.model_validate_json((path / MANIFEST_FILE).read_bytes())
    except OSError as error:
        raise WeightsError(
            f"{path} is no cache of features: {MANIFEST_FILE} cannot be read",
            hint="make one with `slipstream train cache`, or train without: leave out --cache",
        ) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise WeightsError(
            f"{path / MANIFEST_FILE} is damaged: {first['msg']}",
            hint="remove the folder and run `slipstream train cache` again, or name another folder",
        ) from error


class CachedSource:
    """See `FeatureSource`: the features of all answers of a dataset, from disk.

    A shard's content is compared with its checksum when it is first read from, so that a long cache
    holds nobody up and what is not read costs nothing.

    Args:
        path: A complete cache.
        target: The target that is trained for.
        answers: The dataset's.
        dataset_sha256: Its digest.
    Raises:
        WeightsError: It is incomplete, or another target's or dataset's.
        ChecksumError: A shard has another length than it had; names it.
    """

    def __init__(
        self,
        path: Path,
        target: TargetIdentity,
        answers: Sequence[Answer],
        dataset_sha256: str,
    ) -> None:
        self.manifest = manifest = read_cache_manifest(path)
        target.require_same(manifest.target, f"the features in {path}")
        if manifest.dataset_sha256 != dataset_sha256:
            raise WeightsError(f"{path} holds features of other answers", hint=_HINT)
        _require_joined(path, manifest.shards)
        num_cached = manifest.shards[-1].stop if manifest.shards else 0
        if num_cached != len(answers):
            raise WeightsError(
                f"{path} holds features of {num_cached} of {len(answers)} answers", hint=_HINT
            )
        self._path = path
        self._answers = answers
        self._width = len(manifest.tap_layer_ids) * target.hidden_size
        self._layout = _Layout(self._width, manifest.num_top)
        self._maps: list[np.memmap[tuple[int], np.dtype[np.uint8]]] = []
        self._verified: set[int] = set()  # shards
        self._places: list[tuple[int, int]] = []  # shard and offset of each answer
        for number, shard in enumerate(manifest.shards):
            require_whole(path, shard)
            self._maps.append(np.memmap(path / shard.name, np.uint8, "r"))
            offset = 0
            for answer in answers[shard.first : shard.stop]:
                self._places.append((number, offset))
                offset += self._layout.num_bytes(answer)
            if offset != shard.num_bytes:
                raise WeightsError(
                    f"{path / shard.name} has {shard.num_bytes} bytes, but its answers take "
                    f"{offset}",
                    hint=_HINT,
                )

    def features(self, indices: Sequence[int]) -> list[Features]:
        """See `FeatureSource`.

        Raises:
            ChecksumError: A shard's content has changed; names it.
        """
        return [self._read(index) for index in indices]

    def _read(self, index: int) -> Features:
        number, offset = self._places[index]
        if number not in self._verified:
            require_checksum(self._path, self.manifest.shards[number])
            self._verified.add(number)
        answer = self._answers[index]
        num_response = len(answer.response_ids)
        num_tokens = len(answer.prompt_ids) + num_response
        content = self._maps[number][offset : offset + self._layout.num_bytes(answer)]
        ids_at = num_tokens * self._width * _BFLOAT16_BYTES
        logprobs_at = ids_at + num_response * self._layout.num_top * _ID_BYTES
        taps = _tensor(content[:ids_at], np.int16).view(torch.bfloat16)
        top_ids = _tensor(content[ids_at:logprobs_at], np.int32)
        top_logprobs = _tensor(content[logprobs_at:], np.float16)
        shape = (num_response, self._layout.num_top)
        return Features(
            taps.view(num_tokens, self._width), top_ids.view(shape), top_logprobs.view(shape)
        )


def _require_joined(path: Path, shards: Sequence[Shard]) -> None:
    """Refuse a manifest whose shards leave answers out, or hold one twice."""
    stop = 0
    for shard in shards:
        if shard.first != stop or shard.stop <= stop:
            raise WeightsError(
                f"{path / MANIFEST_FILE} is damaged: {shard.name} holds answers {shard.first} to "
                f"{shard.stop}, but those from {stop} are next",
                hint=_HINT,
            )
        stop = shard.stop


def require_whole(path: Path, shard: Shard) -> None:
    """Refuse a shard whose length has changed.

    Raises:
        ChecksumError: Names the shard and both lengths.
    """
    file = path / shard.name
    given = file.stat().st_size if file.exists() else 0
    if given != shard.num_bytes:
        raise ChecksumError(f"{file} has {given} bytes of {shard.num_bytes}", hint=_HINT)


def require_checksum(path: Path, shard: Shard) -> None:
    """Refuse a shard whose content has changed.

    Raises:
        ChecksumError: Names the shard.
    """
    require_whole(path, shard)
    if digest_of(path / shard.name) != shard.sha256:
        raise ChecksumError(f"the content of {path / shard.name} has changed", hint=_HINT)


def _tensor(
    content: np.ndarray[tuple[int], np.dtype[np.uint8]],
    dtype: type[np.int16 | np.int32 | np.float16],
) -> Tensor:
    return torch.from_numpy(np.frombuffer(content.tobytes(), dtype).copy())
