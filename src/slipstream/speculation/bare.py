"""When a pass is made without its drafts, to see what drafts cost."""

from __future__ import annotations


class BarePasses:
    """Counts towards the next one: the less drafts promise, the more often one is made, and so that
    at most `SHARE` of the time is lost."""

    SHARE = 0.005
    LEAST_INTERVAL = 16

    def __init__(self) -> None:
        self._doubt = 0.0  # reaches 1 where one is due

    def is_due(self, promised_gain: float) -> bool:
        """Whether this pass is to be one.

        Args:
            promised_gain: Of the drafts of the passes before, in tokens per second, as a multiple
                of plain decoding; 1 where none was worth a row.
        """
        if promised_gain <= 1.0:
            return False
        interval = (1.0 - 1.0 / promised_gain) / self.SHARE
        self._doubt += 1.0 / max(interval, self.LEAST_INTERVAL)
        if self._doubt < 1.0:
            return False
        self._doubt = 0.0
        return True
