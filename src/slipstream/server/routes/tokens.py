"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slipstream.protocol.json_body import parse_object
from slipstream.protocol.service import (
    DetokenizeResponse,
    TokenizeResponse,
    read_detokenize_request,
    read_tokenize_request,
)
from slipstream.server.body import read_body
from slipstream.server.context import Service
from slipstream.server.plan import off_loop, tokenize
from slipstream.server.sampling_fields import check_token_ids


def token_routes(service: Service) -> list[Route]:
    """Text to tokens and back."""
    return [
        Route("/tokenize", partial(_tokenize, service), methods=["POST"]),
        Route("/detokenize", partial(_detokenize, service), methods=["POST"]),
    ]


async def _tokenize(service: Service, request: Request) -> Response:
    body = await read_body(request, service.config.max_body_bytes)
    answer = await off_loop(partial(_tokens_of, service, body), len(body))
    return Response(answer, media_type="application/json")


def _tokens_of(service: Service, body: bytes) -> str:
    asked = read_tokenize_request(parse_object(body))
    if asked.model is not None:
        service.check_model(asked.model)
    tokens = tokenize(service, asked)
    text_of = service.tokenizer.token_text
    info = service.engine.info
    return TokenizeResponse(
        count=len(tokens),
        max_model_len=None if info is None else info.max_model_len,
        tokens=tokens,
        token_strs=[text_of(token) for token in tokens] if asked.return_token_strs else None,
    ).model_dump_json()


async def _detokenize(service: Service, request: Request) -> Response:
    body = await read_body(request, service.config.max_body_bytes)
    answer = await off_loop(partial(_text_of, service, body), len(body))
    return Response(answer, media_type="application/json")


def _text_of(service: Service, body: bytes) -> str:
    asked = read_detokenize_request(parse_object(body))
    if asked.model is not None:
        service.check_model(asked.model)
    check_token_ids(asked.tokens, service.tokenizer.vocab_size, "tokens")
    text = service.tokenizer.decode(asked.tokens, skip_special=False)
    return DetokenizeResponse(prompt=text).model_dump_json()
