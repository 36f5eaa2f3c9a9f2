"""The servers that are compared: how each is started, held still, and ended.

A TOML file names them:

    [engine.NAME]  cmd      command line, a list; "{args}", alone in its place, is the peer's `args`
                   env      environment variables
                   health   path that answers 200 once the server is ready; default "/health"
                   body     fields added to every request
                   version  command whose first line of output says which version it is
    [peer.NAME]    engine, precision (of the stored weights: bf16, q8_0, int8, q4_0, q4_1, int4),
                   spec     how it speculates, in words, or "none"
                   args, env, body, and
                   reference  the peer whose greedy answers it should give, itself without drafts
                   restart  true: its drafters learn from earlier requests, so every round over the
                            same prompts starts with a new server

In texts "{port}" is a free port, "{home}" and "{models}" are folders that the command line names,
"{threads}" is the number of threads, and "{here}" is the folder of the file.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

POLL_S = 0.1
STOP_S = 10.0
AGAIN = " again"

STORED_BITS = {"bf16": 16, "q8_0": 8, "int8": 8, "q4_0": 4, "q4_1": 4, "int4": 4}


@dataclass(frozen=True, slots=True)
class Peer:
    """One configuration of one server.

    Attributes:
        command: With its places still open.
        body: Fields added to every request.
        version: Command that tells the version; empty if there is none.
    """

    name: str
    engine: str
    precision: str
    speculation: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    health: str
    body: Mapping[str, Any]  # any JSON
    version: tuple[str, ...] = ()
    reference: str | None = None
    restart: bool = False

    @property
    def bits(self) -> int:
        """Of a stored weight, nominally."""
        return STORED_BITS[self.precision]

    def again(self) -> Peer:
        """The same under another name, to compare it with itself."""
        return replace(self, name=self.name + AGAIN)


def read_peers(path: Path) -> dict[str, Peer]:
    """All peers of a file, by name."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    peers = {}
    for name, entry in document["peer"].items():
        engine = document["engine"][entry["engine"]]
        if entry["precision"] not in STORED_BITS:
            continue
        args = entry.get("args", [])
        parts = [args if part == "{args}" else [part] for part in engine["cmd"]]
        peers[name] = Peer(
            name=name,
            engine=entry["engine"],
            precision=entry["precision"],
            speculation=entry["spec"],
            command=tuple(word for part in parts for word in part),
            env=engine.get("env", {}) | entry.get("env", {}),
            health=engine.get("health", "/health"),
            body=engine.get("body", {}) | entry.get("body", {}),
            version=tuple(engine.get("version", ())),
            reference=entry.get("reference"),
            restart=entry.get("restart", False),
        )
    return peers


@dataclass(frozen=True, slots=True)
class Places:
    """What fills the open places of a command."""

    here: Path
    home: Path
    models: Path
    threads: int

    def fill(self, text: str, port: int = 0) -> str:
        """The text without open places."""
        values = {
            "here": self.here,
            "home": self.home,
            "models": self.models,
            "threads": self.threads,
            "port": port,
        }
        for key, value in values.items():
            text = text.replace("{" + key + "}", str(value))
        return text


def read_version(peer: Peer, places: Places) -> str | None:
    """First line of what its version command says; None if it has none."""
    if not peer.version:
        return None
    env = {key: places.fill(value) for key, value in peer.env.items()}
    command = [places.fill(word) for word in peer.version]
    done = subprocess.run(
        command, env=os.environ | env, capture_output=True, text=True, timeout=120, check=False
    )
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "version" in line.lower()]
    return (lines or (done.stdout + done.stderr).splitlines() or ["unknown"])[0].strip()


class Server:
    """A running peer, in a process group of its own that is stopped and continued as a whole.

    Outside `awake` it is stopped (SIGSTOP), so it takes nothing from whoever is measured.
    """

    def __init__(self, peer: Peer, places: Places, log_folder: Path) -> None:
        self.peer = peer
        self.url = ""
        self.model = ""
        self.start_s = 0.0
        self._places = places
        self._log = log_folder / f"{peer.name.replace(' ', '-')}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout_s: float) -> None:
        """Start it and wait until it is ready.

        Raises:
            RuntimeError: It ended or was not ready in time; names its log.
        """
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        command = [self._places.fill(word, port) for word in self.peer.command]
        env = {key: self._places.fill(value) for key, value in self.peer.env.items()}
        self.url = f"http://127.0.0.1:{port}"
        started_s = time.perf_counter()
        with self._log.open("ab") as log:
            log.write(f"$ {shlex.join(command)}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                command,
                env=os.environ | env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        while not self._is_ready():
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.peer.name} ended; see {self._log.name}")
            if time.perf_counter() - started_s > timeout_s:
                raise RuntimeError(
                    f"{self.peer.name} took over {timeout_s:g} s; see {self._log.name}"
                )
            time.sleep(POLL_S)
        self.start_s = round(time.perf_counter() - started_s, 1)
        models = httpx.get(f"{self.url}/v1/models", timeout=30.0, trust_env=False).json()
        self.model = str(models["data"][0]["id"])

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let it run inside the block."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def stop(self) -> None:
        """End it with all its children."""
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self._signal(signal.SIGKILL)
        self._process.wait(STOP_S)
        self._process = None

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _is_ready(self) -> bool:
        try:
            answer = httpx.get(self.url + self.peer.health, timeout=2.0, trust_env=False)
        except httpx.HTTPError:
            return False
        return answer.status_code == httpx.codes.OK
