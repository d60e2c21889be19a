"""The changes of the catalog: a pure function of the stored documents, the objects and the time.

- **The last valid version counts.** The stored document of an object is its last valid version, so a restart decides the same.
- **Errors across objects blame the newest edit.** The stored documents are valid together, so to leave edits out, the newest first, ends.
- **No surprise between two edits.** An edit that only permits more acts at once. The others act together, when the objects were quiet.
- **A mass deletion waits** for a person who confirms this one only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from queuectl.domain.ledger import Document
from queuectl.domain.queries import DocumentKey
from queuectl.objects.configuration.links import MAX_COHORTS, circular_cohorts, references
from queuectl.objects.configuration.stops import keep_operation
from queuectl.ownership.effects import permits_more
from queuectl.ownership.observed import FollowedObject

LONGEST_WAIT: Final = 60.0
"""Seconds after which an edit acts, even if other edits keep coming."""
GUARDED: Final = ("ClusterQueue", "ResourceFlavor")
"""Kinds of which at most a third can be deleted at once without a confirmation."""
_REMOVED: Final = 1 << 62  # a deletion is the newest edit of its object
_ROUNDS: Final = 100
_COHORT: Final = "Cohort"
_FLAVOR: Final = "ResourceFlavor"
_QUEUE: Final = "ClusterQueue"
_CYCLE: Final = f"spec.parentName: makes a cycle of Cohorts, or a chain of more than {MAX_COHORTS}"


@dataclass(frozen=True, slots=True)
class Edit:
    """The difference between an object and its stored document.

    Attributes:
        document: the new one; None = a deletion.
        order: rises with the time of the edit.
    """

    document: Document | None
    order: int


@dataclass(frozen=True, slots=True)
class MassDeletion:
    """Deletions that wait for a confirmation.

    Attributes:
        id: of this set of objects only.
        keys: in order.
    """

    id: str
    keys: tuple[DocumentKey, ...]

    @classmethod
    def of(cls, keys: Collection[DocumentKey]) -> MassDeletion:
        """The deletion of these objects."""
        ordered = tuple(sorted(keys))
        text = "\n".join(map(str, ordered)).encode(errors="replace")
        return cls(hashlib.sha256(text).hexdigest()[:12], ordered)


@dataclass(frozen=True, slots=True)
class Batch:
    """The edits that act now, and those that do not.

    Attributes:
        edits: those that act now, by object.
        faults: objects whose content does not act, with the reason; the last valid version of each acts, if it has one.
        waiting: objects whose edit acts when the objects are quiet.
        deletion: waits for a confirmation; None = none does.
        act_at: when waiting edits act, without further edits; None = none waits.
    """

    edits: Mapping[DocumentKey, Edit]
    faults: Mapping[DocumentKey, str] = field(default_factory=dict)
    waiting: frozenset[DocumentKey] = frozenset()
    deletion: MassDeletion | None = None
    act_at: float | None = None


class Reducer:
    """The decisions of one leader. Its only state is since when edits wait."""

    def __init__(self, settle_seconds: float) -> None:
        """``settle_seconds``: without an edit, before edits act that take something."""
        self._settle = settle_seconds
        self._waiting_since: float | None = None

    def decide(
        self,
        stored: Mapping[DocumentKey, Document],
        objects: Mapping[DocumentKey, FollowedObject],
        known_kinds: Collection[str],
        *,
        last_edit: float,
        now: float,
        confirmed: str = "",
    ) -> Batch:
        """The batch of this moment.

        Args:
            stored: the documents of followed kinds in the catalog.
            objects: those that are not being deleted.
            known_kinds: those of which all objects are known. Documents of other kinds stay.
            last_edit: time of the last edit of an object.
            now: the time.
            confirmed: the id of the mass deletion that a person has confirmed.
        """
        edits, faults = _edits(stored, objects, known_kinds)
        deletion = _mass_deletion(stored, edits)
        if deletion is not None and deletion.id == confirmed:
            deletion = None
        elif deletion is not None:
            for key in deletion.keys:
                del edits[key]
        accepted, across = resolve(stored, edits)
        faults |= across
        at_once = {k: e for k, e in accepted.items() if permits_more(stored.get(k), e.document)}
        if len(at_once) == len(accepted):
            self._waiting_since = None
            return Batch(accepted, faults, deletion=deletion)
        self._waiting_since = self._waiting_since if self._waiting_since is not None else now
        act_at = min(last_edit + self._settle, self._waiting_since + LONGEST_WAIT)
        if now >= act_at:
            self._waiting_since = None
            return Batch(accepted, faults, deletion=deletion)
        acting, _ = resolve(stored, at_once)  # without the edits that wait, others can be in error
        waiting = frozenset(accepted.keys() - acting.keys())
        return Batch(acting, faults, waiting, deletion, act_at)


def _edits(
    stored: Mapping[DocumentKey, Document],
    objects: Mapping[DocumentKey, FollowedObject],
    known_kinds: Collection[str],
) -> tuple[dict[DocumentKey, Edit], dict[DocumentKey, str]]:
    """The edits of known kinds, and the errors of single objects."""
    edits: dict[DocumentKey, Edit] = {}
    faults: dict[DocumentKey, str] = {}
    for key, followed in objects.items():
        if key.kind not in known_kinds:
            continue
        before = stored.get(key)
        if followed.document is None:
            faults[key] = followed.error
            continue
        document = keep_operation(followed.document, before) if before else followed.document
        if document != before:
            edits[key] = Edit(document, followed.order)
    for key in stored:
        if key.kind in known_kinds and key not in objects:
            edits[key] = Edit(None, _REMOVED)
    return edits, faults


def _mass_deletion(
    stored: Mapping[DocumentKey, Document], edits: Mapping[DocumentKey, Edit]
) -> MassDeletion | None:
    """All deletions of the edits, if they are more than a third of a guarded kind."""
    deleted = [key for key, edit in edits.items() if edit.document is None]
    for kind in GUARDED:
        among = sum(key.kind == kind for key in deleted)
        if among and 3 * among > sum(key.kind == kind for key in stored):
            return MassDeletion.of(deleted)
    return None


# ---- Errors across objects


def resolve(
    stored: Mapping[DocumentKey, Document], edits: Mapping[DocumentKey, Edit]
) -> tuple[dict[DocumentKey, Edit], dict[DocumentKey, str]]:
    """The edits that are valid together with the stored documents, and the others with their errors."""
    accepted = dict(edits)
    wrong = chain(  # each takes edits out, and the next one sees the rest
        _wrong_cohorts(stored, accepted),
        _wrong_queues(stored, accepted),
        _used_flavors(stored, accepted),
    )
    faults = dict(wrong)
    return accepted, faults


def _wrong_cohorts(
    stored: Mapping[DocumentKey, Document], edits: dict[DocumentKey, Edit]
) -> Iterator[tuple[DocumentKey, str]]:
    """Take the newest edit out of each cycle and of each tree that is too high, until none is left."""
    if not any(key.kind == _COHORT for key in edits):
        return
    for _ in range(_ROUNDS):
        parents = _parents(stored, edits)
        blamed = {_newest(name, parents, edits) for name in circular_cohorts(parents)} - {None}
        if not blamed:
            return
        for key in blamed:
            assert key is not None
            del edits[key]
            yield key, _CYCLE
    for key in [key for key in edits if key.kind == _COHORT]:
        del edits[key]
        yield key, _CYCLE


def _parents(
    stored: Mapping[DocumentKey, Document], edits: Mapping[DocumentKey, Edit]
) -> dict[str, str | None]:
    def parent(document: Document) -> str | None:
        name: str | None = (document.get("spec") or {}).get("parentName")
        return name

    parents = {key.name: parent(one) for key, one in stored.items() if key.kind == _COHORT}
    for key, edit in edits.items():
        if key.kind == _COHORT:
            parents.pop(key.name, None)
            if edit.document is not None:
                parents[key.name] = parent(edit.document)
    return parents


def _newest(
    name: str, parents: Mapping[str, str | None], edits: Mapping[DocumentKey, Edit]
) -> DocumentKey | None:
    """The newest edit among a Cohort and those above it, as many as a valid chain has at most: one of them causes the error."""
    path: dict[str, None] = {}
    above: str | None = name
    while above and above not in path and len(path) <= MAX_COHORTS:
        path[above] = None
        above = parents.get(above)
    keys = (DocumentKey(_COHORT, "", each) for each in path)
    edited = [key for key in keys if key in edits]
    return max(edited, key=lambda key: (edits[key].order, key), default=None)


def _wrong_queues(
    stored: Mapping[DocumentKey, Document], edits: dict[DocumentKey, Edit]
) -> Iterator[tuple[DocumentKey, str]]:
    """Take out edits of ClusterQueues that name a flavor which does not exist. A deletion of a flavor in use is the newer edit."""
    if not any(key.kind == _QUEUE for key in edits):
        return
    there = {key for key in stored if key.kind == _FLAVOR and not _deletes(edits.get(key))}
    there |= {key for key in edits if key.kind == _FLAVOR and not _deletes(edits[key])}
    for key, edit in list(edits.items()):
        if key.kind != _QUEUE or edit.document is None:
            continue
        absent = _flavors(edit.document) - there
        if key in stored:
            absent -= _flavors(stored[key]) & stored.keys()
        if absent:
            del edits[key]
            names = ", ".join(sorted(one.name for one in absent))
            yield key, f"spec.resourceGroups: ResourceFlavor {names} does not exist"


def _used_flavors(
    stored: Mapping[DocumentKey, Document], edits: dict[DocumentKey, Edit]
) -> Iterator[tuple[DocumentKey, str]]:
    """Take out deletions of flavors that a ClusterQueue names."""
    deleted = [key for key, edit in edits.items() if key.kind == _FLAVOR and _deletes(edit)]
    if not deleted:
        return
    users: dict[DocumentKey, str] = {}
    for key in {*stored, *edits}:
        if key.kind != _QUEUE:
            continue
        document = edits[key].document if key in edits else stored[key]
        for flavor in _flavors(document) if document is not None else ():
            users[flavor] = min(users.get(flavor, key.name), key.name)
    for key in deleted:
        if key in users:
            del edits[key]
            yield key, f"is deleted, and stays in use while ClusterQueue {users[key]} names it"


def _deletes(edit: Edit | None) -> bool:
    return edit is not None and edit.document is None


def _flavors(document: Mapping[str, Any]) -> frozenset[DocumentKey]:
    return frozenset(key for key in references(document) if key.kind == _FLAVOR)
