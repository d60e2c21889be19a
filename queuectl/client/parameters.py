"""The parameters of the client's methods. At run time, only type checkers need this module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

WorkloadRef = str | Mapping[str, object]
"""``NAME``, ``NAMESPACE/NAME``, or a workload as the server returned it."""
ActionName = Literal[
    "hold", "release", "requeue", "preempt", "deactivate", "activate", "priority", "move", "check"
]
ReportName = Literal["usage", "cost", "waste", "waits", "efficiency", "budgets", "shadow"]


class OptionValues(TypedDict, total=False):
    """The options of a client by their names: see :class:`ClientOptions`."""

    token: str | None
    token_file: str | Path | None
    service_account: str | None
    ca_file: str | Path | None
    tls_server_name: str | None
    kubeconfig: str | None
    context: str | None


class WorkloadFilters(TypedDict, total=False):
    """Filters of a list of workloads; each that is set must match.

    ``sort`` is one of ``name``, ``state``, ``clusterQueue``, ``user``, ``gpus``, ``priority``, ``queuedAt``, ``since``, ``urgency``;
    ``-`` in front reverses the order. Default: ``name``.
    """

    namespace: str | None
    queue: str | None
    cluster_queue: str | None
    kind: str | None
    state: str | Sequence[str] | None
    user: str | None
    reason: str | None
    label_selector: str | None
    sort: str | None


class EventFilters(TypedDict, total=False):
    """Filters of events; each that is set must match."""

    namespace: str | None
    cluster_queue: str | None
    uid: str | None


class NodeFilters(TypedDict, total=False):
    """Filters of a list of nodes.

    ``domain``: labels as ``KEY=VALUE``, all of which a node must have. ``free``: the minimum number of free GPUs.
    """

    domain: str | Sequence[str] | None
    free: float | None
    schedulable: bool | None
    search: str | None


class PlanChanges(TypedDict, total=False):
    """The changes of a what-if, which apply together.

    ``submit``: jobs as in a manifest. ``config``: configuration to apply. ``manifests``: both as YAML. ``drain``: names of nodes.
    ``add``: ``{"like": NODE, "count": N}``. ``delete``: ``{"kind": ..., "name": ..., "namespace": ...}``.
    """

    submit: Sequence[dict[str, Any]]
    config: Sequence[dict[str, Any]]
    manifests: str
    drain: Sequence[str]
    add: Sequence[dict[str, Any]]
    delete: Sequence[dict[str, Any]]
