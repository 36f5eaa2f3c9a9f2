"""What is known to go wrong once a library is mapped, found out before.

The dynamic loader maps a file that is cut short without a complaint, and the process dies of a bus
error when it touches what is not there. On a processor that lacks an instruction it dies as well.

Sources: the ELF specification (System V ABI, chapter 4), 64-bit little-endian files; x86-64
psABI, microarchitecture levels (the kernels are built for level 3).
"""

from __future__ import annotations

import platform
import struct
from pathlib import Path

_HEADER = struct.Struct("<4sBB10xHHIQQQIHHHHHH")
_BITS_64, _LITTLE_ENDIAN = 2, 1
_CPUINFO = Path("/proc/cpuinfo")
_LEVEL_3 = ("avx2", "fma", "bmi1", "bmi2", "f16c", "movbe", "abm")
_MACHINES = {62: ("x86_64", "amd64"), 183: ("aarch64", "arm64")}


def missing_instructions(cpuinfo: Path = _CPUINFO) -> list[str]:
    """Names of instruction sets that x86 builds of the kernels need and this processor lacks.

    Empty as well where the system does not tell; the library then asks the processor itself.
    """
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    flags = next((line.partition(":")[2].split() for line in lines if _is_flags(line)), None)
    return [] if flags is None else [name for name in _LEVEL_3 if name not in flags]


def _is_flags(line: str) -> bool:
    return line.partition(":")[0].strip() == "flags"  # "Features" on ARM


def file_defect(path: Path) -> str | None:
    """What is wrong with the file, to follow its name in a sentence; None if it can be loaded.

    A file of another kind is the dynamic loader's to judge.

    Raises:
        OSError: It cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
    if len(head) < _HEADER.size or not head.startswith(b"\x7fELF"):
        return None
    fields = _HEADER.unpack(head)
    bits, order, machine = fields[1], fields[2], fields[4]
    if (bits, order) != (_BITS_64, _LITTLE_ENDIAN):
        return "is for another kind of processor than this one"
    if platform.machine().lower() not in _MACHINES.get(machine, ()):
        names = _MACHINES.get(machine, (f"processors of type {machine}",))
        return f"is for {names[0]}, and this machine is {platform.machine()}"
    # The section headers are the last thing in a linked file.
    sections_at, section_bytes, num_sections = fields[8], fields[13], fields[14]
    end = sections_at + section_bytes * num_sections
    if size < end:
        return f"is cut short: it has {size} of {end} bytes"
    return None
