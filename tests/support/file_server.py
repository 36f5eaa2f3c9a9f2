"""A loopback HTTP server of files, with the faults that real ones have, and a model hub's API."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@dataclass
class FileServer:
    """What the server offers and what it was asked; both may change while it runs.

    Attributes:
        files: Content by path, such as `/model.safetensors`.
        repos: Hub repositories: `org/name` -> file name -> content.
        statuses: Answers to give to the next requests of a path instead of the file.
        break_after: Close the connection after so many bytes, for the next requests of a path.
        has_ranges: Whether range requests are honoured.
        gate: While it is not set, file contents wait.
        requests: (path, Range header or "") in the order of arrival.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    break_after: dict[str, list[int]] = field(default_factory=dict)
    has_ranges: bool = True
    gate: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, str]] = field(default_factory=list)
    waiting: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def ranges_of(self, path: str) -> list[str]:
        """The Range headers of all requests of a path."""
        return [asked for wanted, asked in self.requests if wanted == path]

    def content(self, path: str) -> bytes | None:
        """What lies at a path, the hub's included; None: nothing."""
        if path in self.files:
            return self.files[path]
        for repo, files in self.repos.items():
            if path == f"/api/models/{repo}/revision/main":
                return _listing(repo, files)
            name = path.removeprefix(f"/{repo}/resolve/{commit_of(repo)}/")
            if name in files:
                return files[name]
        return None


def commit_of(repo: str) -> str:
    """The commit that the fake hub says `main` is."""
    return hashlib.sha1(repo.encode(), usedforsecurity=False).hexdigest()


def _listing(repo: str, files: dict[str, bytes]) -> bytes:
    siblings = []
    for name, content in files.items():
        entry: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": "0" * 40}
        if name.endswith((".safetensors", ".gguf")):
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
        siblings.append(entry)
    listing = {
        "_id": "0",
        "id": repo,
        "modelId": repo,
        "sha": commit_of(repo),
        "private": False,
        "tags": [],
        "downloads": 0,
        "likes": 0,
        "siblings": siblings,
    }
    return json.dumps(listing).encode()


@contextmanager
def file_server() -> Iterator[FileServer]:
    """Run a server until the block ends."""
    state = FileServer()
    state.gate.set()

    class Handler(_Handler):
        server_state = state

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        state.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: FileServer

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        state, path = self.server_state, unquote(urlsplit(self.path).path)
        asked = self.headers.get("Range", "")
        state.requests.append((path, asked))
        if state.statuses.get(path):
            return self._answer(state.statuses[path].pop(0), b"")
        content = state.content(path)
        if content is None:
            return self._answer(404, b"")
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if start >= len(content) and start:
            return self._answer(416, b"")
        if start and state.has_ranges:
            return self._answer(206, content[start:], path)
        return self._answer(200, content, path)

    def _answer(self, status: int, body: bytes, path: str = "") -> None:
        state = self.server_state
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        limits = state.break_after.get(path)
        if limits:
            self.wfile.write(body[: limits.pop(0)])
            self.close_connection = True
            return
        if path:
            state.waiting.release()
            state.gate.wait()
        self.wfile.write(body)
