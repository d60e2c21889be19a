"""What a cluster shall be like."""

from __future__ import annotations

from dataclasses import dataclass

from queuectl.localcluster.nodes import NodeSpec

_LEASE_SECONDS = 40
_RENEWALS_PER_SECOND = 50


@dataclass(frozen=True)
class ClusterSpec:
    """What to start.

    Attributes:
        nodes: The nodes to make at once; more can follow by `LocalCluster.nodes.create`.
        fsync: etcd waits for the disk, as in production.  Tests and benchmarks switch it off, and say so.
        controllers: Run what works on objects: kube-controller-manager, kube-scheduler, KWOK.  Without them there are etcd
            and the API server alone, and whoever asked for that plays their parts; no nodes are made.
        training_operator: Run the kubeflow training operator, and know PyTorchJobs.
        lease_seconds: Duration of the node leases, which are renewed four times in that time.  None takes Kubernetes'
            40 s, or longer for so many nodes that their renewals alone would be a load.
    """

    nodes: tuple[NodeSpec, ...] = (NodeSpec(),)
    fsync: bool = True
    controllers: bool = True
    training_operator: bool = True
    lease_seconds: int | None = None

    def __post_init__(self) -> None:
        if not self.controllers and (self.nodes or self.training_operator):
            raise ValueError("ClusterSpec.controllers: without them, no nodes and no operator")
        if self.lease_seconds is not None and self.lease_seconds < 4:
            raise ValueError(
                f"ClusterSpec.lease_seconds must be at least 4, not {self.lease_seconds}"
            )

    @property
    def node_count(self) -> int:
        """How many nodes the spec makes."""
        return sum(spec.count for spec in self.nodes)

    @property
    def effective_lease_seconds(self) -> int:
        """The duration of the node leases, chosen if need be."""
        return self.lease_seconds or max(
            _LEASE_SECONDS, 4 * self.node_count // _RENEWALS_PER_SECOND
        )

    @property
    def node_grace_seconds(self) -> int:
        """How long a node may be silent before it counts as lost: the lease and ten seconds, as in Kubernetes."""
        return self.effective_lease_seconds + 10
