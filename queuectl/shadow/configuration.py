"""The configuration of a moment: that of the database, or else Kueue's objects in the cluster.

This is the only place that decides it. Without a Topology, Kueue and queuectl admit gangs by quota alone, and kube-scheduler finds out later
whether there is room. A report of free GPUs needs the room, so each flavor without a Topology gets one of a single level, the hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from queuectl.domain.fleet import HOSTNAME
from queuectl.objects.configuration.config_kinds import API_VERSION
from queuectl.objects.files.workloads import KIND as WORKLOAD

_GROUP: Final = "kueue.x-k8s.io/"
_QUEUE: Final = "ClusterQueue"
_FLAVOR: Final = "ResourceFlavor"
HOSTS: Final = "queuectl-shadow-hosts"
"""Name of the Topology of flavors that have none."""
Body = dict[str, Any]


def with_configuration(cluster: Sequence[Body], stored: Sequence[Body]) -> list[Body]:
    """The objects of a moment.

    If the database has a ClusterQueue, Kueue's objects do not count. Otherwise both count, so that a Configuration can be applied alone.

    Args:
        cluster: all objects of the cluster, those of Kueue among them.
        stored: the configuration of the database.
    """
    if not any(body.get("kind") == _QUEUE for body in stored):
        return [_hosts(), *map(_on_hosts, (*stored, *cluster))]
    kept: Iterable[Body] = (body for body in cluster if not _configures(body))
    return [_hosts(), *map(_on_hosts, (*stored, *kept))]


def _configures(body: Body) -> bool:
    """Whether it is an object of Kueue's configuration."""
    return str(body.get("apiVersion")).startswith(_GROUP) and body.get("kind") != WORKLOAD


def _hosts() -> Body:
    levels = [{"nodeLabel": HOSTNAME}]
    return {
        "apiVersion": API_VERSION,
        "kind": "Topology",
        "metadata": {"name": HOSTS},
        "spec": {"levels": levels},
    }


def _on_hosts(body: Body) -> Body:
    """A flavor without a Topology with that of the hosts; any other object as it is."""
    spec = body.get("spec") or {}
    if body.get("kind") != _FLAVOR or not isinstance(spec, dict) or spec.get("topologyName"):
        return body
    return {**body, "spec": {**spec, "topologyName": HOSTS}}
