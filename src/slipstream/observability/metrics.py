"""Metrics of one process: a registry of its own, and methods instead of metric names.

No metric lives in prometheus_client's global registry, so several engines and services can exist
in one process, as they do in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from slipstream.observability.catalogue import CATALOGUE
from slipstream.observability.metric_spec import PREFIX, MetricSpec, Owner

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """All catalogued metrics of one owner.

    Args:
        owner: Which part of the catalogue.
    """

    def __init__(self, owner: Owner) -> None:
        self._registry = CollectorRegistry()
        self._totals: list[_Totals] = []
        self._by_name: dict[str, Counter | Gauge | Histogram] = {
            spec.name: self._create(spec) for spec in CATALOGUE if spec.owner == owner
        }

    def count(self, spec: MetricSpec, amount: float = 1.0, *labels: str) -> None:
        """Add to a counter; `amount` is at least 0."""
        metric = self._by_name[spec.name]
        assert isinstance(metric, Counter)
        (metric.labels(*labels) if labels else metric).inc(amount)

    def gauge(self, spec: MetricSpec, value: float, *labels: str) -> None:
        """Set a gauge."""
        metric = self._by_name[spec.name]
        assert isinstance(metric, Gauge)
        (metric.labels(*labels) if labels else metric).set(value)

    def gauge_from(self, spec: MetricSpec, read: Callable[[], float]) -> None:
        """Let a gauge without labels be read when it is scraped."""
        metric = self._by_name[spec.name]
        assert isinstance(metric, Gauge)
        metric.set_function(read)

    def count_from(
        self, spec: MetricSpec, read: Callable[[], Mapping[str, int]], *labels: str
    ) -> None:
        """Let a counter be read when it is scraped.

        Args:
            read: Gives totals that never fall, by the value of the last label.
            labels: Values of the other labels.
        """
        metric = self._by_name[spec.name]
        assert isinstance(metric, Counter)
        self._totals.append(_Totals(metric, read, labels))

    def observe(self, spec: MetricSpec, value: float, *labels: str) -> None:
        """Add one value to a histogram."""
        metric = self._by_name[spec.name]
        assert isinstance(metric, Histogram)
        (metric.labels(*labels) if labels else metric).observe(value)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format 0.0.4."""
        for totals in self._totals:
            totals.update()
        return generate_latest(_WithoutCreated(self._registry))

    def _create(self, spec: MetricSpec) -> Counter | Gauge | Histogram:
        name = PREFIX + spec.name
        if spec.kind == "counter":
            return Counter(name, spec.meaning, spec.labels, registry=self._registry)
        if spec.kind == "gauge":
            return Gauge(name, spec.meaning, spec.labels, registry=self._registry)
        return Histogram(
            name, spec.meaning, spec.labels, registry=self._registry, buckets=spec.buckets
        )


class _Totals:
    """Brings totals that are kept elsewhere into a counter, which only takes additions."""

    def __init__(
        self, metric: Counter, read: Callable[[], Mapping[str, int]], labels: tuple[str, ...]
    ) -> None:
        self._metric = metric
        self._read = read
        self._labels = labels
        self._known: dict[str, int] = {}

    def update(self) -> None:
        for label, total in self._read().items():
            self._metric.labels(*self._labels, label).inc(total - self._known.get(label, 0))
            self._known[label] = total


class _WithoutCreated(Collector):
    """A view of a registry that leaves out the `_created` samples, which nobody reads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric


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
