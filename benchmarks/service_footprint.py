"""Measure what `slipstream serve` costs to have: seconds from start to ready, and memory.

Every round starts the service on a free port, waits for `GET /ready`, streams a first and a second
answer (equally long prompts without a common prefix), and stops it; the last round goes on with
further requests first. Usage:

    python benchmarks/service_footprint.py [--rounds 5] [--requests 100] [--set SECTION.KEY=VALUE]
        [--out FILE.json]

Memory is PSS: the API process and the engine process together, shared pages counted once. Keys and
values lie in one large mapping of the engine, whose touched pages are given apart. Linux only.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from slipstream.bench.provenance import read_provenance
from slipstream.clock import SystemClock

KV_MAPPING_BYTES = 2**30
POLL_S = 0.01
PROMPT_WORDS = 60
MAX_TOKENS = 32
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) ")


@dataclass(frozen=True)
class Memory:
    """MiB (2**20 bytes) of PSS.

    Attributes:
        kv: Part of `engine`: what is touched of mappings of a GiB and more.
        without_kv: `api + engine - kv`.
    """

    api: float
    engine: float
    kv: float
    without_kv: float


@dataclass(frozen=True)
class Round:
    """One life of the service.

    Attributes:
        live_s, ready_s: From the start of the process to the first answer, and to ready.
        first_ms, second_ms: Time to the first token of the first two requests, as a client sees it.
        num_requests: Requests before `after_requests` was read.
    """

    live_s: float
    ready_s: float
    first_ms: float
    second_ms: float
    at_start: Memory
    num_requests: int
    after_requests: Memory


class Service:
    """A running `slipstream serve`."""

    def __init__(self, settings: Sequence[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port: int = free.getsockname()[1]
        command = [sys.executable, "-m", "slipstream.cli", "serve", "--port", str(self._port)]
        self._started_s = time.perf_counter()
        self._process = subprocess.Popen(
            [*command, *settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def wait_until_ready(self) -> tuple[float, float]:
        """Seconds from the start to the first answer and to ready."""
        live_s = 0.0
        while True:
            if self._process.poll() is not None:
                raise SystemExit("the service ended before it was ready; start it by hand")
            try:
                with self._answer("GET", "/ready") as response:
                    response.read()
                    now_s = time.perf_counter() - self._started_s
                    live_s = live_s or now_s
                    if response.status == http.client.OK:
                        return live_s, now_s
            except OSError:
                pass
            time.sleep(POLL_S)

    def model(self) -> str:
        """Name of the served model."""
        with self._answer("GET", "/v1/models") as response:
            return str(json.loads(response.read())["data"][0]["id"])

    def ask(self, model: str, index: int) -> float:
        """Stream one answer; milliseconds to its first event."""
        words = " ".join(f"{index}-{word}" for word in range(PROMPT_WORDS // 4))
        body = {"model": model, "prompt": words, "max_tokens": MAX_TOKENS, "stream": True}
        asked_s = time.perf_counter()
        first_s = 0.0
        with self._answer("POST", "/v1/completions", json.dumps(body)) as response:
            for line in response:
                if line.startswith(b"data:"):
                    first_s = first_s or time.perf_counter() - asked_s
        return 1e3 * first_s

    def memory(self) -> Memory:
        """Of both processes now."""
        api = _pss_mib(self._process.pid)[0]
        pairs = [_pss_mib(child) for child in _children(self._process.pid)]
        engine, kv = (sum(column) for column in zip(*pairs, strict=True))
        rounded = [round(value, 1) for value in (api, engine, kv, api + engine - kv)]
        return Memory(*rounded)

    def stop(self) -> None:
        """End it and wait."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)

    @contextmanager
    def _answer(
        self, method: str, path: str, body: str | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            yield connection.getresponse()
        finally:
            connection.close()


def _children(process_id: int) -> list[int]:
    lists = Path(f"/proc/{process_id}/task").glob("*/children")
    return [int(child) for path in lists for child in path.read_text().split()]


def _pss_mib(process_id: int) -> tuple[float, float]:
    """PSS of a process, and the part of it in anonymous mappings of a GiB and more."""
    total = large = 0
    is_large = False
    for line in Path(f"/proc/{process_id}/smaps").read_text().splitlines():
        if match := _MAPPING.match(line):
            is_large = int(match[2], 16) - int(match[1], 16) >= KV_MAPPING_BYTES
        elif line.startswith("Pss:"):
            total += int(line.split()[1])
            large += int(line.split()[1]) * is_large
    return total / 1024, large / 1024


def _round(settings: Sequence[str], num_requests: int) -> Round:
    service = Service(settings)
    try:
        live_s, ready_s = service.wait_until_ready()
        at_start = service.memory()
        model = service.model()
        times_ms = [service.ask(model, index) for index in range(num_requests)]
        return Round(
            live_s=round(live_s, 3),
            ready_s=round(ready_s, 3),
            first_ms=round(times_ms[0], 1),
            second_ms=round(times_ms[1], 1),
            at_start=at_start,
            num_requests=num_requests,
            after_requests=service.memory(),
        )
    finally:
        service.stop()


def main() -> None:
    """Run all rounds, print a line each and the medians, write the file if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    shown = ["python", "benchmarks/service_footprint.py", "--rounds", str(args.rounds)]
    shown += ["--requests", str(args.requests)]
    flags = [text for setting in args.settings for text in ("--set", setting)]
    provenance = read_provenance([*shown, *flags], [], SystemClock())
    rounds = []
    for index in range(args.rounds):
        is_last = index == args.rounds - 1
        rounds.append(_round(flags, max(2, args.requests) if is_last else 2))
        sys.stdout.write(f"{json.dumps(asdict(rounds[-1]))}\n")
        sys.stdout.flush()
    summary = {
        "ready_s": statistics.median(item.ready_s for item in rounds),
        "first_ms": statistics.median(item.first_ms for item in rounds),
        "second_ms": statistics.median(item.second_ms for item in rounds),
        "at_start_mib": statistics.median(item.at_start.without_kv for item in rounds),
        "after_requests_mib": rounds[-1].after_requests.without_kv,
    }
    sys.stdout.write(f"{json.dumps(summary)}\n")
    if args.out is not None:
        document = {
            "provenance": asdict(provenance),
            "summary": summary,
            "rounds": [asdict(item) for item in rounds],
        }
        args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
