"""Files of answers: what a target said to prompts, as token ids, one JSON object a line."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slipstream.errors import ConfigError
from slipstream.weights.disk import disk_errors

TokenIds = tuple[Annotated[int, Field(ge=0)], ...]
DISK_HINT = (
    "free some space or use another folder, then run the same command again: answers that are "
    "whole are kept"
)
_HINT = (
    'each line is {"prompt_id": ..., "temperature": ..., "prompt_ids": [...], '
    '"response_ids": [...], "finish": "stop" or "length"}'
)


class Answer(BaseModel):
    """One answer of a target.

    Attributes:
        prompt_id: Of the prompt file; all answers to one prompt are on one side of the split.
        turn: Which user turn of the conversation this answers, from 0.
        category: Kind of task, for tables.
        temperature, seed: How it was drawn; the seed is None where it is not known.
        prompt_ids: Everything in front of the answer, the chat template applied.
        response_ids: The answer, the end-of-turn token included where `finish` is "stop".
        messages_sha256: Of what was asked, see `digest_of_turns`; None where it is not known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt_id: str = Field(min_length=1)
    turn: int = Field(default=0, ge=0)
    category: str = ""
    temperature: float = Field(ge=0.0)
    seed: int | None = None
    prompt_ids: TokenIds = Field(min_length=1)
    response_ids: TokenIds
    finish: Literal["stop", "length"]
    messages_sha256: str | None = None

    @property
    def key(self) -> str:
        """What answers to one prompt of a file share; if it says the same, one is enough."""
        return f"{self.prompt_id} turn {self.turn} T {self.temperature:g}"


def read_answers(path: Path) -> Iterator[Answer]:
    """Answers of a file of JSON lines, compressed if its name ends in .gz.

    Raises:
        ConfigError: It cannot be read, or a line holds no answer; names the line.
    """
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _answer(path, number, line)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint=_HINT) from error


def read_interrupted(path: Path) -> list[Answer]:
    """Answers of a file that is being appended to, behind the last complete line all is cut off.

    A process that was killed may have left half a line; its answer is made again.
    """
    if not path.exists():
        return []
    with disk_errors(path.parent, DISK_HINT):
        content = path.read_bytes()
        complete = content.rfind(b"\n") + 1
        if complete < len(content):
            with path.open("r+b") as file:
                file.truncate(complete)
    return list(read_answers(path))


def append_answers(path: Path, answers: Iterable[Answer]) -> None:
    """Add lines to a file.

    Raises:
        CapacityError: The disk is full; `read_interrupted` cuts off half a line.
        WeightsError: The file cannot be written to.
    """
    with (
        disk_errors(path.parent, DISK_HINT),
        path.open("a", encoding="utf-8", newline="\n") as file,
    ):
        for answer in answers:
            file.write(json.dumps(answer.model_dump(), separators=(",", ":")) + "\n")


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _answer(path: Path, number: int, line: str) -> Answer:
    try:
        return Answer.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the line"
        raise ConfigError(
            f"{path}, line {number}, holds no answer: {place}: {first['msg']}", hint=_HINT
        ) from error
