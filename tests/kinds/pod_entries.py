"""Work of pods that queue themselves: the pods wait with their gate, and no object of theirs can be suspended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.objects import keys
from tests.kinds.entry import NO_PARTIAL, Entry, Gang, Make
from tests.support.leaderworkersets import leaderworkerset

NO_END: Final = "It runs until it is deleted."
ALONE: Final = "Each pod is a separate gang, with one place and no rank."
ONCE: Final = "After an eviction, the gang of a single pod has ended. A new pod is another gang."
SCALED_TO_ZERO: Final = (
    "The number of replicas of a StatefulSet in a queue changes only to 0 or from 0."
)
GROUPS: Final = "Each group is a gang: `spec.replicas` changes the number of gangs."
FIXED: Final = "The number of pods in a group is fixed."


def _meta(name: str, namespace: str, priority_class: str | None) -> Document:
    metadata: Document = m.job(
        name, namespace, "main", PodSetManifest(), priority_class=priority_class
    )["metadata"]
    return metadata


def _pods(
    name: str, namespace: str, pods: PodSetManifest, priority_class: str | None, *, group: bool
) -> Sequence[Document]:
    """Pods, each a gang. ``group``: they are one gang, and their indexes are their ranks."""
    made = []
    for index in range(pods.count):
        document = pods.template("main", None, restart="Never")
        metadata = _meta(f"{name}-{index}", namespace, priority_class)
        metadata["annotations"] |= document["metadata"]["annotations"]
        if group:
            prefixed = {keys.POD_GROUP: name, keys.POD_GROUP_INDEX: str(index)}
            metadata["labels"] |= {keys.PREFIX + key: value for key, value in prefixed.items()}
            metadata["annotations"][keys.PREFIX + keys.POD_GROUP_TOTAL] = str(pods.count)
        made.append({**document, "apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    return made


def single_pods(
    name: str, namespace: str, pods: PodSetManifest, priority_class: str | None
) -> Sequence[Document]:
    return _pods(name, namespace, pods, priority_class, group=False)


def pod_group(
    name: str, namespace: str, pods: PodSetManifest, priority_class: str | None
) -> Sequence[Document]:
    return _pods(name, namespace, pods, priority_class, group=True)


def app(kind: str, **spec: Any) -> Make:
    """A kind of ``apps/v1``."""

    def make(
        name: str, namespace: str, pods: PodSetManifest, priority_class: str | None
    ) -> Document:
        template = pods.template("main", None, restart="Always")
        template["metadata"]["labels"] = {"app": name}
        selected = {"selector": {"matchLabels": {"app": name}}, "template": template}
        return {
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": _meta(name, namespace, priority_class),
            "spec": {"replicas": pods.count, **selected, **spec},
        }

    return make


def array(name: str, namespace: str, pods: PodSetManifest, priority_class: str | None) -> Document:
    """After the loss of a pod, the Job controller waits 10 seconds, and with a limit for all indexes, twice that for each further pod."""
    document = m.job(name, namespace, "main", pods, priority_class=priority_class)
    document["metadata"]["annotations"][keys.PREFIX + keys.ARRAY] = "true"
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    del document["spec"]["backoffLimit"]
    document["spec"] |= {"backoffLimitPerIndex": 2, "podFailurePolicy": {"rules": [ignored]}}
    return document


def leader_workers(groups: int) -> Make:
    """A set of groups. A pod that is lost does not restart its group: tests/kinds/test_leaderworkersets.py has sets of the default."""

    def make(
        name: str, namespace: str, pods: PodSetManifest, priority_class: str | None
    ) -> Document:
        group = PodSetManifest(pods.count // groups, gpus=pods.gpus, required=pods.required)
        return leaderworkerset(
            name,
            namespace,
            group,
            replicas=groups,
            priority_class=priority_class,
            restartPolicy="None",
        )

    return make


def _indexes(gang: Gang) -> list[str]:
    return [f"{gang.name}_{index}" for index in range(gang.pods)]


def _named_pods(gang: Gang) -> list[str]:
    """Of the pods that exist, of which a controller can make more."""
    found = gang.workspace.pods(gang.name)
    return [pod.name for pod in found if not pod.terminating]


_OF_ONE: Final = dict.fromkeys(("place", "ranks", "partial", "elastic"), ALONE)

POD_ENTRIES: Final = (
    Entry(
        "array",
        array,
        gangs=_indexes,
        alone=True,
        without={**_OF_ONE, "repair": "The index of a lost pod queues again, as its next attempt."},
    ),
    Entry(
        "Pod",
        single_pods,
        gangs=lambda gang: [f"{gang.name}-{index}" for index in range(gang.pods)],
        alone=True,
        without={**_OF_ONE, "requeue": ONCE, "repair": ONCE},
    ),
    Entry("PodGroup", pod_group, without={"partial": NO_PARTIAL, "elastic": FIXED}),
    Entry(
        "Deployment",
        app("Deployment"),
        gangs=_named_pods,
        alone=True,
        without={**_OF_ONE, "requeue": ONCE, "repair": ONCE, "finish": NO_END},
    ),
    Entry(
        "StatefulSet",
        app("StatefulSet", serviceName="none", podManagementPolicy="Parallel"),
        without={"partial": NO_PARTIAL, "elastic": SCALED_TO_ZERO, "finish": NO_END},
    ),
    Entry(
        "LeaderWorkerSet",
        leader_workers(1),
        "lws",
        gangs=lambda gang: [f"{gang.name}-0"],
        without={"partial": NO_PARTIAL, "elastic": GROUPS, "finish": NO_END},
    ),
)
"""In an array, in single pods and in Deployments, each pod is a gang."""
