"""The scenario of the demo: 512 GPUs, two teams, three phases of gangs, and the expected outcome of each gang.

1. **First**: two gangs of 64 GPUs use most of team-b's quota. They differ only in the use of their GPUs.
2. **Burst**: gangs from 1 to 256 GPUs of both kinds of job, more than fit at once.
3. **Urgent**: after queuectl has measured an idle gang, a gang of higher priority that fits only if one of the first two is
   preempted. It must be the idle one.

Simulated exporters (localcluster/exporter.py) report the use of GPUs, and a real Prometheus scrapes them. The manifests of jobs and
configuration are plain dicts, which system tests and benchmarks use as well. KWOK simulates the pods of a job. ``seconds`` is the run
time of each pod (None = until it is deleted), see localcluster/manifests/stages.yaml. No component pulls the image of the containers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.quantity import CPU, GPU, MEMORY, Resources
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.exporter import PROFILE
from queuectl.localcluster.nodes import BLOCK, PRODUCT, RACK
from queuectl.objects import keys
from queuectl.objects.configuration.config_kinds import API_VERSION

# ---- The gangs

NODES: Final = NodeSpec(blocks=2, racks_per_block=4, hosts_per_rack=8, gpus=8)
GPUS: Final = NODES.count * NODES.gpus
QUEUE: Final = "training"
QUOTAS: Final = {"team-a": 352, "team-b": 160}
LIMITS: Final = {(team, QUEUE): Resources({GPU: quota}) for team, quota in QUOTAS.items()}
_CPU_PER_GPU: Final = 12
_GIB_PER_GPU: Final = 128
BATCH, URGENT = "batch", "urgent"
_IDLE_RECLAIM: Final[Document] = {
    "mode": "OnDemand",
    "windowSeconds": 4,
    "memoryWindowSeconds": 4,
    "warmupSeconds": 1,
    "graceSeconds": 1,
}
"""``idleReclaim`` of every queue of the demo: seconds, where a cluster has half an hour."""
SCRAPE_SECONDS: Final = 1.0
SETTINGS: Final = {
    "QUEUECTL_UTILIZATION__EVALUATION_SECONDS": "1",
    "QUEUECTL_UTILIZATION__SCRAPE_SECONDS": str(SCRAPE_SECONDS),
    "QUEUECTL_UTILIZATION__TIMEOUT_SECONDS": "5",
    # The recording rules of deploy/ span two minutes, but the demo evaluates gangs in seconds.
    "QUEUECTL_UTILIZATION__RECORDING_RULES": "off",
    "QUEUECTL_ACCOUNT_SECONDS": "1",
}
"""Settings of queuectl: evaluations and usage accounting every second, so that the reports of the demo are complete."""
INTRODUCTION: Final = """\
Two teams share 512 GPUs in 8 racks of 64 GPUs. The queue of team-a is StrictFIFO, the queue of team-b BestEffortFIFO.
busy-64 and idle-64 start first, and use most of team-b's quota. queuectl measures through Prometheus which of them is idle.
Then urgent-64 is submitted, and queuectl preempts the idle gang for it. too-wide-80 requires ten nodes in one rack of eight:
it stays pending, with a reason. Each of the other gangs starts with all its pods at once, and finishes.
"""


class SubmissionPhase(IntEnum):
    """When a gang is submitted."""

    FIRST = 1
    BURST = 2
    URGENT = 3


class Expected(IntEnum):
    """The expected outcome of a gang."""

    FINISHES = 1
    IS_PREEMPTED = 2  # once; then it runs again and finishes
    NEVER_FITS = 3


@dataclass(frozen=True, slots=True)
class Gang:
    """One job of the scenario. ``within``: the topology level of which it must be in one domain."""

    document: Document
    gpus: int
    phase: SubmissionPhase = SubmissionPhase.BURST
    expected: Expected = Expected.FINISHES
    within: str | None = None

    @property
    def namespace(self) -> str:
        return str(self.document["metadata"]["namespace"])

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])

    @property
    def ref(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def kind(self) -> str:
        return str(self.document["kind"])

    @property
    def priority_class(self) -> str:
        return str(self.document["metadata"]["labels"][keys.PREFIX + keys.PRIORITY_CLASS])


def configuration() -> list[Document]:
    """The configuration, as for `queuectl apply`."""
    documents = [
        topology("datacenter", BLOCK, RACK),
        flavor("h100", topology="datacenter", **{PRODUCT: NODES.product}),
        priority_class(BATCH, 100),
        priority_class(URGENT, 1000),
    ]
    for team, strategy in (("team-a", "StrictFIFO"), ("team-b", "BestEffortFIFO")):
        gpus = QUOTAS[team]
        memory = f"{gpus * _GIB_PER_GPU}Gi"
        quotas: dict[str, int | str] = {CPU: gpus * _CPU_PER_GPU, MEMORY: memory, GPU: gpus}
        documents.append(cluster_queue(team, "h100", quotas, strategy=strategy))
        documents.append(local_queue(team, QUEUE, team))
    return documents


def with_idle_reclaim(document: Document) -> Document:
    """A ClusterQueue with the policy :data:`_IDLE_RECLAIM`; another object unchanged.

    Only idle gangs are preempted. On a slow machine a sample can be too old when the urgent gang is submitted. It then waits for the next
    one.
    """
    if document["kind"] != "ClusterQueue":
        return document
    changed = {
        "preemption": {"withinClusterQueue": "Never"},
        "policy": {"idleReclaim": _IDLE_RECLAIM},
    }
    return document | {"spec": document["spec"] | changed}


def gangs() -> list[Gang]:
    """All gangs, in the order of submission."""
    return [*_first(), *_burst_of_team_a(), *_burst_of_team_b(), _urgent()]


def _first() -> Iterable[Gang]:
    for name, profile, expected in (
        ("busy-64", "busy=0.9", Expected.FINISHES),
        ("idle-64", "idle", Expected.IS_PREEMPTED),
    ):
        annotations = {TERMINATE_SECONDS: "2", PROFILE: profile}
        rack = replace(_pods(8, 8, required=RACK), annotations=annotations)
        yield _job(
            "team-b", name, rack, 20, phase=SubmissionPhase.FIRST, expected=expected, within=RACK
        )


def _burst_of_team_a() -> Iterable[Gang]:
    yield _pytorchjob("team-a", "two-shapes-33", _pods(1, 1), _pods(4, 8), 9)
    yield _job("team-a", "one-rack-32", _pods(8, 4, required=RACK), 8, within=RACK)
    yield _job("team-a", "train-128", _pods(16, 8, required=BLOCK), 9, within=BLOCK)
    yield _pytorchjob("team-a", "tune-48", _pods(1, 8), _pods(5, 8, preferred=RACK), 7)
    big = _pods(31, 8, preferred=BLOCK)
    yield _pytorchjob("team-a", "pretrain-256", _pods(1, 8, preferred=BLOCK), big, 9)
    yield _job("team-a", "train-64", _pods(8, 8, required=RACK), 8, within=RACK)
    yield _job("team-a", "eval-8", _pods(1, 8), 5)
    yield _job("team-a", "debug-1", _pods(1, 1), 4)


def _burst_of_team_b() -> Iterable[Gang]:
    yield _job("team-b", "sweep-4", _pods(4, 1), 6, indexed=False)
    yield _pytorchjob("team-b", "tune-16", _pods(1, 8), _pods(1, 8), 7)
    wide = _pods(10, 8, required=RACK)
    yield _job("team-b", "too-wide-80", wide, 5, expected=Expected.NEVER_FITS, within=RACK)
    yield _job("team-b", "eval-2", _pods(2, 1), 5)
    yield _pytorchjob("team-b", "tune-24", _pods(1, 8), _pods(2, 8), 6)


def _urgent() -> Gang:
    pods = _pods(8, 8, required=RACK)
    return _job(
        "team-b", "urgent-64", pods, 7, phase=SubmissionPhase.URGENT, within=RACK, priority=URGENT
    )


def _pods(
    count: int, gpus: int, *, required: str | None = None, preferred: str | None = None
) -> PodSetManifest:
    cpu, memory = str(gpus * _CPU_PER_GPU // 2), f"{gpus * _GIB_PER_GPU // 2}Gi"
    return PodSetManifest(count, gpus, cpu, memory, required, preferred)


def _job(
    team: str,
    name: str,
    pods: PodSetManifest,
    seconds: float,
    *,
    phase: SubmissionPhase = SubmissionPhase.BURST,
    expected: Expected = Expected.FINISHES,
    within: str | None = None,
    priority: str = BATCH,
    indexed: bool = True,
) -> Gang:
    document = job(
        name, team, QUEUE, pods, seconds=seconds, priority_class=priority, indexed=indexed
    )
    return Gang(document, pods.count * pods.gpus, phase, expected, within)


def _pytorchjob(
    team: str, name: str, master: PodSetManifest, worker: PodSetManifest, seconds: float
) -> Gang:
    document = pytorchjob(
        name, team, QUEUE, master=master, worker=worker, seconds=seconds, priority_class=BATCH
    )
    return Gang(document, master.count * master.gpus + worker.count * worker.gpus)


# ---- Manifests of jobs

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


# ---- Manifests of configuration


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
