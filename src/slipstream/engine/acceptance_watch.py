"""Notices a draft net of whose drafts next to nothing is accepted.

Such a net costs time and changes no answer, so nothing else would show it. A checkpoint for another
target, or one that is read by a wrong convention, looks like this.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from slipstream.speculation.drafter import Drafter

WINDOW_DRAFTS = 256
WARN_LENGTH = 1.1  # a mean acceptance length; plain decoding is 1.0

log = logging.getLogger("slipstream.engine")


class AcceptanceWatch:
    """Warns once of each drafter that reads the target's states in vain.

    Drafters that copy from texts are left alone: many texts repeat nothing.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._watched = {item.name for item in drafters if item.needs.target_layer_ids}
        self._num_drafts = dict.fromkeys(self._watched, 0)
        self._num_accepted = dict.fromkeys(self._watched, 0)

    def verified(self, proposed: Mapping[str, int], accepted: Mapping[str, int]) -> None:
        """One draft was verified.

        Args:
            proposed, accepted: Drafter -> its nodes, and those of them that were kept.
        """
        for name in self._watched & proposed.keys():
            self._num_drafts[name] += 1
            self._num_accepted[name] += accepted.get(name, 0)
            if self._num_drafts[name] == WINDOW_DRAFTS:
                self._judge(name)

    def _judge(self, name: str) -> None:
        length = 1.0 + self._num_accepted[name] / self._num_drafts[name]
        self._num_drafts[name] = self._num_accepted[name] = 0
        if length >= WARN_LENGTH:
            return
        self._watched.discard(name)
        log.warning(
            'of the last %d drafts of drafter "%s" next to nothing was accepted (mean acceptance '
            "length %.2f, plain decoding is 1): answers are right, but its time is lost. It may be "
            "made for another target or read by a wrong convention; `slipstream doctor` with this "
            "configuration tells which",
            WINDOW_DRAFTS,
            name,
            length,
        )
