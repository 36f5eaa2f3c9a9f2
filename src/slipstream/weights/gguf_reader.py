"""The GGUF container: metadata and the tensors' whereabouts, without torch.

A parser of our own because the `gguf` package's reader builds arrays for every string, which takes
seconds where a vocabulary has 50 000 tokens; this one takes a few hundredths of a second.

Source: the GGUF specification, version 3 (ggml repository, docs/gguf.md).
"""

from __future__ import annotations

import itertools
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.errors import WeightsError
from slipstream.weights.gguf_blocks import BLOCK_FORMATS, BlockFormat, type_name

_MAGIC = b"GGUF"
_VERSION = 3
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_MAX_ARRAY_DEPTH = 4

_STRING, _ARRAY = 8, 9
_SCALARS: Mapping[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32, _U64 = _SCALARS[4], _SCALARS[10]

# Bytes that the shortest possible entry takes: a count that needs more than the file has is a lie,
# and is refused before anything is allocated for it.
_MIN_STRING_BYTES = 8
_MIN_METADATA_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies in the file.

    `shape` is in numpy order (rows first; the file stores the fastest axis first), `offset` counts
    from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    block: BlockFormat
    offset: int
    num_bytes: int


class GgufFile:
    """An open GGUF file: `metadata` by key and `tensors` by GGUF name.

    The data stay on disk until `blocks` is asked for them.
    """

    def __init__(
        self,
        path: Path,
        data: mmap.mmap,
        metadata: Mapping[str, Any],  # any of the 13 value types of the format
        tensors: Mapping[str, GgufTensor],
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self._data = data

    def blocks(self, name: str) -> npt.NDArray[np.uint8]:
        """The stored bytes of a tensor: [num_blocks, block bytes], a read-only view of the file."""
        tensor = self.tensors[name]
        flat = np.frombuffer(self._data, np.uint8, tensor.num_bytes, tensor.offset)
        return flat.reshape(-1, tensor.block.num_bytes)


def read_gguf(path: Path) -> GgufFile:
    """Read and check a GGUF file's header.

    Raises:
        WeightsError: the file is missing, empty, truncated, of another version or byte order, uses
            a block format that is not supported, or says things that cannot be true.
    """
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise WeightsError(
            f"{path} is empty; a GGUF file starts with the four letters GGUF"
        ) from error
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror or error}") from error
    metadata, tensors = _Parser(path, data).parse()
    return GgufFile(path, data, metadata, tensors)


class _Parser:
    """Walks the header once, front to back; every step checks that its bytes are there."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._position = 0

    def parse(self) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
        num_tensors, num_metadata = self._preamble()
        metadata: dict[str, Any] = {}
        for index in range(num_metadata):
            key = self._string(f"key of metadata entry {index}")
            if key in metadata:
                raise self._broken(f"metadata key {key!r} appears twice")
            metadata[key] = self._value(self._scalar(_U32, f"type of {key!r}"), key)
        infos = [self._tensor_info(index) for index in range(num_tensors)]
        return metadata, self._place(infos, self._alignment(metadata))

    def _preamble(self) -> tuple[int, int]:
        magic = self._take(4, "magic number")
        if magic != _MAGIC:
            raise self._broken(f"it starts with {magic!r} instead of {_MAGIC!r}: not a GGUF file")
        version = self._scalar(_U32, "version")
        if version != _VERSION:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            why = "a big-endian file" if swapped == _VERSION else f"version {version}"
            raise WeightsError(
                f"{self._path} is {why} of GGUF; only little-endian version {_VERSION} is read",
                hint="convert the model again with a current llama.cpp",
            )
        num_tensors = self._scalar(_U64, "number of tensors")
        num_metadata = self._scalar(_U64, "number of metadata entries")
        self._check_count(num_tensors, _MIN_TENSOR_BYTES, "tensors")
        self._check_count(num_metadata, _MIN_METADATA_BYTES, "metadata entries")
        return num_tensors, num_metadata

    def _tensor_info(self, index: int) -> tuple[str, tuple[int, ...], BlockFormat, int]:
        name = self._string(f"name of tensor {index}")
        num_dimensions = self._scalar(_U32, f"dimensions of {name!r}")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise self._broken(
                f"tensor {name!r} has {num_dimensions} dimensions; 1 to 4 are allowed"
            )
        lengths = [self._scalar(_U64, f"shape of {name!r}") for _ in range(num_dimensions)]
        type_id = self._scalar(_U32, f"type of {name!r}")
        block = BLOCK_FORMATS.get(type_id)
        if block is None:
            known = ", ".join(known.name for known in BLOCK_FORMATS.values())
            raise WeightsError(
                f"tensor {name!r} of {self._path} is stored as {type_name(type_id)}, which is not "
                f"supported; supported are {known}",
                hint="choose another file of the same model, for example Q8_0 or Q4_1, or convert "
                "its unquantised file with llama.cpp: llama-quantize IN.gguf OUT.gguf Q8_0",
            )
        offset = self._scalar(_U64, f"offset of {name!r}")
        if any(length < 1 for length in lengths):
            raise self._broken(f"tensor {name!r} has an empty axis: {lengths}")
        if lengths[0] % block.num_values:
            raise self._broken(
                f"tensor {name!r} has rows of {lengths[0]} values, which is no multiple of the "
                f"{block.num_values} values of a {block.name} block"
            )
        return name, tuple(reversed(lengths)), block, offset

    def _place(
        self, infos: list[tuple[str, tuple[int, ...], BlockFormat, int]], alignment: int
    ) -> dict[str, GgufTensor]:
        start = -(-self._position // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, block, offset in infos:
            num_bytes = math.prod(shape) // block.num_values * block.num_bytes
            end = start + offset + num_bytes
            if name in tensors:
                raise self._broken(f"tensor {name!r} appears twice")
            if offset % alignment:
                raise self._broken(
                    f"tensor {name!r} starts at {offset}, not at a multiple of {alignment}"
                )
            if end > self._size:
                raise self._truncated(f"tensor {name!r} ends at byte {end}")
            tensors[name] = GgufTensor(name, shape, block, start + offset, num_bytes)
        self._check_overlap(tensors)
        return tensors

    def _check_overlap(self, tensors: Mapping[str, GgufTensor]) -> None:
        ordered = sorted(tensors.values(), key=lambda tensor: tensor.offset)
        for before, after in itertools.pairwise(ordered):
            if before.offset + before.num_bytes > after.offset:
                raise self._broken(f"tensors {before.name!r} and {after.name!r} overlap")

    def _alignment(self, metadata: Mapping[str, Any]) -> int:
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 8 or alignment % 8:
            raise self._broken(f"general.alignment is {alignment!r}; a multiple of 8 is expected")
        return alignment

    def _value(self, value_type: int, key: str, depth: int = 0) -> Any:
        if value_type == _STRING:
            return self._string(f"value of {key!r}")
        if value_type == _ARRAY:
            return self._array(key, depth)
        scalar = _SCALARS.get(value_type)
        if scalar is None:
            raise self._broken(f"{key!r} has the value type {value_type}, which does not exist")
        return self._scalar(scalar, f"value of {key!r}")

    def _array(self, key: str, depth: int) -> list[Any]:
        item_type = self._scalar(_U32, f"item type of {key!r}")
        count = self._scalar(_U64, f"length of {key!r}")
        if item_type == _STRING:
            self._check_count(count, _MIN_STRING_BYTES, f"strings in {key!r}")
            return self._strings(count, key)
        if item_type == _ARRAY:
            if depth >= _MAX_ARRAY_DEPTH:
                raise self._broken(f"{key!r} nests arrays more than {_MAX_ARRAY_DEPTH} deep")
            self._check_count(count, _MIN_STRING_BYTES, f"arrays in {key!r}")
            return [self._array(key, depth + 1) for _ in range(count)]
        scalar = _SCALARS.get(item_type)
        if scalar is None:
            raise self._broken(f"{key!r} has the item type {item_type}, which does not exist")
        self._check_count(count, scalar.size, f"values in {key!r}")
        values = self._take(count * scalar.size, f"values of {key!r}")
        return list(struct.unpack(f"<{count}{scalar.format[-1]}", values))

    def _strings(self, count: int, key: str) -> list[str]:
        # The one hot loop: a vocabulary and its merges are 100 000 strings and more.
        data, position, size = self._data, self._position, self._size
        unpack, strings = _U64.unpack_from, []
        for index in range(count):
            if position + 8 > size:
                raise self._truncated(f"string {index} of {key!r} starts at byte {position}")
            start = position + 8
            position = start + unpack(data, position)[0]
            if position > size:
                raise self._truncated(f"string {index} of {key!r} ends at byte {position}")
            strings.append(data[start:position])
        self._position = position
        try:
            return [string.decode() for string in strings]
        except UnicodeDecodeError as error:
            raise self._broken(f"a string of {key!r} is not UTF-8: {error.object!r}") from error

    def _string(self, what: str) -> str:
        length = self._scalar(_U64, f"length of the {what}")
        raw = self._take(length, what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self._broken(f"the {what} is not UTF-8: {raw[:40]!r}") from error

    def _scalar(self, scalar: struct.Struct, what: str) -> Any:
        return scalar.unpack(self._take(scalar.size, what))[0]

    def _take(self, count: int, what: str) -> bytes:
        end = self._position + count
        if end > self._size:
            raise self._truncated(f"the {what} ends at byte {end}")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def _check_count(self, count: int, min_bytes: int, what: str) -> None:
        if count * min_bytes > self._size - self._position:
            raise self._broken(
                f"it announces {count} {what}, more than its {self._size} bytes can hold"
            )

    def _truncated(self, needed: str) -> WeightsError:
        return WeightsError(
            f"{self._path} is truncated: {needed}, but the file has {self._size} bytes",
            hint="fetch it again; `slipstream models verify` checks what is in the cache",
        )

    def _broken(self, why: str) -> WeightsError:
        return WeightsError(f"{self._path} is not a usable GGUF file: {why}")
