"""Workloads: list, read, explain, history. Only the leader writes them, so the API has no PUT for them; see routes/commands.py."""

# No postponed annotations here: see routes/config.py.

from enum import Enum
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request

from queuectl.api.access import Guard
from queuectl.api.command_service import Finder
from queuectl.api.job_efficiency import JobEfficiencies, JobEfficiencyView
from queuectl.api.openapi import responses
from queuectl.api.params import (
    After,
    Cursor,
    Limit,
    Namespace,
    OfClusterQueue,
    OfKind,
    OfLabels,
    OfNamespace,
    OfQueue,
    OfUser,
    Sort,
    Uid,
    WorkloadName,
)
from queuectl.api.ports import ClusterReader, Diagnoser
from queuectl.api.presenter import WorkloadPresenter
from queuectl.api.problems import ApiProblem, ProblemType, wrong_parameter
from queuectl.api.routes import commands, pods
from queuectl.api.schemas import ExplainView, HistoryPage, WorkloadPageView, WorkloadView
from queuectl.api.views import history_view
from queuectl.db.ports import ApiStore
from queuectl.domain.errors import BadInput, ClusterError, StoreUnavailable
from queuectl.domain.identity import Right
from queuectl.domain.ledger import Entry, State
from queuectl.domain.queries import MOST_URGENT_FIRST, WorkloadFilter, WorkloadOrder
from queuectl.domain.reasons import Code
from queuectl.domain.selectors import Selector, label_selector
from queuectl.objects import keys
from queuectl.objects.configuration.config_kinds import PREFIX

P = ProblemType
_TAGS: Final[list[str | Enum]] = ["Workload"]
_MOST_ELSEWHERE: Final = 10
_ONE = responses(P.NOT_FOUND, P.AMBIGUOUS)


def add_routes(
    routes: APIRouter,
    guard: Guard,
    store: ApiStore,
    efficiencies: JobEfficiencies,
    diagnoser: Diagnoser | None = None,
    cluster_reader: ClusterReader | None = None,
) -> None:
    """Offer the paths of workloads, each by uid and by namespace and name.

    Args:
        routes: where.
        guard: checks rights.
        store: what is read.
        efficiencies: of workloads.
        diagnoser: None where no controller runs.
        cluster_reader: None in a process that does not watch the cluster.
    """
    presenter = WorkloadPresenter(guard, store, diagnoser)
    _list(routes, guard, store, presenter)

    async def by_uid(request: Request, uid: Uid) -> Entry:
        entry = await store.get_workload(uid)
        # A uid does not show its namespace, so the response must not reveal that the workload exists.
        if entry is None or not await guard.may(request, _reading(entry.namespace, entry.name)):
            raise ApiProblem(P.NOT_FOUND, f"no workload has the uid {uid}")
        return entry

    async def by_name(
        request: Request, namespace: Namespace, name: WorkloadName, kind: OfKind = None
    ) -> Entry:
        try:
            await guard.require(request, _reading(namespace, name))
            return await _named(store, namespace, name, kind)
        except ApiProblem as problem:
            if problem.kind in (P.NOT_FOUND, P.FORBIDDEN):
                problem.members["elsewhere"] = await _elsewhere(request, guard, store, name, kind)
            raise

    for path, finder, tag in (
        (f"{PREFIX}/workloads/{{uid}}", by_uid, ""),
        (f"{PREFIX}/namespaces/{{namespace}}/workloads/{{name}}", by_name, "Named"),
    ):
        _one(routes, store, presenter, path, finder, tag)
        _explain(routes, presenter, efficiencies, path, finder, tag)
        pods.add_route(routes, cluster_reader, path, finder, tag)
        commands.add_routes(routes, guard, store, diagnoser, path, finder, tag)
    commands.add_command_routes(routes, guard, store, diagnoser)


def _reading(namespace: str, name: str) -> Right:
    return Right("get", "workloads", namespace, name)


