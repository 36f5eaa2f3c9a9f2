"""Writes docs/reference from the code, so that it cannot say anything else.

python -m docs.generate           writes the pages
python -m docs.generate --check   fails when a page is not what the code says
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from slipstream import errors
from slipstream.cli.main import COMMANDS, build_app, load_command
from slipstream.config.annotations import element, models
from slipstream.config.fields import expected
from slipstream.config.schema import Config
from slipstream.config.sources import variable
from slipstream.observability.catalogue import CATALOGUE
from slipstream.observability.metric_spec import MetricSpec
from slipstream.protocol.fields import Endpoint, FieldSpec, fields_of

REFERENCE = Path(__file__).with_name("reference")
NOTICE = "<!-- Written by `make docs` from the code; edits here are lost. -->\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; pipes and line breaks in cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _first_paragraph(subject: object) -> str:
    return (inspect.getdoc(subject) or "").partition("\n\n")[0]


# ---- config.md ----


def config_page() -> str:
    """Every setting: what it means, what it takes, its default."""
    parts = [
        "# Configuration\n\n"
        "A setting comes from a flag, else from the environment, else from the file of "
        "`--config`, else from its default. Files are YAML, TOML or JSON. "
        f"`{variable('speculation.max_draft_len')}=4` in the environment and "
        "`--set speculation.max_draft_len=4` on the command line are the same setting; lists and "
        "tables are JSON there. Sizes in bytes may be written as `2GiB` or `2GB`, and a drafter "
        "or controller that needs no settings as its kind alone. A key that is not here and a "
        "value that does not fit are refused; `slipstream config check` reports all of them.\n\n"
        "API keys are no setting: they come from the variable `SLIPSTREAM_API_KEYS` (commas "
        "between keys) or from the file that `server.api_keys_file` names. "
        "`SLIPSTREAM_DEBUG=1` makes the command line print tracebacks.\n"
    ]
    for name, field in Config.model_fields.items():
        parts.extend(_section(name, models(field.annotation)[""]))
    return "\n".join(parts)


def _section(name: str, owner: type[BaseModel], level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {name}\n\n{_first_paragraph(owner)}\n"
    rows = (_setting_row(key, field) for key, field in owner.model_fields.items())
    yield table(("key", "default", "takes", "meaning"), rows)
    for key, field in owner.model_fields.items():
        is_list = element(field.annotation) is not None
        for kind, member in models(element(field.annotation) or field.annotation).items():
            place = f"{name}.{key}[]" if is_list else f"{name}.{key}"
            yield from _section(f"{place}, kind `{kind}`", member, level + 1)


def _setting_row(key: str, field: FieldInfo) -> Sequence[str]:
    value = field.default
    if field.is_required():
        default = "(required)"
    elif isinstance(value, BaseModel):
        default = f"`{getattr(value, 'kind', '')}`"
    elif isinstance(value, tuple):
        default = f"`[{', '.join(map(_tagged, value))}]`"
    else:
        default = f"`{json.dumps(value)}`"
    return f"`{key}`", default, expected(field), field.description or ""


def _tagged(item: BaseModel) -> str:
    """A tagged section by its kind, with what differs from the kind's defaults."""
    kind: str = getattr(item, "kind", "")
    own = item.model_dump(exclude_defaults=True)
    return json.dumps({"kind": kind, **own}) if own else kind


# ---- errors.md ----


def errors_page() -> str:
    """Every error class, with what a client of the API sees of it."""
    found = [
        error
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.SlipstreamError)
    ]
    requests = [error for error in found if issubclass(error, errors.RequestError)]
    others = [error for error in found if error not in requests]
    return (
        "# Errors\n\nThe command line prints `error:` and, where there is a next step, `hint:`; it "
        "exits with 2 for a wrong configuration, usage or input and with 1 for every other "
        "error.\n\n"
        + table(("error", "is a", "meaning"), map(_error_row, others))
        + "\n## Errors of one request\n\nThe HTTP answer's body is "
        '`{"error": {"message", "type", "param", "code"}}`, as in the OpenAI API.\n\n'
        + table(
            ("status", "code", "type", "error", "meaning"),
            (
                _request_error_row(error)
                for error in sorted(requests, key=lambda error: error.status)
                if error is not errors.RequestError
            ),
        )
        + "\nThree more answers have this shape: 404 `unknown_url` and 405 `method_not_supported`, "
        "of type `invalid_request_error`, and 500 `internal_error`, of type `server_error`, for a "
        "mistake in the server itself; its log has the traceback beside the request's id.\n"
    )


