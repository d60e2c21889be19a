"""How numbers are said in sentences that people read."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """``1 pod``, ``2 pods``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
