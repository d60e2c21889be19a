"""A document of an input without effect on the answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ignored:
    """A document without effect, and the reason.

    Attributes:
        object: its API version and its address.
        reason: why it has no effect.
    """

    object: str
    reason: str
