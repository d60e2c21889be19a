"""Parts of objects that repeat: the pod specs of one user's jobs, or of the pods of a gang, differ in fields that no reader uses."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

import msgspec

MOST_ENTRIES: Final = 2048
"""Of one reader: the pending and the running jobs of 1,000 different requests."""
LONGEST_PART: Final = 3072
"""Bytes of a part that is kept. A longer one is read each time, so that hostile objects cannot fill the memory."""

MOST_BYTES: Final = 2**20
"""Of the keys of one reader since it was emptied last. Its results can be 70 times as large: 650 resources of one container."""

_Part = TypeVar("_Part")
_Reading = TypeVar("_Reading")
_encode: Final = msgspec.msgpack.Encoder().encode


class CachedReader(Generic[_Part, _Reading]):
    """A reader that reads equal parts once. Its results are shared, so they must be immutable.

    The key is the decoded part, encoded: images, arguments and the environment of a container do not count, as no reader has
    fields for them. An error is not kept.

    Attributes:
        hits: calls whose result was kept.
    """

    def __init__(self, read: Callable[..., _Reading]) -> None:
        """``read``: the reader. Its result may depend on nothing else than the part, and the other arguments of a call."""
        self._read = read
        self._kept: dict[tuple[Hashable, ...], _Reading] = {}
        self._bytes = 0
        self.hits = 0

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Forget all results."""
        self._kept.clear()
        self._bytes = 0

    def __call__(self, part: _Part, *more: Hashable) -> _Reading:
        """The result of ``read``, or its error, for the part and these arguments."""
        try:
            text = _encode(part)
        except (OverflowError, RecursionError, UnicodeEncodeError):
            return self._read(part, *more)  # the encoding has no such number, depth or character
        key = (text, *more)
        try:
            reading = self._kept[key]
        except KeyError:
            pass
        else:
            self.hits += 1
            return reading
        reading = self._read(part, *more)
        if len(text) <= LONGEST_PART:
            if len(self._kept) >= MOST_ENTRIES or self._bytes + len(text) > MOST_BYTES:
                self.clear()
            self._kept[key] = reading
            self._bytes += len(text)
        return reading
