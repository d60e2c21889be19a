"""The cache of planning. A caller that plans repeatedly creates one cache and passes it to each call."""

from __future__ import annotations

from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class PlannerCache:
    """Values that follow from an object that never changes, or that the next ones are made from.

    A cache holds one value of each type for each object, for as long as the object lives, and the latest value of some types.
    It changes how long an answer takes, never the answer. Threads may share a cache.
    """

    def __init__(self, source: PlannerCache | None = None) -> None:
        """Start with the values of ``source``, which this does not change; without it, empty."""
        self._kept: Final[WeakKeyDictionary[object, dict[type, Any]]] = WeakKeyDictionary()
        self._source: Final = source

    @property
    def is_fork(self) -> bool:
        """Whether it is for a question. Values that it has of another cache then serve the next plan."""
        return self._source is not None

    def fork(self) -> PlannerCache:
        """A cache with the values of this one: what is kept there is not kept here.

        For a question about a changed snapshot, between plans that follow each other, and for a part of a plan on other nodes.
        """
        return PlannerCache(self)

    def get(self, owner: object, kind: type[T]) -> T | None:
        """The value of this type that is kept for ``owner``, or None."""
        kept = self._kept.get(owner, {})
        if kind in kept or self._source is None:
            found: T | None = kept.get(kind)
            return found
        return self._source.get(owner, kind)

    def keep(self, owner: object, entry: T) -> T:
        """Keep ``entry`` for ``owner``, instead of the one of its type; returns it."""
        self._kept.setdefault(owner, {})[type(entry)] = entry
        return entry

    def latest(self, kind: type[T]) -> T | None:
        """The value of this type that :meth:`keep_latest` kept last, or None."""
        return self.get(kind, kind)

    def keep_latest(self, entry: T) -> T:
        """Keep ``entry`` for the next snapshot, instead of the last one of its type; returns it."""
        return self.keep(type(entry), entry)

    def drop(self, owner: object, kind: type[Any]) -> None:
        """Keep no value of this type for ``owner``."""
        self._kept.setdefault(owner, {})[kind] = None
