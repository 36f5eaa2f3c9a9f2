"""Which target a drafter was trained for, as far as its folder tells."""

from __future__ import annotations

import json
from pathlib import Path

from slipstream.errors import WeightsError
from slipstream.models.identity import TargetIdentity

PROVENANCE_FILE = "provenance.json"
PEAKS_FIELD = "target_embedding_peaks"


def read_origin(path: Path) -> TargetIdentity | None:
    """The target of a net that `slipstream train` has exported.

    Args:
        path: The drafter's folder, or a file in it.
    Returns: None where nothing is told of it: published drafters have no such file.
    """
    folder = path if path.is_dir() else path.parent
    try:
        story = json.loads((folder / PROVENANCE_FILE).read_bytes())
        target = {**story["run"]["target"], "embedding_peaks": story.get(PEAKS_FIELD, ())}
        return TargetIdentity.model_validate(target)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def require_origin(path: Path, target: TargetIdentity) -> None:
    """Refuse a net that was trained for another model.

    The same model in another format, or with weights that were trained further, is none.

    Raises:
        WeightsError: Names both targets.
    """
    made_for = read_origin(path)
    if made_for is not None and made_for.resembles(target) is False:
        raise WeightsError(
            f"the drafter in {path} was trained for {made_for.describe()}, but the target is "
            f"{target.describe()}",
            hint="serve its target, or train a drafter for this one (slipstream train); a copy "
            f"without {PROVENANCE_FILE} is not compared",
        )
