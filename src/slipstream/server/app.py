"""The ASGI application: layers around routes."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from slipstream.server.access_log import AccessLog
from slipstream.server.auth import Authentication
from slipstream.server.context import Service
from slipstream.server.failures import FailureBoundary, routing_failure
from slipstream.server.limits import Admission
from slipstream.server.routes.generation import generation_routes
from slipstream.server.routes.models import model_routes
from slipstream.server.routes.operations import operation_routes
from slipstream.server.routes.tokens import token_routes


def create_app(service: Service) -> Starlette:
    """The whole HTTP side of `service`. It starts and stops nothing: `server.run` does."""
    app = Starlette(
        routes=[
            *generation_routes(service),
            *model_routes(service),
            *token_routes(service),
            *operation_routes(service),
        ],
        middleware=[
            Middleware(AccessLog, service=service),
            Middleware(FailureBoundary, service=service),
            Middleware(Authentication, api_keys=service.api_keys),
            Middleware(Admission, service=service),
        ],
        exception_handlers={HTTPException: routing_failure},
    )
    app.router.redirect_slashes = False
    return app
