"""The name of everything that may change the last bit: equality is promised within one name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping


def fingerprint(numerics: Mapping[str, object]) -> str:
    """`fp_` and 12 hex digits over the numerics, in a stable order."""
    canonical = json.dumps(numerics, sort_keys=True, default=str)
    return "fp_" + hashlib.sha256(canonical.encode()).hexdigest()[:12]
