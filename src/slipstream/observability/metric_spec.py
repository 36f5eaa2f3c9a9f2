"""What a metric is, before anybody counts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "slipstream_"

Owner = Literal["api", "engine"]
Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric.

    Attributes:
        owner: The process that counts it. `/metrics` shows both.
        unit: `seconds`, `bytes`, `tokens`, ...; empty for plain numbers.
        labels: Label names, in order.
        meaning: One sentence; it is also the help text of the exposition.
        buckets: Upper bounds, for histograms.
    """

    name: str
    owner: Owner
    kind: Kind
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """As Prometheus stores it: with prefix, and with `_total` on a counter."""
        return PREFIX + self.name + ("_total" if self.kind == "counter" else "")
