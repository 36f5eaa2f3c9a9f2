"""What a benchmark asks of whoever generates: an engine in this process, or a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slipstream.bench.prompts import Prompt
from slipstream.bench.results import GroupRun
from slipstream.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt with all its turns.

    Attributes:
        salt: Jobs of one salt share the prefix cache and drafter memory.
    """

    prompt: Prompt
    params: SamplingParams
    salt: str


class BenchTarget(Protocol):
    """Generates and takes the time."""

    @property
    def facts(self) -> Mapping[str, Any]:  # Any: JSON values
        """Model, fingerprint and the like, for the report; complete after the first run."""
        ...

    def run(self, jobs: Sequence[Job], *, is_drafting: bool) -> GroupRun:
        """Start all jobs together and run them to their ends.

        A prompt that the model cannot take gets an answer with `refusal`.

        Raises:
            SlipstreamError: Something else went wrong.
        """
        ...
