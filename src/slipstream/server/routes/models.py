"""`/v1/models`."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slipstream.protocol.service import ModelCard, ModelList
from slipstream.server.context import Service


def model_routes(service: Service) -> list[Route]:
    """The list of models, which has one entry, and that entry."""
    created = int(service.clock.wall())
    return [
        Route("/v1/models", partial(_list, service, created), methods=["GET"]),
        Route("/v1/models/{model:path}", partial(_one, service, created), methods=["GET"]),
    ]


async def _list(service: Service, created: int, _request: Request) -> Response:
    models = ModelList(data=[_card(service, created)])
    return Response(models.model_dump_json(), media_type="application/json")


async def _one(service: Service, created: int, request: Request) -> Response:
    service.check_model(request.path_params["model"])
    return Response(_card(service, created).model_dump_json(), media_type="application/json")


def _card(service: Service, created: int) -> ModelCard:
    info = service.engine.info
    return ModelCard(
        id=service.model,
        created=created,
        max_model_len=None if info is None else info.max_model_len,
    )
