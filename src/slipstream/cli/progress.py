"""A progress bar for operations on weights."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class BarProgress:
    """Draws one bar on standard error; where that is no terminal, prints a line a stage.

    Implements `slipstream.weights.progress.Progress`.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._what = ""

    def begin(self, what: str, total_bytes: int | None) -> None:
        """Start a bar, or give the running one of the same stage its total."""
        if self._bar is not None and self._task is not None and what == self._what:
            self._bar.update(self._task, total=total_bytes)
            return
        self.end()
        self._what = what
        if not self._console.is_terminal:
            size = f" ({total_bytes / 1e6:.1f} MB)" if total_bytes else ""
            self._console.print(f"{what}{size}", highlight=False, soft_wrap=True)
            return
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task(what, total=total_bytes)
        self._bar.start()

    def advance(self, num_bytes: int) -> None:
        """Move the bar."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, num_bytes)

    def end(self) -> None:
        """Stop the bar and leave it standing."""
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._task, self._what = None, None, ""
