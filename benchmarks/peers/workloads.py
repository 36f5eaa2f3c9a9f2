"""What the servers are asked: one stream, long prompts, and many streams, always in turn."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.client import Reply, RequestFailedError, ask, new_client
from benchmarks.peers.servers import Server

WARM_UP_PROMPTS = ("Say hello.", "Count from one to ten in words. " * 20)
WARM_UP_TOKENS = 16
PREFILL_TOKENS = 4
CHARACTERS_PER_TOKEN = 4.3
MIN_LOAD_REQUESTS = 4
START_S = 600.0
REQUEST_S = 180.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt of a file.

    Attributes:
        prompt_set: What it is for: `single`, `load` or `prefill`.
    """

    prompt_set: str
    prompt_id: str
    category: str
    text: str


@dataclass(frozen=True, slots=True)
class Request:
    """One answered request. `unit` is the same for all peers that were asked the same."""

    peer: str
    workload: str
    category: str
    unit: str
    round_index: int
    reply: Reply


@dataclass(frozen=True, slots=True)
class Cell:
    """One peer at one number of streams, once.

    Attributes:
        wall_s: From the first request to the end of the last answer.
    """

    peer: str
    num_streams: int
    round_index: int
    num_requests: int
    num_tokens: int
    wall_s: float
    ttft_p50_s: float
    gap_p95_s: float


@dataclass(slots=True)
class Measured:
    """All that came out."""

    requests: list[Request] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is asked."""

    rounds: int
    max_tokens: int
    prefill_lens: tuple[int, ...]
    prefill_rounds: int
    levels: tuple[int, ...]
    load_rounds: int
    load_tokens: int


def read_asked(path: Path) -> list[Asked]:
    """Prompts of a file of JSON lines with `set`, `id`, `category` and `prompt`."""
    lines = path.read_text(encoding="utf-8").split("\n")
    entries = [json.loads(line) for line in lines if line.strip()]
    return [
        Asked(entry["set"], str(entry["id"]), entry["category"], entry["prompt"])
        for entry in entries
    ]


def take_turns(asked: Sequence[Asked], per_category: int) -> list[Asked]:
    """Some of each category, one category after the other, so that a short run has all of them."""
    members: dict[str, list[Asked]] = {}
    for item in asked:
        members.setdefault(item.category, []).append(item)
    return [
        group[index]
        for index in range(per_category)
        for group in members.values()
        if index < len(group)
    ]


class Contest:
    """Servers that answer the same requests, each in turn while the others are held still.

    Every turn begins with another server, so that a machine that grows slower favours none.
    """

    def __init__(self, sizes: Sizes, measured: Measured) -> None:
        self._sizes = sizes
        self._measured = measured

    def warm_up(self, server: Server) -> None:
        """Answers that are not counted.

        Raises:
            RequestFailedError: There is none.
        """
        for prompt in WARM_UP_PROMPTS:
            self._one(server, prompt, WARM_UP_TOKENS)

    def run_single(self, servers: Sequence[Server], asked: Sequence[Asked]) -> None:
        """Every prompt to every server, one at a time."""
        for round_index in range(self._sizes.rounds):
            if round_index:
                self._restart_learners(servers)
            for index, item in enumerate(asked):
                for server in _turn(servers, index + round_index):
                    where = ("single", item.category, f"{item.category}/{item.prompt_id}")
                    self._note(server, where, round_index, item.text, self._sizes.max_tokens)
                say(f"one stream: round {round_index + 1}, prompt {index + 1} of {len(asked)}")

    def run_prefill(self, servers: Sequence[Server], asked: Sequence[Asked]) -> None:
        """Long prompts that nobody has seen, made of shuffled sentences, for a few tokens each."""
        rng = random.Random(1)
        sentences = [part for item in asked for part in item.text.split(". ") if part]
        for round_index in range(self._sizes.prefill_rounds):
            for length in self._sizes.prefill_lens:
                rng.shuffle(sentences)
                text = f"Note {rng.random()}. " + ". ".join(sentences)
                text = text[: int(length * CHARACTERS_PER_TOKEN)]
                prompt = f"{text}.\n\nSummarise the text above."
                for server in _turn(servers, round_index):
                    where = ("prefill", str(length), f"{length}/{round_index}")
                    self._note(server, where, round_index, prompt, PREFILL_TOKENS)
            say(f"long prompts: round {round_index + 1} of {self._sizes.prefill_rounds}")

    def run_load(self, servers: Sequence[Server], asked: Sequence[Asked]) -> None:
        """Streams that each send a request when their last one has ended."""
        num_used = 0
        for round_index in range(self._sizes.load_rounds):
            for index, level in enumerate(self._sizes.levels):
                count = max(MIN_LOAD_REQUESTS, 2 * level)
                items = [asked[(num_used + item) % len(asked)] for item in range(count)]
                num_used += count
                for server in _turn(servers, index + round_index):
                    cell = asyncio.run(self._load(server, level, round_index, items))
                    self._measured.cells.append(cell)
                    rate = cell.num_tokens / cell.wall_s
                    say(f"{level} streams, {server.peer.name}: {rate:.0f} tokens/s")

    def _restart_learners(self, servers: Sequence[Server]) -> None:
        for server in servers:
            if server.peer.restart:
                server.stop()
                server.start(START_S)
                self.warm_up(server)

    def _note(
        self,
        server: Server,
        where: tuple[str, str, str],
        round_index: int,
        prompt: str,
        max_tokens: int,
    ) -> None:
        """Ask, and keep the reply under its workload, category and unit."""
        workload, category, unit = where
        name = server.peer.name
        try:
            reply = self._one(server, prompt, max_tokens)
        except RequestFailedError as error:
            self._measured.failures.append(f"{name}, {unit}: {error}")
            say(self._measured.failures[-1])
            return
        request = Request(name, workload, category, unit, round_index, reply)
        self._measured.requests.append(request)

    def _one(self, server: Server, prompt: str, max_tokens: int) -> Reply:
        async def run() -> Reply:
            async with new_client(REQUEST_S) as client:
                return await ask(client, server, prompt, max_tokens)

        with server.awake():
            return asyncio.run(run())

    async def _load(
        self, server: Server, level: int, round_index: int, items: Sequence[Asked]
    ) -> Cell:
        queue = iter(items)
        replies: list[Reply] = []
        failures: list[str] = []

        async def work() -> None:
            for item in queue:
                try:
                    reply = await ask(client, server, item.text, self._sizes.load_tokens)
                except RequestFailedError as error:
                    failures.append(f"{server.peer.name}, {level} streams: {error}")
                else:
                    replies.append(reply)

        with server.awake():
            async with new_client(REQUEST_S) as client:
                started_s = time.perf_counter()
                await asyncio.gather(*(work() for _ in range(level)))
                wall_s = time.perf_counter() - started_s
        self._measured.failures.extend(failures)
        return Cell(
            peer=server.peer.name,
            num_streams=level,
            round_index=round_index,
            num_requests=len(replies),
            num_tokens=sum(reply.num_tokens for reply in replies),
            wall_s=wall_s,
            ttft_p50_s=_quantile([reply.ttft_s for reply in replies], 0.5),
            gap_p95_s=_quantile([reply.gap_p95_s for reply in replies], 0.5),
        )


def say(line: str) -> None:
    """Tell how far the run is."""
    sys.stderr.write(f"{line}\n")


def _turn(servers: Sequence[Server], index: int) -> Iterator[Server]:
    shift = index % len(servers)
    yield from servers[shift:]
    yield from servers[:shift]


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values) or [0.0]
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