def _error_row(error: type[errors.SlipstreamError]) -> tuple[str, str, str]:
    parent = (error.__base__ or error).__name__
    return f"`{error.__name__}`", f"`{parent}`", _first_paragraph(error)


def _request_error_row(error: type[errors.RequestError]) -> Sequence[str]:
    quoted = (f"`{text}`" for text in (error.code, error.kind, error.__name__))
    return str(error.status), *quoted, _first_paragraph(error)


# ---- cli.md ----


def cli_page() -> str:
    """Every command with its arguments and options."""
    parts = ["# Command line\n"]
    # Any: typer does not export the types of its own copy of click.
    commands: list[tuple[str, Any]] = [("slipstream", typer.main.get_command(build_app()))]
    commands += [(f"slipstream {name}", load_command(name)) for name in COMMANDS]
    for path, command in commands:
        parts.extend(_command(path, command, is_root=path == "slipstream"))
    return "\n".join(parts)


def _command(path: str, command: Any, *, is_root: bool = False) -> Iterator[str]:
    context = typer.Context(command, info_name=path, terminal_width=1000, max_content_width=1000)
    usage = command.get_usage(context).removeprefix("Usage: ")
    yield f"## {path}\n\n{inspect.cleandoc(command.help or '')}\n\n```text\n{usage}\n```\n"
    records = [param.get_help_record(context) for param in command.get_params(context)]
    rows = [(f"`{record[0]}`", record[1]) for record in records if record]
    yield table(("option", "meaning"), rows)
    children = {} if is_root else getattr(command, "commands", {})
    for name, child in children.items():
        yield from _command(f"{path} {name}", child)


# ---- metrics.md ----


def metrics_page() -> str:
    """Every metric of `/metrics`."""
    return (
        "# Metrics\n\n`GET /metrics` answers in the Prometheus text format. Counters only grow; "
        "rates and ratios are divisions of their rates.\n\n"
        + table(("metric", "kind", "unit", "labels", "meaning"), map(_metric_row, CATALOGUE))
    )


def _metric_row(spec: MetricSpec) -> Sequence[str]:
    labels = ", ".join(f"`{label}`" for label in spec.labels)
    return f"`{spec.full_name}`", spec.kind, spec.unit, labels, spec.meaning


# ---- http.md ----

ENDPOINTS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def http_page() -> str:
    """Every request field: honoured, or refused with which error."""
    parts = [
        "# Request fields\n\nA field is honoured, or it is refused with status 400 and the reason "
        "below; no field is taken and then ignored. `null` means that a field is not given. A "
        "field that is not listed is unknown and refused.\n"
    ]
    for endpoint, path in ENDPOINTS.items():
        rows = map(_field_row, fields_of(endpoint).values())
        parts.append(f"## POST {path}\n\n{table(('field', 'status', 'meaning'), rows)}")
    return "\n".join(parts)


def _field_row(spec: FieldSpec) -> Sequence[str]:
    if spec.status == "honoured":
        return f"`{spec.name}`", "honoured", spec.meaning
    neutral = ", ".join(f"`{json.dumps(value)}`" for value in spec.neutral)
    status = f"refused, except {neutral}" if neutral else "refused"
    return f"`{spec.name}`", status, f"`unsupported_parameter`: {spec.error}"


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "config.md": config_page,
    "errors.md": errors_page,
    "http.md": http_page,
    "metrics.md": metrics_page,
}


def stale_pages(folder: Path) -> list[str]:
    """Names of pages whose file is missing or differs from what the code says."""
    return [
        name
        for name, page in PAGES.items()
        if not (folder / name).is_file()
        or (folder / name).read_text(encoding="utf-8") != NOTICE + page()
    ]


def write_pages(folder: Path) -> None:
    """Writes every page, overwriting what is there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(NOTICE + page(), encoding="utf-8")


def main(argv: Sequence[str], folder: Path = REFERENCE) -> int:
    """Writes the pages, or with `--check` compares them; returns the exit status."""
    if list(argv) == ["--check"]:
        stale = stale_pages(folder)
        if stale:
            sys.stderr.write(f"error: docs/reference is stale: {', '.join(stale)}\n")
            sys.stderr.write("hint: run `make docs` and commit the result\n")
        return 1 if stale else 0
    if argv:
        sys.stderr.write(f"error: the only argument is --check, got {' '.join(argv)}\n")
        return 2
    write_pages(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
