"""A Jinja environment for other people's templates: no attributes, no endless work.

Templates come with the weights, from strangers. Jinja's sandbox keeps them from Python's
attributes; the bounds here keep them from using up time or memory.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_CHARS = 16 * 2**20
MAX_ROUNDS = 300_000
MAX_POWER_BITS = 4096
MAX_JSON_INDENT = 64

_LONG_NUMBER = re.compile(r"\d{6}")
_JOIN = "_bounded_join"
_WORK = "work done"  # no Jinja identifier, so that no template can reach or replace it


@dataclass(slots=True)
class _Work:
    """How many loop, macro and block bodies one rendering has run."""

    num_rounds: int = 0


class GenerationBlocks(Extension):
    """`{% generation %}` marks the assistant's text for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - the name and form that Jinja reads

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and renders chat templates as the transformers library does, within bounds.

    Operands, arguments and variables may be of any type, as in any Jinja template.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, GenerationBlocks],
        )
        del self.globals["lipsum"]
        self.filters = {name: _bounded_filter(filter_) for name, filter_ in self.filters.items()}
        self.filters["tojson"] = tojson
        self.filters[_JOIN] = lambda parts: bounded_concat(map(str, parts))

    # Jinja joins the output and the results of macros and blocks with this function.
    concat = staticmethod(lambda parts: bounded_concat(parts))

    def names_in(self, source: str) -> frozenset[str]:
        """Names that a template reads, its own variables among them."""
        names = self.parse(source).find_all(nodes.Name)
        return frozenset(name.name for name in names if name.ctx == "load")

    def compile_bounded(self, source: str) -> Template:
        """Compile a template in which every loop, macro and block counts its rounds.

        Raises:
            TemplateSyntaxError: With the line number.
        """
        tree = self.parse(source)
        parts: Any = tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block))
        for part in parts:  # Any: their base class does not declare the body they all have
            count = nodes.Call(
                nodes.EnvironmentAttribute("count_round"),
                [nodes.ContextReference()],
                [],
                None,
                None,
            )
            part.body.insert(0, nodes.ExprStmt(count).set_lineno(part.lineno))
        code = self.compile(_BoundedConcat().visit(tree))
        return Template.from_code(self, code, self.make_globals(None), None)

    def render_bounded(self, template: Template, variables: Mapping[str, Any]) -> str:
        """Render with a fresh budget.

        Raises:
            SecurityError: The template reaches for an attribute that is none of its business, or
                exceeds a bound.
            Exception: Whatever else the template's own expressions raise.
        """
        return template.render({**variables, _WORK: _Work()})

    def count_round(self, context: Context) -> None:
        """Called at the start of every loop, macro and block body."""
        work = context.parent[_WORK]
        work.num_rounds += 1
        if work.num_rounds > MAX_ROUNDS:
            raise SecurityError(f"it runs more than {MAX_ROUNDS} rounds of loops and macros")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse operators whose result would be huge."""
        if operator == "+":
            _check_len(_len(left) + _len(right))
        elif operator == "*":
            _check_len(max(_len(left) * _size(right), _len(right) * _size(left)))
        elif operator == "**" and _size(left).bit_length() * _size(right) > MAX_POWER_BITS:
            raise SecurityError("it raises to a power that is too large")
        elif operator == "%" and isinstance(left, str):
            _check_format(left, right if isinstance(right, tuple) else (right,))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Refuse calls whose result would be huge."""
        name, subject = getattr(function, "__name__", ""), getattr(function, "__self__", None)
        _check_call(name, subject, (*args, *kwargs.values()))
        return super().call(context, function, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """As in the sandbox, but a format string may not ask for a huge width."""
        wrapper = super().wrap_str_format(value)
        if wrapper is not None:
            _check_format(value.__self__, ())
        return wrapper


class _BoundedConcat(NodeTransformer):
    """Replaces `a ~ b`, which cannot be intercepted, by a filter that can."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        parts = nodes.List(node.nodes).set_lineno(node.lineno)
        return nodes.Filter(parts, _JOIN, [], [], None, None).set_lineno(node.lineno)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models saw it in training: no HTML escapes, letters as they are."""
    if indent is not None and indent > MAX_JSON_INDENT:
        raise SecurityError(f"it indents JSON by {indent}, which is too much")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def bounded_concat(parts: Iterable[str]) -> str:
    """Join texts, up to `MAX_CHARS` characters.

    Raises:
        SecurityError: They are longer.
    """
    taken, num_chars = [], 0
    for part in parts:
        num_chars += len(part)
        _check_len(num_chars)
        taken.append(part)
    return "".join(taken)


def _bounded_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same filter, refusing calls whose result would be huge."""
    name = function.__name__.removeprefix("do_").removeprefix("sync_do_")
    num_contexts = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        subject, *others = args[num_contexts:]
        _check_call(name, subject, (*others, *kwargs.values()))
        return function(*args, **kwargs)

    return bounded


def _check_call(name: str, subject: Any, values: tuple[Any, ...]) -> None:
    """Bound the result of a filter on `subject`, or of one of its methods."""
    _check_numbers(values)
    if name == "format" and isinstance(subject, str):
        _check_format(subject, values)
    elif name == "replace" and isinstance(subject, str) and len(values) > 1:
        # An empty pattern matches between all letters.
        pattern_len = max(_len(values[0]), 1)
        _check_len(len(subject) + (len(subject) // pattern_len + 1) * _len(values[1]))
    elif name == "indent" and isinstance(subject, str):
        _check_len(len(subject) + (subject.count("\n") + 1) * sum(map(_size, values)))
    elif name == "join":
        is_method = isinstance(subject, str)
        parts, separators = (values[:1], (subject,)) if is_method else ((subject,), values)
        num_chars = sum(_len(text) for part in parts for text in _texts(part))
        _check_len(num_chars + sum(map(_len, parts)) * sum(map(_len, separators)))


def _check_numbers(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_CHARS:
            raise SecurityError(f"it passes the number {value}, which is too large")


def _check_format(pattern: str, values: Iterable[Any]) -> None:
    if _LONG_NUMBER.search(pattern):
        raise SecurityError("it formats a text with a width that is too large")
    if "*" in pattern:
        _check_numbers(values)


def _check_len(num_chars: int) -> None:
    if num_chars > MAX_CHARS:
        raise SecurityError(f"it makes a text of more than {MAX_CHARS} characters")


def _texts(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else ()


def _len(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


def _size(value: Any) -> int:
    return abs(value) if isinstance(value, int) else 0
