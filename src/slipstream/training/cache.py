"""Make a cache of features: once, shard by shard, going on where it was interrupted."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slipstream.errors import CapacityError, ChecksumError, WeightsError
from slipstream.training.dataset import ANSWERS_FILE, Dataset
from slipstream.training.shards import (
    DISK_HINT,
    MANIFEST_FILE,
    CacheManifest,
    Shard,
    cache_bytes,
    read_cache_manifest,
    require_checksum,
    write_cache_manifest,
    write_shard,
)
from slipstream.training.target import TargetReader
from slipstream.weights.disk import disk_errors

_SHARD_BYTES = 256 << 20


def estimate_bytes(dataset: Dataset, reader: TargetReader) -> int:
    """Bytes that a whole cache of the dataset takes."""
    width = len(reader.tap_layer_ids) * reader.identity.hidden_size
    return cache_bytes(dataset.answers, width, reader.num_top)


def build_cache(
    path: Path,
    dataset: Dataset,
    reader: TargetReader,
    on_answers: Callable[[int], None],
    shard_bytes: int = _SHARD_BYTES,
) -> CacheManifest:
    """Write the shards that are missing or damaged.

    A dataset may have grown since the cache was complete: answers are added behind the others.

    Args:
        on_answers: Told the number of answers that a shard held, also of shards that were there.
    Raises:
        CapacityError: The disk has too little room; names both sizes.
        WeightsError: The folder holds a cache of something else, or cannot be written to.
    """
    manifest = _begin(path, dataset, reader)
    kept = [shard for shard in manifest.shards if _is_whole(path, shard)]
    missing = estimate_bytes(dataset, reader) - sum(shard.num_bytes for shard in kept)
    free = shutil.disk_usage(path).free
    if missing > free:
        raise CapacityError(
            f"the cache needs {_size(missing)} more, but {path} has {_size(free)} free",
            hint="use fewer answers or --top, another disk, or train without --cache",
        )
    by_first = {shard.first: shard for shard in kept}
    shards: list[Shard] = []
    width = len(reader.tap_layer_ids) * reader.identity.hidden_size
    for first, stop in _cuts(dataset, width, reader.num_top, shard_bytes):
        shard = by_first.get(first)
        if shard is None or shard.stop != stop:
            name = f"shard-{first:07d}.bin"
            features = reader.read(dataset.answers[first:stop])
            num_bytes, digest = write_shard(path / name, features)
            shard = Shard(name=name, first=first, stop=stop, num_bytes=num_bytes, sha256=digest)
        shards.append(shard)
        on_answers(stop - first)
        manifest = manifest.model_copy(update={"shards": tuple(shards)})
        write_cache_manifest(path, manifest)
    return manifest


def _begin(path: Path, dataset: Dataset, reader: TargetReader) -> CacheManifest:
    with disk_errors(path, DISK_HINT):
        path.mkdir(parents=True, exist_ok=True)
    wanted = CacheManifest(
        target=reader.identity,
        dataset_sha256=dataset.manifest.sha256,
        tap_layer_ids=reader.tap_layer_ids,
        num_top=reader.num_top,
    )
    if not (path / MANIFEST_FILE).exists():
        return wanted
    present = read_cache_manifest(path)
    reader.identity.require_same(present.target, f"the features in {path}")
    update: dict[str, Any] = {"target": wanted.target}  # Any: a field has its own type
    if present.dataset_sha256 != wanted.dataset_sha256 and _is_grown(dataset, present):
        update |= {"dataset_sha256": wanted.dataset_sha256}
    present = present.model_copy(update=update)
    if present.model_copy(update={"shards": ()}) != wanted:
        raise WeightsError(
            f"{path} holds features of other answers, or other layers "
            f"({', '.join(map(str, present.tap_layer_ids))}; top {present.num_top})",
            hint="name another folder, or remove this one",
        )
    return present


def _is_grown(dataset: Dataset, present: CacheManifest) -> bool:
    """Whether the cache holds all answers that a file had, and the dataset's file begins so."""
    if not present.shards:
        return False
    num_answers = present.shards[-1].stop
    digest = hashlib.sha256()
    with (dataset.path / ANSWERS_FILE).open("rb") as lines:
        for line in itertools.islice(lines, num_answers):
            digest.update(line)
    return digest.hexdigest() == present.dataset_sha256


def _cuts(
    dataset: Dataset, tap_width: int, num_top: int, shard_bytes: int
) -> list[tuple[int, int]]:
    cuts: list[tuple[int, int]] = []
    first, num_bytes = 0, 0
    for index, answer in enumerate(dataset.answers):
        of_answer = cache_bytes([answer], tap_width, num_top)
        if num_bytes and num_bytes + of_answer > shard_bytes:
            cuts.append((first, index))
            first, num_bytes = index, 0
        num_bytes += of_answer
    if dataset.answers:
        cuts.append((first, len(dataset.answers)))
    return cuts


def _is_whole(path: Path, shard: Shard) -> bool:
    try:
        require_checksum(path, shard)
    except ChecksumError:
        return False
    return True


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
