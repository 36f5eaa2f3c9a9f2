"""Where numbers come from: without it they mean nothing."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from slipstream import __version__
from slipstream.clock import Clock

PACKAGES = ("torch", "numpy", "tokenizers")


@dataclass(frozen=True, slots=True)
class Machine:
    """The computer that measured; with a server, the client's.

    Attributes:
        num_cores: That this process may use.
        load_average: Over one minute before the run; above the number of cores others are at work.
    """

    cpu: str
    num_cores: int
    memory_bytes: int
    system: str
    load_average: float


@dataclass(frozen=True, slots=True)
class Provenance:
    """What, where, when.

    Attributes:
        commit: Of the checkout that the program ran from, with `+` if it had changes; None where
            it is no checkout.
        prompt_files: File name -> first 16 hex digits of its SHA-256.
        started_at: ISO 8601, UTC.
    """

    command: str
    commit: str | None
    versions: dict[str, str]
    machine: Machine
    started_at: str
    prompt_files: dict[str, str]


def read_provenance(
    command: Sequence[str], prompt_files: Sequence[Path], clock: Clock
) -> Provenance:
    """Of a run that begins now."""
    started = datetime.fromtimestamp(clock.wall(), tz=UTC)
    return Provenance(
        command=shlex.join(command),
        commit=read_commit(Path(__file__).parent),
        versions={
            "slipstream": __version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in PACKAGES},
        },
        machine=read_machine(),
        started_at=started.isoformat(timespec="seconds"),
        prompt_files={
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in prompt_files
        },
    )


def read_machine() -> Machine:
    """This computer."""
    return Machine(
        cpu=_cpu_name(Path("/proc/cpuinfo")),
        num_cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        load_average=round(os.getloadavg()[0], 2),
    )


def read_commit(folder: Path) -> str | None:
    """Commit of the checkout that holds `folder`, with `+` if tracked files have changed."""
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+" if changes else commit


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_name(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or "unknown"
