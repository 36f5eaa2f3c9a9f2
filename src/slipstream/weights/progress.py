"""How long operations on weights tell what they are doing; the command line draws it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Hears of one stage at a time: `begin`, any number of `advance`, `end`."""

    def begin(self, what: str, total_bytes: int | None) -> None:
        """A stage starts; a stage that was not ended is replaced. None: the size is unknown."""
        ...

    def advance(self, num_bytes: int) -> None:
        """More bytes of this stage are done; negative if some must be done again.

        Called from several threads at once.
        """
        ...

    def end(self) -> None:
        """The stage is over, successfully or not."""
        ...


class SilentProgress:
    """Tells nobody."""

    def begin(self, what: str, total_bytes: int | None) -> None:
        """Nothing happens."""

    def advance(self, num_bytes: int) -> None:
        """Nothing happens."""

    def end(self) -> None:
        """Nothing happens."""
