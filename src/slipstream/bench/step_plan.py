"""What `slipstream bench step` runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from slipstream.config.control import FixedControl
from slipstream.config.drafters import MAX_DRAFT_LEN, MAX_DRAFT_NODES
from slipstream.config.schema import Config
from slipstream.errors import ConfigError

Shape = Literal["draft", "requests", "prompt"]
SHAPES: tuple[str, ...] = get_args(Shape)
MAX_ROWS = 65536


@dataclass(frozen=True, slots=True)
class StepCase:
    """Steps of one kind.

    Attributes:
        num_rows: Of the target's pass.
        shape: `draft`: one request and its draft; `requests`: so many requests with one row each;
            `prompt`: a chunk of one prompt.
    """

    num_rows: int
    shape: Shape

    @property
    def num_requests(self) -> int:
        """Requests that run together."""
        return self.num_rows if self.shape == "requests" else 1


@dataclass(frozen=True, slots=True)
class StepRunPlan:
    """All of a run.

    Attributes:
        context_len: Tokens before the rows, of every request; rounded down to whole pages before a
            prompt's chunk.
        num_steps: Measured steps of a case in one round.
        num_rounds: Each round runs all cases, so that a busy moment falls on all of them.
        seed: Of prompts and noise.
        temperature: Of every request; 0 draws the best token.
    """

    cases: tuple[StepCase, ...]
    context_len: int
    num_steps: int
    num_rounds: int
    seed: int = 1
    temperature: float = 0.0


def parse_cases(rows: str, shape: str) -> tuple[StepCase, ...]:
    """Cases of comma-separated row counts.

    Args:
        shape: One of `SHAPES`, or `auto`: a draft where one may be as long, else a prompt's chunk.
    Raises:
        ConfigError: A count or the shape is none, or no draft is so long.
    """
    if shape != "auto" and shape not in SHAPES:
        raise ConfigError(f'--shape must be auto, {", ".join(SHAPES)}, got "{shape}"')
    return tuple(_case(count, shape) for count in parse_rows(rows))


def parse_rows(text: str) -> tuple[int, ...]:
    """Comma-separated row counts, in order, each once.

    Raises:
        ConfigError: One is none.
    """
    counts: list[int] = []
    for part in text.split(","):
        try:
            counts.append(int(part))
        except ValueError:
            counts.append(0)
        if not 1 <= counts[-1] <= MAX_ROWS:
            raise ConfigError(
                f'--rows takes whole numbers from 1 to {MAX_ROWS} between commas, got "{part}"',
                hint="for example --rows 1,8,64",
            )
    return tuple(dict.fromkeys(counts))


def _case(num_rows: int, shape: str) -> StepCase:
    longest = MAX_DRAFT_NODES + 1
    if shape == "requests":
        return StepCase(num_rows, "requests")
    if shape == "prompt" or (shape == "auto" and num_rows > longest):
        return StepCase(num_rows, "prompt")
    if num_rows > longest:
        raise ConfigError(
            f"--shape draft checks at most {longest} rows, got {num_rows}",
            hint="use --shape requests or --shape prompt for more",
        )
    return StepCase(num_rows, "draft")


def step_config(config: Config, plan: StepRunPlan) -> Config:
    """`config` with room for the plan's steps, and nobody's drafts but the filler's.

    Raises:
        ConfigError: Prompt chunks are wanted without the prefix cache that puts them in place.
    """
    if not config.memory.prefix_cache and any(case.shape == "prompt" for case in plan.cases):
        raise ConfigError(
            "memory.prefix_cache is false, but a prompt's chunk is measured behind a cached prefix",
            hint="leave memory.prefix_cache on, or use --shape draft or --shape requests",
        )
    widest = max(case.num_rows for case in plan.cases)
    most = max(case.num_requests for case in plan.cases)
    scheduler = config.scheduler.model_copy(
        update={
            "queue_timeout_s": None,
            "request_timeout_s": None,
            "max_step_tokens": max(config.scheduler.max_step_tokens, widest),
            "max_num_requests": max(config.scheduler.max_num_requests, most),
            "max_queue_len": max(config.scheduler.max_queue_len, most),
        }
    )
    speculation = config.speculation.model_copy(
        update={
            "drafters": (),
            "max_draft_len": MAX_DRAFT_LEN,
            "max_draft_nodes": MAX_DRAFT_NODES,
            "controller": FixedControl(),
        }
    )
    return config.model_copy(update={"scheduler": scheduler, "speculation": speculation})
