"""Outputs are compared token by token."""

from __future__ import annotations

from dataclasses import replace

from slipstream.bench.divergence import compare_outputs
from slipstream.bench.results import Answer, GroupRun, Measurement, Mode
from tests.unit.bench.synthetic import Speed, measurement, turn


def with_outputs(**outputs: list[list[int]]) -> Measurement:
    """Outputs of each turn, by mode."""
    runs: dict[Mode, GroupRun] = {}
    modes: tuple[Mode, ...] = ("off", "on", "control")
    for mode in modes:
        if mode in outputs:
            turns = tuple(turn(Speed(), tokens) for tokens in outputs[mode])
            runs[mode] = GroupRun((Answer(turns),))
    return replace(measurement(), runs=runs)


def test_equal_outputs_are_counted_and_none_differs() -> None:
    comparison = compare_outputs([with_outputs(off=[[1, 2], [3]], on=[[1, 2], [3]])])
    assert comparison.num_compared == 2
    assert comparison.divergences == ()


def test_the_first_differing_token_is_named() -> None:
    comparison = compare_outputs([with_outputs(off=[[1, 2, 3]], on=[[1, 9, 3]])])
    (found,) = comparison.divergences
    assert (found.mode, found.turn, found.position) == ("on", 0, 1)


def test_a_shorter_output_differs_where_it_ends() -> None:
    comparison = compare_outputs([with_outputs(off=[[1, 2, 3]], on=[[1, 2]])])
    assert comparison.divergences[0].position == 2


def test_turns_after_a_divergence_had_another_prompt_and_are_not_compared() -> None:
    comparison = compare_outputs([with_outputs(off=[[1], [2]], on=[[9], [8]])])
    assert comparison.num_compared == 1
    assert len(comparison.divergences) == 1


def test_the_control_is_compared_as_well() -> None:
    comparison = compare_outputs([with_outputs(off=[[1]], on=[[1]], control=[[2]])])
    assert comparison.num_divergences("control") == 1
    assert comparison.num_divergences("on") == 0


def test_samplings_that_keep_only_their_law_are_compared_in_the_control_alone() -> None:
    measured = with_outputs(off=[[1]], on=[[2]], control=[[3]])
    comparison = compare_outputs([measured], law_only=[measured.sampling])
    assert comparison.law_only == (measured.sampling,)
    assert (comparison.num_divergences("on"), comparison.num_divergences("control")) == (0, 1)
    assert compare_outputs([measured], law_only=["another"]).num_divergences("on") == 1
