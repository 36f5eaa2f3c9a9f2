"""The safetensors container: what a header promises, checked against the file. No torch.

Source: the safetensors format description (8 bytes of header length, a JSON header, the data).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.errors import WeightsError

_MAX_HEADER_BYTES = 100_000_000
_LENGTH_BYTES = 8

DTYPE_BYTES: Mapping[str, int] = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
    "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a safetensors file; `start` and `stop` are bytes of the file's data part."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Read a file's header and check that the data are there, whole and without gaps.

    Raises:
        WeightsError: the file is missing, truncated, too long, or its header is nonsense.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            raw = file.read(length) if length <= _MAX_HEADER_BYTES else b""
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror or error}") from error
    if size < _LENGTH_BYTES:
        raise _truncated(path, _LENGTH_BYTES, size)
    if length > _MAX_HEADER_BYTES:
        raise _broken(path, f"it announces a header of {length} bytes")
    if len(raw) < length:
        raise _truncated(path, _LENGTH_BYTES + length, size)
    tensors = _parse(path, raw)
    end = _check_layout(path, tensors)
    promised = _LENGTH_BYTES + length + end
    if size < promised:
        raise _truncated(path, promised, size)
    if size > promised:
        raise _broken(path, f"its header describes {promised} bytes, but it has {size}")
    return tensors


def _parse(path: Path, raw: bytes) -> dict[str, StoredTensor]:
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise _broken(path, "its header is not a JSON object")
    header.pop("__metadata__", None)
    return {name: _entry(path, name, entry) for name, entry in header.items()}


def _entry(path: Path, name: str, entry: Any) -> StoredTensor:
    try:
        dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, start, stop]
    except (TypeError, KeyError, ValueError) as error:
        raise _broken(path, f"the header entry of {name!r} is malformed") from error
    if any(type(number) is not int or number < 0 for number in numbers):
        raise _broken(path, f"the header entry of {name!r} has sizes that are not whole numbers")
    if dtype not in DTYPE_BYTES:
        raise WeightsError(
            f"tensor {name!r} of {path} has dtype {dtype!r}; known are {', '.join(DTYPE_BYTES)}"
        )
    if stop - start != math.prod(shape) * DTYPE_BYTES[dtype]:
        raise _broken(path, f"the shape of {name!r} does not agree with its {stop - start} bytes")
    return StoredTensor(dtype, tuple(shape), start, stop)


def _check_layout(path: Path, tensors: Mapping[str, StoredTensor]) -> int:
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if tensor.start != end:
            raise _broken(path, f"tensor {name!r} starts at byte {tensor.start} instead of {end}")
        end = tensor.stop
    return end


def _truncated(path: Path, promised: int, size: int) -> WeightsError:
    return WeightsError(
        f"{path} is truncated: it should have {promised} bytes and has {size}",
        hint="fetch this file again",
    )


def _broken(path: Path, why: str) -> WeightsError:
    return WeightsError(f"{path} is not a usable safetensors file: {why}")
