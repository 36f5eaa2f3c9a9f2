"""One streamed greedy answer, as a client sees it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import httpx
from benchmarks.peers.servers import Server

BURST_S = 0.001
"""What comes within this is one burst: the tokens of one step."""

_EVENT = b"data:"
_DONE = b"[DONE]"
_HEAD = 300


@dataclass(frozen=True, slots=True)
class Reply:
    """What one request brought.

    Attributes:
        num_tokens, prompt_len: As the server counts them.
        ttft_s, total_s: From sending the request to the first and to the last text.
        num_decode_tokens: Tokens after the first burst, by their share of the text's characters:
            an API that sends text does not say which tokens an event holds.
        num_bursts: With speculation off about `num_tokens`; fewer where steps emit more.
        gap_p50_s, gap_p95_s: Between two bursts.
    """

    text: str
    num_tokens: int
    prompt_len: int
    ttft_s: float
    total_s: float
    num_decode_tokens: float
    num_bursts: int
    gap_p50_s: float
    gap_p95_s: float

    @property
    def decode_s(self) -> float:
        """Seconds in which `num_decode_tokens` came."""
        return self.total_s - self.ttft_s


class RequestFailedError(Exception):
    """The server refused a request, broke off, or sent no text."""


def new_client(timeout_s: float) -> httpx.AsyncClient:
    """Without kept connections: a server that is held still in between may drop them."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(timeout=timeout_s, limits=limits, trust_env=False)


async def ask(client: httpx.AsyncClient, server: Server, prompt: str, max_tokens: int) -> Reply:
    """Stream one answer of `/v1/chat/completions`.

    Client and server share the processors, so nothing is parsed before the answer has ended.

    Raises:
        RequestFailedError: There is no whole answer.
    """
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "seed": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **server.peer.body,
    }
    arrivals: list[tuple[float, bytes]] = []
    url = f"{server.url}/v1/chat/completions"
    sent_s = time.perf_counter()
    try:
        async with client.stream("POST", url, json=body) as response:
            if response.status_code != httpx.codes.OK:
                head = (await response.aread())[:_HEAD]
                raise RequestFailedError(f"status {response.status_code}: {head!r}")
            async for data in response.aiter_raw():
                arrivals.append((time.perf_counter() - sent_s, data))
    except httpx.HTTPError as error:
        raise RequestFailedError(f"{type(error).__name__}: {error}") from error
    return read_reply(arrivals)


def read_reply(arrivals: Sequence[tuple[float, bytes]]) -> Reply:
    """Put one answer together.

    Args:
        arrivals: Seconds since the request was sent, and what the network gave then.

    Raises:
        RequestFailedError: It holds an error, no text or no usage.
    """
    pieces: list[tuple[float, str]] = []
    usage: dict[str, int] = {}
    pending = b""
    for arrived_s, data in arrivals:
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            content = line.removeprefix(_EVENT).strip()
            if not line.startswith(_EVENT) or content == _DONE:
                continue
            event: dict[str, Any] = json.loads(content)  # any JSON
            if event.get("error"):
                raise RequestFailedError(str(event["error"]))
            usage = event.get("usage") or usage
            for choice in event.get("choices", ()):
                if text := choice.get("delta", {}).get("content"):
                    pieces.append((arrived_s, text))
    if not pieces or not usage:
        raise RequestFailedError("the answer has no text or no usage")
    return _reply(pieces, usage)


def _reply(pieces: Sequence[tuple[float, str]], usage: dict[str, int]) -> Reply:
    gaps = [later[0] - earlier[0] for earlier, later in pairwise(pieces)]
    ends = [index for index, gap in enumerate(gaps, start=1) if gap > BURST_S]
    text = "".join(piece for _, piece in pieces)
    first_len = len("".join(piece for _, piece in pieces[: ends[0] if ends else len(pieces)]))
    num_tokens = usage["completion_tokens"]
    waits = sorted(gap for gap in gaps if gap > BURST_S) or [0.0]
    return Reply(
        text=text,
        num_tokens=num_tokens,
        prompt_len=usage["prompt_tokens"],
        ttft_s=pieces[0][0],
        total_s=pieces[-1][0],
        num_decode_tokens=num_tokens * (1.0 - first_len / len(text)),
        num_bursts=1 + len(ends),
        gap_p50_s=waits[len(waits) // 2],
        gap_p95_s=waits[len(waits) * 19 // 20],
    )
