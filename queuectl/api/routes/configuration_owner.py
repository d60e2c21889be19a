"""The owner of the configuration: the leader's report on the objects that it follows, and the confirmation of a mass deletion."""

# No postponed annotations here: see routes/config.py.

from datetime import datetime

from fastapi import APIRouter, Request
from pydantic import Field

from queuectl.api.access import Guard
from queuectl.api.auth.audit import record_change
from queuectl.api.body import read_small
from queuectl.api.openapi import BODY_PROBLEMS, model_body, responses
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.api.schemas import ConfirmBody, View
from queuectl.db.ports import ApiStore
from queuectl.domain.followed import FollowedReport
from queuectl.domain.words import utc
from queuectl.objects.configuration.config_kinds import PREFIX
from queuectl.objects.configuration.owners import Owner

P = ProblemType
PATH = f"{PREFIX}/configurationowner"


class FollowedSourceView(View):
    """The objects of one kind."""

    resource: str = Field(description="Name of the CustomResourceDefinition.")
    version: str = Field(description="Version in which they are read; empty = not known yet.")
    objects: int
    fault: str = Field(
        description="Why the objects are not known, so that the last configuration stays in effect; empty = they are known."
    )


class FaultyObjectView(View):
    """An object whose content has no effect."""

    kind: str
    namespace: str | None
    name: str
    error: str
    acts: bool = Field(description="true = an earlier version of it is in effect.")


class PendingDeletionView(View):
    """Deletions of more than a third of the ClusterQueues or of the ResourceFlavors."""

    id: str = Field(description="Of this set of objects only; the confirmation names it.")
    objects: list[str] = Field(description="At most 200.")
    count: int


class ConfigurationOwnerView(View):
    """The owner of the configuration, and the objects that the leader follows."""

    owner: Owner = Field(description="Of this process: QUEUECTL_CONFIGURATION_OWNER.")
    at: datetime | None = Field(
        description="Time of the leader's last report; null = no leader has followed objects."
    )
    sources: list[FollowedSourceView]
    faulty: list[FaultyObjectView] = Field(description="At most 200.")
    faulty_count: int
    waiting: list[str] = Field(
        description="Objects whose edit takes effect when no object was edited for a while. At most 200."
    )
    deletion: PendingDeletionView | None = Field(description="null = none waits.")


def add_routes(routes: APIRouter, guard: Guard, store: ApiStore, owner: Owner) -> None:
    """Offer the paths. ``owner``: of the configuration."""

    @routes.get(
        PATH,
        dependencies=[guard.needs("get", "configurationowner")],
        tags=["Configuration"],
        operation_id="getConfigurationOwner",
        summary="The owner of the configuration, and the objects that the leader follows",
        responses=responses(),
    )
    async def read() -> ConfigurationOwnerView:
        return _view(owner, await store.followed())

    @routes.post(
        f"{PATH}/confirm",
        dependencies=[guard.needs("create", "configurationowner/confirm")],
        tags=["Configuration"],
        operation_id="confirmDeletion",
        summary="Confirm a deletion of more than a third of the ClusterQueues or ResourceFlavors",
        responses=responses(*BODY_PROBLEMS, P.NOT_FOUND),
        openapi_extra=model_body(ConfirmBody, required=True),
    )  # fmt: skip
    async def confirm(request: Request) -> PendingDeletionView:
        body = await read_small(request, ConfirmBody)
        deletion = (await store.followed()).deletion
        if body is None or deletion is None or deletion.id != body.id:
            waits = f"the deletion {deletion.id} waits" if deletion else "no deletion waits"
            named = body.id if body is not None else ""
            raise ApiProblem(
                P.NOT_FOUND, f"{named!r} is not the id of a deletion that waits: {waits}"
            )
        await store.confirm_deletion(deletion.id)
        record_change(request, f"{deletion.count} objects: {', '.join(deletion.objects)}")
        return PendingDeletionView(
            id=deletion.id, objects=list(deletion.objects), count=deletion.count
        )


def _view(owner: Owner, report: FollowedReport) -> ConfigurationOwnerView:
    """The report of an earlier owner is not shown."""
    if report.owner != owner:
        report = FollowedReport()
    deletion = report.deletion
    return ConfigurationOwnerView(
        owner=owner,
        at=utc(report.at) if report.at else None,
        sources=[
            FollowedSourceView(
                resource=one.resource, version=one.version, objects=one.objects, fault=one.fault
            )
            for one in report.sources
        ],
        faulty=[
            FaultyObjectView(
                kind=one.kind,
                namespace=one.namespace or None,
                name=one.name,
                error=one.error,
                acts=one.acts,
            )
            for one in report.faulty
        ],
        faulty_count=report.faulty_count,
        waiting=list(report.waiting),
        deletion=PendingDeletionView(
            id=deletion.id, objects=list(deletion.objects), count=deletion.count
        )
        if deletion
        else None,
    )
