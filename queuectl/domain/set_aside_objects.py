"""The objects of units that are set aside: in memory until the leader stores them, and as they are stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from queuectl.domain.records import Record

KEPT_OBJECTS: Final = 20
"""How many are stored, and how many wait in memory: the newest."""
KEPT_BYTES: Final = 256 * 1024
"""Of the stored text of one. A longer text is cut."""
WAITING_BYTES: Final = 8 * 1024 * 1024
"""Of all objects that wait in memory."""


@dataclass(frozen=True, slots=True)
class SetAsideObject:
    """The description of a stored object.

    Attributes:
        id: rises with time; 0 = not written yet.
        at: unix seconds of the first failure.
        epoch: of the leader that stored it.
        boundary: where the error occurred.
        key: of the unit at its boundary. One object is stored for each unit.
        ref: the object as users know it.
        error: the identifier of the error.
        place: in the code.
        size: bytes of the object before redaction and truncation.
        truncated: the stored text is cut.
    """

    id: int
    at: float
    epoch: int
    boundary: str
    key: str
    ref: str
    error: str
    place: str
    size: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class Received:
    """An object as the API server sent it. ``resource``: the plural name; ``content``: JSON."""

    resource: str
    content: bytes


Input = Received | Record


@dataclass(slots=True)
class Inputs:
    """The newest inputs of units that are set aside, by boundary and key."""

    _waiting: dict[tuple[str, str], Input] = field(default_factory=dict)
    _bytes: int = 0

    def put(self, boundary: str, key: str, source: Input) -> None:
        """Keep an input. The oldest ones beyond the limits are forgotten."""
        self.drop(boundary, key)
        self._waiting[boundary, key] = source
        self._bytes += _size(source)
        while len(self._waiting) > 1 and (
            len(self._waiting) > KEPT_OBJECTS or self._bytes > WAITING_BYTES
        ):
            self.drop(*next(iter(self._waiting)))

    def get(self, boundary: str, key: str) -> Input | None:
        """The input of a unit; None if it is not known."""
        return self._waiting.get((boundary, key))

    def drop(self, boundary: str, key: str) -> None:
        """Forget an input."""
        given = self._waiting.pop((boundary, key), None)
        if given is not None:
            self._bytes -= _size(given)


def _size(source: Input) -> int:
    """Bytes that only this object holds: the copy of the cluster holds the records anyway."""
    return len(source.content) if isinstance(source, Received) else 0
