"""The interfaces between the control loop and the adapters; :mod:`queuectl.db.ports` has those of the stores.

A real adapter and its in-memory double satisfy the same Protocol and pass the same conformance tests
(tests/cluster/conformance.py). Times are unix seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from queuectl.domain.job_usage import ContainerUse
from queuectl.domain.jobs import JobRecord, PriorAdmission
from queuectl.domain.ledger import Document
from queuectl.domain.node_health import GpuClock, GpuFault, NodeHealthRules
from queuectl.domain.records import Delta, LeaderRecord
from queuectl.domain.utilization import PodKey, UtilizationSample

Sink = Callable[[Sequence[Delta]], None]


class HealthSource(Protocol):
    """A source of faults of GPUs (telemetry/signal)."""

    async def faults(self, rules: NodeHealthRules, at: float) -> Sequence[GpuFault]:
        """The faults that count by the rules, as of ``at``, unix seconds.

        Raises:
            SourceUnavailable: it does not answer, or not what was asked.
        """

    async def clocks(self, window: float, at: float) -> Sequence[GpuClock]:
        """The clocks of GPUs of pods over the ``window`` seconds before ``at``, unix seconds.

        Raises:
            SourceUnavailable: it does not answer, or not what was asked.
        """

    async def close(self) -> None:
        """Close the connections."""


class UseSource(Protocol):
    """A source of GPU utilization (telemetry/signal).

    Attributes:
        trusts: a description of the trusted series, for users.
    """

    trusts: str

    async def sample(self, window: float, at: float, pods: Collection[PodKey]) -> UtilizationSample:
        """The samples of all pods over the ``window`` seconds before ``at``.

        ``pods``: pods that hold GPUs, from which a source can derive the labels that name pods.

        Raises:
            SourceUnavailable: no usable response.
        """

    async def close(self) -> None:
        """Give back all connections."""


class ContainerSource(Protocol):
    """A source of the CPU and the memory of pods (telemetry/signal)."""

    async def containers(self, window: float, at: float) -> Mapping[PodKey, ContainerUse]:
        """The use of pods over the ``window`` seconds before ``at`` (unix seconds); pods without samples are absent.

        Raises:
            SourceUnavailable: no usable response.
        """

    async def close(self) -> None:
        """Give back all connections."""


class Election(Protocol):
    """The Lease."""

    async def read_leader(self) -> LeaderRecord | None:
        """The Lease; None if it does not exist yet."""

    async def write_leader(self, record: LeaderRecord, over: LeaderRecord | None) -> LeaderRecord:
        """Acquire or renew the Lease by compare-and-swap with the version that was read (None = create)."""


class Cluster(Election, Protocol):
    """The Kubernetes API for the loop. Writes are compare-and-swap: the body contains uid and resourceVersion.

    Writes raise ClusterUnavailable, WriteConflict, ObjectGone or WriteRefused.
    """

    async def watch(self, sink: Sink, synced: Callable[[str], None], *, kueue: bool = True) -> None:
        """Pass batches of deltas of all resources to ``sink`` until canceled. It reconnects itself.

        ``synced(resource)`` is called after the first complete list of each resource. ``kueue``: labels and annotations
        with Kueue's prefix also count.
        """

    async def catch_up(self) -> None:
        """Return when the running watch has delivered the state of the cluster at the time of this call, or a newer one.

        It waits for the API server as long as necessary. A watch that is behind, such as one with a dead connection, lists again.
        """

    def uncompared(self) -> list[str]:
        """For which resources :meth:`catch_up` waits, and the error of the API server for each of them."""

    async def patch_job(self, kind: str, namespace: str, name: str, patch: Document) -> int:
        """Merge-patch one job; returns the new resourceVersion."""

    async def patch_pod(self, namespace: str, name: str, patch: Document) -> int:
        """Merge-patch one pod; returns the new resourceVersion."""

    async def delete_pod(self, namespace: str, name: str, uid: str, version: int) -> None:
        """Delete this pod at once, without its node. Only for pods of dead nodes: its containers can continue to run."""

    async def stop_pod(self, namespace: str, name: str, uid: str) -> None:
        """Delete this pod, with its grace period. Only for pods that are workloads, or parts of one."""

    async def evict_pod(self, namespace: str, name: str, uid: str, version: int) -> None:
        """Evict this pod, with its grace period and the condition DisruptionTarget."""

    async def patch_namespace(self, name: str, patch: Document) -> None:
        """Merge-patch one namespace. The patch can change only the label of queuectl."""

    async def patch_node(self, name: str, patch: Document) -> int:
        """Merge-patch one node; returns the new resourceVersion. It needs the right of deploy/optional/mig-reconfiguration.yaml."""

    async def create_object(self, resource: str, document: Document) -> None:
        """Create a ProvisioningRequest or a PodTemplate (``resource``: the plural name). One that exists for the same gang stays as it is.

        WriteRefused: including when the object with its name belongs to another gang, or not to queuectl.
        It needs the right of deploy/optional/provisioning.yaml.
        """

    async def delete_object(self, resource: str, namespace: str, name: str) -> None:
        """Delete a ProvisioningRequest or a PodTemplate. One that does not exist is deleted. It needs the same right."""

    async def create_event(self, job: JobRecord, kind: str, reason: str, message: str) -> None:
        """Write one Event on the job, which has an object (``JobRecord.has_object``). ``kind`` is Normal or Warning."""

    async def probe_policies(self, *, kueue: bool = True) -> list[str]:
        """The missing admission policies of queuectl, by dry run; empty if all are in force.

        ``kueue``: they must also act on Kueue's label; otherwise they must not.
        """

    async def kueue_runs(self) -> bool:
        """Whether a Kueue is installed in this cluster."""

    async def kueue_keys_act(self) -> bool | None:
        """Whether the admission policies act on jobs with Kueue's label; None = not known, because the probe is refused."""

    async def read_admissions(self) -> Sequence[PriorAdmission]:
        """The admissions of a Kueue that was stopped; empty if none was installed."""

    async def close(self) -> None:
        """Give back all connections."""


Clock = Callable[[], float]
