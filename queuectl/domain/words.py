"""Numbers and times in the text of messages."""

from __future__ import annotations

from datetime import UTC, datetime

from queuectl.domain.quantity import format_quantity


def counted(number: int, thing: str) -> str:
    """``1 pod``, ``2 pods``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def is_or_are(resource: str, value: int) -> str:
    """The verb for an amount: ``8 nvidia.com/gpu are``, ``1 cpu is``, ``64Gi memory is``."""
    uncountable = any(word in resource for word in ("memory", "storage", "hugepages"))
    return "is" if uncountable or format_quantity(resource, value) == "1" else "are"


def format_time(at: float) -> str:
    """Unix seconds as RFC 3339 in UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
