"""Which files make up a checkpoint, and whether they are all there and whole. No torch.

Nothing is loaded before this has looked at every file, so that a truncated, swapped or missing
shard is named at once and not after minutes of loading.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.errors import WeightsError
from slipstream.weights.manifest import check_against_checksums
from slipstream.weights.safetensors_header import StoredTensor, read_header

INDEX_NAME = "model.safetensors.index.json"
RUN_FILE, DRAFT_FOLDER = "run.json", "draft"  # of a training run: its record, and its drafter
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5,})-of-(?P<total>\d{5,})\.safetensors")


@dataclass(frozen=True, slots=True)
class GgufLayout:
    """A checkpoint in one GGUF file."""

    path: Path


@dataclass(frozen=True, slots=True)
class SafetensorsLayout:
    """A folder with config.json and one or more safetensors files.

    `headers` holds every file's tensors; `config` is config.json with the end-of-sequence ids of
    generation_config.json, which take precedence in the public libraries too.
    """

    path: Path
    config: Mapping[str, Any]
    headers: Mapping[Path, Mapping[str, StoredTensor]]


def read_layout(path: Path) -> GgufLayout | SafetensorsLayout:
    """Find a checkpoint's files and check them: presence, headers, sizes, checksums.

    Args:
        path: A .gguf file, a .safetensors file with config.json beside it, or a folder.

    Raises:
        WeightsError: nothing usable is there, or a file is missing, truncated or swapped; the
            message names it.
    """
    if not path.exists():
        raise WeightsError(f"{path} does not exist; give a folder, a .gguf or a .safetensors file")
    if path.suffix == ".gguf" and path.is_file():
        return _gguf(path)
    if path.suffix == ".safetensors" and path.is_file():
        return _safetensors(path.parent, [path])
    if not path.is_dir():
        raise WeightsError(f"{path} is no checkpoint: a folder, .gguf or .safetensors is expected")
    require_no_run(path)
    ggufs = sorted(path.glob("*.gguf"))
    if not ggufs or (path / INDEX_NAME).exists() or any(path.glob("*.safetensors")):
        return _safetensors(path, _find_shards(path))
    if len(ggufs) > 1:
        names = ", ".join(file.name for file in ggufs)
        raise WeightsError(f"{path} holds several GGUF files ({names}); give the path of one")
    return _gguf(ggufs[0])


def no_drafter_yet(run: Path) -> WeightsError:
    """What to raise where a training run should have a drafter, and has not ended."""
    return WeightsError(
        f"{run} is a training run that has no drafter yet: {DRAFT_FOLDER} is written at its end",
        hint="let `slipstream train fit` run to its end, or write the last checkpoint's drafter "
        f"with `slipstream train export {run} --out DIR` and give DIR",
    )


def require_ended(path: Path) -> None:
    """Refuse the place of a training run's drafter where there is none yet.

    Raises:
        WeightsError: As `no_drafter_yet`.
    """
    run = path.parent
    if path.name == DRAFT_FOLDER and (run / RUN_FILE).exists() and not path.exists():
        raise no_drafter_yet(run)


def require_no_run(path: Path) -> None:
    """Refuse the folder of a training run where a checkpoint is asked for.

    Raises:
        WeightsError: Says where its drafter is, or as `no_drafter_yet`.
    """
    if not (path / RUN_FILE).exists() or (path / "config.json").exists():
        return
    drafter = path / DRAFT_FOLDER
    if not drafter.exists():
        raise no_drafter_yet(path)
    raise WeightsError(
        f"{path} is a training run and no checkpoint; its drafter is in {drafter}",
        hint=f"give {drafter}",
    )


def _gguf(path: Path) -> GgufLayout:
    check_against_checksums(path.parent, [path])
    return GgufLayout(path)


def _safetensors(folder: Path, shards: list[Path]) -> SafetensorsLayout:
    config = _read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    if generation.exists():
        eos = _read_json(generation).get("eos_token_id")
        config |= {"eos_token_id": eos} if eos is not None else {}
    headers = {shard: read_header(shard) for shard in shards}
    if len(shards) > 1 or (folder / INDEX_NAME).exists():
        _check_index(folder, headers)
    check_against_checksums(folder, shards)
    return SafetensorsLayout(folder, config, headers)


def _find_shards(folder: Path) -> list[Path]:
    single = folder / "model.safetensors"
    if single.exists():
        return [single]
    if (folder / INDEX_NAME).exists():
        shards = [folder / name for name in sorted(set(_weight_map(folder).values()))]
    else:
        shards = sorted(folder.glob("*.safetensors"))
        if len(shards) > 1 and not all(_SHARD.fullmatch(shard.name) for shard in shards):
            names = ", ".join(shard.name for shard in shards)
            raise WeightsError(
                f"{folder} holds several safetensors files ({names}) and no {INDEX_NAME} to say "
                "which belong together; give the path of one"
            )
    if not shards:
        raise WeightsError(
            f"{folder} holds no weights: no model.safetensors, {INDEX_NAME} or .gguf file",
            hint="pickled .bin weights are never read; convert them to safetensors",
        )
    _check_all_present(folder, shards)
    return shards


def _check_all_present(folder: Path, shards: list[Path]) -> None:
    expected = {shard.name for shard in shards}
    for shard in shards:
        if match := _SHARD.fullmatch(shard.name):
            total, width = int(match["total"]), len(match["total"])
            if total > 10 * len(shards) + 1000:
                raise WeightsError(f"{shard} claims to be one of {total} shards")
            numbers = range(1, total + 1)
            stem, last = match["stem"], match["total"]
            expected |= {f"{stem}-{n:0{width}}-of-{last}.safetensors" for n in numbers}
    missing = sorted(name for name in expected if not (folder / name).is_file())
    if missing:
        raise WeightsError(
            f"{folder} lacks {len(missing)} of {len(expected)} shards: {', '.join(missing)}",
            hint="fetch the missing files into this folder",
        )


def _check_index(folder: Path, headers: Mapping[Path, Mapping[str, StoredTensor]]) -> None:
    """Every tensor lies in exactly one shard, and in the one that the index says."""
    found: dict[str, Path] = {}
    for shard, tensors in headers.items():
        for name in tensors:
            if name in found:
                raise WeightsError(
                    f"tensor {name!r} is in two shards of {folder}: {found[name].name} and "
                    f"{shard.name}"
                )
            found[name] = shard
    if not (folder / INDEX_NAME).exists():
        return
    weight_map = _weight_map(folder)
    for name, shard_name in weight_map.items():
        holder = found.get(name)
        if holder is None:
            raise WeightsError(
                f"{INDEX_NAME} of {folder} says that tensor {name!r} is in {shard_name}, but "
                f"no shard has it: {shard_name} is not the file that belongs here",
                hint=f"fetch {shard_name} again",
            )
        if holder.name != shard_name:
            raise WeightsError(
                f"{INDEX_NAME} of {folder} says that tensor {name!r} is in {shard_name}, but it "
                f"is in {holder.name}: the two files may have been swapped",
                hint=f"fetch {shard_name} and {holder.name} again",
            )
    strays = sorted(set(found) - set(weight_map))
    if strays:
        holder_name = found[strays[0]].name
        raise WeightsError(
            f"{holder_name} of {folder} has tensor {strays[0]!r}, which {INDEX_NAME} does not list "
            f"({len(strays)} such tensors): file and index are of different checkpoints"
        )


def _weight_map(folder: Path) -> dict[str, str]:
    weight_map = _read_json(folder / INDEX_NAME).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{folder / INDEX_NAME} has no weight_map from tensor to shard")
    for tensor, name in weight_map.items():
        # A path would let a downloaded index read files outside its folder.
        if not isinstance(name, str) or Path(name).name != name:
            raise WeightsError(f"{folder / INDEX_NAME} puts {tensor!r} into {name!r}: no file name")
    return weight_map


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise WeightsError(
            f"{path.parent} has no {path.name}",
            hint=f"copy {path.name} of the published model into this folder",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{path} should hold a JSON object")
    return content
