"""The one rule by which pauses between tries grow."""

from __future__ import annotations

from typing import Final

_MOST_DOUBLINGS: Final = 60
"""A larger exponent changes no pause that has a ceiling, and would overflow."""


def doubling(base: float, ceiling: float, failures: int) -> float:
    """Seconds of the pause after so many failures in a row: the first one is ``base``, and no pause is longer than ``ceiling``."""
    return min(ceiling, base * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
