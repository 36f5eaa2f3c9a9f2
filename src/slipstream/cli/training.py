"""What the commands of `slipstream train` share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from slipstream.bench.prompts import Prompt
from slipstream.clock import SystemClock
from slipstream.config.schema import Config
from slipstream.errors import ConfigError

if TYPE_CHECKING:  # these import torch
    from slipstream.training.conversations import Conversation
    from slipstream.training.session import TrainingTarget

DataOption = Annotated[
    Path, typer.Option("--data", "-d", help="Folder that `slipstream train data` made.")
]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        help="Folder that `slipstream train cache` made. Not given: the target computes its states "
        "whenever they are needed.",
    ),
]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run of `slipstream train fit`.")
]
TapsOption = Annotated[
    str | None,
    typer.Option(
        help="Layers of the target whose output the net reads, such as 5,14,26. Not given: those "
        "of the cache, or three spread over the depth."
    ),
]


def open_target(config: Config) -> TrainingTarget:
    """Fetch and load the target; set this process's share of threads; keep freed memory."""
    import torch

    from slipstream.cli.fetching import fetch_weights
    from slipstream.engine.loading import load_target
    from slipstream.execution.cores import choose_num_threads, read_cores
    from slipstream.execution.host_allocator import keep_freed_memory
    from slipstream.training.session import TrainingTarget

    keep_freed_memory(maps_large_blocks=False)
    num_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # torchrun's, on this machine
    torch.set_num_threads(
        choose_num_threads(config.engine.num_threads, read_cores(), num_processes)
    )
    fetch_weights(config)
    with Console(stderr=True).status(f"loading {config.model.public_name}"):
        return TrainingTarget.of(load_target(config.model), config.model.shared_source)


def parse_numbers(text: str, name: str) -> tuple[float, ...]:
    """A comma-separated list.

    Raises:
        ConfigError: A part is no number; names the option.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f'{name} takes numbers with commas between them, got "{text}"', hint="such as 1,2,3"
        ) from error


def parse_layers(text: str) -> tuple[int, ...]:
    """The layers of `--taps`; see `parse_numbers`."""
    numbers = parse_numbers(text, "--taps")
    if any(not number.is_integer() for number in numbers):  # nor are nan and inf
        raise ConfigError(
            f'--taps takes whole numbers, got "{text}"', hint="give layers, such as 5,14,26"
        )
    return tuple(int(number) for number in numbers)


def choose_taps(
    text: str | None, cache: Path | None, otherwise: tuple[int, ...]
) -> tuple[int, ...]:
    """The layers that are asked for, those of a cache, or `otherwise`."""
    if text is not None:
        return parse_layers(text)
    if cache is not None:
        from slipstream.training.shards import read_cache_manifest

        return read_cache_manifest(cache).tap_layer_ids
    return otherwise


def conversation_of(prompt: Prompt) -> Conversation:
    """A prompt of a file as training takes it; a text is a user's message."""
    from slipstream.training.conversations import Conversation

    if prompt.text is not None:
        message = {"role": "user", "content": prompt.text}
        return Conversation(prompt.prompt_id, prompt.category, ((message,),))
    return Conversation(prompt.prompt_id, prompt.category, tuple(prompt.turns()))


def provenance_of(files: Sequence[Path]) -> dict[str, Any]:  # Any: JSON
    """Command, commit, versions and machine of this program."""
    from slipstream.bench.provenance import read_provenance

    return asdict(read_provenance(["slipstream", *sys.argv[1:]], files, SystemClock()))


@contextmanager
def count_bar(text: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error; gives what is called with the number of things done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(text, total=total)
        yield lambda count: bar.advance(task, count)
