"""The programs of a cluster: their command lines and their health checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from queuectl.localcluster.layout import audit_flags
from queuectl.localcluster.nodes import KUBELET

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from queuectl.localcluster.layout import Layout
    from queuectl.localcluster.spec import ClusterSpec

ETCD = "etcd"
API_SERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
KWOK = "kwok"
FRONT_PROXY = "front-proxy-client"
"""The name of the API server in the certificate with which it passes requests on to aggregated APIs."""

QPS, BURST = 1000, 2000
"""Client limits of the controller manager, the scheduler and the operator, so high that no component waits."""

_SERVICE_CLUSTER_RANGE = "10.0.0.0/16"
_POD_RANGE = "10.128.0.1/9"

_CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "device-taint-eviction-controller",
    "disruption-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "persistentvolume-binder-controller",
    "persistentvolumeclaim-protection-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "replicationcontroller-controller",
    "resourceclaim-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "statefulset-controller",
    "taint-eviction-controller",
    "ttl-after-finished-controller",
    "validatingadmissionpolicy-status-controller",
)


@dataclass(frozen=True)
class ComponentUser:
    """The user of a component at the API server."""

    user: str
    groups: tuple[str, ...] = ()


IDENTITIES = {
    "admin": ComponentUser("queuectl-localcluster-admin", ("system:masters",)),
    CONTROLLER_MANAGER: ComponentUser("system:kube-controller-manager"),
    SCHEDULER: ComponentUser("system:kube-scheduler"),
    # The usual names of these two users, so that flow control and policies apply as in other installations.
    KWOK: ComponentUser(
        "system:serviceaccount:kube-system:kwok-controller",
        ("system:serviceaccounts", "system:serviceaccounts:kube-system"),
    ),
}


@dataclass(frozen=True)
class Component:
    """One program of the cluster.

    Attributes:
        name: Its name, and the name of the program.
        arguments: Its command line without the program.
        health: URL that answers 200 when it is ready.
    """

    name: str
    arguments: tuple[str, ...]
    health: str


def etcd(layout: Layout, *, fsync: bool) -> Component:
    """The database. Without `fsync`, a power failure can lose data, which is acceptable for tests and benchmarks."""
    client, peer = layout.url("etcd"), layout.url("etcd-peer")
    pki = layout.pki
    arguments = [
        "--name=etcd",
        f"--data-dir={layout.etcd_data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=etcd={peer}",
        "--client-cert-auth",
        f"--trusted-ca-file={pki / 'etcd-ca.crt'}",
        f"--cert-file={pki / 'etcd.crt'}",
        f"--key-file={pki / 'etcd.key'}",
        "--peer-client-cert-auth",
        f"--peer-trusted-ca-file={pki / 'etcd-ca.crt'}",
        f"--peer-cert-file={pki / 'etcd.crt'}",
        f"--peer-key-file={pki / 'etcd.key'}",
        f"--quota-backend-bytes={8 << 30}",
        "--log-level=warn",
    ]
    if not fsync:
        arguments.append("--unsafe-no-fsync")
    return Component(ETCD, tuple(arguments), f"{client}/health")


def api_server(layout: Layout, spec: ClusterSpec) -> Component:
    """The API server, with client certificates, ServiceAccount tokens, RBAC, and without anonymous requests."""
    pki = layout.pki
    arguments = (
        f"--etcd-servers={layout.url('etcd')}",
        f"--etcd-cafile={pki / 'etcd-ca.crt'}",
        f"--etcd-certfile={pki / 'etcd.crt'}",
        f"--etcd-keyfile={pki / 'etcd.key'}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={layout.ports[API_SERVER]}",
        # A Service cannot point to the address of the server, which is on loopback.
        "--endpoint-reconciler-type=none",
        f"--tls-cert-file={pki / 'server.crt'}",
        f"--tls-private-key-file={pki / 'server.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        # For the logs of containers on nodes with a kubelet. No name server knows the names of nodes.
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-client-certificate={pki / 'admin.crt'}",
        f"--kubelet-client-key={pki / 'admin.key'}",
        # For aggregated APIs: they believe the name of a user from this certificate only.
        f"--requestheader-client-ca-file={pki / 'front-proxy-ca.crt'}",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki / 'front-proxy.crt'}",
        f"--proxy-client-key-file={pki / 'front-proxy.key'}",
        "--anonymous-auth=false",
        "--authorization-mode=Node,RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'service-account.pub'}",
        f"--service-account-signing-key-file={pki / 'service-account.key'}",
        f"--service-cluster-ip-range={_SERVICE_CLUSTER_RANGE}",
        "--max-requests-inflight=2000",
        "--max-mutating-requests-inflight=1000",
        # There is one server, so watchers need no time to find another.
        "--shutdown-watch-termination-grace-period=0s",
        "--profiling=false",
        *_listed("runtime-config", spec.apis),
        *_gates(spec),
        *audit_flags(layout, spec.audit_policy),
    )
    return Component(API_SERVER, arguments, f"{layout.server}/readyz")


def controller_manager(layout: Layout, spec: ClusterSpec) -> Component:
    """The controllers that jobs, pods, nodes, namespaces and identities need."""
    arguments = (
        *_served(layout, CONTROLLER_MANAGER),
        f"--kubeconfig={layout.kubeconfig(CONTROLLER_MANAGER)}",
        f"--root-ca-file={layout.pki / 'ca.crt'}",
        f"--service-account-private-key-file={layout.pki / 'service-account.key'}",
        "--use-service-account-credentials",
        f"--controllers={','.join((*_CONTROLLERS, *_controllers_of(spec)))}",
        f"--kube-api-qps={QPS}",
        f"--kube-api-burst={BURST}",
        "--concurrent-job-syncs=10",
        f"--node-monitor-grace-period={spec.node_grace_seconds}s",
        "--leader-elect=false",
        "--profiling=false",
        *_gates(spec),
    )
    return Component(CONTROLLER_MANAGER, arguments, f"{layout.url(CONTROLLER_MANAGER)}/healthz")


def scheduler(layout: Layout, spec: ClusterSpec) -> Component:
    """The scheduler. It reads its client limits from a file."""
    path = layout.home / "scheduler.yaml"
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": str(layout.kubeconfig(SCHEDULER)),
            "qps": QPS,
            "burst": BURST,
        },
        "leaderElection": {"leaderElect": False},
        "enableProfiling": False,
    }
    path.write_text(yaml.safe_dump(configuration))
    arguments = (*_served(layout, SCHEDULER), f"--config={path}", *_gates(spec))
    return Component(SCHEDULER, arguments, f"{layout.url(SCHEDULER)}/healthz")


def kwok(layout: Layout, stages: Path, *, lease_seconds: int) -> Component:
    """KWOK, which simulates the kubelets of all nodes."""
    path = layout.home / "kwok.yaml"
    configuration = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "metadata": {"name": "kwok"},
        "options": {
            # A node without the label has no kubelet (Nodes.lose).
            "manageNodesWithLabelSelector": f"{KUBELET}=running",
            "cidr": _POD_RANGE,
            "serverAddress": f"127.0.0.1:{layout.ports[KWOK]}",
            "nodeLeaseDurationSeconds": lease_seconds,
            "nodeLeaseParallelism": 8,
            # Enough to use the API server fully with gangs of hundreds of pods; more would lengthen its queues.
            "podPlayStageParallelism": 16,
            "nodePlayStageParallelism": 8,
            "podsOnNodeSyncParallelism": 4,
            "enableDebuggingHandlers": False,
        },
    }
    path.write_text(yaml.safe_dump(configuration) + "---\n" + stages.read_text())
    # At the default level, it logs a line for every pod.
    arguments = (f"--kubeconfig={layout.kubeconfig(KWOK)}", f"--config={path}", "--v=WARN")
    return Component(KWOK, arguments, f"{layout.url(KWOK, 'http')}/readyz")


def _controllers_of(spec: ClusterSpec) -> tuple[str, ...]:
    """The controllers of feature gates. A controller manager without the gate does not know them in each version."""
    return ("podgroup-protection-controller",) if "GenericWorkload" in spec.feature_gates else ()


def _gates(spec: ClusterSpec) -> tuple[str, ...]:
    return _listed("feature-gates", spec.feature_gates)


def _listed(flag: str, switched_on: Iterable[str]) -> tuple[str, ...]:
    values = ",".join(f"{name}=true" for name in switched_on)
    return (f"--{flag}={values}",) if values else ()


def _served(layout: Layout, name: str) -> tuple[str, ...]:
    """The flags that controller manager and scheduler share."""
    return (
        "--bind-address=127.0.0.1",
        f"--secure-port={layout.ports[name]}",
        f"--tls-cert-file={layout.pki / 'server.crt'}",
        f"--tls-private-key-file={layout.pki / 'server.key'}",
        f"--authentication-kubeconfig={layout.kubeconfig(name)}",
        f"--authorization-kubeconfig={layout.kubeconfig(name)}",
        "--authentication-skip-lookup",
        f"--client-ca-file={layout.pki / 'ca.crt'}",
    )
