"""The comparison with other servers: its file of servers, its clock, its ratios."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.peers.client import Reply, RequestFailedError, read_reply
from benchmarks.peers.servers import Peer, Places, read_peers
from benchmarks.peers.summary import Ratio, summarise
from benchmarks.peers.tables import tables
from benchmarks.peers.workloads import Asked, Cell, Measured, Request, take_turns

from tests.support.paths import REPOSITORY

PLACES = Places(here=Path("/here"), home=Path("/home"), models=Path("/models"), threads=2)


def event(text: str = "", **fields: object) -> bytes:
    choices = [{"delta": {"content": text}}] if text else []
    return b"data: " + json.dumps({"choices": choices} | fields).encode() + b"\n\n"


USAGE = event(usage={"completion_tokens": 8, "prompt_tokens": 5}) + b"data: [DONE]\n\n"


def peer(name: str, engine: str, reference: str | None = None) -> Peer:
    return Peer(name, engine, "bf16", "none", (), {}, "/health", {}, reference=reference)


def request(name: str, unit: str, total_s: float, text: str = "same") -> Request:
    reply = Reply(text, 100, 10, 0.5, 0.5 + total_s, 99.0, 100, 0.01, 0.02)
    return Request(name, "single", "chat", unit, 0, reply)


def ratio(found: Sequence[Ratio], measure: str, case: str = "") -> Ratio:
    (one,) = [item for item in found if (item.measure, item.case) == (measure, case)]
    return one


def test_an_answer_is_timed_by_when_its_text_came() -> None:
    role = event(object="chat.completion.chunk")
    arrivals = [(0.1, role), (0.5, event("abcd")), (0.7, event("ef")), (1.0, event("gh") + USAGE)]

    reply = read_reply(arrivals)

    assert (reply.text, reply.num_tokens, reply.prompt_len) == ("abcdefgh", 8, 5)
    assert (reply.ttft_s, reply.total_s, reply.num_bursts) == (0.5, 1.0, 3)
    assert reply.num_decode_tokens == pytest.approx(4.0)


def test_an_event_may_be_cut_anywhere_by_the_network() -> None:
    whole = event("abcd") + event("efgh") + USAGE

    parts = [(float(index), whole[index : index + 1]) for index in range(len(whole))]

    assert read_reply(parts).text == "abcdefgh"


def test_what_comes_at_once_is_one_burst() -> None:
    reply = read_reply([(0.5, event("ab")), (0.5002, event("cd")), (0.9, event("efgh") + USAGE)])

    assert reply.num_bursts == 2
    assert reply.num_decode_tokens == pytest.approx(4.0)


@pytest.mark.parametrize("content", [USAGE, event("text"), event(error={"message": "no"})])
def test_an_answer_without_text_or_usage_or_with_an_error_does_not_count(content: bytes) -> None:
    with pytest.raises(RequestFailedError):
        read_reply([(0.1, content)])


def test_every_server_of_the_file_can_be_started_once_its_places_are_filled() -> None:
    peers = read_peers(REPOSITORY / "benchmarks" / "peers" / "servers.toml")

    for item in peers.values():
        words = [PLACES.fill(word, 8000) for word in (*item.command, *item.version)]
        assert not [word for word in words if word.startswith("{") and ":" not in word]
        assert item.reference is None or peers[item.reference].precision == item.precision
        assert "8000" in words


def test_a_short_run_takes_prompts_of_every_category() -> None:
    asked = [Asked("single", str(n), category, "") for category in "ab" for n in range(3)]

    assert [item.category for item in take_turns(asked, 2)] == ["a", "b", "a", "b"]


def test_the_subject_is_compared_with_every_peer_of_as_many_bits() -> None:
    ours, other = peer("ours", "ours"), peer("other", "theirs")
    measured = Measured()
    for unit in range(6):
        measured.requests += [request("ours", str(unit), 1.0), request("other", str(unit), 2.0)]

    summary = summarise(measured, [ours, other], "ours")

    total, decode = (ratio(summary.ratios, name) for name in ("tokens_per_s", "decode_per_s"))
    assert total.value == pytest.approx(2.5 / 1.5)
    assert decode.value == pytest.approx(2.0)
    assert decode.low == decode.high == pytest.approx(2.0)
    assert (decode.subject, decode.other, decode.num_units) == ("ours", "other", 6)


def test_peers_of_other_precisions_are_not_compared() -> None:
    coarse = Peer("other", "theirs", "q4_0", "none", (), {}, "/health", {})
    measured = Measured([request("ours", "1", 1.0), request("other", "1", 1.0)])

    assert not summarise(measured, [peer("ours", "ours"), coarse], "ours").ratios


def test_answers_are_held_against_those_of_the_reference() -> None:
    plain, drafting = peer("plain", "ours"), peer("drafting", "ours", "plain")
    measured = Measured([request("plain", "1", 1.0), request("plain", "2", 1.0)])
    measured.requests += [request("drafting", "1", 1.0), request("drafting", "2", 1.0, "other")]

    rates = summarise(measured, [plain, drafting], "ours").rates

    assert [(item.num_equal, item.num_texts) for item in rates if not item.case] == [
        (None, 2),
        (1, 2),
    ]


def test_under_load_the_bounds_are_those_of_the_rounds() -> None:
    measured = Measured()
    for round_index, wall_s in enumerate((1.0, 2.0)):
        measured.cells += [
            Cell("ours", 8, round_index, 16, 100, wall_s, 0.1, 0.01),
            Cell("other", 8, round_index, 16, 100, 2.0, 0.1, 0.01),
        ]

    (found,) = summarise(measured, [peer("ours", "ours"), peer("other", "theirs")], "ours").ratios

    assert (found.value, found.low, found.high) == pytest.approx((4 / 3, 1.0, 2.0))


def test_the_tables_name_every_peer_and_ratio() -> None:
    peers = [peer("ours", "ours"), peer("other", "theirs")]
    measured = Measured([request("ours", "1", 1.0), request("other", "1", 2.0)])

    text = tables(summarise(measured, peers, "ours"), peers, "ours")

    assert "| ours | other | all | 1.67 | 2.00 |" in text
    assert "### One stream by category" in text
