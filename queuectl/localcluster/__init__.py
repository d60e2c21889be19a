"""A real Kubernetes control plane on one machine, for the demo, the tests, the benchmarks and manual use.

The components are etcd, kube-apiserver, kube-controller-manager, kube-scheduler, KWOK, which simulates the kubelets of GPU
nodes, and operators of job kinds: the kubeflow training operator, and on demand those of `operators.OPERATORS`.  The programs are built once for each version (about five minutes on two cores) and
cached.  A cluster then starts in a few seconds.  All servers listen only on loopback, with authentication and RBAC.

    from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec

    spec = ClusterSpec(nodes=(NodeSpec(blocks=2, racks_per_block=4, hosts_per_rack=8),), fsync=False)
    with LocalCluster.start(spec) as cluster:
        cluster.kubeconfig                                       # path, all rights
        cluster.kubeconfig_for_service_account("queuectl-system", "queuectl")
        cluster.kubeconfig_for_user("alice", ["team-a"])
        cluster.client.apply({...})                              # a small synchronous API client
        cluster.nodes.lose("b0-r0-h0")                           # delete, cordon, restore, create, wait_ready
        cluster.add_operator("jobset")                           # ClusterSpec(operators=(...)) for the start
        cluster.restart_apiserver()                              # kill_apiserver, start_apiserver, pause, resume

`start` blocks; with asyncio, call it as `await asyncio.to_thread(LocalCluster.start, spec)`.  The processes belong to a
keeper process and not to the calling thread.  They end with the calling process, even if that is killed.

In tests:

    @pytest.fixture(scope="session")
    def cluster():
        with testing.local_cluster(nodes=(NodeSpec(),)) as cluster:
            yield cluster

    def test_it(cluster):
        with cluster.namespace() as namespace: ...

Annotations on a pod (for a job, on its pod template) control its simulation, in seconds:
`kwok.queuectl.dev/{start,run,terminate}-seconds` and `kwok.queuectl.dev/fail-after-seconds`; without them, a pod runs
at once, until it is deleted.  See manifests/stages.yaml.

`exporter.Exporters` simulates the GPU exporters of the nodes, with further annotations.  `prometheus.Prometheus` is a real
Prometheus to scrape them; it is not part of a cluster, but is built in the same way.

On the command line: `queuectl localcluster up | status | down | build | exporters`.
"""

from queuectl.localcluster.cluster import LocalCluster, take_down
from queuectl.localcluster.errors import (
    ApiServerError,
    BuildError,
    LocalClusterError,
    UnreachableError,
)
from queuectl.localcluster.nodes import NodeSpec, NodeTaint
from queuectl.localcluster.spec import ClusterSpec

__all__ = [
    "ApiServerError",
    "BuildError",
    "ClusterSpec",
    "LocalCluster",
    "LocalClusterError",
    "NodeSpec",
    "NodeTaint",
    "UnreachableError",
    "take_down",
]
