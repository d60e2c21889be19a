"""A gang of the benchmark, independent of the system that starts it, and its Job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.localcluster.nodes import BLOCK, PRODUCT

LOCAL_QUEUE: Final = "gangs"
"""The LocalQueue in the namespace of each team."""
LOW, NORMAL, HIGH = "low", "normal", "high"
PRIORITIES: Final = {LOW: 0, NORMAL: 100, HIGH: 1000}


@dataclass(frozen=True, slots=True)
class Gang:
    """One batch/v1 Job whose pods are to start together.

    Attributes:
        team: its namespace, and its ClusterQueue.
        pods: their number.
        gpus: of each pod.
        product: the GPU that it selects; None = any.
        block: the block that it selects; None = any.
        required: node label of the topology level of which the pods must be in one domain.
        preferred: the same, if possible.
        seconds: run time of each pod; None = until it is deleted.
        priority: name of its WorkloadPriorityClass.
        queue: its LocalQueue.
    """

    name: str
    team: str
    pods: int
    gpus: int
    product: str | None = None
    block: str | None = None
    required: str | None = None
    preferred: str | None = None
    seconds: float | None = None
    priority: str = LOW
    queue: str = LOCAL_QUEUE

    @property
    def key(self) -> str:
        """``namespace/name`` of the Job."""
        return f"{self.team}/{self.name}"

    @property
    def all_gpus(self) -> int:
        """GPUs of all its pods."""
        return self.pods * self.gpus


def pods_of(gangs: Iterable[Gang]) -> int:
    """The pods of all gangs."""
    return sum(gang.pods for gang in gangs)


def gpus_of(gangs: Iterable[Gang]) -> int:
    """The GPUs of all gangs."""
    return sum(gang.all_gpus for gang in gangs)


def queued_job(gang: Gang) -> Document:
    """The Job with the labels and annotations of queuectl."""
    shape = PodSetManifest(
        gang.pods, gpus=gang.gpus, required=gang.required, preferred=gang.preferred
    )
    document = m.job(
        gang.name,
        gang.team,
        gang.queue,
        shape,
        seconds=gang.seconds,
        priority_class=gang.priority,
        retries=gang.pods,  # a pod of a lost node is replaced, and does not fail the Job
    )
    selected = {PRODUCT: gang.product, BLOCK: gang.block}
    if selector := {key: label for key, label in selected.items() if label is not None}:
        document["spec"]["template"]["spec"]["nodeSelector"] = selector
    return document


def plain_job(gang: Gang) -> Document:
    """The Job without a queue: kube-scheduler places pod by pod, wherever the selected GPUs are free."""
    document = queued_job(replace(gang, required=None, preferred=None))
    document["metadata"]["labels"] = {}
    return document
