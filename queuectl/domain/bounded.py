"""Answers that are kept until there are too many: the keys are requests of users, so their number has no limit."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MOST_ANSWERS: Final = 4096


class BoundedCache(dict[K, V]):
    """Answers that can be computed again, by their question. A full cache forgets all of them.

    Threads can share it. An answer that one thread keeps can be forgotten before another one reads it, so use what ``get`` and
    :meth:`keep` return.
    """

    def keep(self, question: K, answer: V) -> V:
        """Keep and return an answer."""
        if len(self) >= MOST_ANSWERS:
            self.clear()
        self[question] = answer
        return answer


class RecentlyUsed(OrderedDict[K, V]):
    """At most ``most`` values. A :meth:`put` beyond them forgets the oldest key. ``move_to_end`` makes a key the newest."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def put(self, key: K, newest: V) -> None:
        """Keep a value, as the newest one."""
        self[key] = newest
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)
