"""Count shares become probabilities of acceptance."""

from __future__ import annotations

import pytest

from slipstream.speculation.drafters.suffix.calibrate import calibrated_scores


def _first(share: float, match_len: int, *, is_shared: bool = False) -> float:
    return calibrated_scores([share], [-1], match_len, is_shared=is_shared)[0]


def test_a_longer_context_makes_the_same_share_more_credible() -> None:
    assert _first(0.5, 1) < _first(0.5, 4) < _first(0.5, 16)


def test_a_higher_share_is_more_credible() -> None:
    assert _first(0.2, 4) < _first(0.5, 4) < _first(1.0, 4) < 1.0


def test_what_another_output_said_is_less_credible() -> None:
    assert _first(0.5, 4, is_shared=True) < _first(0.5, 4)


def test_scores_multiply_along_the_path_with_a_context_that_grows() -> None:
    chain = calibrated_scores([0.5, 0.25], [-1, 0], 3, is_shared=False)
    assert chain == pytest.approx([_first(0.5, 3), _first(0.5, 3) * _first(0.5, 4)])


def test_siblings_share_their_parents_context() -> None:
    tree = calibrated_scores([0.5, 0.25, 0.25], [-1, 0, 0], 3, is_shared=False)
    assert tree[1] == tree[2]


def test_no_draft_has_no_scores() -> None:
    assert calibrated_scores([], [], 3, is_shared=False) == []
