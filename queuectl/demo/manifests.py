"""Jobs, PyTorchJobs and configuration documents as plain dicts, for the demo, system tests and benchmarks.

KWOK simulates the pods of a job. ``seconds`` is the run time of each pod (None = until it is deleted), see
localcluster/manifests/stages.yaml. No component pulls the image of the containers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.quantity import CPU, GPU, MEMORY
from queuectl.objects import keys
from queuectl.objects.configuration.config_kinds import API_VERSION

Document = dict[str, Any]

RUN_SECONDS: Final = "kwok.queuectl.dev/run-seconds"
TERMINATE_SECONDS: Final = "kwok.queuectl.dev/terminate-seconds"
FAIL_SECONDS: Final = "kwok.queuectl.dev/fail-after-seconds"
_IMAGE: Final = "registry.invalid/trainer:1"


@dataclass(frozen=True, slots=True)
class PodSetManifest:
    """One PodSet.

    Attributes:
        count: number of pods.
        gpus: GPUs per pod.
        cpu: CPU per pod, a quantity.
        memory: memory per pod, a quantity; None = no request.
        required: node label of the topology level of which the pods must be in one domain.
        preferred: the same, if possible.
        group: name of a group of PodSets that must share that domain.
        annotations: further annotations of the pod template.
    """

    count: int = 1
    gpus: int = 0
    cpu: str = "1"
    memory: str | None = None
    required: str | None = None
    preferred: str | None = None
    group: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)

    def template(self, container: str, seconds: float | None, *, restart: str) -> Document:
        """The pod template, which KWOK runs for ``seconds``."""
        given = {
            RUN_SECONDS: None if seconds is None else str(seconds),
            keys.PREFIX + keys.REQUIRED_TOPOLOGY: self.required,
            keys.PREFIX + keys.PREFERRED_TOPOLOGY: self.preferred,
            keys.PREFIX + keys.GROUP_NAME: self.group,
        }
        annotations = {key: value for key, value in given.items() if value is not None}
        requested = {CPU: self.cpu, MEMORY: self.memory, GPU: str(self.gpus) if self.gpus else None}
        amounts = {name: value for name, value in requested.items() if value is not None}
        return {
            "metadata": {"annotations": annotations | dict(self.annotations)},
            "spec": {
                "restartPolicy": restart,
                "containers": [
                    {
                        "name": container,
                        "image": _IMAGE,
                        "resources": {"requests": amounts, "limits": amounts},
                    }
                ],
            },
        }


def job(
    name: str,
    namespace: str,
    queue: str | None,
    pods: PodSetManifest,
    *,
    seconds: float | None = None,
    priority_class: str | None = None,
    indexed: bool = True,
    retries: int = 0,
    annotations: Mapping[str, str] | None = None,
) -> Document:
    """A batch/v1 Job of one gang; ``queue`` None leaves it unmanaged, ``retries`` is its backoffLimit."""
    spec = {
        "parallelism": pods.count,
        "completions": pods.count,
        "completionMode": "Indexed" if indexed else "NonIndexed",
        "backoffLimit": retries,
        "template": pods.template("main", seconds, restart="Never"),
    }
    meta = _metadata(name, namespace, queue, priority_class, annotations)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def pytorchjob(
    name: str,
    namespace: str,
    queue: str | None,
    *,
    master: PodSetManifest | None = None,
    worker: PodSetManifest | None = None,
    seconds: float | None = None,
    priority_class: str | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Document:
    """A kubeflow.org/v1 PyTorchJob with a master, workers, or both; ``queue`` None leaves it unmanaged."""
    replicas = {
        kind: {
            "replicas": pods.count,
            "restartPolicy": "Never",
            # The operator requires this container name.
            "template": pods.template("pytorch", seconds, restart="Never"),
        }
        for kind, pods in (("Master", master), ("Worker", worker))
        if pods is not None
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": _metadata(name, namespace, queue, priority_class, annotations),
        "spec": {"runPolicy": {"cleanPodPolicy": "None"}, "pytorchReplicaSpecs": replicas},
    }


def _metadata(
    name: str,
    namespace: str,
    queue: str | None,
    priority_class: str | None,
    annotations: Mapping[str, str] | None,
) -> Document:
    labels = {keys.QUEUE_LABEL: queue, keys.PREFIX + keys.PRIORITY_CLASS: priority_class}
    written = {key: value for key, value in labels.items() if value is not None}
    return {
        "name": name,
        "namespace": namespace,
        "labels": written,
        "annotations": dict(annotations or {}),
    }


# ---- configuration


def topology(name: str, *levels: str) -> Document:
    """A Topology. ``levels``: node labels, from coarse to fine; the hostname is added."""
    listed = [{"nodeLabel": level} for level in (*levels, HOSTNAME)]
    return _config("Topology", name, {"levels": listed})


def flavor(name: str, *, topology: str | None = None, **node_labels: str) -> Document:
    """A ResourceFlavor."""
    spec: Document = {"nodeLabels": node_labels} if node_labels else {}
    return _config("ResourceFlavor", name, spec | ({"topologyName": topology} if topology else {}))


def cluster_queue(
    name: str,
    flavor: str,
    quotas: Mapping[str, int | str],
    *,
    strategy: str = "BestEffortFIFO",
    within: str = "LowerPriority",
) -> Document:
    """A ClusterQueue of one flavor for all namespaces.

    Args:
        name: name of the queue.
        flavor: its ResourceFlavor.
        quotas: nominal quota by resource.
        strategy: queueingStrategy.
        within: preemption.withinClusterQueue.
    """
    resources = [{"name": key, "nominalQuota": value} for key, value in quotas.items()]
    group = {
        "coveredResources": list(quotas),
        "flavors": [{"name": flavor, "resources": resources}],
    }
    spec = {
        "namespaceSelector": {},
        "queueingStrategy": strategy,
        "preemption": {"withinClusterQueue": within},
        "resourceGroups": [group],
    }
    return _config("ClusterQueue", name, spec)


def local_queue(namespace: str, name: str, cluster_queue: str) -> Document:
    """A LocalQueue."""
    document = _config("LocalQueue", name, {"clusterQueue": cluster_queue})
    document["metadata"]["namespace"] = namespace
    return document


def priority_class(name: str, priority: int) -> Document:
    """A WorkloadPriorityClass."""
    document = _config("WorkloadPriorityClass", name, None)
    return document | {"value": priority}


def namespaces(names: Iterable[str]) -> list[Document]:
    """Namespaces to apply."""
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": one}} for one in names]


def _config(kind: str, name: str, spec: Document | None) -> Document:
    document: Document = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}}
    return document if spec is None else document | {"spec": spec}
