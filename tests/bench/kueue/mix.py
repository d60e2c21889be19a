"""Kueue's own performance workloads as objects of ours: queues, nodes, and Jobs with the moments they are created at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from queuectl.demo.scenario import Document, local_queue, namespaces, priority_class

_DATA: Final = Path(__file__).parent.parent / "data" / "kueue-perf"
_API: Final = "queuectl.dev/v1"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One workload. ``at`` and ``runtime`` in seconds, ``cpu`` of all its pods in cores."""

    at: float
    name: str
    queue: str
    klass: str
    runtime: float
    cpu: float
    document: Document


@dataclass(frozen=True, slots=True)
class Queue:
    """``nominal`` quota in cores; the namespace and the LocalQueue have its name too."""

    name: str
    nominal: float


@dataclass(frozen=True)
class Mix:
    """One of the three workloads, whole or a part of it.

    Attributes:
        config: what is applied before anything arrives.
        arrivals: in order of time.
    """

    name: str
    queues: tuple[Queue, ...]
    config: tuple[Document, ...]
    nodes: tuple[Document, ...]
    arrivals: tuple[Arrival, ...]

    @property
    def spaces(self) -> list[Document]:
        return namespaces(queue.name for queue in self.queues)


def read(name: str, part: float = 1.0, cohorts: int | None = None) -> Mix:
    """One of ``baseline``, ``large-scale`` and ``tas``.

    Args:
        name: Which.
        part: Of each set's workloads, at least one each.
        cohorts: So many of each class of cohorts at most; None takes all.
    """
    data = json.loads((_DATA / f"{name}.json").read_text())
    queues: list[Queue] = []
    config: list[Document] = [*_flavor(data)]
    arrivals: list[Arrival] = []
    priorities: set[int] = set()
    for cohort_class in data["cohorts"]:
        for cohort in range(cohort_class["count"])[:cohorts]:
            for spec in cohort_class["queuesSets"]:
                for number in range(spec["count"]):
                    queue = Queue(f"q-{cohort}-{number}", float(spec["nominalQuota"]))
                    queues.append(queue)
                    config += _queue(queue, f"cohort-{cohort}", spec)
                    arrivals += _arrivals(queue, spec["workloadsSets"], part, priorities)
    classes = [priority_class(f"p{value}", value) for value in sorted(priorities)]
    arrivals.sort(key=lambda one: (one.at, one.name))
    nodes = tuple(_nodes(data)) if "topology" in data else ()
    return Mix(name, tuple(queues), (*classes, *config), nodes, tuple(arrivals))


def _flavor(data: dict[str, Any]) -> Iterator[Document]:
    if "topology" not in data:
        yield {"apiVersion": _API, "kind": "ResourceFlavor", "metadata": {"name": "default"}}
        return
    levels = [{"nodeLabel": level["nodeLabel"]} for level in data["topology"]["levels"]]
    yield {
        "apiVersion": _API,
        "kind": "Topology",
        "metadata": {"name": "default"},
        "spec": {"levels": levels},
    }
    yield {
        "apiVersion": _API,
        "kind": "ResourceFlavor",
        "metadata": {"name": "default"},
        "spec": {
            "nodeLabels": {data["resourceFlavor"]["nodeLabel"]: "yes"},
            "topologyName": "default",
        },
    }


def _queue(queue: Queue, cohort: str, spec: dict[str, Any]) -> Iterator[Document]:
    quota = {
        "name": "cpu",
        "nominalQuota": spec["nominalQuota"],
        "borrowingLimit": spec["borrowingLimit"],
    }
    yield {
        "apiVersion": _API,
        "kind": "ClusterQueue",
        "metadata": {"name": queue.name},
        "spec": {
            "cohortName": cohort,
            "namespaceSelector": {},
            "preemption": {
                "reclaimWithinCohort": spec["reclaimWithinCohort"],
                "withinClusterQueue": spec["withinClusterQueue"],
            },
            "resourceGroups": [
                {
                    "coveredResources": ["cpu"],
                    "flavors": [{"name": "default", "resources": [quota]}],
                }
            ],
        },
    }
    yield local_queue(queue.name, queue.name, queue.name)


def _arrivals(
    queue: Queue, sets: list[dict[str, Any]], part: float, priorities: set[int]
) -> Iterator[Arrival]:
    for number, one in enumerate(sets):
        for kind in one["workloads"]:
            priorities.add(kind["priority"])
            for i in range(max(1, round(one["count"] * part))):
                name = f"{kind['className']}-{number}-{i}"
                yield Arrival(
                    at=(i + 1) * one["creationIntervalMs"] / 1000,
                    name=name,
                    queue=queue.name,
                    klass=kind["className"].partition("-")[0],
                    runtime=kind["runtimeMs"] / 1000,
                    cpu=_cores(str(kind["request"])) * kind.get("podCount", 1),
                    document=_job(name, queue.name, kind),
                )


def _cores(text: str) -> float:
    return float(Decimal(text[:-1]) / 1000) if text.endswith("m") else float(text)


def _job(name: str, queue: str, kind: dict[str, Any]) -> Document:
    pods = kind.get("podCount", 1)
    template = {
        "metadata": {"annotations": _topology(kind)},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "c",
                    "image": "none",
                    "resources": {"requests": {"cpu": str(kind["request"])}},
                }
            ],
        },
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": queue,
            "labels": {
                "queuectl.dev/queue-name": queue,
                "queuectl.dev/priority-class": f"p{kind['priority']}",
            },
        },
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "suspend": True,
            "template": template,
        },
    }


def _topology(kind: dict[str, Any]) -> dict[str, str]:
    how, level = kind.get("tasConstraint"), kind.get("tasLevel", "")
    if how is None:
        return {}
    prefix = "queuectl.dev/podset-"
    if how != "balanced":  # Kueue's name there for slices
        return {f"{prefix}{how}-topology": level}
    size = str(kind["sliceSize"])
    return {f"{prefix}slice-required-topology": level, f"{prefix}slice-size": size}


def _nodes(data: dict[str, Any]) -> Iterator[Document]:
    block, rack, host = data["topology"]["levels"]
    label = data["resourceFlavor"]["nodeLabel"]
    resources = {**host["capacity"], "pods": "110"}
    for b in range(block["count"]):
        for r in range(rack["count"]):
            for h in range(host["count"]):
                name = f"b{b}-r{r}-h{h}"
                yield {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {
                        "name": name,
                        "labels": {
                            block["nodeLabel"]: f"b{b}",
                            rack["nodeLabel"]: f"b{b}-r{r}",
                            host["nodeLabel"]: name,
                            label: "yes",
                        },
                    },
                    "status": {
                        "capacity": resources,
                        "allocatable": resources,
                        "conditions": [{"type": "Ready", "status": "True", "reason": "Fake"}],
                    },
                }
