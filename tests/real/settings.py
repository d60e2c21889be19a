"""The configuration files of the programs of a node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml

from tests.real import images, needs, network

LEASE_SECONDS: Final = 10
"""Duration of the lease of a node. A node whose kubelet stops is lost ten seconds after the lease ends."""

NODE_MEMORY: Final = 3 << 30
"""Bytes of memory of a node. Its kubelet evicts pods when they use more."""

DISK_FILE: Final = "kubelet.disk"
"""The file in the folder of a node with the disk of its kubelet."""

NODE_DISK: Final = 512 << 20
"""Bytes of the disk of a node, for the volumes of pods. Its kubelet evicts pods when it is nearly full."""

REGISTRIES: Final = "/etc/containerd/certs.d"
"""The folder in which containerd finds the certificate authority of a registry."""

_SOCKET: Final = "/run/containerd/containerd.sock"


def containerd() -> str:
    """Configuration of containerd, as TOML."""
    return f"""
version = 3

# Without the privilege to lower it, the score of a container is at least that of containerd.
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{needs.CNI}"]

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false

[plugins.'io.containerd.cri.v1.images'.registry]
config_path = "{REGISTRIES}"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{images.BASE.name}"

[plugins.'io.containerd.internal.v1.opt']
path = "/var/lib/containerd/opt"

[plugins.'io.containerd.nri.v1.nri']
disable = true
"""


def cni(number: int) -> str:
    """Configuration of the network for a node's pods, as JSON."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": network.pods(number)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugins = [{"type": "ptp", "ipam": ipam}]
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins})


def kubelet(home: Path, *, memory: int = NODE_MEMORY) -> str:
    """Configuration of the kubelet, as YAML."""
    total = _memory_of_machine()
    document: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": f"unix://{_SOCKET}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(home / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(home / "kubelet.crt"),
        "tlsPrivateKeyFile": str(home / "kubelet.key"),
        "clusterDomain": network.DOMAIN,
        "clusterDNS": [network.GATEWAY],
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "oomScoreAdj": 0,
        "nodeLeaseDurationSeconds": LEASE_SECONDS,
        "nodeStatusUpdateFrequency": "5s",
        "volumeStatsAggPeriod": "5s",
        # The node has this much less memory than the machine: what is left belongs to others.
        "evictionHard": {"memory.available": str(total - memory), "nodefs.available": "100Mi"},
        "evictionPressureTransitionPeriod": "10s",
        "imageGCHighThresholdPercent": 100,
    }
    return yaml.safe_dump(document)


def kube_proxy(kubeconfig: Path) -> str:
    """Configuration of kube-proxy, as YAML."""
    document = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": network.POD_RANGE,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        # The limit of connections belongs to the whole machine.
        "conntrack": {"maxPerCore": 0, "min": 0},
    }
    return yaml.safe_dump(document)


def coredns(kubeconfig: Path) -> str:
    """Configuration of CoreDNS: the names of Services and of their pods, and no others."""
    return f"""
. {{
  bind {network.GATEWAY}
  errors
  kubernetes {network.DOMAIN} {{
    kubeconfig {kubeconfig}
  }}
}}
"""


def _memory_of_machine() -> int:
    first = Path("/proc/meminfo").read_text().splitlines()[0]
    return int(first.split()[1]) * 1024
