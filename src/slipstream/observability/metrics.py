"""Metrics of one process: plain numbers while it runs, and Prometheus' text when it is scraped.

A step counts some thirty things. A number in a dictionary costs a fraction of what a metric object
with locks does, and no state is shared: several engines and services can exist in one process, as
they do in tests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from slipstream.observability.catalogue import CATALOGUE
from slipstream.observability.metric_spec import PREFIX, MetricSpec, Owner

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Labels = tuple[str, ...]


class _Distribution:
    """Values of one histogram with the same labels.

    Attributes:
        counts: Values by bucket: above the bound before and up to its own; the last is infinity's.
        total: Their sum.
    """

    def __init__(self, num_bounds: int) -> None:
        self.counts = [0] * (num_bounds + 1)
        self.total = 0.0


class Metrics:
    """All catalogued metrics of one owner. Not thread-safe.

    Args:
        owner: Which part of the catalogue.
    """

    def __init__(self, owner: Owner) -> None:
        self._specs = [spec for spec in CATALOGUE if spec.owner == owner]
        self._numbers: dict[str, dict[_Labels, float]] = {
            spec.name: {} if spec.labels else {(): 0.0}
            for spec in self._specs
            if spec.kind != "histogram"
        }
        self._distributions: dict[str, dict[_Labels, _Distribution]] = {
            spec.name: {} if spec.labels else {(): _Distribution(len(spec.buckets))}
            for spec in self._specs
            if spec.kind == "histogram"
        }
        self._readers: list[Callable[[], None]] = []

    def count(self, spec: MetricSpec, amount: float = 1.0, *labels: str) -> None:
        """Add to a counter; `amount` is at least 0."""
        assert spec.kind == "counter"
        assert len(labels) == len(spec.labels)
        assert amount >= 0
        numbers = self._numbers[spec.name]
        numbers[labels] = numbers.get(labels, 0.0) + amount

    def gauge(self, spec: MetricSpec, value: float, *labels: str) -> None:
        """Set a gauge."""
        assert spec.kind == "gauge"
        assert len(labels) == len(spec.labels)
        self._numbers[spec.name][labels] = value

    def gauge_from(self, spec: MetricSpec, read: Callable[[], float]) -> None:
        """Let a gauge without labels be read when it is scraped."""
        self._readers.append(lambda: self.gauge(spec, read()))

    def count_from(
        self, spec: MetricSpec, read: Callable[[], Mapping[str, int]], *labels: str
    ) -> None:
        """Let a counter be read when it is scraped.

        Args:
            read: Gives totals that never fall, by the value of the last label.
            labels: Values of the other labels.
        """
        assert spec.kind == "counter"
        assert len(labels) + 1 == len(spec.labels)
        numbers = self._numbers[spec.name]
        self._readers.append(
            lambda: numbers.update({(*labels, label): total for label, total in read().items()})
        )

    def observe(self, spec: MetricSpec, value: float, *labels: str, times: int = 1) -> None:
        """Add one value to a histogram, `times` over."""
        assert len(labels) == len(spec.labels)
        distributions = self._distributions[spec.name]
        distribution = distributions.get(labels)
        if distribution is None:
            distribution = distributions[labels] = _Distribution(len(spec.buckets))
        distribution.counts[bisect_left(spec.buckets, value)] += times
        distribution.total += value * times

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format 0.0.4."""
        for read in self._readers:
            read()
        return generate_latest(_Families([self._family(spec) for spec in self._specs]))

    def _family(self, spec: MetricSpec) -> Metric:
        name = PREFIX + spec.name
        if spec.kind == "histogram":
            histogram = HistogramMetricFamily(name, spec.meaning, labels=spec.labels)
            bounds = [_written(bound) for bound in (*spec.buckets, float("inf"))]
            for labels, distribution in self._distributions[spec.name].items():
                sums = accumulate(distribution.counts)
                buckets = list(zip(bounds, sums, strict=True))
                histogram.add_metric(labels, buckets, distribution.total)
            return histogram
        kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
        family = kind(name, spec.meaning, labels=spec.labels)
        for labels, number in self._numbers[spec.name].items():
            family.add_metric(labels, number)
        return family


def _written(bound: float) -> str:
    text: str = floatToGoString(bound)  # type: ignore[no-untyped-call]  # the package has no types
    return text


class _Families(Collector):
    """What `generate_latest` asks for families."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def merge_expositions(texts: Iterable[str]) -> str:
    """One valid exposition from several; of a family that occurs twice the first one is kept."""
    families: dict[str, list[str]] = {}
    for text in texts:
        for name, lines in _families(text).items():
            families.setdefault(name, lines)
    return "".join(line + "\n" for lines in families.values() for line in lines)


def _families(text: str) -> Mapping[str, list[str]]:
    families: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("# HELP "):
            lines = families.setdefault(line.split(" ", 3)[2], [])
        if line and not line.startswith("# EOF"):
            lines.append(line)
    return families
