"""The orders of a workload list, and the cursors that continue a list in such an order."""

from __future__ import annotations

import base64
import binascii
import json
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from queuectl.domain.errors import BadInput
from queuectl.domain.ledger import Entry

_MOST: Final = 2**63  # the database's integers are smaller


class SortKey(StrEnum):
    """The keys by which a list is sorted. Workloads with equal values are in the order of namespace, name and uid."""

    NAME = "name"  # namespace, then name
    STATE = "state"
    CLUSTER_QUEUE = "clusterQueue"
    USER = "user"
    GPUS = "gpus"
    PRIORITY = "priority"
    QUEUED_AT = "queuedAt"
    SINCE = "since"


FIELDS: Final = {
    SortKey.STATE: "state",
    SortKey.CLUSTER_QUEUE: "cluster_queue",
    SortKey.USER: "user",
    SortKey.GPUS: "gpu_parts",
    SortKey.PRIORITY: "priority",
    SortKey.QUEUED_AT: "queued_at",
    SortKey.SINCE: "since",
}
"""The field of an Entry, and the column, that holds the value."""
_TEXTS: Final = frozenset({SortKey.STATE, SortKey.CLUSTER_QUEUE, SortKey.USER})


@dataclass(frozen=True, slots=True)
class WorkloadOrder:
    """An order. Text sorts by code point."""

    key: SortKey = SortKey.NAME
    descending: bool = False

    @classmethod
    def parse(cls, text: str) -> WorkloadOrder:
        """Read what :meth:`__str__` writes.

        Raises:
            BadInput: it names no key.
        """
        name = text.removeprefix("-")
        if name not in set(SortKey):
            known = ", ".join(SortKey)
            raise BadInput(
                f"{text!r} is no sort order: use one of {known}, with - in front to reverse it"
            )
        return cls(SortKey(name), text.startswith("-"))

    def __str__(self) -> str:
        return f"-{self.key}" if self.descending else str(self.key)


BY_NAME: Final = WorkloadOrder()


@dataclass(frozen=True, slots=True)
class Position:
    """Where a page ended.

    Attributes:
        order: of the list.
        key: the sort key of the last workload: the value that the order names, then namespace, name and uid.
    """

    order: WorkloadOrder
    key: tuple[Any, ...]

    @classmethod
    def of(cls, entry: Entry, order: WorkloadOrder = BY_NAME) -> Position:
        name = (entry.namespace, entry.name, entry.uid)
        if order.key is SortKey.NAME:
            return cls(order, name)
        value = getattr(entry, FIELDS[order.key])
        return cls(order, (str(value) if order.key in _TEXTS else value, *name))

    @classmethod
    def parse(cls, cursor: str, order: WorkloadOrder = BY_NAME) -> Position:
        """Read what :attr:`cursor` wrote.

        Raises:
            BadInput: it is not such a text, or was written for a list in another order.
        """
        try:
            parts = json.loads(base64.b64decode(cursor, altchars=b"-_", validate=True))
        except (binascii.Error, ValueError, RecursionError):
            parts = None
        if not isinstance(parts, list) or not _fits(parts, order):
            raise BadInput(
                f"cursor {cursor!r} is not one this server gave out for a list sorted by {order}"
            )
        return cls(order, tuple(parts[1:] if order != BY_NAME else parts))

    @property
    def cursor(self) -> str:
        """The position as an opaque token for a URL. In the order of names it is as in earlier releases."""
        parts = list(self.key) if self.order == BY_NAME else [str(self.order), *self.key]
        text = json.dumps(parts, separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode()


def _fits(parts: list[Any], order: WorkloadOrder) -> bool:
    if order == BY_NAME:
        return len(parts) == 3 and _texts(parts)
    if not parts or parts[0] != str(order):
        return False
    if order.key is SortKey.NAME:
        return len(parts) == 4 and _texts(parts)
    return len(parts) == 5 and _texts(parts[2:]) and _is_value(parts[1], order.key)


def _texts(parts: list[Any]) -> bool:
    return all(isinstance(part, str) for part in parts)


def _is_value(value: Any, key: SortKey) -> bool:
    if key in _TEXTS:
        return isinstance(value, str)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if key in (SortKey.GPUS, SortKey.PRIORITY):
        return number and isinstance(value, int) and -_MOST <= value < _MOST
    return number and math.isfinite(value) and abs(value) < _MOST
