"""Every error a user can meet, in one tree.

SlipstreamError
├── ConfigError                  a configuration key or value
├── WeightsError                 a checkpoint that is missing, corrupt or does not fit
│   └── ChecksumError
├── TokenizerError
├── VocabularyMismatchError      target and drafter disagree on a token
├── NumericsError                this machine's matrix library cannot give exact rows
├── CapacityError                memory, disk or another resource is exhausted
├── StartupError                 a port in use, a process that does not come up
└── RequestError                 one request; carries HTTP status and OpenAI error fields
    ├── InvalidRequestError      400
    ├── ContextLengthError       400
    ├── UnsupportedParameterError 400
    ├── AuthenticationError      401
    ├── ModelNotFoundError       404
    ├── RequestTimeoutError      408
    ├── RequestTooLargeError     413
    ├── QueueFullError           429
    ├── RequestCancelledError    499
    ├── EngineFailureError       500
    └── EngineUnavailableError   503
"""

from __future__ import annotations


class SlipstreamError(Exception):
    """Base of all errors that Slipstream raises on purpose.

    Args:
        message: What was wrong, what was given, what is allowed.
        hint: What to do next; the CLI prints it after `hint:`.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(SlipstreamError):
    """A configuration key or value cannot be used."""


class WeightsError(SlipstreamError):
    """A checkpoint is missing, corrupt or does not fit its configuration."""


class ChecksumError(WeightsError):
    """A file's bytes are not those that were promised."""


class TokenizerError(SlipstreamError):
    """A tokenizer or chat template is missing, broken or cannot do what is asked."""


class VocabularyMismatchError(SlipstreamError):
    """Target and drafter give different meanings to a token id."""


class NumericsError(SlipstreamError):
    """No way of calling the matrix library makes a row independent of its batch."""


class CapacityError(SlipstreamError):
    """Memory, disk space or another resource is exhausted."""


class StartupError(SlipstreamError):
    """The service or one of its processes cannot start."""


class RequestError(SlipstreamError):
    """One request failed; the others are not affected.

    Args:
        message: See `SlipstreamError`.
        param: Name of the offending request field, if there is one.
    """

    status: int = 400
    kind: str = "invalid_request_error"
    code: str = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param


class InvalidRequestError(RequestError):
    """A request field is malformed or impossible."""


class ContextLengthError(RequestError):
    """The prompt, or prompt plus `max_tokens`, does not fit the model's context."""

    code = "context_length_exceeded"


class UnsupportedParameterError(RequestError):
    """A known request field that this server cannot honour."""

    code = "unsupported_parameter"


class AuthenticationError(RequestError):
    """The API key is missing or wrong."""

    status = 401
    kind = "authentication_error"
    code = "invalid_api_key"


class ModelNotFoundError(RequestError):
    """The named model is not served here."""

    status = 404
    kind = "not_found_error"
    code = "model_not_found"


class RequestTimeoutError(RequestError):
    """The request passed its deadline in the queue or while running."""

    status = 408
    kind = "timeout_error"
    code = "request_timeout"


class RequestTooLargeError(RequestError):
    """The request body is larger than `server.max_body_bytes`."""

    status = 413
    code = "request_too_large"


class QueueFullError(RequestError):
    """The waiting queue is at its limit."""

    status = 429
    kind = "rate_limit_error"
    code = "queue_full"


class RequestCancelledError(RequestError):
    """The client went away or cancelled."""

    status = 499
    kind = "cancelled"
    code = "request_cancelled"


class EngineFailureError(RequestError):
    """The engine failed while this request was running."""

    status = 500
    kind = "server_error"
    code = "engine_failure"


class EngineUnavailableError(RequestError):
    """The engine is starting, restarting or draining."""

    status = 503
    kind = "server_error"
    code = "engine_unavailable"
