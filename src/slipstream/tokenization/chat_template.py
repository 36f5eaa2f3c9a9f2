"""A model's chat template: from messages to the prompt text that it was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError

from slipstream.clock import Clock, SystemClock
from slipstream.errors import InvalidRequestError, TokenizerError
from slipstream.tokenization.chat_messages import Message, prepare_messages
from slipstream.tokenization.template_sandbox import TemplateEnvironment
from slipstream.tokenization.tokenizer import Tokenizer

_TOOL_TEMPLATE = "tool_use"


class _Refusal(Exception):
    """The template called `raise_exception`: it does not accept these messages."""


class ChatTemplate:
    """Renders messages; compiled once, used from any thread.

    Args:
        templates: Sources by name: `default`, and perhaps `tool_use` for requests with tools.
        named_tokens: Special tokens that templates call by name (`bos_token`, ...).
        clock: What `strftime_now` reads.

    Raises:
        TokenizerError: A template is not valid Jinja; names the line.
    """

    def __init__(
        self,
        templates: Mapping[str, str] | str,
        *,
        named_tokens: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        sources = {"default": templates} if isinstance(templates, str) else templates
        self._clock = clock or SystemClock()
        self._environment = TemplateEnvironment()
        self._variables: dict[str, Any] = {
            **(named_tokens or {}),
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
        }
        self._templates = {name: self._compile(source) for name, source in sources.items()}
        self._known_names = frozenset().union(
            *(self._environment.names_in(source) for source in sources.values())
        )

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The prompt text for `messages`; encode it with `add_special=False`.

        Args:
            messages: OpenAI messages; see `prepare_messages`.
            tools, documents: As the request has them; None where it has none.
            add_generation_prompt: End where the assistant's answer begins.
            kwargs: Further variables of the template, for example `enable_thinking`.

        Raises:
            InvalidRequestError: A message is malformed, the template refuses the messages or fails
                on them, or a keyword is one of the template's own or one that it never reads.
            TokenizerError: The template reaches for what it may not, or does not end.
        """
        prepared = prepare_messages(messages)
        taken = sorted(kwargs.keys() & {*self._variables, "messages"})
        if taken:
            raise InvalidRequestError(
                f"chat_template_kwargs cannot set {', '.join(taken)}; the server sets it",
                param="chat_template_kwargs",
            )
        given = kwargs.keys() | ({"documents"} if documents else set())
        if unread := sorted(given - self._known_names):
            raise InvalidRequestError(
                f"chat_template_kwargs: the model's chat template reads no {', '.join(unread)}",
                param="chat_template_kwargs",
            )
        variables = {
            **kwargs,
            **self._variables,
            "messages": prepared,
            "tools": tools or None,
            "documents": documents or None,
            "add_generation_prompt": add_generation_prompt,
        }
        has_own = bool(tools) and _TOOL_TEMPLATE in self._templates
        return self._render(_TOOL_TEMPLATE if has_own else "default", variables)

    def _render(self, name: str, variables: Mapping[str, Any]) -> str:
        try:
            return self._environment.render_bounded(self._templates[name], variables)
        except _Refusal as error:
            raise InvalidRequestError(str(error), param="messages") from error
        except (SecurityError, OverflowError, RecursionError, MemoryError) as error:
            raise TokenizerError(
                f"the model's chat template is not safe to run{_place(error)}: {error}",
                hint="give another template with model.chat_template",
            ) from error
        except Exception as error:
            raise InvalidRequestError(
                f"the model's chat template cannot render these messages{_place(error)}: {error}",
                param="messages",
            ) from error

    def _compile(self, source: str) -> Template:
        try:
            return self._environment.compile_bounded(source)
        except TemplateSyntaxError as error:
            raise TokenizerError(
                f"the chat template is not valid, line {error.lineno}: {error.message}",
                hint="give another template with model.chat_template",
            ) from error
        except (TemplateError, RecursionError) as error:
            raise TokenizerError(f"the chat template cannot be compiled: {error}") from error

    def _strftime_now(self, pattern: str) -> str:
        return datetime.fromtimestamp(self._clock.wall()).astimezone().strftime(pattern)


def load_chat_template(
    tokenizer: Tokenizer, *, path: Path | None = None, clock: Clock | None = None
) -> ChatTemplate:
    """The chat template of a model, or the one in the file at `path` instead.

    Raises:
        TokenizerError: There is none, or it is broken.
    """
    templates = tokenizer.chat_templates
    if path is not None:
        try:
            templates = {"default": path.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(
                f"the chat template {path} cannot be read: {error}",
                hint="model.chat_template must name a readable Jinja file",
            ) from error
    if "default" not in templates:
        raise TokenizerError(
            "the model has no chat template, so it cannot take chat messages",
            hint="use the completions endpoint, or give a template with model.chat_template",
        )
    return ChatTemplate(templates, named_tokens=tokenizer.named_tokens, clock=clock)


def _raise_exception(message: str) -> None:
    raise _Refusal(message)


def _place(error: BaseException) -> str:
    """The template's line that an error comes from, as " in line 3"."""
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" in line {line}"
