"""A running cluster with a system under test, on which a row submits gangs and waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Final, Self

from queuectl.demo.scenario import Document
from queuectl.domain.quantity import GPU
from queuectl.localcluster import ClusterSpec, LocalCluster
from queuectl.localcluster.client import wait_until
from queuectl.localcluster.errors import ApiServerError, UnreachableError
from tests.bench.scale.fleet import Fleet
from tests.bench.scale.gangs import Gang, pods_of
from tests.bench.scale.processes import Usage
from tests.bench.scale.systems import System
from tests.bench.scale.times import POLICY, AuditLog, Timeline
from tests.bench.stage import cpu_of, wait_until_at_rest

POLL_SECONDS: Final = 0.5
"""Between two readings of the audit log. Times are of the log, so a longer interval changes none."""
RETRY_SECONDS: Final = 0.1
_LATER: Final = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,  # also of a webhook that did not answer
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
SETTLE_SECONDS: Final = 180.0
SETTLED: Final = 0.35
"""CPU seconds of the API server in a second: less than this, it has come to rest."""
NODES_READY_SECONDS: Final = 900.0
LEASE_SECONDS: Final = 300
"""The shortest node lease. With 40 s, KWOK renews too late on a busy machine, and a node of a full block counts as lost for a moment."""
_PAGE: Final = "1000"
_API_SERVER: Final = "kube-apiserver"
_NAMED: Final = 20
"""If so few gangs are missing, a message has the reason of the first that has one."""
LEASES_PATH: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


class RowCutError(Exception):
    """The time of a row is over. The message states how far the row came."""


@dataclass(frozen=True, slots=True)
class PodLine:
    """A pod that has not ended. ``job``: ``namespace/name``; ``node``: None before it is bound."""

    name: str
    job: str
    node: str | None
    gpus: int
    terminating: bool

    @classmethod
    def of(cls, pod: Document) -> Self:
        """From its document."""
        metadata, spec = pod["metadata"], pod["spec"]
        requests = spec["containers"][0].get("resources", {}).get("requests", {})
        return cls(
            metadata["name"],
            f"{metadata['namespace']}/{metadata.get('labels', {}).get('job-name', '')}",
            spec.get("nodeName"),
            int(requests.get(GPU, 0)),
            "deletionTimestamp" in metadata,
        )


@dataclass
class ScaleStage:
    """One cluster with one system.

    Attributes:
        timeline: of the row, up to the last :meth:`follow`.
        deadline: monotonic seconds; the waits of a row end there.
        pods: those before the row, if it lists them.
        repeated: how often the creation of a Job or an edit was repeated.
        ended: CPU seconds of API servers that have ended.
    """

    cluster: LocalCluster
    system: System
    fleet: Fleet
    log: AuditLog
    deadline: float
    timeline: Timeline = field(default_factory=Timeline)
    pods: list[PodLine] = field(default_factory=list)
    repeated: int = 0
    ended: float = 0.0

    def begin(self, seconds: float) -> None:
        """Begin a row: forget what was before. Its waits end after ``seconds``."""
        self.deadline = time.monotonic() + seconds
        self.log.skip()
        self.timeline = Timeline()

    def submit(self, gangs: Iterable[Gang]) -> None:
        """Create the Jobs, several at a time."""
        self.cluster.client.each(self._create, gangs)

    def _create(self, gang: Gang) -> None:
        if not self.accepted(gang, lambda: time.monotonic() > self.deadline):
            raise RowCutError(f"the Job of {gang.key} is not accepted")

    def accepted(self, gang: Gang, give_up: Callable[[], bool]) -> bool:
        """Create a Job, again and again if the API server or a webhook does not answer, as other clients do.

        Returns:
            False if its creation failed.
        """

        def create() -> None:
            try:
                self.cluster.client.create(
                    f"/apis/batch/v1/namespaces/{gang.team}/jobs", self.system.job(gang)
                )
            except ApiServerError as error:
                if error.status != HTTPStatus.CONFLICT:  # the answer to an earlier try was lost
                    raise

        while not give_up():
            if self._answered(create):
                return True
        return False

    def edit(self, document: Document) -> None:
        """Create or replace an object of the configuration of the system, again and again if it does not answer.

        Raises:
            RowCutError: not until the deadline.
        """
        while not self._answered(lambda: self.system.edit(document)):
            if time.monotonic() > self.deadline:
                raise RowCutError(f"the edit of {document['metadata']['name']} is not accepted")

    def _answered(self, request: Callable[[], object]) -> bool:
        """Send a request. False, after a pause, if a server or a webhook did not answer."""
        try:
            request()
        except ApiServerError as error:
            if error.status not in _LATER:
                raise
        except UnreachableError:
            pass
        else:
            return True
        self.repeated += 1
        time.sleep(RETRY_SECONDS)
        return False

    def submit_over(self, gangs: Sequence[Gang], seconds: float) -> None:
        """Create the Jobs one after the other, evenly over a time. A late creation does not delay those after it."""
        began = time.monotonic()

        def create(numbered: tuple[int, Gang]) -> None:
            number, gang = numbered
            time.sleep(max(0.0, began + seconds * number / len(gangs) - time.monotonic()))
            self._create(gang)

        self.cluster.client.each(create, enumerate(gangs))

    def delete(self, gang: Gang) -> None:
        """Delete a Job with its pods."""
        self.cluster.client.delete(
            f"/apis/batch/v1/namespaces/{gang.team}/jobs/{gang.name}",
            propagationPolicy="Background",
        )

    def follow(self) -> Timeline:
        """Read the audit log up to now."""
        self.timeline.follow(self.log.read_new())
        return self.timeline

    def wait(self, reached: Callable[[Timeline], bool], what: Callable[[Timeline], str]) -> None:
        """Wait until the timeline has reached a state.

        Raises:
            RowCutError: not until the deadline; with the words of ``what``.
        """
        shown = time.monotonic()
        while not reached(timeline := self.follow()):
            if time.monotonic() > self.deadline:
                raise RowCutError(what(timeline))
            if time.monotonic() > shown + 20:
                shown = time.monotonic()
                print(f"    {what(timeline)}", flush=True)
            time.sleep(POLL_SECONDS)

    def wait_bound(self, gangs: Sequence[Gang], *, running: bool = False) -> None:
        """Wait until all pods of all gangs are bound, or run.

        Raises:
            RowCutError: not until the deadline.
        """
        expected = pods_of(gangs)
        state = "running" if running else "bound"

        def reached(timeline: Timeline, gang: Gang) -> int:
            """Its pods that have reached the state and are not deleted: a gang that is evicted starts again."""
            pods = (timeline.running if running else timeline.bound).get(gang.key, {})
            return min(gang.pods, len(pods.keys() - timeline.deleted.get(gang.key, {}).keys()))

        def count(timeline: Timeline) -> int:
            return sum(reached(timeline, gang) for gang in gangs)

        def progress(timeline: Timeline) -> str:
            return f"{count(timeline):,} of {expected:,} pods {state}"

        try:
            self.wait(lambda timeline: count(timeline) >= expected, progress)
        except RowCutError as cut:
            timeline = self.follow()
            missing = [gang for gang in gangs if reached(timeline, gang) < gang.pods]
            raise RowCutError(f"{cut}{self._reason(missing)}") from None

    def _reason(self, missing: Sequence[Gang]) -> str:
        """Why the first of these gangs that has a reason is pending; empty for many gangs. It is read at the end only: the row is measured."""
        if not 0 < len(missing) <= _NAMED:
            return ""
        for gang in missing:
            if (reason := self.system.refusal(gang)) is not None:
                return f"; {gang.key}: {reason}"
        return "; no gang has a reason"

    def list_pods(self, namespace: str | None = None) -> list[PodLine]:
        """The pods of one or all namespaces. In pages, because the client waits for an answer for 30 s."""
        path = "/api/v1/pods" if namespace is None else f"/api/v1/namespaces/{namespace}/pods"
        pods: list[PodLine] = []
        more = ""
        while True:
            rest = {"continue": more} if more else {}
            page = self.cluster.client.get(path, limit=_PAGE, **rest)
            pods += map(PodLine.of, page["items"])
            if not (more := page["metadata"].get("continue", "")):
                return pods

    def usage(self) -> Usage:
        """CPU time and memory of the control plane and the system up to now."""
        used = Usage.of({name: [pid] for name, pid in self.cluster.pids().items()})
        api_server = {_API_SERVER: used.cpu[_API_SERVER] + self.ended}
        return replace(used, cpu={**used.cpu, **api_server}) | self.system.usage()

    def restart_api_server(self) -> None:
        """End the API server by SIGKILL, and start it again."""
        self.ended += cpu_of(self.cluster.pids()[_API_SERVER])
        self.cluster.kill_apiserver()
        self.cluster.start_apiserver()

    def settle(self) -> float:
        """Wait until the API server has come to rest. Returns the seconds."""
        return wait_until_at_rest(self.cluster, (_API_SERVER,), SETTLED, SETTLE_SECONDS)


def cluster_spec(fleet: Fleet, *, fsync: bool) -> ClusterSpec:
    """The control plane, without nodes; the leases are as long as those of a cluster with the nodes of the fleet, or longer."""
    lease = max(LEASE_SECONDS, ClusterSpec(nodes=tuple(fleet.node_specs())).effective_lease_seconds)
    return ClusterSpec(
        nodes=(), operators=(), fsync=fsync, lease_seconds=lease, audit_policy=str(POLICY)
    )


@contextmanager
def running_stage(
    system: System, fleet: Fleet, *, fsync: bool, saved: Path | None
) -> Iterator[ScaleStage]:
    """A control plane with a system. ``saved``: a snapshot that is restored; None = an empty cluster with the nodes of the fleet."""
    spec = cluster_spec(fleet, fsync=fsync)
    data = saved / "etcd" if saved is not None else None
    with LocalCluster.start(spec, etcd_data=data) as cluster:
        if saved is None:
            _create_nodes(cluster, fleet)
            cluster.client.apply(*fleet.namespaces())
            system.install(cluster)
        else:
            _wait_leases(cluster, fleet)
        try:
            system.start(cluster, saved)
            if saved is None:
                system.configure(fleet)
            log = AuditLog(cluster.log("audit"))
            yield ScaleStage(cluster, system, fleet, log, deadline=time.monotonic())
        finally:
            system.stop()


def _create_nodes(cluster: LocalCluster, fleet: Fleet) -> None:
    names: list[str] = []
    for spec in fleet.node_specs():
        names += cluster.nodes.create(spec, wait_seconds=0)
    cluster.nodes.wait_ready(names, seconds=NODES_READY_SECONDS)


def _wait_leases(cluster: LocalCluster, fleet: Fleet) -> None:
    """Wait until KWOK, which has started again, holds the lease of each node. It starts no pods of a node before."""

    def complete() -> bool:
        page = cluster.client.get(LEASES_PATH, limit="1")
        held: int = len(page["items"]) + page["metadata"].get("remainingItemCount", 0)
        return held >= fleet.nodes

    wait_until(complete, f"{fleet.nodes} node leases", NODES_READY_SECONDS)
