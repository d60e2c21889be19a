"""The operator of LeaderWorkerSets, as :mod:`tests.doubles.controllers` has those of jobs: it creates a group again that loses a pod."""

from __future__ import annotations

from typing import Final

from queuectl.objects.kinds.leaderworkerset import GROUP_LABEL, KIND, group_name, labels_of
from tests.doubles.admission import pod_born
from tests.doubles.apiserver import Document, Server

_ENDED: Final = ("Succeeded", "Failed")


def sync(server: Server, one: Document) -> None:
    """One pass for a set. The pods of a group are created at once, and after a loss all of them are deleted first."""
    wanted, size = one["spec"]["replicas"], one["spec"]["leaderWorkerTemplate"]["size"]
    groups: dict[int, list[Document]] = {group: [] for group in range(wanted)}
    for pod in server.owned(one["metadata"]["uid"]):
        groups.setdefault(int(pod["metadata"]["labels"][GROUP_LABEL]), []).append(pod)
    for group, pods in groups.items():
        if not pods:
            for index in range(size):
                server.create("pods", _pod(one, group, index))
        elif group >= wanted or len(pods) < size or any(map(_is_lost, pods)):
            for pod in pods:
                server.delete("pods", pod)


def _is_lost(pod: Document) -> bool:
    return "deletionTimestamp" in pod["metadata"] or pod["status"]["phase"] in _ENDED


def _pod(one: Document, group: int, index: int) -> Document:
    """The leader has index 0. Leader and workers have one template here."""
    meta = one["metadata"]
    template = one["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    leader = group_name(meta["name"], group)
    owner = {"kind": KIND, "name": meta["name"], "uid": meta["uid"], "controller": True}
    labels = template["metadata"].get("labels", {})
    return pod_born(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{leader}-{index}" if index else leader,
                "namespace": meta["namespace"],
                "labels": {**labels, **labels_of(meta["name"], group, index)},
                "annotations": dict(template["metadata"].get("annotations", {})),
                "ownerReferences": [owner],
            },
            "spec": template["spec"],
        }
    )
