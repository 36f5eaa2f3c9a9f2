"""The drafters that come with Slipstream, and which target each is for."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from slipstream.models.identity import TargetIdentity

FOLDER = Path(__file__).parent / "shipped"
_FILE = "catalog.json"


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ShippedDrafter(_Entry):
    """One of them.

    Attributes:
        file: Its weights, in the catalog's folder.
        kind: Of the drafter, as in the configuration.
        target: Whom it was trained for, in words.
        embedding_peaks: See `TargetIdentity`.
    """

    file: str
    kind: Literal["eagle3", "dflash", "dspark"]
    target: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    embedding_peaks: tuple[int, ...] = Field(min_length=1)

    def fits(self, target: TargetIdentity) -> bool:
        """Whether it was trained for `target`, perhaps in another format of its weights."""
        trained_for = TargetIdentity(
            name=self.target,
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
            vocab_size=self.vocab_size,
            weights_digest="",  # formats differ in it
            embedding_peaks=self.embedding_peaks,
        )
        return trained_for.resembles(target) is True


class ShippedDrafters(_Entry):
    """All of them, for each target the best first."""

    drafters: tuple[ShippedDrafter, ...]

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of which there is one."""
        return tuple(dict.fromkeys(item.kind for item in self.drafters))

    def find(self, target: TargetIdentity, kinds: Iterable[str] = ()) -> ShippedDrafter | None:
        """The best for `target`; None if there is none.

        Args:
            kinds: Only of these; none names them all.
        """
        wanted = tuple(kinds) or self.kinds
        fitting = (item for item in self.drafters if item.kind in wanted and item.fits(target))
        return next(fitting, None)


def read_shipped(folder: Path = FOLDER) -> ShippedDrafters:
    """Read the catalog of a folder."""
    return ShippedDrafters.model_validate_json((folder / _FILE).read_text("utf-8"))
