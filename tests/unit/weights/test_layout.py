"""Damaged, swapped and missing files are named before anything is loaded."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from slipstream.errors import ChecksumError, WeightsError
from slipstream.weights.layout import INDEX_NAME, SafetensorsLayout, read_layout
from slipstream.weights.manifest import sha256_of
from slipstream.weights.open import open_checkpoint
from slipstream.weights.safetensors_header import DTYPE_BYTES, read_header
from tests.support.gguf_files import write_tiny_gguf
from tests.support.tiny import write_tiny_checkpoint

SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


def shard(folder: Path, *, index: bool = True) -> Path:
    """Split a checkpoint's one file into three."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: SHARDS[rank % 3] for rank, name in enumerate(sorted(tensors))}
    for file in SHARDS:
        part = {name: tensors[name] for name in tensors if weight_map[name] == file}
        save_file(part, folder / file)
    if index:
        content = {"metadata": {"total_size": 1}, "weight_map": weight_map}
        (folder / INDEX_NAME).write_text(json.dumps(content))
    return folder


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write_tiny_checkpoint(tmp_path / "tiny", num_layers=1)


@pytest.fixture
def sharded(whole: Path) -> Path:
    return shard(whole)


@pytest.mark.parametrize("index", [True, False])
def test_shards_make_the_same_checkpoint_as_one_file(
    tmp_path: Path, whole: Path, index: bool
) -> None:
    expected = load_file(whole / "model.safetensors")
    checkpoint = open_checkpoint(shard(whole, index=index))

    assert sorted(checkpoint.names()) == sorted(expected)
    for name, tensor in expected.items():
        assert torch.equal(checkpoint.take(name), tensor)
    checkpoint.finish()


def test_a_truncated_shard_is_named_with_its_sizes(sharded: Path) -> None:
    path = sharded / SHARDS[1]
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-10])

    message = rf"00002-of-00003\.safetensors is truncated: .* {size} bytes and has {size - 10}"
    with pytest.raises(WeightsError, match=message):
        read_layout(sharded)


@pytest.mark.parametrize("index", [True, False])
def test_a_missing_shard_is_named(whole: Path, index: bool) -> None:
    (shard(whole, index=index) / SHARDS[2]).unlink()

    with pytest.raises(WeightsError, match=rf"lacks 1 of 3 shards: {SHARDS[2]}"):
        read_layout(whole)


def test_swapped_shards_are_named(sharded: Path) -> None:
    first, second = sharded / SHARDS[0], sharded / SHARDS[1]
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)

    with pytest.raises(
        WeightsError, match=rf"is in {SHARDS[0]}, but it is in {SHARDS[1]}.*swapped"
    ):
        read_layout(sharded)


def test_a_shard_of_another_checkpoint_is_named(sharded: Path) -> None:
    save_file({"foreign": torch.ones(2)}, sharded / SHARDS[0])

    with pytest.raises(WeightsError, match=rf"{SHARDS[0]} is not the file that belongs here"):
        read_layout(sharded)


def test_a_tensor_that_the_index_does_not_list_is_named(sharded: Path) -> None:
    tensors = load_file(sharded / SHARDS[0]) | {"stray": torch.ones(1)}
    save_file(tensors, sharded / SHARDS[0])

    with pytest.raises(WeightsError, match=rf"{SHARDS[0]} .* has tensor 'stray'"):
        read_layout(sharded)


def test_a_tensor_in_two_shards_is_named(whole: Path) -> None:
    folder = shard(whole, index=False)
    save_file(load_file(folder / SHARDS[0]) | load_file(folder / SHARDS[1]), folder / SHARDS[0])

    with pytest.raises(WeightsError, match="is in two shards"):
        read_layout(folder)


def test_an_index_cannot_point_outside_its_folder(sharded: Path) -> None:
    (sharded / INDEX_NAME).write_text('{"weight_map": {"a": "../secret.safetensors"}}')

    with pytest.raises(WeightsError, match="no file name"):
        read_layout(sharded)


def test_the_public_single_file_wins_over_others_beside_it(whole: Path) -> None:
    save_file({"other": torch.ones(1)}, whole / "consolidated.safetensors")

    layout = read_layout(whole)

    assert isinstance(layout, SafetensorsLayout)
    assert [path.name for path in layout.headers] == ["model.safetensors"]


