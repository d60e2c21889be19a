"""A real Kubernetes control plane on one machine: for the demo, the tests, the benchmarks, and for people.

etcd, kube-apiserver, kube-controller-manager, kube-scheduler, the kubeflow training operator, and KWOK, which plays the
kubelets of GPU nodes.  The programs are built once per version (about ten minutes on two cores) and cached; then a
cluster is up in a few seconds.  Everything listens on loopback alone, with authentication and RBAC on.

    from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec

    spec = ClusterSpec(nodes=(NodeSpec(blocks=2, racks_per_block=4, hosts_per_rack=8),), fsync=False)
    with LocalCluster.start(spec) as cluster:
        cluster.kubeconfig                                       # path, all rights
        cluster.kubeconfig_for_service_account("queuectl-system", "queuectl")
        cluster.kubeconfig_for_user("alice", ["team-a"])
        cluster.client.apply({...})                              # a small synchronous API client
        cluster.nodes.lose("b0-r0-h0")                           # delete, cordon, restore, create, wait_ready
        cluster.restart_apiserver()                              # kill_apiserver, start_apiserver, pause, resume

`start` blocks; from asyncio call it as `await asyncio.to_thread(LocalCluster.start, spec)`.  The processes belong to a
keeper process, not to the calling thread, and end with the calling process even if that is killed.

In tests:

    @pytest.fixture(scope="session")
    def cluster():
        with testing.local_cluster(nodes=(NodeSpec(),)) as cluster:
            yield cluster

    def test_it(cluster):
        with cluster.namespace() as namespace: ...

What pods do is told by annotations on them (for a job: on its pod template), numbers of seconds:
`kwok.queuectl.dev/{start,run,terminate}-seconds` and `kwok.queuectl.dev/fail-after-seconds`; without them a pod runs at
once, until it is deleted.  See manifests/stages.yaml.

What their GPUs do is played by `exporter.Exporters`, the stand-in of the nodes' GPU exporters, by further annotations; a
real Prometheus to scrape it is `prometheus.Prometheus`, no part of a cluster but built in the same way.

For people: `queuectl localcluster up | status | down | build | exporters`.
"""

from queuectl.localcluster.cluster import LocalCluster, take_down
from queuectl.localcluster.errors import (
    BuildError,
    LocalClusterError,
    RequestError,
    UnreachableError,
)
from queuectl.localcluster.nodes import NodeSpec, Taint
from queuectl.localcluster.spec import ClusterSpec

__all__ = [
    "BuildError",
    "ClusterSpec",
    "LocalCluster",
    "LocalClusterError",
    "NodeSpec",
    "RequestError",
    "Taint",
    "UnreachableError",
    "take_down",
]
