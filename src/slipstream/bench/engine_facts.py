"""What a result says of the engine that it measured."""

from __future__ import annotations

from typing import Any

import torch

from slipstream.engine.engine import Engine
from slipstream.execution.runner import Runner


def engine_facts(engine: Engine) -> dict[str, Any]:  # Any: JSON values
    """Model, numerics, kernels and threads."""
    info = engine.info
    facts = {
        "model": info.model,
        "fingerprint": info.fingerprint,
        "numerics": info.details.get("numerics", {}),
        "drafters": list(info.drafters),
        "verification": info.details.get("verification", "exact"),
        "num_threads": torch.get_num_threads(),
    }
    if isinstance(engine.target, Runner):
        usage = engine.target.usage
        facts["kernels"] = [*usage.products(), *(f"attention {k}" for k in usage.attention_calls())]
    return facts
