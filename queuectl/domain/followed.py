"""The report of a leader that follows configuration in objects of the cluster, for the API and the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_NAMED: Final = 200
"""Objects of one list that a report names. Its counts have all."""


@dataclass(frozen=True, slots=True)
class FollowedSource:
    """The objects of one kind.

    Attributes:
        resource: the name of its CustomResourceDefinition.
        version: in which they are read; empty = not known yet.
        objects: how many there are.
        fault: why they are not known; empty = they are.
    """

    resource: str
    version: str
    objects: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class FaultyObject:
    """An object whose content does not act, and why. ``acts``: an earlier version of it acts."""

    kind: str
    namespace: str
    name: str
    error: str
    acts: bool


@dataclass(frozen=True, slots=True)
class PendingDeletion:
    """Deletions that wait for the confirmation of a person.

    Attributes:
        id: that the confirmation names.
        objects: as ``Kind namespace/name``, at most :data:`MOST_NAMED`.
        count: of all.
    """

    id: str
    objects: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True)
class FollowedReport:
    """As of ``at``, unix seconds.

    Attributes:
        at: 0 = no leader has followed objects.
        owner: of the configuration.
        sources: the kinds.
        faulty: objects with errors, at most :data:`MOST_NAMED`.
        faulty_count: of all.
        waiting: objects whose edit acts when the objects are quiet, as ``Kind namespace/name``, at most :data:`MOST_NAMED`.
        deletion: None = none waits.
    """

    at: float = 0.0
    owner: str = "database"
    sources: tuple[FollowedSource, ...] = ()
    faulty: tuple[FaultyObject, ...] = ()
    faulty_count: int = 0
    waiting: tuple[str, ...] = ()
    deletion: PendingDeletion | None = None
