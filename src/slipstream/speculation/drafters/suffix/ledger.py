"""Who holds how many bytes, with the sum at hand."""

from __future__ import annotations


class Ledger:
    """Bytes by owner; every update is O(1)."""

    def __init__(self) -> None:
        self._bytes: dict[str, int] = {}
        self.total_bytes = 0

    def record(self, owner: str, num_bytes: int) -> None:
        """Note what `owner` holds now; 0 strikes it off."""
        self.total_bytes += num_bytes - self._bytes.pop(owner, 0)
        if num_bytes:
            self._bytes[owner] = num_bytes

    def largest(self) -> str | None:
        """The owner of most, of equals the lowest name; None if nobody holds anything."""
        return min(self._bytes, key=lambda owner: (-self._bytes[owner], owner), default=None)
