"""How many examples Hypothesis draws of a property."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

EXPLORING: Final = settings.get_current_profile_name() == "fresh"


def examples(count: int) -> int:
    """``count`` in `make explore`; in `make test`, which draws the same ones each time, a fifth of it."""
    return count if EXPLORING else -(-count // 5)
