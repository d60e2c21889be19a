"""Stops and resumes a queue: one part of its configuration document, set with its own right.

A person who may stop a queue needs no right to change the rest of its document. The leader acts on it as soon as it is stored: see
:mod:`queuectl.objects.configuration.stops`.
"""

from __future__ import annotations

from typing import Final, Literal

from fastapi import Request
from pydantic import Field

from queuectl.api.auth.audit import record_change
from queuectl.api.dry_run import changes_of
from queuectl.api.ports import Diagnoser
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.api.reading import merged
from queuectl.api.schemas import View
from queuectl.db.ports import ApiStore
from queuectl.domain.errors import Conflict
from queuectl.domain.gpus import rounded
from queuectl.domain.ledger import Document
from queuectl.domain.queries import ConfigDocument, DocumentKey
from queuectl.domain.queues import StopPolicy
from queuectl.domain.what_if import DrainCost
from queuectl.objects.configuration.owners import Owner, followed_kind
from queuectl.objects.configuration.queue_config import validate
from queuectl.objects.configuration.stops import stop_field, stop_of, with_operation

_TRIES: Final = 5  # each fails only if another request changed the same object in between


class ResumeBody(View):
    """The optional fields of a resume."""

    reason: str | None = Field(
        default=None, min_length=1, max_length=500, description="The reason, for the audit log."
    )


class StopBody(ResumeBody):
    """The optional fields of a stop."""

    drain: bool = Field(
        default=False,
        description="true = also evict running gangs (`HoldAndDrain`); false = they continue to run (`Hold`).",
    )


class DrainView(View):
    """The gangs that draining the queue would evict now."""

    gangs: int
    pods: int
    gpus: float = Field(description="GPUs that become free.")
    lost_gpu_seconds: int = Field(
        description="Lost work since the last checkpoints in GPU-seconds, as for each victim."
    )


class QueueStopView(View):
    """A queue after it was stopped or resumed."""

    kind: str
    namespace: str | None = Field(description="Namespace of a LocalQueue; null for a ClusterQueue.")
    name: str
    stop_policy: StopPolicy
    result: Literal["configured", "unchanged"] = Field(
        description="`unchanged` = the queue already had this stop policy."
    )
    drains: DrainView | None = Field(
        description="The gangs that a drain would evict, in a dry run with `drain`; null = not a dry run, or not known at the moment: send the request again."
    )


class QueueStops:
    """Sets stop policies."""

    def __init__(
        self, store: ApiStore, diagnoser: Diagnoser | None, owner: Owner = Owner.DATABASE
    ) -> None:
        """``owner``: of the configuration."""
        self._owner = owner
        self._store = store
        self._diagnoser = diagnoser

    async def set(
        self, request: Request, key: DocumentKey, policy: StopPolicy, reason: str | None
    ) -> QueueStopView:
        """Give a queue this stop policy; nothing is written when it has it already.

        Raises:
            Problem: not-found; precondition-failed when other requests keep changing the object; not-the-owner for a resume of a
                queue that its object stops.
            DocumentError: the stored document is one that this release refuses.
        """
        for _ in range(_TRIES):
            stored = await self._stored(key)
            if stop_of(stored.document) is policy:
                record_change(request, _summary("unchanged", reason))
                return _view(key, policy, "unchanged")
            document, _ = validate(self._changed(key, stored.document, policy))
            try:
                await self._store.put_config(document, stored.version)
            except Conflict:
                continue
            change = changes_of(stored.document, document)
            text = "; ".join(f"{c['field']}: {c['before']!r} -> {c['after']!r}" for c in change)
            record_change(request, _summary(f"configured; {text}", reason))
            return _view(key, policy, "configured")
        raise ApiProblem(ProblemType.PRECONDITION_FAILED, f"{key} is changed by others; try again")

    def _changed(self, key: DocumentKey, document: Document, policy: StopPolicy) -> Document:
        """The document with this stop policy: in its field, or as an operation if objects of the cluster own the field."""
        followed = followed_kind(self._owner, key.kind)
        if followed is None:
            value = policy.value if policy is not StopPolicy.NONE else None
            bare = with_operation(document, StopPolicy.NONE)
            changed: Document = merged(bare, {"spec": {"stopPolicy": value}})
            return changed
        operated = with_operation(document, policy)
        if stop_of(operated) is not policy:
            command = followed.kubectl("edit", key)
            detail = f"the object of {key} has stopPolicy {stop_field(document)}; use `{command}`"
            raise ApiProblem(ProblemType.NOT_THE_OWNER, detail, command=command)
        return operated

    async def preview(self, key: DocumentKey, policy: StopPolicy) -> QueueStopView:
        """The answer of :meth:`set` without the change, with the gangs that a drain would evict."""
        stored = await self._stored(key)
        result: Literal["configured", "unchanged"] = (
            "unchanged" if stop_of(stored.document) is policy else "configured"
        )
        if result == "configured":
            validate(self._changed(key, stored.document, policy))
        drains = None
        if policy is StopPolicy.HOLD_AND_DRAIN and self._diagnoser is not None:
            drains = await self._diagnoser.drain_cost(key)
        return _view(key, policy, result, drains)

    async def _stored(self, key: DocumentKey) -> ConfigDocument:
        stored = await self._store.get_config(key)
        if stored is None:
            raise ApiProblem(ProblemType.NOT_FOUND, f"{key} does not exist")
        return stored


def _summary(what: str, reason: str | None) -> str:
    """The reason, for the audit log."""
    return f"{what}; reason: {reason}" if reason else what


def _view(
    key: DocumentKey,
    policy: StopPolicy,
    change: Literal["configured", "unchanged"],
    drains: DrainCost | None = None,
) -> QueueStopView:
    return QueueStopView(
        kind=key.kind,
        namespace=key.namespace or None,
        name=key.name,
        stop_policy=policy,
        result=change,
        drains=_drains(drains) if drains is not None else None,
    )


def _drains(cost: DrainCost) -> DrainView:
    return DrainView(
        gangs=cost.gangs, pods=cost.pods, gpus=rounded(cost.gpus), lost_gpu_seconds=cost.lost_work
    )