def _list(routes: APIRouter, guard: Guard, store: ApiStore, presenter: WorkloadPresenter) -> None:
    @routes.get(
        f"{PREFIX}/workloads",
        tags=_TAGS,
        operation_id="listWorkloads",
        summary="List workloads",
        description="Includes the namespaces in which you are allowed to list workloads.",
        responses=responses(),
    )
    async def list_workloads(
        request: Request,
        namespace: OfNamespace = None,
        queue: OfQueue = None,
        cluster_queue: OfClusterQueue = None,
        kind: OfKind = None,
        state: Annotated[
            list[State] | None,
            Query(description="Only these states. You can repeat it; default: all."),
        ] = None,
        user: OfUser = None,
        reason: Annotated[
            Code | None, Query(description="Only workloads with this reason code.")
        ] = None,
        labels: OfLabels = "",
        sort: Sort = str(MOST_URGENT_FIRST),
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> WorkloadPageView:
        try:
            order = WorkloadOrder.parse(sort)
        except BadInput as error:
            raise wrong_parameter("sort", str(error)) from error
        selector = _selector(labels)
        visible = None
        if namespace is not None:
            await guard.require(request, Right("list", "workloads", namespace))
        else:
            visible = await guard.visible(request, "list", "workloads", store.namespaces)
        filters = WorkloadFilter(
            namespace=namespace,
            queue=queue,
            cluster_queue=cluster_queue,
            kind=kind,
            states=frozenset(state or ()),
            namespaces=visible,
            user=user,
            code=reason,
            labels=selector,
        )
        try:
            page = await store.list_workloads(filters, cursor, limit, order)
        except BadInput as error:
            raise wrong_parameter("cursor", str(error)) from error
        items = await presenter.workloads(request, page.entries)
        return WorkloadPageView(items=items, next_cursor=page.cursor)


def _selector(text: str) -> Selector:
    """Raises a problem for one that is malformed, or names a label that the ledger does not have."""
    try:
        selector = label_selector(text)
    except BadInput as error:
        raise wrong_parameter("label_selector", str(error)) from error
    for condition in selector:
        if condition.key.startswith((keys.PREFIX, keys.KUEUE_PREFIX)):
            reason = f"{condition.key} is a label that queuectl reads itself: use the filter for its meaning, such as the queue"
            raise wrong_parameter("label_selector", reason)
    return selector


def _one(
    routes: APIRouter,
    store: ApiStore,
    presenter: WorkloadPresenter,
    path: str,
    finder: Finder,
    tag: str,
) -> None:
    """Add the reads of one workload, by uid or by name."""
    FoundEntry = Annotated[Entry, Depends(finder)]  # noqa: N806 - a type

    @routes.get(
        path,
        tags=_TAGS,
        operation_id=f"get{tag}Workload",
        summary="Read one workload",
        responses=_ONE,
    )
    async def get_workload(request: Request, entry: FoundEntry) -> WorkloadView:
        (view,) = await presenter.workloads(request, (entry,))
        return view

    @routes.get(
        f"{path}/history",
        tags=_TAGS,
        operation_id=f"history{tag}Workload",
        summary="Its history, oldest first",
        responses=_ONE,
    )
    async def history(
        request: Request, entry: FoundEntry, after: After = 0, limit: Limit = 100
    ) -> HistoryPage:
        lines = await store.history(entry.uid, after, limit)
        return HistoryPage(
            uid=entry.uid,
            items=[history_view(line) for line in await presenter.steps(request, lines)],
            next_after=lines[-1].id if len(lines) == limit else None,
        )


def _explain(
    routes: APIRouter,
    presenter: WorkloadPresenter,
    efficiencies: JobEfficiencies,
    path: str,
    finder: Finder,
    tag: str,
) -> None:
    """The explanation of a workload, in which the diagnosis of a pending one is optional, and its efficiency."""
    FoundEntry = Annotated[Entry, Depends(finder)]  # noqa: N806 - a type

    @routes.get(
        f"{path}/explain",
        tags=_TAGS,
        operation_id=f"explain{tag}Workload",
        summary="Explain its state: the reason, blocking constraints and suggested fixes",
        responses=_ONE,
    )
    async def explain(request: Request, entry: FoundEntry) -> ExplainView:
        return await presenter.explained(request, entry)

    @routes.get(
        f"{path}/efficiency",
        tags=_TAGS,
        operation_id=f"efficiency{tag}Workload",
        summary="Its use of GPUs, CPU and memory, GPU-hours, cost and nodes, also after it has finished",
        responses=responses(P.NOT_FOUND, P.AMBIGUOUS, P.NOT_KNOWN_YET),
    )
    async def efficiency(entry: FoundEntry) -> JobEfficiencyView:
        return await efficiencies.of(entry)


async def _elsewhere(
    request: Request, guard: Guard, store: ApiStore, name: str, kind: str | None
) -> list[str]:
    """Workloads of this name in namespaces that the caller may list, as ``namespace/name``; none if they cannot be read now."""
    try:
        visible = await guard.visible(request, "list", "workloads", store.namespaces)
        if visible is not None and not visible:
            return []
        filters = WorkloadFilter(name=name, kind=kind, namespaces=visible)
        page = await store.list_workloads(filters, None, _MOST_ELSEWHERE)
    except (ApiProblem, ClusterError, StoreUnavailable):
        return []
    return list(dict.fromkeys(entry.ref for entry in page.entries))


async def _named(store: ApiStore, namespace: str, name: str, kind: str | None) -> Entry:
    """The workload of this name: the live one, otherwise the newest finished one."""
    if kind is not None:
        one = await store.find_workload(kind, namespace, name)
        found = [one] if one is not None else []
    else:
        found = list(await store.find_workloads(namespace, name))
    found = [e for e in found if e.state is not State.FINISHED] or found
    if not found:
        raise ApiProblem(P.NOT_FOUND, f"workload {namespace}/{name} does not exist")
    if len(found) > 1:
        listed = " or ".join(f"kind={e.kind}" for e in found)
        detail = f"{namespace}/{name} is the name of several workloads: give {listed}"
        raise ApiProblem(P.AMBIGUOUS, detail, kinds=[e.kind for e in found])
    return found[0]
