"""Where the optional shared material lies; tests that need it skip where it is absent."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def shared_dir(*parts: str) -> Path:
    """A path under the folder `shared` beside the repository; skips the test if it is absent."""
    path = REPOSITORY.parent.joinpath("shared", *parts)
    if not path.exists():
        pytest.skip(f"needs {'/'.join(('shared', *parts))} beside the repository")
    return path
