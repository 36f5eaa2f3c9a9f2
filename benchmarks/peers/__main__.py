"""Measure Slipstream beside other servers over HTTP, on this machine.

    python -m benchmarks.peers SERVERS.toml --prompts FILE.jsonl --out benchmarks/peers-NAME.json
        --single PEER,PEER,... [--prefill PEER,...] [--load PEER,...] [--control PEER]

The first peer's engine is the subject. All servers are started and then asked in turn, request by
request, the others held still; `servers.py` says what the file holds, benchmarks/README.md the
rest. The file of results is written after each workload and when the run is interrupted; logs of
the servers and the tables go to `--logs`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from benchmarks.peers.client import RequestFailedError
from benchmarks.peers.servers import (
    AGAIN,
    Peer,
    Places,
    Server,
    read_peers,
    read_version,
)
from benchmarks.peers.summary import summarise
from benchmarks.peers.tables import tables
from benchmarks.peers.workloads import (
    START_S,
    Asked,
    Contest,
    Measured,
    Request,
    Sizes,
    read_asked,
    say,
    take_turns,
)

from slipstream.bench.provenance import Provenance, read_provenance
from slipstream.clock import SystemClock


@dataclass(slots=True)
class Run:
    """One comparison under way."""

    args: argparse.Namespace
    places: Places
    sizes: Sizes
    provenance: Provenance
    peers: list[Peer]
    servers: dict[str, Server]
    versions: dict[str, str | None]
    measured: Measured

    @property
    def engine(self) -> str:
        """The subject."""
        return self.peers[0].engine

    @property
    def tables_path(self) -> Path:
        """Where the tables go."""
        path: Path = self.args.logs / f"{self.args.out.stem}.md"
        return path

    def save(self) -> None:
        """Write what there is."""
        summary = summarise(self.measured, self.peers, self.engine)
        document = {
            "provenance": asdict(self.provenance),
            "subject": self.engine,
            "threads": self.places.threads,
            "sizes": asdict(self.sizes),
            "peers": [self._describe(peer) for peer in self.peers],
            "failures": self.measured.failures,
            "summary": asdict(summary),
            "requests": [_request(item) for item in self.measured.requests],
            "cells": [asdict(cell) for cell in self.measured.cells],
        }
        text = json.dumps(_rounded(document), indent=1, ensure_ascii=False)
        self.args.out.write_text(text + "\n", encoding="utf-8")
        self.tables_path.write_text(tables(summary, self.peers, self.engine), encoding="utf-8")

    def _describe(self, peer: Peer) -> dict[str, Any]:  # any JSON
        started = self.servers.get(peer.name)
        return asdict(peer) | {
            "reported_version": self.versions.get(peer.engine),
            "start_s": started.start_s if started is not None else None,
        }


def main() -> None:
    """Run it all."""
    args = _parse()
    run = _prepare(args)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are ended
    contest = Contest(run.sizes, run.measured)
    asked = read_asked(args.prompts)
    try:
        _start(run, contest)
        _measure(run, contest, asked)
    finally:
        for server in run.servers.values():
            server.stop()
        run.save()
    sys.stdout.write(run.tables_path.read_text(encoding="utf-8"))


def _measure(run: Run, contest: Contest, asked: Sequence[Asked]) -> None:
    chosen = {
        name: [item for item in asked if item.prompt_set == name]
        for name in ("single", "prefill", "load")
    }
    single = take_turns(chosen["single"], run.args.per_category)
    if servers := _named(run, run.args.single):
        contest.run_single([*servers, *_named(run, _again(run.args.control))], single)
        run.save()
    if servers := _named(run, run.args.prefill):
        contest.run_prefill([*servers, *_named(run, _again(run.args.control))], chosen["prefill"])
        run.save()
    if servers := _named(run, run.args.load):
        contest.run_load(servers, chosen["load"])


def _start(run: Run, contest: Contest) -> None:
    """Start all servers; one that does not start is left out and listed."""
    folder = run.args.logs
    for peer in run.peers:
        server = Server(peer, run.places, folder)
        run.servers[peer.name] = server
        try:
            server.start(START_S)
            contest.warm_up(server)
        except (RuntimeError, RequestFailedError, httpx.HTTPError) as error:
            run.measured.failures.append(f"{peer.name}: {error}")
            say(f"left out: {error}")
            server.stop()
            del run.servers[peer.name]
        else:
            say(f"{peer.name} is ready after {server.start_s} s")


def _named(run: Run, names: Sequence[str]) -> list[Server]:
    return [run.servers[name] for name in names if name in run.servers]


def _again(names: Sequence[str]) -> list[str]:
    return [name + AGAIN for name in names]


def _prepare(args: argparse.Namespace) -> Run:
    known = read_peers(args.servers)
    names = list(dict.fromkeys([*args.single, *args.prefill, *args.load]))
    if unknown := [name for name in [*names, *args.control] if name not in known]:
        raise SystemExit(f"{args.servers.name} has no {', '.join(unknown)}")
    if not names:
        raise SystemExit("name peers with --single, --prefill or --load")
    peers = [known[name] for name in names] + [known[name].again() for name in args.control]
    args.logs.mkdir(parents=True, exist_ok=True)
    home = args.home.resolve()
    models = (args.models or home / "models").resolve()
    places = Places(args.servers.resolve().parent, home, models, args.threads)
    sizes = Sizes(
        rounds=args.rounds,
        max_tokens=args.max_tokens,
        prefill_lens=args.prefill_lens,
        prefill_rounds=args.prefill_rounds,
        levels=args.levels,
        load_rounds=args.load_rounds,
        load_tokens=args.load_tokens,
    )
    command = ["python", "-m", "benchmarks.peers", *_shown(sys.argv[1:])]
    provenance = read_provenance(command, [args.servers, args.prompts], SystemClock())
    versions = {peer.engine: read_version(peer, places) for peer in peers}
    return Run(args, places, sizes, provenance, peers, {}, versions, Measured())


def _shown(words: Sequence[str]) -> list[str]:
    """Absolute paths by their last part: a result names no place of a machine."""
    return [Path(word).name if word.startswith("/") else word for word in words]


def _request(item: Request) -> dict[str, Any]:  # any JSON
    reply = asdict(item.reply)
    digest = hashlib.sha256(reply.pop("text").encode()).hexdigest()[:16]
    return asdict(replace(item)) | {"reply": reply | {"text_sha256": digest}}


def _rounded(value: Any) -> Any:  # any JSON
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    return value


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("servers", type=Path, help="TOML file of servers")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines")
    parser.add_argument("--out", type=Path, required=True)
    for workload in ("single", "prefill", "load"):
        parser.add_argument(f"--{workload}", type=_names, default=[], metavar="PEERS")
    parser.add_argument("--control", type=_names, default=[], metavar="PEERS")
    parser.add_argument("--home", type=Path, default=Path())
    parser.add_argument("--models", type=Path)
    parser.add_argument("--logs", type=Path, default=Path("build/peers"))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--per-category", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--prefill-lens", type=_numbers, default=(1024, 2048))
    parser.add_argument("--prefill-rounds", type=int, default=5)
    parser.add_argument("--levels", type=_numbers, default=(1, 4, 8, 16, 32))
    parser.add_argument("--load-rounds", type=int, default=3)
    parser.add_argument("--load-tokens", type=int, default=64)
    return parser.parse_args()


if __name__ == "__main__":
    main()
