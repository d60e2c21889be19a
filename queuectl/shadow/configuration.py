"""The flavors of an observation have a Topology.

Without a Topology, Kueue and queuectl admit gangs by quota alone, and kube-scheduler finds out later whether there is room. A report of free
GPUs needs the room, so each flavor without a Topology gets one of a single level, the hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from queuectl.domain.fleet import HOSTNAME
from queuectl.objects.configuration.config_kinds import API_VERSION

_FLAVOR: Final = "ResourceFlavor"
HOSTS: Final = "queuectl-shadow-hosts"
"""Name of the Topology of flavors that have none."""
Body = dict[str, Any]


def on_hosts(bodies: Iterable[Mapping[str, Any]]) -> list[Body]:
    """The objects of an observation, with a Topology for each flavor."""
    levels = [{"nodeLabel": HOSTNAME}]
    hosts = {
        "apiVersion": API_VERSION,
        "kind": "Topology",
        "metadata": {"name": HOSTS},
        "spec": {"levels": levels},
    }
    return [hosts, *map(_on_hosts, bodies)]


def _on_hosts(body: Mapping[str, Any]) -> Body:
    spec = body.get("spec") or {}
    if body.get("kind") != _FLAVOR or not isinstance(spec, dict) or spec.get("topologyName"):
        return dict(body)
    return {**body, "spec": {**spec, "topologyName": HOSTS}}
