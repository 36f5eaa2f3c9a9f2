from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch

from slipstream.errors import CapacityError, ChecksumError, ConfigError, WeightsError
from slipstream.training.cache import build_cache, estimate_bytes
from slipstream.training.dataset import Dataset, open_dataset
from slipstream.training.session import TrainingTarget, open_source
from slipstream.training.shards import read_cache_manifest, write_cache_manifest
from slipstream.training.tap_scales import tap_scales_of, usual_taps
from slipstream.training.target import Features, TargetReader, read_ends
from tests.support.training import counting_answers, tiny_target, write_dataset

SHARD_BYTES = 20_000


@pytest.fixture
def dataset(target: TrainingTarget, tmp_path: Path) -> Dataset:
    return write_dataset(tmp_path / "data", target, counting_answers(12))


def reader_of(target: TrainingTarget) -> TargetReader:
    return TargetReader(target.loaded, (0, 1), 8, 64)


@pytest.mark.parametrize("taps", [(0, 0), (-2,), (2,), (0, 99)])
def test_layers_that_the_target_lacks_are_refused(
    taps: tuple[int, ...], target: TrainingTarget
) -> None:
    with pytest.raises(ConfigError, match="--taps must name different layers from -1 to 1, got"):
        TargetReader(target.loaded, taps, 8, 64)


def build(path: Path, target: TrainingTarget, dataset: Dataset) -> list[int]:
    told: list[int] = []
    build_cache(path, dataset, reader_of(target), told.append, SHARD_BYTES)
    return told


def test_features_do_not_depend_on_what_is_read_together(
    target: TrainingTarget, dataset: Dataset
) -> None:
    reader = reader_of(target)
    together = list(reader.read(dataset.answers))
    for answer, features in zip(dataset.answers, together, strict=True):
        (alone,) = reader.read([answer])
        assert torch.equal(alone.taps, features.taps)
        assert torch.equal(alone.top_ids, features.top_ids)
        assert len(features.taps) == len(answer.prompt_ids) + len(answer.response_ids)


def test_likeliest_tokens_are_those_of_the_head_behind_the_last_tap(
    target: TrainingTarget, dataset: Dataset
) -> None:
    answer = dataset.answers[0]
    (features,) = reader_of(target).read([answer])
    last = features.taps[len(answer.prompt_ids) - 1 : -1, 32:].float()  # tap 1 of two layers
    normed = target.loaded.model.final_norm(last)
    logprobs = torch.log_softmax(normed @ read_ends(target.loaded).vocabulary.float().T, -1)
    expected = logprobs.gather(1, features.top_ids.long())
    torch.testing.assert_close(features.top_logprobs.float(), expected, rtol=0.05, atol=0.1)


