"""The words for what a number or a length may be, from the constraints on its type."""

from __future__ import annotations

from collections.abc import Iterable

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen


def number_range(constraints: Iterable[object]) -> str:
    """As the end of a sentence: "from 1 to 64", "above 0 and at most 1"; empty without bounds."""
    bounds = {type(item): item for item in constraints if isinstance(item, (Ge, Gt, Le, Lt))}
    low, high = bounds.get(Ge), bounds.get(Le)
    if isinstance(low, Ge) and isinstance(high, Le):
        return f"from {_number(low.ge)} to {_number(high.le)}"
    words = {
        Ge: lambda item: f"of at least {_number(item.ge)}",
        Gt: lambda item: f"above {_number(item.gt)}",
        Le: lambda item: f"at most {_number(item.le)}",
        Lt: lambda item: f"below {_number(item.lt)}",
    }
    return " and ".join(words[kind](item) for kind, item in bounds.items())


def length_range(constraints: Iterable[object], unit: str) -> str:
    """As "1 to 256 characters", "at most 16 items"; empty without bounds.

    Args:
        unit: What is counted, in the plural.
    """
    bounds = {type(item): item for item in constraints if isinstance(item, (MinLen, MaxLen))}
    low, high = bounds.get(MinLen), bounds.get(MaxLen)
    if isinstance(low, MinLen) and isinstance(high, MaxLen):
        return f"{low.min_length} to {high.max_length} {unit}"
    if isinstance(low, MinLen):
        return f"at least {low.min_length} {unit}"
    return f"at most {high.max_length} {unit}" if isinstance(high, MaxLen) else ""


def _number(bound: object) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)
