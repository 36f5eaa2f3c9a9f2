"""Stop strings, wherever the text is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import InvalidRequestError
from slipstream.tokenization.stop import StopResult, StopStrings


def test_text_without_a_stop_string_passes_through() -> None:
    assert StopStrings(["END"]).push("hello") == StopResult("hello")


def test_no_stop_strings_hold_nothing_back() -> None:
    assert StopStrings([]).push("anything") == StopResult("anything")


def test_a_stop_string_is_cut_off_with_all_that_follows() -> None:
    assert StopStrings(["END"]).push("abENDcd") == StopResult("ab", "END")


def test_a_stop_string_over_three_pieces_is_found() -> None:
    stops = StopStrings(["\nUser:"])

    pieces = [stops.push("bye\nU"), stops.push("se"), stops.push("r: hi")]

    assert pieces == [StopResult("bye"), StopResult(""), StopResult("", "\nUser:")]


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    stops = StopStrings(["aab"])

    assert stops.push("xaaa").text == "xa"
    assert stops.push("c").text == "aac"


def test_what_was_held_back_comes_with_the_flush() -> None:
    stops = StopStrings(["END"])
    stops.push("the EN")

    assert stops.flush() == "EN"
    assert stops.flush() == ""


def test_the_stop_string_is_kept_when_asked_for() -> None:
    assert StopStrings(["END"], include_stop=True).push("abENDcd") == StopResult("abEND", "END")


def test_nothing_is_held_back_when_the_stop_string_is_kept() -> None:
    stops = StopStrings(["END"], include_stop=True)

    assert stops.push("abEN") == StopResult("abEN")
    assert stops.push("Dcd") == StopResult("D", "END")


def test_the_match_that_is_completed_first_wins() -> None:
    assert StopStrings(["abcdef", "cd"]).push("abcdef") == StopResult("ab", "cd")


def test_of_matches_with_one_end_the_earliest_start_wins() -> None:
    assert StopStrings(["cd", "bcd"]).push("abcd") == StopResult("a", "bcd")


def test_after_a_match_everything_is_swallowed() -> None:
    stops = StopStrings(["END"])
    stops.push("END")

    assert stops.push("more") == StopResult("", "END")
    assert stops.flush() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        StopStrings(["a", ""])

    assert refusal.value.param == "stop"


def test_a_restarted_watch_forgets_the_text_and_keeps_the_strings() -> None:
    first = StopStrings(["END"], include_stop=True)
    first.push("abEN")
    second = first.restarted()

    assert second.push("Dxy") == StopResult("Dxy")
    assert first.push("D") == StopResult("D", "END")
    assert second.push("END") == StopResult("END", "END")


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known for certain after `text`: all that was let through, and the match."""

    released: str
    matched: str | None
    pending: str


def oracle(stops: Sequence[str], text: str, *, include_stop: bool) -> Expected:
    """The definition, letter by letter."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return Expected(text[: end if include_stop else end - len(longest)], longest, "")
    ends = (text[start:] for start in range(len(text)))
    held = next((end for end in ends if any(stop.startswith(end) for stop in stops)), "")
    if include_stop:
        return Expected(text, None, "")
    return Expected(text.removesuffix(held) if held else text, None, held)


@settings(deadline=None, max_examples=300)
@given(
    stops=st.lists(st.text("ab\u00e9", min_size=1, max_size=5), max_size=4),
    pieces=st.lists(st.text("ab\u00e9", max_size=6), max_size=8),
    include_stop=st.booleans(),
)
def test_every_cutting_of_every_text_agrees_with_the_definition(
    stops: list[str], pieces: list[str], include_stop: bool
) -> None:
    watch = StopStrings(stops, include_stop=include_stop)
    text, released = "", ""

    for piece in pieces:
        text += piece
        result = watch.push(piece)
        released += result.text
        expected = oracle(stops, text, include_stop=include_stop)
        assert (released, result.matched) == (expected.released, expected.matched)

    assert watch.flush() == oracle(stops, text, include_stop=include_stop).pending