def test_a_cache_gives_what_the_target_says(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    build(tmp_path / "cache", target, dataset)
    manifest = read_cache_manifest(tmp_path / "cache")
    assert len(manifest.shards) > 2
    total = sum(shard.num_bytes for shard in manifest.shards)
    assert total == estimate_bytes(dataset, reader_of(target))
    cached = open_source(target, dataset, (0, 1), tmp_path / "cache").features([7, 2])
    for index, features in zip((7, 2), cached, strict=True):
        (expected,) = reader_of(target).read([dataset.answers[index]])
        assert torch.equal(features.taps, expected.taps)
        assert torch.equal(features.top_ids, expected.top_ids)
        assert torch.equal(features.top_logprobs, expected.top_logprobs)


def test_an_interrupted_cache_keeps_its_whole_shards(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    path = tmp_path / "cache"
    build(path, target, dataset)
    shards = read_cache_manifest(path).shards
    kept, damaged = path / shards[0].name, path / shards[1].name
    content, changed_at = damaged.read_bytes(), kept.stat().st_mtime_ns
    damaged.write_bytes(content[:-3])
    with pytest.raises(ChecksumError, match=rf"{damaged.name} has \d+ bytes of \d+"):
        open_source(target, dataset, (0, 1), path)

    build(path, target, dataset)

    assert damaged.read_bytes() == content
    assert kept.stat().st_mtime_ns == changed_at


def test_a_dataset_that_has_grown_keeps_the_shards_of_its_front(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    path = tmp_path / "cache"
    build(path, target, dataset)
    front = path / read_cache_manifest(path).shards[0].name
    changed_at = front.stat().st_mtime_ns
    grown = write_dataset(tmp_path / "grown", target, counting_answers(17))
    with pytest.raises(WeightsError):
        open_source(target, grown, (0, 1), path)

    build(path, target, grown)

    assert front.stat().st_mtime_ns == changed_at
    (cached,) = open_source(target, grown, (0, 1), path).features([16])
    (expected,) = reader_of(target).read([grown.answers[16]])
    assert torch.equal(cached.taps, expected.taps)


def test_answers_that_differ_in_front_are_other_answers(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    build(tmp_path / "cache", target, dataset)
    others = write_dataset(tmp_path / "others", target, counting_answers(17)[1:])
    with pytest.raises(WeightsError, match="features of other answers"):
        build(tmp_path / "cache", target, others)


def test_a_changed_shard_is_refused_by_name_when_it_is_read(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    build(tmp_path / "cache", target, dataset)
    name = read_cache_manifest(tmp_path / "cache").shards[-1].name
    content = bytearray((tmp_path / "cache" / name).read_bytes())
    content[5] ^= 1
    (tmp_path / "cache" / name).write_bytes(content)
    source = open_source(target, dataset, (0, 1), tmp_path / "cache")
    assert len(source.features([0])) == 1  # of another shard
    with pytest.raises(ChecksumError, match=f"content of .*{name} has changed"):
        source.features([len(dataset.answers) - 1])


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(CapacityError, match=r"needs \d\.\d MB more, but .* has 0\.0 MB free"):
        build(tmp_path / "cache", target, dataset)
    assert not list((tmp_path / "cache").iterdir())


def test_a_disk_that_fills_up_is_told_and_keeps_whole_shards(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "cache", os.fsync
    calls = iter(range(100))

    def fill_up(number: int) -> None:
        if next(calls) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(number)

    monkeypatch.setattr(os, "fsync", fill_up)
    with pytest.raises(CapacityError, match="no space is left") as caught:
        build(path, target, dataset)
    assert caught.value.hint is not None
    assert "shards that are whole are kept" in caught.value.hint
    (first,) = read_cache_manifest(path).shards
    assert not list(path.glob("*.partial"))
    changed_at = (path / first.name).stat().st_mtime_ns

    build(path, target, dataset)

    assert (path / first.name).stat().st_mtime_ns == changed_at
    assert open_source(target, dataset, (0, 1), path).features([0])


@pytest.mark.parametrize("name", ["/proc/x", "a-file"])
def test_a_cache_that_cannot_be_written_is_named(
    name: str, target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    (tmp_path / "a-file").write_text("x")
    with pytest.raises(WeightsError, match=f"cannot write to .*{name}"):
        build(tmp_path / name, target, dataset)


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (1, {"first": 6}),
        (0, {"first": 2}),
        (1, {"first": 0}),
        (0, {"stop": 0}),
        (0, {"stop": 99}),
    ],
)
def test_shards_that_do_not_join_are_refused(
    number: int, change: dict[str, int], target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    path = tmp_path / "cache"
    build(path, target, dataset)
    manifest = read_cache_manifest(path)
    shards = list(manifest.shards)
    shards[number] = shards[number].model_copy(update=change)
    write_cache_manifest(path, manifest.model_copy(update={"shards": tuple(shards)}))
    with pytest.raises(WeightsError, match=r"damaged: shard-\d+\.bin holds answers \d+ to") as no:
        open_source(target, dataset, (0, 1), path)
    assert "slipstream train cache" in str(no.value.hint)


def test_shards_of_other_answers_than_they_say_are_refused(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    path = tmp_path / "cache"
    build(path, target, dataset)
    manifest = read_cache_manifest(path)
    front, second, *others = manifest.shards
    moved = (
        front.model_copy(update={"stop": front.stop + 1}),
        second.model_copy(update={"first": front.stop + 1}),
    )
    write_cache_manifest(path, manifest.model_copy(update={"shards": (*moved, *others)}))
    with pytest.raises(WeightsError, match=r"has \d+ bytes, but its answers take \d+"):
        open_source(target, dataset, (0, 1), path)


def test_a_damaged_manifest_is_told_from_a_missing_one(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(WeightsError, match=r"manifest\.json is damaged: Invalid JSON") as no:
        build(tmp_path, target, dataset)
    assert "remove the folder" in str(no.value.hint)
    (dataset.path / "manifest.json").write_text("{}")
    with pytest.raises(WeightsError, match=r"manifest\.json is damaged: Field required") as no:
        open_dataset(dataset.path, target.identity)
    assert "--import" in str(no.value.hint)


def test_other_taps_than_those_of_the_cache_are_refused(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    build(tmp_path / "cache", target, dataset)
    with pytest.raises(WeightsError, match="holds taps of layers 0, 1, but the net reads 1"):
        open_source(target, dataset, (1,), tmp_path / "cache")


def test_answers_and_states_of_another_target_are_refused_by_name(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    build(tmp_path / "cache", target, dataset)
    other = tiny_target(tmp_path, seed=2)
    with pytest.raises(
        WeightsError, match=r"were made for target target-1 .* target is\s+target-2"
    ):
        open_dataset(dataset.path, other.identity)
    with pytest.raises(WeightsError, match="target-1"):
        open_source(other, dataset, (0, 1), tmp_path / "cache")


def test_scales_of_taps_are_those_of_usual_rows() -> None:
    taps = torch.ones(10, 4, dtype=torch.bfloat16) * torch.tensor([1.0, 2.0, 3.0, 0.0]).bfloat16()
    taps[0] = 1000.0
    nothing = torch.empty(0, 1)
    features = [Features(taps[:4], nothing, nothing), Features(taps[4:], nothing, nothing)]
    scales = tap_scales_of(usual_taps(features))
    assert scales[:3].tolist() == [1.0, 2.0, 3.0]
    assert scales[3] > 0
