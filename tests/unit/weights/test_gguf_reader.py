"""The GGUF container: what is read, and what is refused and how."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import WeightsError
from slipstream.weights.gguf_reader import read_gguf


def small_gguf(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("text", "wörld")
    writer.add_uint32("count", 7)
    writer.add_float32("share", 0.5)
    writer.add_bool("flag", True)
    writer.add_array("tokens", ["a", "bc", "<|im_end|>"])
    writer.add_array("scores", [1, 2, 3])
    writer.add_tensor("matrix", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("vector", np.ones(5, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def valid(tmp_path: Path) -> Path:
    return small_gguf(tmp_path / "small.gguf")


def test_metadata_of_every_type_is_read(valid: Path) -> None:
    metadata = read_gguf(valid).metadata

    assert metadata == {
        "general.architecture": "llama",
        "text": "wörld",
        "count": 7,
        "share": 0.5,
        "flag": True,
        "tokens": ["a", "bc", "<|im_end|>"],
        "scores": [1, 2, 3],
    }


def test_tensors_have_their_shape_rows_first_and_their_bytes(valid: Path) -> None:
    file = read_gguf(valid)

    assert {name: tensor.shape for name, tensor in file.tensors.items()} == {
        "matrix": (3, 4),
        "vector": (5,),
    }
    matrix = file.tensors["matrix"].block.dequantize(file.blocks("matrix"))
    np.testing.assert_array_equal(matrix.reshape(3, 4), np.arange(12).reshape(3, 4))


def test_the_reader_agrees_with_the_gguf_package(valid: Path) -> None:
    reference = gguf.GGUFReader(valid)
    file = read_gguf(valid)

    for tensor in reference.tensors:
        assert file.tensors[tensor.name].offset == tensor.data_offset
        assert file.tensors[tensor.name].num_bytes == tensor.n_bytes


def test_a_file_cut_anywhere_is_refused(valid: Path) -> None:
    whole = valid.read_bytes()
    for size in range(1, read_gguf(valid).tensors["vector"].offset + 10):
        valid.write_bytes(whole[:size])
        with pytest.raises(WeightsError, match=r"truncated|can hold"):
            read_gguf(valid)


@given(position=st.integers(0, 400), value=st.integers(0, 255))
@settings(deadline=None, max_examples=300)
def test_a_damaged_byte_never_crashes_the_reader(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    path = small_gguf(tmp_path_factory.mktemp("damaged") / "small.gguf")
    content = bytearray(path.read_bytes())
    content[position % len(content)] = value
    path.write_bytes(content)

    try:
        file = read_gguf(path)
    except WeightsError:
        return
    for name in file.tensors:
        file.blocks(name)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"absent\.gguf: No such file"):
        read_gguf(tmp_path / "absent.gguf")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()

    with pytest.raises(WeightsError, match="is empty"):
        read_gguf(tmp_path / "empty.gguf")


def header(magic: bytes = b"GGUF", version: int = 3, tensors: int = 0, pairs: int = 0) -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, pairs)


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def tensor(name: str, lengths: list[int], kind: int = 0, offset: int = 0) -> bytes:
    shape = struct.pack(f"<I{len(lengths)}Q", len(lengths), *lengths)
    return string(name) + shape + struct.pack("<IQ", kind, offset)


def key(name: str, value_type: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", value_type) + value


HUGE = 2**63
DATA = bytes(256)
BAD_FILES = {
    "another format": (header(magic=b"PK\x03\x04"), "not a GGUF file"),
    "an old version": (header(version=2), "version 2 of GGUF"),
    "big-endian": (header(version=3 << 24), "big-endian"),
    "a huge tensor count": (header(tensors=HUGE), f"announces {HUGE} tensors"),
    "a huge metadata count": (header(pairs=HUGE), f"announces {HUGE} metadata"),
    "a huge string": (header(pairs=1) + struct.pack("<Q", HUGE) + DATA, "truncated"),
    "a huge string array": (
        header(pairs=1) + key("tokens", 9, struct.pack("<IQ", 8, HUGE)) + DATA,
        f"announces {HUGE} strings",
    ),
    "a huge number array": (
        header(pairs=1) + key("scores", 9, struct.pack("<IQ", 6, HUGE)) + DATA,
        f"announces {HUGE} values",
    ),
    "arrays without end": (
        header(pairs=1) + key("deep", 9, struct.pack("<IQ", 9, 1) * 12) + DATA,
        "nests arrays",
    ),
    "an unknown value type": (header(pairs=1) + key("odd", 99, DATA), "value type 99"),
    "an unknown item type": (
        header(pairs=1) + key("odd", 9, struct.pack("<IQ", 99, 1)) + DATA,
        "item type 99",
    ),
    "a key twice": (header(pairs=2) + 2 * key("one", 0, b"\1") + DATA, "'one' appears twice"),
    "text that is not UTF-8": (
        header(pairs=1) + key("name", 8, struct.pack("<Q", 2) + b"\xff\xfe") + DATA,
        "not UTF-8",
    ),
    "five dimensions": (header(tensors=1) + tensor("t", [1] * 5) + DATA, "5 dimensions"),
    "an empty axis": (header(tensors=1) + tensor("t", [0]) + DATA, "empty axis"),
    "an overflowing shape": (
        header(tensors=1) + tensor("t", [2**32, 2**32, 2**32]) + DATA,
        "'t' ends at byte",
    ),
    "an offset past the end": (
        header(tensors=1) + tensor("t", [4], offset=1 << 40) + DATA,
        "truncated: tensor 't'",
    ),
    "an unaligned offset": (
        header(tensors=1) + tensor("t", [4], offset=3) + DATA,
        "multiple of 32",
    ),
    "a broken row": (header(tensors=1) + tensor("t", [33], kind=8) + DATA, "Q8_0 block"),
    "an unsupported type": (header(tensors=1) + tensor("t", [32], kind=20) + DATA, "IQ4_NL"),
    "a tensor twice": (
        header(tensors=2) + tensor("t", [4]) + tensor("t", [4], offset=32) + DATA,
        "'t' appears twice",
    ),
    "overlapping tensors": (
        header(tensors=2) + tensor("a", [32]) + tensor("b", [32], offset=32) + DATA,
        "'a' and 'b' overlap",
    ),
    "a bad alignment": (
        header(pairs=1) + key("general.alignment", 4, struct.pack("<I", 0)) + DATA,
        "general.alignment is 0",
    ),
}


@pytest.mark.parametrize(("content", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_what_cannot_be_true_is_refused_by_name(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)

    with pytest.raises(WeightsError, match=message) as caught:
        read_gguf(path)

    assert "bad.gguf" in caught.value.message
