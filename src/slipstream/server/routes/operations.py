"""`/health`, `/ready`, `/version` and `/metrics`."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import get_args

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slipstream.engine.client import EngineState
from slipstream.errors import EngineUnavailableError, SlipstreamError
from slipstream.observability.metrics import CONTENT_TYPE, merge_expositions
from slipstream.protocol.service import Status, Version
from slipstream.server.context import Service

_LOGGER = logging.getLogger("slipstream.server")
_ENGINE_ANSWERS_WITHIN_S = 2.0


def operation_routes(service: Service) -> list[Route]:
    """What operators and probes ask."""
    return [
        Route("/health", partial(_health, service), methods=["GET"]),
        Route("/ready", partial(_ready, service), methods=["GET"]),
        Route("/version", partial(_version, service), methods=["GET"]),
        Route("/metrics", partial(_metrics, service), methods=["GET"]),
    ]


async def _health(service: Service, _request: Request) -> Response:
    """Alive: restarting this process would not help. A failed engine is beyond help."""
    if service.engine.state == "failed":
        raise EngineUnavailableError("the engine failed for good; this process must be restarted")
    return _status("ok")


async def _ready(service: Service, _request: Request) -> Response:
    """Can take work now."""
    if service.lifecycle.is_draining:
        raise EngineUnavailableError("the server is shutting down and takes no new requests")
    service.ready_info()
    return _status("ready")


async def _version(service: Service, _request: Request) -> Response:
    info = service.engine.info
    version = Version(
        version=service.version,
        model=service.model,
        system_fingerprint=None if info is None else info.fingerprint,
        verification=None if info is None else info.details.get("verification"),
    )
    return Response(version.model_dump_json(), media_type="application/json")


async def _metrics(service: Service, _request: Request) -> Response:
    """This process' metrics and the engine's; without the latter while it does not answer."""
    info = service.engine.info
    service.metrics.set_engine_restarts(service.engine.num_restarts)
    service.metrics.set_engine_state(service.engine.state, get_args(EngineState))
    if info is not None:
        service.metrics.set_build(service.version, service.model, info.fingerprint)
    texts = [service.metrics.exposition().decode()]
    engine_text = await _engine_metrics(service)
    if engine_text is not None:
        texts.append(engine_text)
    return Response(merge_expositions(texts), media_type=CONTENT_TYPE)


async def _engine_metrics(service: Service) -> str | None:
    if service.engine.info is None:
        return None
    try:
        async with asyncio.timeout(_ENGINE_ANSWERS_WITHIN_S):
            return str(await service.engine.call("metrics"))
    except (SlipstreamError, TimeoutError) as error:
        _LOGGER.warning("the engine's metrics are missing from this answer: %s", error)
        return None


def _status(text: str) -> Response:
    return Response(Status(status=text).model_dump_json(), media_type="application/json")
