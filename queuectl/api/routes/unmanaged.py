"""The report of GPUs that pods outside the queues hold. Each replica that watches the cluster answers."""

# No postponed annotations here: see routes/config.py.

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from fastapi import APIRouter, Request
from pydantic import Field

from queuectl.api.access import Guard
from queuectl.api.openapi import responses
from queuectl.api.params import Cursor, Limit, OfNamespace, cursor_after, name_before
from queuectl.api.ports import ClusterReader
from queuectl.api.problems import ProblemType, not_known_yet
from queuectl.api.schemas import View, maybe
from queuectl.db.ports import ApiStore
from queuectl.domain.gpus import rounded
from queuectl.domain.identity import Right
from queuectl.domain.queries import UnmanagedPod, summed
from queuectl.objects.configuration.config_kinds import PREFIX

PATH: Final = f"{PREFIX}/reports/unmanaged"


class UnmanagedPodView(View):
    namespace: str
    name: str = Field(description="Name of the pod.")
    node: str
    gpus: float = Field(description="GPUs that it holds; an instance counts as a part of a GPU.")
    since: datetime | None = Field(
        description="Time at which the kubelet accepted the pod; null = not yet."
    )


class UnmanagedSumView(View):
    namespace: str
    pods: int
    gpus: float


class UnmanagedView(View):
    items: list[UnmanagedPodView]
    namespaces: list[UnmanagedSumView] = Field(
        description="Sums for the namespaces on this page, over all their pods, including those on other pages."
    )
    next_cursor: str | None = Field(
        description="Value of `cursor` for the next page; null = this is the last page."
    )


def add_routes(
    routes: APIRouter, guard: Guard, store: ApiStore, cluster_reader: ClusterReader | None
) -> None:
    """Offer the path. ``cluster_reader``: None in a process that does not watch the cluster."""

    async def read() -> tuple[UnmanagedPod, ...] | None:
        return await cluster_reader.unmanaged() if cluster_reader is not None else None

    async def there() -> Iterable[str]:
        """Pods outside the queues are also in namespaces that have no queue."""
        return {*await store.namespaces(), *(pod.namespace for pod in await read() or ())}

    @routes.get(
        PATH,
        tags=["Reports"],
        operation_id="reportUnmanaged",
        summary="Pods that hold GPUs and belong to no job in a queue, by namespace and name",
        description="The current pods, in the namespaces in which you are allowed to get reports.",
        responses=responses(ProblemType.NOT_KNOWN_YET),
    )
    async def report_unmanaged(
        request: Request, namespace: OfNamespace = None, limit: Limit = 100, cursor: Cursor = None
    ) -> UnmanagedView:
        after = name_before(cursor)
        visible: frozenset[str] | None
        if namespace is not None:
            await guard.require(request, Right("get", "reports", namespace))
            visible = frozenset([namespace])
        else:
            visible = await guard.visible(request, "get", "reports", there)
        if visible is not None and not visible:
            return UnmanagedView(items=[], namespaces=[], next_cursor=None)
        pods = await read()
        if pods is None:
            raise not_known_yet()
        shown = [pod for pod in pods if visible is None or pod.namespace in visible]
        return _page(shown, after, limit)


def _page(pods: list[UnmanagedPod], after: str, limit: int) -> UnmanagedView:
    """The pods that come after ``namespace/name``, at most ``limit`` of them."""
    start = tuple(after.split("/", 1))
    later = [pod for pod in pods if (pod.namespace, pod.name) > start]
    page = later[:limit]
    on_page = {pod.namespace for pod in page}
    return UnmanagedView(
        items=[
            UnmanagedPodView(
                namespace=pod.namespace,
                name=pod.name,
                node=pod.node,
                gpus=rounded(pod.gpus),
                since=maybe(pod.since),
            )
            for pod in page
        ],
        namespaces=[
            UnmanagedSumView(namespace=one.namespace, pods=one.pods, gpus=rounded(one.gpus))
            for one in summed(pod for pod in pods if pod.namespace in on_page)
        ],
        next_cursor=(
            cursor_after(f"{page[-1].namespace}/{page[-1].name}") if len(later) > limit else None
        ),
    )
