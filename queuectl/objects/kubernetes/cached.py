"""Parts of objects that repeat: the pod specs of one user's jobs, or of the pods of a gang, differ in fields that no reader uses."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

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

    The key is the decoded part, encoded again: images, arguments and the environment of a container do not count, as no reader has
    fields for them. An error is not kept.

    Args:
        part: the type of a part, as for a decoder.
        read: the reader. Its result may depend on nothing else than the part, and the other arguments of a call.
    """

    def __init__(self, part: Any, read: Callable[..., _Reading]) -> None:
        decode: Callable[[bytes], _Part] = msgspec.msgpack.Decoder(part).decode
        self._read, self._decode = read, decode
        self._bytes = 0
        self._cached = lru_cache(maxsize=MOST_ENTRIES)(self._read_key)
        self.cache_info = self._cached.cache_info
        self.cache_clear = self._cached.cache_clear

    def __call__(self, part: _Part, *more: Hashable) -> _Reading:
        """The result of ``read``, or its error, for the part and these arguments."""
        try:
            key = _encode(part)
            if len(key) <= LONGEST_PART:
                return self._cached(key, *more)
        except (OverflowError, RecursionError, UnicodeEncodeError):
            pass  # a number, a depth or a character that the encoding does not have
        return self._read(part, *more)

    def _read_key(self, key: bytes, *more: Hashable) -> _Reading:
        self._bytes += len(key)
        if self._bytes > MOST_BYTES:
            self._cached.cache_clear()
            self._bytes = len(key)
        return self._read(self._decode(key), *more)
