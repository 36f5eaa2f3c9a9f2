"""The share of children where a block net estimates the first one's itself."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.speculation.drafters.block_net import _trusted
from slipstream.speculation.growth import Child


def test_the_first_child_has_the_nets_estimate_and_the_others_the_rest() -> None:
    children = _trusted([Child(1, 0.6), Child(2, 0.3), Child(3, 0.1)], 0.2)
    assert [child.share for child in children] == pytest.approx([0.2, 0.6, 0.2])


def test_no_child_outranks_its_parent_where_the_first_share_is_nearly_one() -> None:
    first = float(np.nextafter(1.0, 0.0))
    children = _trusted([Child(1, first), Child(2, 4e-16)], 0.1)
    assert children[1].share <= 1.0
