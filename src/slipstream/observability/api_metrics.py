"""What the API process counts."""

from __future__ import annotations

from slipstream.observability import catalogue
from slipstream.observability.metrics import Metrics


class ApiMetrics:
    """Typed front of the API process' metrics."""

    def __init__(self) -> None:
        self._metrics = Metrics("api")
        self._in_flight = 0
        self._num_restarts = 0

    def request_started(self) -> None:
        """A request was admitted."""
        self._in_flight += 1
        self._metrics.gauge(catalogue.HTTP_IN_FLIGHT, self._in_flight)

    def request_ended(self) -> None:
        """An admitted request is done."""
        self._in_flight -= 1
        self._metrics.gauge(catalogue.HTTP_IN_FLIGHT, self._in_flight)

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        """One HTTP answer ended; `endpoint` is a route, never a client's own path."""
        self._metrics.count(catalogue.HTTP_REQUESTS, 1, endpoint, str(status))
        self._metrics.observe(catalogue.HTTP_SECONDS, seconds, endpoint)

    def failed(self, kind: str) -> None:
        """One error was reported to a client; `kind` is its code."""
        self._metrics.count(catalogue.ERRORS, 1, kind)

    def disconnected(self) -> None:
        """A client left before its answer was complete."""
        self._metrics.count(catalogue.CLIENT_DISCONNECTS)

    def set_engine_restarts(self, num_restarts: int) -> None:
        """The engine process was started again so often in all."""
        self._metrics.count(catalogue.ENGINE_RESTARTS, num_restarts - self._num_restarts)
        self._num_restarts = num_restarts

    def set_engine_state(self, state: str, known: tuple[str, ...]) -> None:
        """Mark `state` among all `known` ones."""
        for name in known:
            self._metrics.gauge(catalogue.ENGINE_STATE, float(name == state), name)

    def set_build(self, version: str, model: str, fingerprint: str) -> None:
        """Say what is served."""
        self._metrics.gauge(catalogue.BUILD_INFO, 1.0, version, model, fingerprint)

    def exposition(self) -> bytes:
        """See `Metrics.exposition`."""
        return self._metrics.exposition()
