"""Warnings about fields without effect."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Warned:
    """A known field that has no effect, or only a part of it."""

    field: str
    reason: str = "not supported"
