"""A bar that shows how far a measurement is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def rounds_bar(text: str, total: int) -> Iterator[Callable[[], None]]:
    """Shows the bar on standard error; gives what is called after each part."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(text, total=total)
        yield lambda: bar.advance(task)
