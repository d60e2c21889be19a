"""The part of the matrix that depends on the kind: how to make a gang of some pods, and how to end it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from queuectl.demo.manifests import Document, Pods
from queuectl.domain.records import PodRecord
from tests.system.actions import finish
from tests.system.installation import Workspace

FEATURES: Final = {
    "admit": "It is created suspended and gated, waits for quota, and starts with all its pods.",
    "place": "All its pods are in one rack, as its annotation requires.",
    "preempt": "A gang of higher priority evicts it, and starts after its pods have ended.",
    "requeue": "It keeps its place in the queue after an eviction, and runs again as its second attempt.",
    "repair": "A pod that is lost takes its slot again, and a pod of a lost node moves. The other pods run on.",
    "ranks": "Its ranks are in the order of the racks.",
    "partial": "It starts with fewer pods, if its annotation permits that.",
    "elastic": "It starts with its least number of pods, grows, and loses its highest ranks to a gang of higher priority.",
    "finish": "Its end is recorded, and its GPUs are free for the next gang.",
}
"""Name and meaning. tests/kinds/test_matrix.py has a test for each."""

NO_PARTIAL: Final = "Only a Job can start with fewer pods."
NO_ELASTIC: Final = "Its operator passes a fixed number of pods to its program."
WITHOUT: Final = {"partial": NO_PARTIAL, "elastic": NO_ELASTIC}


_FAIL_AFTER: Final = "kwok.queuectl.dev/fail-after-seconds"


class Make(Protocol):
    """Makes an object, for the LocalQueue ``main``."""

    def __call__(
        self, name: str, namespace: str, pods: Pods, priority_class: str | None
    ) -> Document: ...


@dataclass(frozen=True)
class Entry:
    """A kind in the matrix.

    Attributes:
        kind: its name in KINDS.
        make: an object with so many pods in all, at least 4. Its podsets are in one topology group, if the pods require a level.
        operator: the operator that runs it, of ``queuectl.localcluster.operators``; "" = Kubernetes.
        deciding: the podset whose end is the end of the gang; "" = all podsets.
        outlives_deletion: it runs on after the deletion of one of its pods. Otherwise only the failure of a pod is repaired.
        end: what else ends the gang, after the pods of ``deciding`` have succeeded; None = nothing.
        unranked: podsets whose pods have no index.
        without: features that cannot be tested, with the reason as a sentence.
    """

    kind: str
    make: Make
    operator: str = ""
    deciding: str = ""
    outlives_deletion: bool = True
    end: Callable[[Workspace, str], None] | None = None
    unranked: tuple[str, ...] = ()
    without: Mapping[str, str] = field(default_factory=lambda: WITHOUT)

    def submit(
        self,
        workspace: Workspace,
        name: str,
        pods: int,
        *,
        priority: str | None = None,
        **shape: Any,
    ) -> Document:
        """Create a gang of so many pods with 8 GPUs each. Returns it as admission made it."""
        made = self.make(name, workspace.namespace, Pods(pods, gpus=8, **shape), priority)
        return workspace.submit(made)

    def runs(self, workspace: Workspace, name: str, pods: int) -> list[PodRecord]:
        """Wait until the gang runs, and until the recording has its pods, which it can have later than queuectl."""
        workspace.until_state(name, "Running")
        workspace.until_running(name, pods, lambda _: True, f"{pods} pods of {name} run")
        return workspace.running(name)

    def finish(self, workspace: Workspace, name: str) -> None:
        """Let the pods succeed whose end is the end of the gang."""
        for pod in workspace.running(name):
            if self.deciding in ("", pod.podset):
                finish(workspace, pod.name)
        if self.end is not None:
            self.end(workspace, name)

    def lose(self, workspace: Workspace, pod: PodRecord) -> None:
        """Lose a pod as its kind can bear it."""
        path = f"/api/v1/namespaces/{workspace.namespace}/pods/{pod.name}"
        if self.outlives_deletion:
            workspace.client.delete(path)
        else:
            workspace.client.patch(path, {"metadata": {"annotations": {_FAIL_AFTER: "0"}}})


def racks(pods: list[PodRecord]) -> list[str]:
    """The racks of the pods, in their order."""
    return [str(pod.node).rsplit("-", 1)[0] for pod in pods]
