"""Dry runs of configuration: the checks of a write, without the write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import Request

from queuectl.api.access import Guard
from queuectl.api.body import Bodies
from queuectl.api.ports import Diagnoser
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.db.ports import ApiStore
from queuectl.domain.diagnosis import Excess
from queuectl.domain.identity import Right
from queuectl.domain.queries import DocumentKey
from queuectl.domain.queues import QueueConfig
from queuectl.objects.configuration.diff import differences
from queuectl.objects.configuration.links import (
    dangling,
    refuse_circular_cohorts,
    refuse_reserved_devices,
)
from queuectl.objects.configuration.owners import FollowedKind
from queuectl.objects.configuration.queue_config import build, validate
from queuectl.objects.errors import DocumentError

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DryRunObject:
    """The result for one document. ``changes``: in the form of the API."""

    outcome: str
    warnings: tuple[str, ...]
    changes: list[Body]
    document: Body


@dataclass(frozen=True, slots=True)
class DryRun:
    """The result for all documents. ``excesses``: None if this process does not know the running gangs."""

    objects: tuple[DryRunObject, ...]
    excesses: Sequence[Excess] | None


@dataclass(frozen=True, slots=True)
class Removal:
    """The result for a deletion.

    Attributes:
        missing: sentences on objects that would no longer have an effect.
        excesses: running gangs over quota; None = this process does not know the running gangs.
    """

    missing: tuple[str, ...]
    excesses: Sequence[Excess] | None


async def dry_run_documents(
    documents: Sequence[Body],
    store: ApiStore,
    diagnoser: Diagnoser | None,
    bodies: Bodies,
) -> DryRun:
    """Apply documents, all together, to a copy of the stored configuration.

    Raises:
        DocumentError: one of them is invalid, or they are invalid together.
        Problem: took-too-long.
    """
    reservations = [each for each in documents if each.get("kind") == "Reservation"]
    if diagnoser is not None and reservations:
        checked = await bodies.work(lambda: [validate(each)[0] for each in reservations])
        refuse_reserved_devices(checked, await diagnoser.device_resources())
    revision, stored = await store.configuration()
    objects, config = await bodies.work(partial(_tried, documents, stored, revision))
    if config is None or diagnoser is None:
        return DryRun(objects, None)
    return DryRun(objects, await diagnoser.over_quota(config))


def _tried(
    documents: Sequence[Body], stored: Iterable[Mapping[str, Any]], revision: int
) -> tuple[tuple[DryRunObject, ...], QueueConfig | None]:
    """The result for each document, and the configuration with all of them; None if they are invalid together."""
    checked = [validate(document) for document in documents]
    before = {DocumentKey.of(document): document for document in stored}
    after = {**before, **{DocumentKey.of(document): document for document, _ in checked}}
    parents = {
        key.name: document.get("spec", {}).get("parentName")
        for key, document in after.items()
        if key.kind == "Cohort"
    }
    refuse_circular_cohorts(
        (document for document, _ in checked if document["kind"] == "Cohort"), parents
    )
    config, unchecked = _built(after.values(), revision)
    missing: defaultdict[str, list[str]] = defaultdict(list)  # by the object that each is about
    for sentence in dangling(config) if config is not None else ():
        missing[sentence.partition(": ")[0]].append(sentence)
    objects = tuple(
        _object(document, before.get(key), (*warnings, *unchecked, *missing[str(key)]))
        for document, warnings in checked
        for key in [DocumentKey.of(document)]
    )
    return objects, config


def write_verb(outcome: str) -> str:
    """The word for a write with this outcome, as :func:`not_the_owner` takes it."""
    return "apply" if outcome == "created" else "edit"


def not_the_owner(followed: FollowedKind, key: DocumentKey, verb: str) -> ApiProblem:
    """The refusal to apply, edit or delete an object that is followed, with the command of kubectl that does the same."""
    command = "kubectl apply -f FILE" if verb == "apply" else followed.kubectl(verb, key)
    detail = f"the objects of {followed.group} own this configuration; use `{command}`"
    return ApiProblem(ProblemType.NOT_THE_OWNER, detail, command=command)


async def dry_run_removal(
    key: DocumentKey, store: ApiStore, diagnoser: Diagnoser | None, bodies: Bodies
) -> Removal:
    """Delete an object from a copy of the stored configuration.

    Raises:
        Problem: took-too-long.
    """
    revision, stored = await store.configuration()
    missing, after = await bodies.work(partial(_without, key, stored, revision))
    if after is None or diagnoser is None:
        return Removal(missing, None)
    return Removal(missing, await diagnoser.over_quota(after))


def _without(
    key: DocumentKey, stored: Sequence[Mapping[str, Any]], revision: int
) -> tuple[tuple[str, ...], QueueConfig | None]:
    """Sentences on objects that would no longer have an effect, and the configuration without an object; None if it is invalid."""
    before, _ = _built(stored, revision)
    rest = [document for document in stored if DocumentKey.of(document) != key]
    after, unchecked = _built(rest, revision)
    if after is None:
        return unchecked, None
    known = frozenset(dangling(before) if before is not None else ())
    own = f"{key}: "
    missing = (text for text in dangling(after) if text not in known and not text.startswith(own))
    return tuple(missing), after


def _built(
    documents: Iterable[Mapping[str, Any]], revision: int
) -> tuple[QueueConfig | None, tuple[str, ...]]:
    try:
        return build(documents, revision), ()
    except DocumentError as error:  # another object, stored by a more lenient release
        return None, (f"not checked together with the other objects: {error}",)


def _object(
    document: Body, before: Mapping[str, Any] | None, warnings: tuple[str, ...]
) -> DryRunObject:
    unchanged = before is not None and dict(before) == document
    outcome = "created" if before is None else "unchanged" if unchanged else "configured"
    return DryRunObject(outcome, warnings, changes_of(before, document), document)


def applied(dry_run: DryRunObject) -> Body:
    """The response for one document."""
    return {
        "result": dry_run.outcome,
        "warnings": list(dry_run.warnings),
        "changes": dry_run.changes,
        "object": dry_run.document,
    }


def changes_of(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> list[Body]:
    """The differences in the form of the API; none for a new object."""
    if before is None:
        return []
    return [
        {"field": d.field, "before": d.before, "after": d.after} for d in differences(before, after)
    ]


async def seen_excesses(
    guard: Guard, request: Request, excesses: Sequence[Excess] | None
) -> Sequence[Excess] | None:
    """The results that the caller is allowed to see: running gangs only for callers that can see all workloads."""
    return excesses if await guard.may(request, Right("list", "workloads")) else None


def excess_views(excesses: Sequence[Excess] | None) -> list[Body] | None:
    """The same for exceeded quotas."""
    if excesses is None:
        return None
    return [
        {
            "kind": excess.kind,
            "name": excess.name,
            "flavor": excess.flavor,
            "resource": excess.resource,
            "used": excess.used,
            "allowed": excess.allowed,
            "workloads": list(excess.gangs),
        }
        for excess in excesses
    ]
