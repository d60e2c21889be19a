"""The log of a container, on a separate page. Without the opt-in, neither the page nor the stream exists.

A pod is named by its uid and looked up among the pods of its workload, as the table of pods has them. So an address leads to no pod of
another workload, and to none that has the same name later.

The stream is a POST, so that it has a line in the audit log before anything is read, and only a page of the dashboard can open it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.api.auth.audit import record_change, record_operation
from queuectl.api.problems import ApiProblem, ProblemType, not_known_yet, wrong_parameter
from queuectl.api.routes.events import ServerSentEvents
from queuectl.domain.errors import ObjectGone, WriteRefused
from queuectl.domain.identity import Right
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Entry
from queuectl.domain.pod_logs import LogRequest, PodIdentity
from queuectl.objects.kubernetes.containers import PodContainers
from queuectl.web.log_streams import GONE, PodLogs, sentence_of
from queuectl.web.pages.workload import visible_workload
from queuectl.web.site import AccessScope, Site

TAILS: Final = (100, 500, 2000, 5000)
DEFAULT_TAIL: Final = 500
_ADDRESS: Final = "/workloads/{uid}/pods/{pod}/logs"


@dataclass(frozen=True, slots=True)
class SelectedPod:
    """The pod of an address, whose log the caller may read."""

    entry: Entry
    access: AccessScope
    record: PodRecord
    rights: tuple[Right, ...]

    @property
    def identity(self) -> PodIdentity:
        """Of the pod."""
        return PodIdentity(self.record.namespace, self.record.name, self.record.uid)


def routes(site: Site) -> list[Route]:
    """Offer the page and the stream, if the opt-in is on."""
    if site.pod_logs is None:
        return []
    pod_logs = site.pod_logs

    async def page(request: Request) -> Response:
        pod = await _selected(site, request)
        containers = await _containers(pod_logs, request, pod)
        return site.page(
            request,
            "pod_log.html",
            pod.access,
            still=True,
            entry=pod.entry,
            pod=pod.record,
            containers=containers,
            chosen=_first(containers),
            tails=TAILS,
            tail=DEFAULT_TAIL,
            limits=pod_logs.limits,
        )

    async def stream(request: Request) -> Response:
        record_operation(request, "readPodLog")
        pod = await _selected(site, request)
        log = _requested(
            request.query_params,
            pod,
            await _containers(pod_logs, request, pod),
            pod_logs.limits.tail,
        )
        which = f"{'previous ' if log.previous else ''}container {log.container}"
        record_change(request, f"log of {which} of pod {log.pod.namespace}/{log.pod.name}")
        events = pod_logs.stream(site.guard, request, log, pod.rights)
        try:
            await anext(events)  # the answer begins once the log is open
        except (ObjectGone, WriteRefused) as error:
            raise _problem(error) from error
        return ServerSentEvents(events)

    return [Route(_ADDRESS, page), Route(_ADDRESS, stream, methods=["POST"])]


async def _selected(site: Site, request: Request) -> SelectedPod:
    """The pod of the path.

    Raises:
        Problem: no such pod belongs to the workload, or the caller may not read the workload or the log.
    """
    entry, access = await visible_workload(site, request)
    pods = await site.pods(entry)
    if pods is None:
        raise not_known_yet()
    record = next((pod for pod in pods if pod.uid == request.path_params["pod"]), None)
    name = record.name if record is not None else ""
    log = Right("get", "pods/log", entry.namespace, name, group="")
    # Before the answer depends on the pod.
    await site.guard.require(request, log)
    if record is None or record.namespace != entry.namespace:
        raise ApiProblem(ProblemType.NOT_FOUND, GONE)
    workload = Right("get", "workloads", entry.namespace, entry.name)
    return SelectedPod(entry, access, record, (workload, log))


async def _containers(pod_logs: PodLogs, request: Request, pod: SelectedPod) -> PodContainers:
    try:
        return await pod_logs.containers(request, pod.identity)
    except (ObjectGone, WriteRefused) as error:
        raise _problem(error) from error


def _requested(
    query: Mapping[str, str], pod: SelectedPod, containers: PodContainers, most: int
) -> LogRequest:
    """The log that the query of an address names. Raises ApiProblem."""
    container = query.get("container") or _first(containers)
    if container not in containers.names:
        raise wrong_parameter(
            "container", f"the pod has the containers {', '.join(containers.names)}"
        )
    tail = query.get("tail") or str(DEFAULT_TAIL)
    if not (tail.isascii() and tail.isdecimal() and len(tail) < 10 and 1 <= int(tail) <= most):
        raise wrong_parameter("tail", f"a number of lines from 1 to {most}")
    previous = query.get("previous") == "on"
    follow = query.get("follow") == "on" and not previous
    return LogRequest(pod.identity, container, previous, follow, int(tail))


def _first(containers: PodContainers) -> str:
    """The container that is chosen at first, as by kubectl."""
    return containers.default or next(iter(containers.names), "")


def _problem(error: ObjectGone | WriteRefused) -> ApiProblem:
    gone = isinstance(error, ObjectGone)
    kind = ProblemType.NOT_FOUND if gone else ProblemType.NOT_IN_THIS_STATE
    return ApiProblem(kind, sentence_of(error))
