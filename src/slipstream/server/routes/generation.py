"""`/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

from functools import partial

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slipstream.protocol.json_body import parse_object
from slipstream.protocol.requests import (
    ChatRequest,
    CompletionRequest,
    read_chat_request,
    read_completion_request,
)
from slipstream.server.body import read_body
from slipstream.server.chat_answer import ChatAnswer
from slipstream.server.completion_answer import CompletionAnswer
from slipstream.server.context import Service
from slipstream.server.generation import generate
from slipstream.server.plan import Plan, off_loop, plan_chat, plan_completion
from slipstream.server.record import record_of
from slipstream.server.streaming import open_stream, unless_disconnected
from slipstream.server.tally import Tally


def generation_routes(service: Service) -> list[Route]:
    """The two generation endpoints."""
    return [
        Route("/v1/chat/completions", partial(_chat, service), methods=["POST"]),
        Route("/v1/completions", partial(_complete, service), methods=["POST"]),
    ]


async def _chat(service: Service, request: Request) -> Response:
    body = await read_body(request, service.config.max_body_bytes)
    chat, plan = await off_loop(partial(_read_chat, service, body), len(body))
    tally = Tally(plan, record_of(request.scope), keeps_output=not chat.stream)
    answer = ChatAnswer(chat, plan, tally)
    events = generate(service.engine, plan)
    if chat.stream:
        return await open_stream(request, answer.chunks(events), service)
    whole = await unless_disconnected(request.receive, answer.whole(events), service)
    return _json(whole)


async def _complete(service: Service, request: Request) -> Response:
    body = await read_body(request, service.config.max_body_bytes)
    completion, plan = await off_loop(partial(_read_completion, service, body), len(body))
    tally = Tally(plan, record_of(request.scope), keeps_output=not completion.stream)
    answer = CompletionAnswer(completion, plan, tally, service.tokenizer.special_ids)
    events = generate(service.engine, plan)
    if completion.stream:
        return await open_stream(request, answer.chunks(events), service)
    whole = await unless_disconnected(request.receive, answer.whole(events), service)
    return _json(whole)


def _read_chat(service: Service, body: bytes) -> tuple[ChatRequest, Plan]:
    request = read_chat_request(parse_object(body))
    return request, plan_chat(service, request)


def _read_completion(service: Service, body: bytes) -> tuple[CompletionRequest, Plan]:
    request = read_completion_request(parse_object(body))
    return request, plan_completion(service, request)


def _json(model: BaseModel) -> Response:
    return Response(model.model_dump_json(), media_type="application/json")
