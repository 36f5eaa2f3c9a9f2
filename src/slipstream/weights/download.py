"""Files over HTTP: several at once, resumed by range, verified, in place only when whole."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import httpx

from slipstream.errors import ChecksumError, WeightsError
from slipstream.weights.disk import disk_errors, require_space
from slipstream.weights.manifest import sha256_of
from slipstream.weights.progress import Progress

_MAX_ATTEMPTS = 5
_TIMEOUT = httpx.Timeout(30.0)
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file to fetch. `name` is its relative path; None for what the source does not know."""

    name: str
    url: str
    num_bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Downloader:
    """Fetches files into a folder.

    Attributes:
        headers: Sent with every request, such as a bearer token; not sent on to another host
            after a redirect.
        num_parallel: Files fetched at the same time.
        backoff_s: Wait before another attempt; doubles while attempts bring nothing.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    num_parallel: int = 4
    backoff_s: float = 0.5

    def fetch(
        self, files: Sequence[RemoteFile], folder: Path, progress: Progress
    ) -> dict[str, str]:
        """Fetch all files; what an earlier attempt left in `folder` is used.

        Returns: SHA-256 by name.

        Raises:
            ChecksumError: a file is not the one that was promised.
            CapacityError: the disk is full; what was fetched is kept.
            WeightsError: the server refuses, fails repeatedly or sends something else.
        """
        _check_names(files)
        done = {file.name: size for file in files if (size := _kept_bytes(file, folder))}
        known = [file.num_bytes for file in files if file.num_bytes is not None]
        total = sum(known) if len(known) == len(files) else None
        require_space(folder, max(0, sum(known) - sum(done.values())))
        progress.begin(f"fetching {len(files)} files", total)
        progress.advance(sum(done.values()))
        cancelled = threading.Event()
        try:
            with (
                httpx.Client(
                    headers=dict(self.headers), follow_redirects=True, timeout=_TIMEOUT
                ) as client,
                ThreadPoolExecutor(self.num_parallel) as pool,
            ):
                fetches = [_Fetch(file, folder, client, progress, cancelled) for file in files]
                futures = [pool.submit(fetch.run, self.backoff_s) for fetch in fetches]
                try:
                    wait(futures, return_when=FIRST_EXCEPTION)
                finally:
                    cancelled.set()
            _raise_first_cause(futures)
        finally:
            progress.end()
        return {file.name: sha256_of(folder / file.name) for file in files}


class _CancelledError(Exception):
    """Another file's failure ended this one's fetch."""


class _BrokenOffError(Exception):
    """The connection failed in a way that another attempt may mend."""


class _Fetch:
    """One file's way into the folder: part file, attempts, check, rename."""

    def __init__(
        self,
        file: RemoteFile,
        folder: Path,
        client: httpx.Client,
        progress: Progress,
        cancelled: threading.Event,
    ) -> None:
        self._file = file
        self._target = folder / file.name
        self._part = _part_of(self._target)
        self._client = client
        self._progress = progress
        self._cancelled = cancelled

    def run(self, backoff_s: float) -> None:
        if self._is_complete():
            return
        with disk_errors(self._target.parent):
            self._target.parent.mkdir(parents=True, exist_ok=True)
            if self._file.sha256 is None:
                self._restart()  # nothing would notice the parts of two versions being joined
            self._attempts(backoff_s)
            self._check()
            self._part.replace(self._target)

    def _attempts(self, backoff_s: float) -> None:
        """Try until the file is there; give up after several attempts that brought nothing."""
        num_fruitless = 0
        while True:
            before = self._part_bytes()
            try:
                return self._attempt()
            except _BrokenOffError as error:
                num_fruitless = 0 if self._part_bytes() > before else num_fruitless + 1
                if num_fruitless == _MAX_ATTEMPTS:
                    raise WeightsError(
                        f"cannot fetch {self._file.url}: {error} ({num_fruitless} attempts)",
                        hint="check the connection and start again; what was fetched is kept",
                    ) from error
                if self._cancelled.wait(backoff_s * 2**num_fruitless):
                    raise _CancelledError from error

    def _attempt(self) -> None:
        start = self._part_bytes()
        if start and start == self._file.num_bytes:
            return
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        try:
            with self._client.stream("GET", self._file.url, headers=headers) as response:
                if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                    self._restart()
                    raise _BrokenOffError("the server has fewer bytes than were fetched before")
                self._refuse(response)
                if response.status_code != httpx.codes.PARTIAL_CONTENT and start:
                    self._restart()  # the server ignores ranges
                self._receive(response)
        except httpx.TransportError as error:
            raise _BrokenOffError(str(error) or type(error).__name__) from error
        except httpx.HTTPError as error:
            raise WeightsError(f"cannot fetch {self._file.url}: {error}") from error

    def _receive(self, response: httpx.Response) -> None:
        with self._part.open("ab") as part:
            for chunk in response.iter_raw():
                if self._cancelled.is_set():
                    raise _CancelledError
                part.write(chunk)
                self._progress.advance(len(chunk))

    def _refuse(self, response: httpx.Response) -> None:
        status = response.status_code
        if status in _TRANSIENT:
            raise _BrokenOffError(f"the server answers {status} {response.reason_phrase}")
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise WeightsError(
                f"cannot fetch {self._file.url}: the server answers {status}",
                hint="this file needs an account with access to it; log in and try again",
            )
        if not response.is_success:
            raise WeightsError(f"cannot fetch {self._file.url}: the server answers {status}")

    def _check(self) -> None:
        num_bytes = self._part.stat().st_size
        if self._file.num_bytes not in (None, num_bytes):
            self._restart()
            raise ChecksumError(
                f"{self._file.url} has {num_bytes} bytes instead of {self._file.num_bytes}",
                hint="start again; if it happens twice, the file was changed at its source",
            )
        if self._file.sha256 is not None and sha256_of(self._part) != self._file.sha256.lower():
            self._restart()
            raise ChecksumError(
                f"{self._file.url} does not have the SHA-256 {self._file.sha256}",
                hint="start again; if it happens twice, the file was changed at its source",
            )

    def _is_complete(self) -> bool:
        if self._file.sha256 is None or not self._target.is_file():
            return False
        return sha256_of(self._target) == self._file.sha256.lower()

    def _part_bytes(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0

    def _restart(self) -> None:
        if self._part.exists():
            self._progress.advance(-self._part.stat().st_size)
            self._part.unlink()


def _raise_first_cause(futures: Iterable[Future[None]]) -> None:
    for future in futures:
        error = future.exception()
        if error is not None and not isinstance(error, _CancelledError):
            raise error


def _part_of(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def _kept_bytes(file: RemoteFile, folder: Path) -> int:
    """Bytes of an earlier attempt that will be used."""
    if file.sha256 is None:
        return 0
    target = folder / file.name
    for path in (target, _part_of(target)):
        if path.is_file():
            return path.stat().st_size
    return 0


def _check_names(files: Iterable[RemoteFile]) -> None:
    """A name from a server must not lead out of the folder."""
    for file in files:
        name = PurePosixPath(file.name)
        if name.is_absolute() or not name.parts or ".." in name.parts or "\\" in file.name:
            raise WeightsError(f"refusing the file name {file.name!r}: it leaves its folder")
