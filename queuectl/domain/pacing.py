"""Pacing: the one rule by which pauses between tries grow, and rate limits by token buckets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from queuectl.domain.bounded import RecentlyUsed

# ---- Pauses

_MOST_DOUBLINGS: Final = 60
"""A larger exponent changes no pause that has a ceiling, and would overflow."""


def doubling(base: float, ceiling: float, failures: int) -> float:
    """Seconds of the pause after so many failures in a row: the first one is ``base``, and no pause is longer than ``ceiling``."""
    return min(ceiling, base * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))


# ---- Rates

_MOST: Final = 10_000  # keys whose pace is remembered


class Buckets:
    """A token bucket for each key: ``burst`` at once, then ``per_second``."""

    def __init__(
        self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        # Tokens, and when. The key used longest ago has a full bucket again.
        self._left = RecentlyUsed[str, tuple[float, float]](_MOST)

    def give_back(self, key: str) -> None:
        """Return one that was taken."""
        left, at = self._left.get(key, (self._burst, self._clock()))
        self._left[key] = (min(self._burst, left + 1.0), at)

    def take(self, key: str) -> float:
        """Take one; 0, or the seconds until there is one again."""
        now = self._clock()
        left, at = self._left.get(key, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        wait = 0.0 if left >= 1.0 else (1.0 - left) / self._per_second
        self._left.put(key, (left if wait else left - 1.0, now))
        return wait


class ByteRate:
    """An average rate that several streams share: a part passes at once, and the next one waits until the rate has room again."""

    def __init__(
        self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``burst``: bytes that pass without a wait."""
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._owed = 0.0
        self._at = clock()

    def passed(self, amount: int) -> float:
        """Count a part. Returns the seconds to wait before the next one."""
        now = self._clock()
        self._owed = max(0.0, self._owed - (now - self._at) * self._per_second) + amount
        self._at = now
        return max(0.0, self._owed - self._burst) / self._per_second
