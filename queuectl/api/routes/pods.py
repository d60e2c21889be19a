"""The pods of one workload. Each replica that watches the cluster answers."""

# No postponed annotations here: see routes/config.py.

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import Field

from queuectl.api.command_service import Finder
from queuectl.api.openapi import responses
from queuectl.api.params import Cursor, Limit, cursor_after, name_before
from queuectl.api.ports import ClusterReader
from queuectl.api.problems import ProblemType, not_known_yet
from queuectl.api.schemas import View
from queuectl.domain.jobs import PodPhase, PodRecord
from queuectl.domain.ledger import Entry

P = ProblemType


class PodView(View):
    name: str
    pod_set: str
    rank: int | None = Field(
        description="Rank of the pod in its PodSet; null = the kind of the job has no ranks."
    )
    attempt: int = Field(description="The start of the workload that created the pod.")
    phase: PodPhase
    ready: bool
    terminating: bool
    node: str | None = Field(description="null = the pod is not bound to a node.")
    restarts: int = Field(description="Restarts of all its containers.")
    reason: str | None = Field(
        description="The reason why it does not run, as in `kubectl get pods`: `ImagePullBackOff`, `CrashLoopBackOff`…"
    )


class PodPage(View):
    items: list[PodView]
    next_cursor: str | None = Field(
        description="Value of `cursor` for the next page; null = this is the last page."
    )


def add_route(
    routes: APIRouter, cluster_reader: ClusterReader | None, path: str, finder: Finder, tag: str
) -> None:
    """Offer the pods of the workload that ``finder`` finds, to callers that may read the workload."""
    Found = Annotated[Entry, Depends(finder)]  # noqa: N806 - a type

    @routes.get(
        f"{path}/pods",
        tags=["Workload"],
        operation_id=f"pods{tag}Workload",
        summary="List its pods by name",
        description="The state in the watch of the replica that answers.",
        responses=responses(P.NOT_FOUND, P.AMBIGUOUS, P.NOT_KNOWN_YET),
    )
    async def list_pods(entry: Found, limit: Limit = 100, cursor: Cursor = None) -> PodPage:
        after = name_before(cursor)
        known = await cluster_reader.pods(entry) if cluster_reader is not None else None
        if known is None:
            raise not_known_yet()
        rest = sorted((pod for pod in known if pod.name > after), key=lambda pod: pod.name)
        page = rest[:limit]
        return PodPage(
            items=[_view(pod) for pod in page],
            next_cursor=cursor_after(page[-1].name) if len(rest) > limit else None,
        )


def _view(pod: PodRecord) -> PodView:
    return PodView(
        name=pod.name,
        pod_set=pod.podset,
        rank=pod.rank,
        attempt=pod.attempt,
        phase=pod.phase,
        ready=pod.ready,
        terminating=pod.terminating,
        node=pod.node,
        restarts=pod.restarts,
        reason=pod.status_reason or None,
    )