def test_files_that_may_not_belong_together_are_refused(whole: Path) -> None:
    (whole / "model.safetensors").rename(whole / "a.safetensors")
    save_file({"other": torch.ones(1)}, whole / "b.safetensors")

    with pytest.raises(WeightsError, match=r"several safetensors files \(a\.safetensors, b"):
        read_layout(whole)


def test_a_folder_with_one_gguf_is_that_file(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "gguf").mkdir()
    path = write_tiny_gguf(tmp_path / "gguf" / "tiny.gguf", whole)

    assert read_layout(tmp_path / "gguf") == read_layout(path)


def test_of_several_gguf_files_one_must_be_named(tmp_path: Path, whole: Path) -> None:
    path = write_tiny_gguf(tmp_path / "a.gguf", whole)
    (tmp_path / "b.gguf").write_bytes(path.read_bytes())

    with pytest.raises(WeightsError, match=r"several GGUF files \(a\.gguf, b\.gguf\)"):
        read_layout(tmp_path)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), r"has no config\.json"),
        (lambda folder: (folder / "config.json").write_text("{"), r"cannot read .*config\.json"),
        (lambda folder: (folder / "config.json").write_text("[]"), "JSON object"),
        (lambda folder: (folder / "model.safetensors").unlink(), "holds no weights"),
    ],
)
def test_an_unusable_folder_is_explained(whole: Path, prepare: Any, message: str) -> None:
    prepare(whole)

    with pytest.raises(WeightsError, match=message):
        read_layout(whole)


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="nowhere does not exist"):
        read_layout(tmp_path / "nowhere")


def test_a_file_that_differs_from_sha256sums_is_named(whole: Path) -> None:
    weights = whole / "model.safetensors"
    (whole / "SHA256SUMS").write_text(f"{sha256_of(weights)}  model.safetensors\n")
    read_layout(whole)
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)

    with pytest.raises(
        ChecksumError, match=r"model\.safetensors is not the file that was promised"
    ):
        read_layout(whole)


def file_of(header: object, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BAD_HEADERS = {
    "empty": (b"", "should have 8 bytes and has 0"),
    "header cut": (file_of({})[:-1], "truncated"),
    "huge header": ((1 << 60).to_bytes(8, "little"), "announces a header"),
    "no JSON": (file_of(b"{nonsense"), "not JSON"),
    "a list": (file_of([]), "not a JSON object"),
    "no dtype": (file_of({"t": {"shape": [1]}}), "entry of 't' is malformed"),
    "an unknown dtype": (file_of({"t": ENTRY | {"dtype": "Q9"}}), "dtype 'Q9'"),
    "a negative size": (file_of({"t": ENTRY | {"shape": [-2]}}), "not whole numbers"),
    "a wrong size": (file_of({"t": ENTRY | {"shape": [3]}}), "does not agree"),
    "a gap": (
        file_of({"t": ENTRY | {"data_offsets": [8, 16]}}, bytes(16)),
        "starts at byte 8 instead of 0",
    ),
    "data cut": (file_of({"t": ENTRY}, bytes(7)), "truncated"),
    "data left over": (file_of({"t": ENTRY}, bytes(9)), "its header describes"),
}


@pytest.mark.parametrize(("content", "message"), BAD_HEADERS.values(), ids=BAD_HEADERS.keys())
def test_a_broken_header_is_explained(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bad.safetensors").write_bytes(content)

    with pytest.raises(WeightsError, match=message):
        read_header(tmp_path / "bad.safetensors")


@given(position=st.integers(0, 10**6), value=st.integers(0, 255))
@settings(deadline=None, max_examples=100)
def test_a_damaged_byte_never_crashes_the_header_reader(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "model.safetensors"
    save_file({"a": torch.ones(3), "b": torch.ones(2, 2, dtype=torch.int8)}, path)
    content = bytearray(path.read_bytes())
    content[position % len(content)] = value
    path.write_bytes(content)

    with contextlib.suppress(WeightsError):
        read_header(path)


def test_headers_read_as_safetensors_wrote_them(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(3), "b": torch.ones(2, 2, dtype=torch.bfloat16), "c": torch.ones(())}
    save_file(tensors, tmp_path / "model.safetensors")

    header = read_header(tmp_path / "model.safetensors")

    assert {name: stored.shape for name, stored in header.items()} == {
        name: tuple(tensor.shape) for name, tensor in tensors.items()
    }
    assert all(stored.dtype in DTYPE_BYTES for stored in header.values())
