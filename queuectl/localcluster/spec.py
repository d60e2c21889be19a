"""The description of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from queuectl.localcluster import operators
from queuectl.localcluster.nodes import NodeSpec
from queuectl.localcluster.versions import KUBERNETES

_LEASE_SECONDS = 40
_RENEWALS_PER_SECOND = 50


@dataclass(frozen=True)
class ClusterSpec:
    """The components and nodes of a cluster.

    Attributes:
        nodes: The nodes at the start; `LocalCluster.nodes.create` adds more.
        fsync: etcd waits for the disk, as in production.  Tests and benchmarks switch it off.
        controllers: Run kube-controller-manager, kube-scheduler and KWOK.  Without them, the cluster has only etcd and
            the API server, without nodes, and the caller simulates the controllers.
        operators: Operators of job kinds, by their names in `operators.OPERATORS`; each brings those that it needs.
        lease_seconds: Duration of the node leases, which are renewed four times in that time.  None takes Kubernetes'
            40 s, or longer for many nodes, whose renewals would load the API server.
        kubernetes: Release of Kubernetes, such as `1.36.3`.
        feature_gates: Feature gates of Kubernetes that are on, in addition to those that are on by default.
        proxy: Address of an HTTP proxy for the requests of the operators to addresses other than loopback, such as `127.0.0.1:8080`;
            "" = none. No program can reach the pods, because they run no program.
        audit_policy: File with an audit policy, for the log `audit` of the cluster; "" = no such log.
        apis: Versions of APIs that the API server serves, in addition to those that it serves by default, such as `resource.k8s.io/v1beta2`.
    """

    nodes: tuple[NodeSpec, ...] = (NodeSpec(),)
    fsync: bool = True
    controllers: bool = True
    operators: tuple[str, ...] = (operators.TRAINING_OPERATOR,)
    lease_seconds: int | None = None
    kubernetes: str = KUBERNETES
    feature_gates: tuple[str, ...] = ()
    apis: tuple[str, ...] = ()
    proxy: str = ""
    audit_policy: str = ""

    def __post_init__(self) -> None:
        if not self.controllers and (self.nodes or self.operators):
            raise ValueError("ClusterSpec.controllers: without them, no nodes and no operator")
        if unknown := sorted({*self.operators} - {*operators.OPERATORS}):
            known = ", ".join(operators.OPERATORS)
            raise ValueError(f"operators: {unknown[0]!r} is none of {known}")
        if self.lease_seconds is not None and self.lease_seconds < 4:
            raise ValueError(
                f"ClusterSpec.lease_seconds must be at least 4, not {self.lease_seconds}"
            )

    @property
    def node_count(self) -> int:
        """The number of nodes."""
        return sum(spec.count for spec in self.nodes)

    @property
    def effective_lease_seconds(self) -> int:
        """The duration of the node leases, given or chosen."""
        return self.lease_seconds or max(
            _LEASE_SECONDS, 4 * self.node_count // _RENEWALS_PER_SECOND
        )

    @property
    def node_grace_seconds(self) -> int:
        """The time without a heartbeat after which a node is lost: the lease and ten seconds, as in Kubernetes."""
        return self.effective_lease_seconds + 10
