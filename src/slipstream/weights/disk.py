"""Writing large files: room first, a full disk as a clear error, never half a file in place."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.errors import CapacityError, WeightsError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def require_space(folder: Path, num_bytes: int) -> None:
    """Check that `folder`'s file system has room for `num_bytes` more.

    Raises:
        CapacityError: it has not.
    """
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise CapacityError(
            f"{folder} has {free / 1e9:.2f} GB free, but {num_bytes / 1e9:.2f} GB are needed",
            hint="free some space, or set model.cache_dir to a folder on another disk",
        )


def replace_text(path: Path, text: str) -> None:
    """Replace a file at once, or leave what was there."""
    staging = path.with_name(f"{path.name}.partial")
    try:
        staging.write_text(text, encoding="utf-8")
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)


@contextmanager
def disk_errors(folder: Path, hint: str | None = None) -> Iterator[None]:
    """Turn the operating system's errors while writing below `folder` into ours.

    Args:
        hint: What to do next, where it is not about fetched weights.
    Raises:
        CapacityError: the disk or the quota is full.
        WeightsError: anything else, such as a missing permission.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise CapacityError(
                f"no space is left for {folder}: {error.strerror}",
                hint=hint
                or "free some space, or set model.cache_dir to a folder on another disk; what was "
                "fetched so far is kept",
            ) from error
        raise WeightsError(
            f"cannot write to {folder}: {error.strerror or error}",
            hint=hint or "set model.cache_dir to a folder that you may write to",
        ) from error
