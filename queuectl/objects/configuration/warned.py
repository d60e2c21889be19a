"""What a reader of configuration says of a field without effect."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Warned:
    """A field that was understood but has no effect, or not the whole of it."""

    field: str
    reason: str = "not honoured yet"
