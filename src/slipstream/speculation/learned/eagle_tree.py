"""A draft tree whose nodes' rows come from an EAGLE-3 net."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.execution.batch import IntArray
from slipstream.speculation.growth import Growth
from slipstream.speculation.learned.eagle import NodeRows, OwnRow
from slipstream.speculation.tree import ROOT


class EagleTree:
    """One request's tree in the making, and the rows behind its nodes.

    Args:
        growth: Decides which nodes get children.
        newest: Row that pairs the newest committed position with the anchor.
        slots: Slots of all positions in front of the anchor.
    """

    def __init__(self, growth: Growth, newest: OwnRow, slots: IntArray) -> None:
        self.growth = growth
        self._slots = slots
        self._rows = [newest]
        self._waiting: list[int] = []

    def next_rows(self) -> NodeRows | None:
        """The rows that the best new nodes need; None if no node is worth one."""
        self._waiting = self.growth.take_frontier()
        if not self._waiting:
            return None
        first = len(self._rows)
        paths = [self.growth.place(node, first + index) for index, node in enumerate(self._waiting)]
        return NodeRows(
            slots=self._slots,
            rows=tuple(self._rows),
            tokens=[self.growth.token(node) for node in self._waiting],
            parents=[path[-2] for path in paths],
            ancestors=[path[:-1] for path in paths],
        )

    def add_rows(self, rows: Sequence[OwnRow]) -> list[int]:
        """Take what `next_rows` asked for; returns the nodes, whose children can be added now."""
        self._rows.extend(rows)
        nodes, self._waiting = self._waiting, []
        return nodes

    def rows_of_root(self) -> tuple[list[int], list[OwnRow]]:
        """The root and the row whose logits its children come from."""
        return [ROOT], self._rows[:1]
