"""The programs of a real node, built from source as those of the control plane: kubelet, kube-proxy, containerd and CoreDNS."""

from __future__ import annotations

from dataclasses import replace

from queuectl.localcluster import build
from queuectl.localcluster.progress import LineProgress
from queuectl.localcluster.versions import UNITS, Patch, Unit

_KUBERNETES = next(unit for unit in UNITS if unit.name == "kubernetes")

KUBELET = replace(
    _KUBERNETES,
    name="kubelet",
    programs={name: f"cmd/{name}" for name in ("kubelet", "kube-proxy")},
    minutes=4.0,
)

CONTAINERD = Unit(
    name="containerd",
    module="github.com/containerd/containerd/v2",
    version="v2.1.4",
    programs={name: f"cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
    tags=("no_btrfs", "no_devmapper", "no_zfs"),
    minutes=3.0,
)

_ALL_PLUGINS = '_ "github.com/coredns/coredns/core/plugin" // Plug in CoreDNS.'
_PLUGINS = "\n\t".join(
    f'_ "github.com/coredns/coredns/plugin/{name}"' for name in ("bind", "errors", "kubernetes")
)

COREDNS = Unit(
    name="coredns",
    module="github.com/coredns/coredns",
    version="v1.12.4",
    programs={"coredns": ""},
    # The plugins of clouds and databases, which the full program carries, take most of its build.
    patches=(Patch(_ALL_PLUGINS, _PLUGINS),),
    minutes=2.0,
)

NODE_UNITS = (KUBELET, CONTAINERD, COREDNS)


def ensure() -> build.Assets:
    """Find or build every program of a node.

    Raises:
        BuildError: A step failed; the message names it and its log.
    """
    return build.ensure(LineProgress(), units=NODE_UNITS)


if __name__ == "__main__":
    print(*ensure().programs.values(), sep="\n")
