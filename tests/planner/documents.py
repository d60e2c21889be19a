"""Ordinary objects in short form, and the result of ``queuectl plan`` for them: the whole path from documents to plan.

Resource names are shortened as in :mod:`tests.planner.build`: ``gpu`` is the GPU resource.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from queuectl.domain.plan import Plan
from queuectl.domain.quantity import GPU
from queuectl.domain.snapshot import Snapshot
from queuectl.objects.documents import as_document
from queuectl.objects.files.plans import plan_document
from queuectl.offline.inputs import read_snapshot
from queuectl.planner import plan
from queuectl.planner.verify import verify

Doc = dict[str, Any]

OURS = "queuectl.dev/v1"
RACK, HOST = "topology/rack", "kubernetes.io/hostname"


def _named(resource: str) -> str:
    return GPU if resource == "gpu" else resource


def _object(kind: str, name: str, spec: Doc, version: str = OURS, **metadata: Any) -> Doc:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }


def quota(nominal: int, borrowing: int | None = None, lending: int | None = None) -> Doc:
    limits = {"borrowingLimit": borrowing, "lendingLimit": lending}
    return {"nominalQuota": nominal} | {k: v for k, v in limits.items() if v is not None}


def groups(flavors: Mapping[str, Mapping[str, Doc | int]]) -> list[Doc]:
    """One resource group: flavor to resource to quota, in order of preference."""
    covered = [_named(r) for r in next(iter(flavors.values()))]
    return [
        {
            "coveredResources": covered,
            "flavors": [
                {
                    "name": name,
                    "resources": [
                        {"name": _named(r)} | (q if isinstance(q, dict) else quota(q))
                        for r, q in quotas.items()
                    ],
                }
                for name, quotas in flavors.items()
            ],
        }
    ]


def cluster_queue(
    name: str,
    gpu: Doc | int = 0,
    cohort: str | None = None,
    *,
    flavors: Mapping[str, Doc | int] | None = None,
    **spec: Any,
) -> list[Doc]:
    """A ClusterQueue and the LocalQueue of the same name that leads to it. ``flavors``: GPU quota of each, if several."""
    offered = flavors if flavors is not None else {"default": gpu}
    spec |= {"cohortName": cohort} if cohort is not None else {}
    queue = {
        "namespaceSelector": {},
        "resourceGroups": groups({f: {"gpu": q} for f, q in offered.items()}),
    }
    return [
        _object("ClusterQueue", name, queue | spec),
        _object("LocalQueue", name, {"clusterQueue": name}),
    ]


def cohort(name: str, parent: str | None = None, gpu: Doc | int | None = None) -> Doc:
    spec: Doc = {"parentName": parent} if parent is not None else {}
    if gpu is not None:
        spec["resourceGroups"] = groups({"default": {"gpu": gpu}})
    return _object("Cohort", name, spec)


def flavor(name: str = "default", *, topology: bool = False, **labels: str) -> Doc:
    spec: Doc = {"nodeLabels": labels} if labels else {}
    return _object("ResourceFlavor", name, spec | ({"topologyName": "racks"} if topology else {}))


TOPOLOGY = _object("Topology", "racks", {"levels": [{"nodeLabel": RACK}, {"nodeLabel": HOST}]})


def nodes(rack: str, count: int, gpu: int = 8, **labels: str) -> list[Doc]:
    """Idle nodes ``<rack>0`` and so on in one rack."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": f"{rack}{i}",
                "labels": {RACK: rack, HOST: f"{rack}{i}", **labels},
            },
            "status": {
                "allocatable": {GPU: gpu, "pods": 110},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        for i in range(count)
    ]


def workload(
    name: str,
    queue: str,
    count: int = 1,
    gpu: int = 1,
    *,
    priority: int = 0,
    at: int = 0,
    least: int | None = None,
    rack: bool = False,
    slices: int | None = None,
    flavor: str | None = None,
    on: Mapping[str, int] | None = None,
) -> Doc:
    """A gang of ``count`` pods created at second ``at``; with ``flavor`` it runs on that flavor, on the nodes ``on``."""
    template = {"spec": {"containers": [{"resources": {"requests": {GPU: str(gpu)}}}]}}
    podset: Doc = {"name": "main", "count": count, "template": template}
    if least is not None:
        podset["minCount"] = least
    request: Doc = {"required": RACK} if rack else {}
    if slices is not None:
        request |= {"podSetSliceRequiredTopology": RACK, "podSetSliceSize": slices}
    podset |= {"topologyRequest": request} if request else {}
    spec = {"queueName": queue, "priority": priority, "podSets": [podset]}
    created = f"2026-01-01T00:{at // 60:02}:{at % 60:02}Z"
    body = _object("Workload", name, spec, "kueue.x-k8s.io/v1beta2", creationTimestamp=created)
    if flavor is not None:
        body["status"] = _admitted(queue, count, gpu, flavor, on)
    return body


def _admitted(queue: str, count: int, gpu: int, flavor: str, on: Mapping[str, int] | None) -> Doc:
    assignment: Doc = {
        "name": "main",
        "count": count,
        "flavors": {GPU: flavor},
        "resourceUsage": {GPU: str(gpu * count)},
    }
    if on is not None:
        domains = [{"values": [node], "count": pods} for node, pods in on.items()]
        assignment["topologyAssignment"] = {"levels": [HOST], "domains": domains}
    admitted = {
        "type": "Admitted",
        "status": "True",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    return {
        "admission": {"clusterQueue": queue, "podSetAssignments": [assignment]},
        "conditions": [admitted],
    }


@dataclass(frozen=True)
class Planned:
    """Documents, planned and verified."""

    snapshot: Snapshot
    plan: Plan
    document: Doc

    @property
    def started(self) -> list[str]:
        """Names of the gangs that start, in queue order."""
        return [a["workload"].partition("/")[2] for a in self.document["admitted"]]

    @property
    def victims(self) -> list[str]:
        return sorted(v["workload"].partition("/")[2] for v in self.document["preempted"])

    @property
    def waiting(self) -> dict[str, str]:
        """Name to the main reason's code."""
        return {
            p["workload"].partition("/")[2]: p["reasons"][0]["code"]
            for p in self.document["pending"]
        }

    def reason(self, name: str) -> Doc:
        (only,) = [p for p in self.document["pending"] if p["workload"] == f"default/{name}"]
        reason: Doc = only["reasons"][0]
        return reason

    def podset(self, name: str) -> Doc:
        """The first podset of a gang that starts."""
        (only,) = [a for a in self.document["admitted"] if a["workload"] == f"default/{name}"]
        podset: Doc = only["podSets"][0]
        return podset

    def flavor(self, name: str) -> str:
        """Charged for its GPUs."""
        flavors: dict[str, str] = self.podset(name)["flavors"]
        return flavors[GPU]


def planned(*parts: Doc | Iterable[Doc], now: float | None = None) -> Planned:
    """The plan for these objects; the reader must accept each of them and the verifier the plan."""
    documents = [d for part in parts for d in ([part] if isinstance(part, dict) else part)]
    given = read_snapshot([as_document(d) for d in documents], now)
    assert given.warnings == ()
    made = plan(given.snapshot)
    assert verify(given.snapshot, made) == ()
    return Planned(given.snapshot, made, plan_document(given.snapshot, made))
